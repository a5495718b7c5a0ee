"""Environments that follow a script, and a tiny real policy to play them with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.backends.base import Backend
from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.backend import TorchBackend
from assay.envs.base import Env, EnvGroupBuilder, StepResult, TokenizerCorpus
from assay.rollouts.renderers.base import PlainRenderer, Renderer
from assay.rollouts.runner import prepare, run_groups
from assay.types import Completion, Message, SamplingParams, Score, Task, Trajectory, TrajectoryGroup, Transition

CORPUS = TokenizerCorpus(["ab abc 12 123", "cab 321 abba"] * 4, r"[a-c]+|[0-9]+", "abc123 ")
Judge = Callable[[str, int, int], StepResult]
"""(answer, sample, turn) -> the env's answer; it may raise."""


def scored(value: float, *, done: bool = True, say: str = "", **metrics: float) -> StepResult:
    """A judged answer; `say` is what the policy is told next."""
    messages = (Message("user", say),) if say else ()
    return StepResult(Score("scored", value, parts={"value": value}), done, messages, metrics)


def share_of_a(text: str, sample: int, turn: int) -> StepResult:
    """A dense reward of any text: the share of the letter a."""
    return scored(text.count("a") / max(1, len(text)), length=float(len(text)))


@dataclass
class ScriptedEnv:
    """One rollout, judged by a function."""

    task: Task
    judge: Judge
    sample: int
    delay_s: float = 0.0
    turns: int = field(default=0, init=False)
    texts: list[str] = field(default_factory=list, init=False)

    async def reset(self) -> list[Message]:
        await asyncio.sleep(self.delay_s)
        return list(self.task.prompt)

    async def step(self, text: str) -> StepResult:
        await asyncio.sleep(self.delay_s)
        self.texts.append(text)
        self.turns += 1
        return self.judge(text, self.sample, self.turns - 1)


@dataclass
class ScriptedGroup:
    """The group of one prompt. `delays_s` are those of its envs, in turn."""

    task: Task
    judge: Judge = share_of_a
    delays_s: Sequence[float] = (0.0,)

    async def make(self, n: int) -> list[Env]:
        return [ScriptedEnv(self.task, self.judge, i, self.delays_s[i % len(self.delays_s)]) for i in range(n)]


@dataclass
class RankedGroup(ScriptedGroup):
    """A group that is scored as a whole, by `rank`."""

    rank: Callable[[Sequence[Trajectory]], list[Score]] = lambda trajectories: []

    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        return self.rank(trajectories)


def task(prompt: str, **payload: Any) -> Task:
    return Task("scripted", prompt, (Message("user", prompt),), payload)


def tiny_backend(seed: int = 0, context: int = 64, **local: Any) -> TorchBackend:
    """A real transformer with random weights and a tokenizer for `CORPUS`."""
    shape = ScratchModel(hidden_size=32, num_layers=1, context_length=context, vocab_size=40)
    return TorchBackend.create("scratch", 0, LocalBackend(device="cpu", **local), shape, CORPUS, seed)


def play(
    backend: Backend,
    builders: Sequence[EnvGroupBuilder],
    *,
    group_size: int = 4,
    max_turns: int = 1,
    max_tokens: int = 8,
    temperature: float = 1.0,
    seed: int = 0,
    renderer: Renderer | None = None,
    run_in: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
) -> list[TrajectoryGroup]:
    """Make the envs and play every rollout to its end; `run_in` is `virtual_time.play` where no thread takes part."""

    async def run() -> list[TrajectoryGroup]:
        return await run_groups(
            await prepare(builders, group_size),
            backend,
            renderer or PlainRenderer(backend.tokenizer),
            SamplingParams(max_tokens, temperature),
            max_turns=max_turns,
            seed=seed,
        )

    found: list[TrajectoryGroup] = run_in(run())
    return found


def trajectory(rewards: Sequence[float | None], problem: Task | None = None) -> Trajectory:
    """A rollout with made-up tokens whose turns earned `rewards`; None is a turn that could not be scored."""
    transitions = []
    tokens: tuple[int, ...] = (1, 2)
    for reward in rewards:
        completion = Completion((3, 4), (-0.5, -0.25), "stop", 0)
        score = Score("errored", None) if reward is None else Score("scored", reward)
        transitions.append(Transition(tokens, completion, "x", score))
        tokens = (*tokens, 3, 4, 5)
    return Trajectory(problem or task("a"), tuple(transitions), "errored" if None in rewards else "done", 0)


def group(*rewards: float | Sequence[float | None] | None) -> TrajectoryGroup:
    """A group of made-up rollouts: one reward each, or a list of them by turn."""
    turns = [r if isinstance(r, Sequence) else [r] for r in rewards]
    return TrajectoryGroup(task("a"), tuple(trajectory(r) for r in turns))
