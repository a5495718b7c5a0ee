"""The whole probe, point by point, on throw-away models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import tinker

from assay.backends.config import TinkerService
from assay.backends.tinker.probe.bench import Bench, new_bench
from assay.backends.tinker.probe.dialect import look_at_dialect
from assay.backends.tinker.probe.finding import Finding, judged, tried, wanting, wrong_for_all
from assay.backends.tinker.probe.sampling import look_at_gap, look_at_logprobs, look_at_samples
from assay.backends.tinker.probe.saving import look_at_samplers, look_at_states
from assay.backends.tinker.probe.training import LOSSES, look_at_custom, look_at_loss, look_at_sums
from assay.backends.tinker.service import Service
from assay.config.urls import without_secrets
from assay.errors import ModelError, ServiceError

POINTS = "abcdefghij"
"""a creation, b samples, c log-probabilities of prompts, d sampler and trainer, e sums, f losses by name, g custom
losses, h states, i samplers of new weights, j the session's end."""


async def probe(service: Service, model: str, rank: int, seed: int = 0, points: str = POINTS) -> list[Finding]:
    """Every finding about a server, in the order of the points; ends the session.

    Args:
        points: those that are looked at; f to i are measured by what e finds, which is then looked at, too.

    Raises:
        ServiceError: not even a model can be made, so nothing is known.
        ModelError: the server does not have the model.
    """
    await service.check_model(model)
    bench = await new_bench(service, model, rank, seed)
    found = [judged("a", "a model with adapters is made, with its tokenizer", True, f"{model}, rank {rank}", "")]
    found += await tried("a", "training requests are understood", partial(look_at_dialect, service))
    if wrong_for_all(found):
        points = "".join(point for point in points if point == "b")  # all others compare with the trainer
    if set(points) & set("bcd"):
        found += await _sampling(bench, points)
    if set(points) & set("efghi"):
        found += await _training(bench, points)
    return [*found, await _closing(service)]


async def probe_server(url: str, model: str | None, rank: int, settings: TinkerService) -> list[Finding]:
    """`probe` in a session of its own; without a model's name, on the first that the server has.

    Raises:
        ConfigError, ServiceError: as `Service.connect`.
        ModelError: the server has no models, or not this one.
    """
    service = await Service.connect(url, settings)
    try:
        models = sorted(await service.models())
        if model is None and not models:
            raise ModelError(f"The server at {without_secrets(service.url)} has no model that can be trained.")
        return await probe(service, models[0] if model is None else model, rank)
    finally:
        await service.close()


async def _sampling(bench: Bench, points: str) -> list[Finding]:
    found: list[Finding] = []

    async def begin() -> list[Finding]:
        sampler = await _sampler(bench)
        for point, name, look in (
            ("b", "samples", look_at_samples),
            ("c", "log-probabilities of prompts", look_at_logprobs),
            ("d", "sampler and trainer", look_at_gap),
        ):
            if point in points:
                found.extend(await tried(point, name, partial(look, bench, sampler)))
        return found

    return await tried("b", "a sampler is made", begin)


async def _training(bench: Bench, points: str) -> list[Finding]:
    """Points e to i. After a request that failed, the next point gets a new model."""
    old: list[tinker.SamplingClient] = []

    async def samplers() -> list[Finding]:
        old.append(await _sampler(bench))
        return await look_at_samplers(bench, old[0])

    looks: list[tuple[str, str, Callable[[], Awaitable[list[Finding]]], str]] = [
        ("e", "sums", partial(look_at_sums, bench), ""),
        *[
            ("f", loss.label, partial(look_at_loss, bench, loss), "" if loss.name == "cross_entropy" else loss.name)
            for loss in LOSSES
        ],
        ("g", "forward_backward_custom", partial(look_at_custom, bench), "custom"),
        ("h", "save and restore", partial(look_at_states, bench), ""),
        ("i", "samplers of new weights", samplers, ""),
    ]
    found: list[Finding] = []
    for point, name, look, feature in looks:
        if point not in points and point != "e":
            continue
        rows = await tried(point, name, look, feature=feature)
        found += rows
        if any(row.name == name for row in rows):  # the request failed
            bench.client = await bench.service.create(*bench.service_model)
        if point == "e" and bench.base <= 0:
            break  # no step is known to measure the others by
    return found


async def _closing(service: Service) -> Finding:
    try:
        await service.finish()
    except ServiceError as error:
        cure = "nothing trains wrongly, but sessions stay open on the server until they time out"
        return wanting("j", "a session is ended", False, str(error), cure)
    return wanting("j", "a session is ended", True, "clean", "")


async def _sampler(bench: Bench) -> tinker.SamplingClient:
    pending = bench.client.save_weights_and_get_sampling_client()
    return await bench.wait(pending, "weights for a sampler")  # type: ignore[no-any-return]
