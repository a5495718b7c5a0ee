"""Held-out evaluation: the same tasks with the same seeds every time, so that two policies can be compared in pairs.

The unit of the statistics is the task: samples of one task are averaged first, and intervals run over tasks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from assay.backends.base import Backend
from assay.backends.parity import sampled_datum
from assay.envs.base import EnvGroupBuilder
from assay.errors import TrainingError
from assay.grpo.parity import Gate, ParityConfig
from assay.grpo.rollout_metrics import rollout_metrics
from assay.rollouts.in_flight import InFlight
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.runner import PreparedGroup, prepare, run_groups
from assay.rollouts.seeds import derive
from assay.training.metrics.intervals import mean_ci95
from assay.types import SamplingParams, TrajectoryGroup

CHUNK = 100
"""Tasks that are played together: enough to fill a batch, few enough to show progress."""
PerTask = Mapping[str, Sequence[float]]
"""Metric name -> one mean over samples per task, in data set order; tasks that do not report it are left out."""


@dataclass(frozen=True)
class Evaluation:
    """Rollouts on the held-out tasks, and their metrics."""

    groups: Sequence[TrajectoryGroup]
    per_task: PerTask
    parity: dict[str, float]
    """How far sampler and trainer were apart on a probe of the sampled tokens (`eval/parity/...`)."""

    def metrics(self) -> dict[str, float]:
        """Named `eval/...`: everything `rollout_metrics` gives, and 95 % half-widths `eval/ci95/<metric>`."""
        metrics = {f"eval/{name}": value for name, value in rollout_metrics(self.groups).items()}
        for name, values in self.per_task.items():
            if len(values) > 1:
                metrics[f"eval/ci95/{name}"] = mean_ci95(values).half_width
        return metrics | cached_scores(self.groups, "eval/") | self.parity


def cached_scores(groups: Sequence[TrajectoryGroup], split: Literal["", "eval/"] = "") -> dict[str, float]:
    """`perf/<split>score_cached_fraction`: share of the turns whose verdict came from a cache; absent without turns."""
    cached = [turn.score.cached for group in groups for rollout in group.trajectories for turn in rollout.transitions]
    return {f"perf/{split}score_cached_fraction": float(np.mean(cached))} if cached else {}


async def evaluate(
    backend: Backend,
    renderer: Renderer,
    builders: Sequence[EnvGroupBuilder],
    params: SamplingParams,
    *,
    samples: int,
    max_turns: int,
    seed: int,
    parity: ParityConfig,
    advance: Callable[[int], None] | None = None,
) -> Evaluation:
    """Sample every task `samples` times with seeds that depend on `seed`, the task's place and the sample alone.

    While the last verdicts of one chunk are pending, the next one is sampled. `advance` is told how many tasks were
    just done. A probe of what was sampled (about `parity.tokens` tokens) is recomputed by the trainer.

    Raises:
        TrainingError: what was sampled is not the policy's: the scores would be another policy's.
    """

    async def chunk(prepared: Sequence[PreparedGroup], seed: int, sampled: Callable[[], None]) -> list[TrajectoryGroup]:
        found = await run_groups(prepared, backend, renderer, params, max_turns=max_turns, seed=seed, sampled=sampled)
        if advance is not None:
            advance(len(found))
        return found

    chunks: list[InFlight[list[TrajectoryGroup]]] = []
    try:
        for start in range(0, len(builders), CHUNK):
            prepared = await prepare(builders[start : start + CHUNK], samples)
            if len(chunks) > 1:
                await chunks[-2].result()
            chunks.append(InFlight(partial(chunk, prepared, derive(seed, "evaluation", start))))
            await chunks[-1].sampled()
        groups = [group for part in chunks for group in await part.result()]
    finally:
        await asyncio.gather(*(part.stop() for part in chunks))
    gate = Gate(backend, parity, params.temperature, of="evaluation")
    if gate.enabled:
        turns = [turn for group in groups for rollout in group.trajectories for turn in rollout.transitions]
        sampled = [sampled_datum(turn.prompt_tokens, turn.completion) for turn in turns]
        await gate.probe(sampled, "The answers of the evaluation")
    return Evaluation(groups, per_task_means(groups), gate.metrics("eval/"))


def check_errored(groups: Sequence[TrajectoryGroup], most: float, where: str) -> None:
    """Raise if more than the share `most` of the rollouts could not be scored; `where` names them in the message.

    Raises:
        TrainingError: as said.
    """
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    errored = [trajectory for trajectory in rollouts if trajectory.errored]
    if len(errored) <= most * len(rollouts):
        return
    reasons = Counter(trajectory.failure or "see the log" for trajectory in errored)
    reason, count = reasons.most_common(1)[0]
    reason, share = reason.rstrip("."), f" (this reason: {count})" if len(reasons) > 1 else ""
    if len(errored) == len(rollouts):
        raise TrainingError(
            f"{reason}. None of the {len(rollouts)} rollouts of {where} could be scored{share}. Fix the cause and run "
            "the same command again: the run goes on from its last checkpoint."
        )
    raise TrainingError(
        f"{len(errored)} of {len(rollouts)} rollouts of {where} could not be scored (max_errored_fraction={most:g}), "
        f"so the other scores cannot be trusted. Most frequent reason ({count}): {reason}. Fix the cause and run "
        "the same command again: the run goes on from its last checkpoint."
    )


def per_task_means(groups: Sequence[TrajectoryGroup]) -> PerTask:
    """Reward and env metrics of each task, averaged over its samples that could be scored."""
    columns: dict[str, list[float]] = {}
    for group in groups:
        values: dict[str, list[float]] = {}
        for trajectory in group.trajectories:
            if trajectory.reward is None:
                continue
            reported = dict(trajectory.transitions[-1].metrics) | {"reward": trajectory.reward}
            for name, value in reported.items():
                values.setdefault(name, []).append(value)
        for name, samples in values.items():
            columns.setdefault(name, []).append(float(np.mean(samples)))
    return columns
