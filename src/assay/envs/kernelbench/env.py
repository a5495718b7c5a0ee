"""The kernel environment: a reply is read, its kernel graded by the grader, and its verdict scored.

With several turns, each later prompt is written anew from the attempts so far (`feedback`), so that each turn is its
own training sequence. Grades that fail make a rollout errored; they never make it 0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from assay.envs.base import Counters, Env, StepResult
from assay.envs.kernelbench.feedback import Attempt, FeedbackConfig, category_of, later_prompt
from assay.envs.kernelbench.reply import KernelReply, read_reply
from assay.envs.kernelbench.rewards import (
    RewardRules,
    evaluation,
    is_compiled,
    is_unjudged,
    rewardable_speedup,
    score_of,
    signals_of,
    unjudged,
)
from assay.kernels.pool import GradingPool
from assay.kernels.problems.sources import Problem
from assay.kernels.verdicts import Verdict
from assay.types import Json, Message, Task


@dataclass(frozen=True)
class Course:
    """How a rollout goes on after an answer."""

    max_turns: int = 1
    early_stop_on_correct: bool = True
    speedup_threshold: float | None = None
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    thinks: bool = True
    """Whether prompts ask for a thought."""

    def success(self, verdict: Verdict | None) -> bool:
        """Whether a kernel is as good as is asked for: right, and as fast as `speedup_threshold`."""
        if verdict is None or not verdict.ok:
            return False
        return self.speedup_threshold is None or (rewardable_speedup(verdict) or 0.0) >= self.speedup_threshold

    def ends(self, verdict: Verdict | None, turns: int) -> bool:
        """Whether a rollout ends after so many turns, the last one with this verdict."""
        return turns >= self.max_turns or (self.early_stop_on_correct and self.success(verdict))


@dataclass
class Waits:
    """How long something took each time, since it was last asked. Seconds."""

    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Take in one time."""
        self.count += 1
        self.sum_s += seconds
        self.max_s = max(self.max_s, seconds)

    def take(self, name: str) -> dict[str, float]:
        """Mean and longest under names that begin so, none where there was nothing; then start anew."""
        found = {f"{name}_mean_s": self.sum_s / self.count, f"{name}_max_s": self.max_s} if self.count else {}
        self.count, self.sum_s, self.max_s = 0, 0.0, 0.0
        return found


@dataclass(frozen=True)
class KernelShop:
    """What the envs of a run share: the grader, the rewards, how rollouts go on, and how long that takes."""

    pool: GradingPool
    rules: RewardRules
    course: Course
    grades: Waits = field(default_factory=Waits)
    at_modal: Waits = field(default_factory=Waits)
    """Grades at Modal, those from the cache left out."""
    references: Waits = field(default_factory=Waits)
    """Until a problem could be graded."""
    turns: Waits = field(default_factory=Waits)

    async def grade(self, problem: Problem, code: str) -> Verdict:
        """The verdict on a kernel."""
        began = time.monotonic()
        verdict = await self.pool.grade(problem, code)
        took = time.monotonic() - began
        self.grades.add(took)
        if self.pool.config.run_on == "modal" and not verdict.cached:
            self.at_modal.add(took)
        return verdict

    def prepare(self, problem: Problem) -> None:
        """Begin to make a problem ready for its kernels."""
        self.pool.prepare([problem], self.references.add)

    def counters(self) -> Counters:
        """What the grader has done, and how long verdicts and turns took since the last call."""
        waits = {"grade": self.grades, "modal": self.at_modal, "reference": self.references, "turn": self.turns}
        took = {name: value for what, each in waits.items() for name, value in each.take(what).items()}
        totals = {f"grader/{name}": value for name, value in self.pool.counters().items()}
        return Counters(totals, {f"grader/{name}": value for name, value in took.items()})


@dataclass
class KernelEnv:
    """One rollout of a kernel problem."""

    task: Task
    problem: Problem
    shop: KernelShop
    whole_replies: bool = field(default=True, init=False)
    """The reward reads thoughts too. See `assay.envs.Env`."""
    attempts: list[Attempt] = field(default_factory=list, init=False)
    scores: list[float] = field(default_factory=list, init=False)

    async def reset(self) -> list[Message]:
        """The task's prompt."""
        return list(self.task.prompt)

    async def step(self, text: str) -> StepResult:
        """Grade the kernel of a reply, and say what the next prompt is while turns are left."""
        began = time.monotonic()
        result = await self._step(text)
        self.shop.turns.add(time.monotonic() - began)
        return result

    async def _step(self, text: str) -> StepResult:
        reply = read_reply(text)
        verdict = await self.shop.grade(self.problem, reply.kernel) if reply.format_ok else None
        self.attempts.append(Attempt(reply.kernel, reply.thought, verdict, reply.message))
        course, turns = self.shop.course, len(self.attempts)
        done = course.ends(verdict, turns)
        if verdict is not None and is_unjudged(verdict, self.shop.rules.shapes):
            return StepResult(unjudged(verdict, self.problem.key, self._evidence(reply, verdict, True)), done=True)
        signals = signals_of(verdict, code=reply.kernel, thought=reply.thought)
        score = score_of(signals, self.shop.rules, cached=verdict is not None and verdict.cached)
        assert score.value is not None, "a judged answer has a value"
        self.scores.append(score.value)
        told = replace(score, evidence=self._evidence(reply, verdict, done))
        metrics = metrics_of(reply, verdict, success=course.success(verdict))
        if done:
            return StepResult(told, done=True, metrics=metrics)
        following = later_prompt(
            self.task.prompt,
            self.attempts,
            most=course.max_turns,
            thinks=course.thinks,
            config=course.feedback,
            wanted_speedup=course.speedup_threshold,
        )
        return StepResult(told, done=False, messages=following, metrics=metrics, replace=True)

    def _evidence(self, reply: KernelReply, verdict: Verdict | None, done: bool) -> dict[str, Json]:
        """What the verdict rests on, as traces and pages show it."""
        course = self.shop.course
        return {
            "problem": self.problem.key,
            "category": category_of(self.attempts[-1], course.speedup_threshold),
            "kernel": reply.kernel,
            "eval_result": evaluation(verdict, reply.kernel, reply.message),
            "state": {
                "turn_idx": len(self.attempts) - 1,
                "max_turns": course.max_turns,
                "done": done,
                "success": course.success(verdict),
                "step_scores": list(self.scores),
            },
        }


def metrics_of(reply: KernelReply, verdict: Verdict | None, *, success: bool) -> dict[str, float]:
    """The metrics of a turn. The speedup is there only where it was measured."""
    found = {
        "format": float(reply.format_ok),
        "compiled": float(verdict is not None and is_compiled(verdict)),
        "correct": float(verdict is not None and verdict.ok),
        "cheat": float(verdict is not None and verdict.kind == "cheat"),
        "success": float(success),
        "code_characters": float(len(reply.kernel)),
        "thought_characters": float(len(reply.thought)),
    }
    speedup = rewardable_speedup(verdict) if verdict is not None else None
    return found if speedup is None else {**found, "speedup": speedup}


@dataclass
class KernelGroupBuilder:
    """Makes the envs of one problem; the grader makes the problem ready meanwhile."""

    task: Task
    problem: Problem
    shop: KernelShop = field(repr=False)

    async def make(self, n: int) -> list[Env]:
        """`n` fresh envs."""
        self.shop.prepare(self.problem)
        return [KernelEnv(self.task, self.problem, self.shop) for _ in range(n)]


def payload_of(problem: Problem, settings: Mapping[str, Json]) -> dict[str, Json]:
    """What a task says of its problem: what it is, and how it was posed."""
    return {
        "level": problem.level,
        "problem_id": problem.id,
        "name": problem.name,
        "hash": problem.hash,
        **settings,
    }
