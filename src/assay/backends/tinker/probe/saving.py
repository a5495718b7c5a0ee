"""Points h and i: whether states come back whole, and samplers have the weights that they should have."""

from __future__ import annotations

import secrets

import numpy as np
import tinker

from assay.backends.tinker.probe.bench import Bench
from assay.backends.tinker.probe.finding import Finding, judged, wanting
from assay.backends.tinker.probe.sampling import sampler_gap
from assay.errors import ServiceError
from assay.types import FloatArray

BETA = 0.9
HISTORY = 3.0
"""Weight of the steps before the state is saved: an optimizer that forgets them steps a third as far."""
SAME = 0.1
"""Share by which the next step of a restored model may differ."""
SAME_LOGPROBS = 0.05
"""Nats by which a restored model may differ."""
WEIGHTS_ONLY = "load_checkpoint_path"
"""The setting of runs that begin with weights of another."""
TTL_S = 3600
"""After which the server may forget what the probe saved."""


async def look_at_states(bench: Bench) -> list[Finding]:
    """Point h: save_state, and a new model from it, with and without the optimizer."""
    bench.client = await bench.service.create(*bench.service_model)  # whose optimizer remembers what follows alone
    for _ in range(2):
        await bench.wait(bench.ascent(HISTORY)(bench.client), "forward_backward")
        await bench.step(bench.rate / HISTORY, BETA, BETA)
    name = f"assay-probe-{secrets.token_hex(4)}"
    saved = await bench.wait(bench.client.save_state(name, ttl_seconds=TTL_S), "save_state")
    at_save = await bench.forward()
    went_on = await _momentum(bench)
    rank = bench.service_model[1]
    whole = await _restored(bench, saved.path, rank, optimizer=True)
    gap = float(np.abs(await whole.forward() - at_save).max())
    same = await _momentum(whole)
    bare = await _restored(bench, saved.path, rank, optimizer=False)
    fresh = await _momentum(bare)
    off = abs(same - went_on) / max(abs(went_on), 1e-9)
    return [
        judged(
            "h",
            "a restored model has the saved weights",
            gap <= SAME_LOGPROBS,
            f"its log-probabilities differ by {gap:.2g} nats at most",
            "do not resume here; report it to whoever keeps the server",
            figure=gap,
        ),
        judged(
            "h",
            "a restored optimizer takes the same next step",
            off <= SAME,
            f"the next step lifts the sequence by {same:.3g} nats, and without the restore by {went_on:.3g} (with a "
            f"fresh optimizer {fresh:.3g})",
            "a resumed run would train another policy; the server must save and load the optimizer's state",
            figure=off,
        ),
        judged(
            "h",
            "a model from a state without its optimizer has a new one",
            abs(fresh - went_on) > abs(went_on) / 4,
            f"its next step lifts the sequence by {fresh:.3g} nats, and with the old optimizer by {went_on:.3g}",
            "a run from another's weights would begin with the memory of that run; start from an exported model",
            figure=fresh,
            feature=WEIGHTS_ONLY,
        ),
    ]


async def _restored(bench: Bench, path: str, rank: int, *, optimizer: bool) -> Bench:
    client = await bench.service.restore(path, rank, optimizer=optimizer)
    again = Bench(bench.service, client, bench.tokens)
    again.rate, again.service_model = bench.rate, bench.service_model
    return again


async def _momentum(bench: Bench) -> float:
    """The effect of a step on a gradient of weight 1, with the memory of the steps before it."""
    before = float((await bench.forward()).sum())
    await bench.wait(bench.ascent(1.0)(bench.client), "forward_backward")
    await bench.step(bench.rate / HISTORY, BETA, BETA)
    return float((await bench.forward()).sum()) - before


async def look_at_samplers(bench: Bench, old: tinker.SamplingClient) -> list[Finding]:
    """Point i: a sampler made after a step has the new weights, and an older one keeps its own."""
    settings = bench.settings
    values = await bench.wait(old.compute_logprobs(_tokens(bench)), "compute_logprobs")
    for _ in range(3):
        await bench.effect(bench.ascent(1.0))
    now = await bench.forward()
    fresh = await bench.wait(bench.client.save_weights_and_get_sampling_client(), "weights for a sampler")
    name = f"assay-probe-{secrets.token_hex(4)}"
    asked = bench.client.save_weights_for_sampler(name, ttl_seconds=TTL_S)
    named = (await bench.service.wait(asked, "save_weights_for_sampler", settings.train_timeout_s)).path
    kept = await bench.service.sampler(path=named)
    moved = await sampler_gap(bench, old, now)
    gaps = {"made at once": await sampler_gap(bench, fresh, now), "made by name": await sampler_gap(bench, kept, now)}
    again = await bench.wait(old.compute_logprobs(_tokens(bench)), "compute_logprobs")
    drift = max(abs(a - b) for a, b in zip(values[1:], again[1:], strict=True))
    limit = max(0.02, moved / 4)
    rows = [
        judged(
            "i",
            f"a sampler {how} has the new weights",
            gap <= limit,
            f"{gap:.2g} nats from the trainer at most, where the old weights are {moved:.2g} off",
            "rollouts would come from an older policy than the one trained; do not train here",
            figure=gap,
        )
        for how, gap in gaps.items()
    ]
    return [
        *rows,
        judged(
            "i",
            "an older sampler keeps its weights",
            drift <= limit,
            f"it moved by {drift:.2g} nats at most while the policy was trained",
            "completions under way would change policy half way; do not train here",
            figure=drift,
        ),
        await _base(bench, now),
    ]


async def _base(bench: Bench, trained: FloatArray) -> Finding:
    """Whether a sampler of the base model has its weights, and not those that were trained."""
    name, model = "a sampler of the base model has its weights", bench.service_model[0]
    cure = "sample the base model from a saved sampler of an untrained adapter; runs of Assay do not use this sampler"
    try:
        sampler = await bench.service.sampler(model=model)
        new = await bench.service.create(*bench.service_model)  # whose adapters change nothing yet
        base = await Bench(bench.service, new, bench.tokens).forward()
        gap = await sampler_gap(bench, sampler, base)
    except ServiceError as error:
        return wanting("i", name, False, str(error), cure)
    moved = float(np.abs(trained - base).max())
    found = f"{gap:.2g} nats off at most, where the trained weights are {moved:.2g} off"
    return wanting("i", name, gap <= max(0.02, moved / 4), found, cure, figure=gap)


def _tokens(bench: Bench) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(bench.tokens)
