"""What is done once for each rollout, before the first optimizer step on it: advantages, checks, log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from assay.backends.base import Backend
from assay.grpo.buffer import BufferedGroup
from assay.grpo.config import GRPOConfig
from assay.grpo.correction import importance_weights
from assay.grpo.group_data import advantages_of, flat, group_data, with_data
from assay.grpo.parity import Gate
from assay.grpo.step_metrics import mismatch, trained_logprobs
from assay.types import FloatArray, TrajectoryGroup


async def admit(
    backend: Backend, config: GRPOConfig, groups: Sequence[TrajectoryGroup], gate: Gate, *, behaviour_known: bool = True
) -> tuple[list[BufferedGroup], dict[str, float], dict[str, float]]:
    """The data of each group that counts, with everything that is computed once per rollout; its metrics; and the
    seconds that returns and data took (`perf/...`).

    Each item's `id` is its group's place among `groups`.

    Raises:
        TrainingError: with `tis_cap`, which recomputes all log-probabilities: `gate` refuses them.
    """
    began = time.monotonic()
    advantages = [advantages_of(group, config) for group in groups]
    known = time.monotonic()
    found = [(place, group_data(group, advantages[place], config)) for place, group in enumerate(groups)]
    seconds = {"perf/returns_s": known - began, "perf/assemble_s": time.monotonic() - known}
    items = [replace(item, id=place) for place, item in found if item is not None]
    metrics: dict[str, float] = {}
    if not behaviour_known:
        items = await behaviour_from_policy(backend, config, items)
    elif config.tis_cap:
        items, metrics = await _corrected(backend, config, items, gate)
    return await with_reference(backend, config, items), metrics, seconds


async def behaviour_from_policy(
    backend: Backend, config: GRPOConfig, items: list[BufferedGroup]
) -> list[BufferedGroup]:
    """The data with the present policy's log-probabilities in place of unknown ones of the policy that sampled."""
    logprobs = await _logprobs(backend, config, items)
    return with_data(items, [replace(d, logprobs=x) for d, x in zip(flat(items), logprobs, strict=True)])


async def _corrected(
    backend: Backend, config: GRPOConfig, items: list[BufferedGroup], gate: Gate
) -> tuple[list[BufferedGroup], dict[str, float]]:
    """The items with the trainer's log-probabilities, and weights for their difference from the sampler's."""
    if not flat(items):
        return items, {}
    data, logprobs = flat(items), await _logprobs(backend, config, items)
    metrics: dict[str, float] = {}
    fresh = [d for item in items for d in [item.policy_version == backend.policy_version] * len(item.data)]
    pairs = [(d, x) for d, x, f in zip(data, logprobs, fresh, strict=True) if f]
    if pairs:
        sampled, now = [d for d, _ in pairs], [x for _, x in pairs]
        gate.judge(sampled, now, "The rollouts of this step")
        metrics = mismatch(*trained_logprobs(sampled, now))
    corrected, mean = importance_weights(data, logprobs, config.tis_cap)
    return with_data(items, corrected), metrics | {"tis_weight": mean}


async def with_reference(backend: Backend, config: GRPOConfig, items: list[BufferedGroup]) -> list[BufferedGroup]:
    """Reference log-probabilities for the data that have none, where there is a penalty."""
    if not config.kl_coef:
        return items
    data = flat(items)
    missing = [i for i, d in enumerate(data) if d.ref_logprobs is None]
    if missing:
        found = await backend.logprobs([data[i] for i in missing], temperature=config.temperature, reference=True)
        for i, logprobs in zip(missing, found, strict=True):
            data[i] = replace(data[i], ref_logprobs=logprobs)
    return with_data(items, data)


async def _logprobs(backend: Backend, config: GRPOConfig, items: Sequence[BufferedGroup]) -> list[FloatArray]:
    return await backend.logprobs(flat(items), temperature=config.temperature)
