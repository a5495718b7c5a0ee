"""The monitor environment: one answer, scored by `MonitorReward`; a monitor's failure makes the score `errored`.

All envs of a run share one reward engine, so that its limits, its cache and its bill are the run's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from assay.envs.base import Counters, Env, StepResult
from assay.envs.judged import EngineScorer
from assay.envs.monitor.answers import parse_answer
from assay.envs.monitor.rewards import LATENT, MonitorReward, metrics_of
from assay.rewards import Sample
from assay.types import Message, Score, Task


@dataclass
class Scorer:
    """What the envs of a run share: the reward, and the engine that asks the monitor (None where none is asked)."""

    reward: MonitorReward
    engine: EngineScorer | None

    async def score(self, sample: Sample) -> Score:
        """The score of one answer; errored if there is none, also if the judge refuses every call."""
        return self.reward.score(sample, []) if self.engine is None else await self.engine.score(sample)

    def counters(self) -> Counters:
        """What the engine has done."""
        return Counters() if self.engine is None else self.engine.counters()

    async def close(self) -> None:
        """Stop the engine; safe to call twice."""
        if self.engine is not None:
            await self.engine.close()


@dataclass
class MonitorEnv:
    """One rollout of a monitor task."""

    task: Task
    scorer: Scorer

    async def reset(self) -> list[Message]:
        """The task's prompt."""
        return list(self.task.prompt)

    async def step(self, text: str) -> StepResult:
        """Score the answer."""
        score = await self.scorer.score(sample_of(self.task, text))
        return StepResult(score, done=True, metrics=metrics_of(score, parse_answer(text)))


@dataclass
class MonitorGroupBuilder:
    """Makes the envs of one task."""

    task: Task
    scorer: Scorer = field(repr=False)

    async def make(self, n: int) -> list[Env]:
        """`n` fresh envs."""
        return [MonitorEnv(self.task, self.scorer) for _ in range(n)]


def sample_of(task: Task, text: str) -> Sample:
    """An answer to a task, as rewards take it."""
    payload = task.payload
    return Sample(
        response=text,
        ground_truth=payload["measurements"],
        data_source=payload["dataset_name"],
        prompt=task.prompt,
        extra={LATENT: payload[LATENT]},
    )
