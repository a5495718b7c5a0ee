"""How much of a step's sampling and scoring overlaps, beside a runner that scores after everything is sampled.

    python benchmarks/overlap.py [--seeds 5] [--only scripted,local_light,local_heavy] [--quick]
    python benchmarks/overlap.py --env kernels [--seeds 3] [--quick]

`--env kernels` grades real kernels: `common/kernel_overlap.py` says how. The rest of this text is about the other one.

A task of four turns whose every verdict takes 0.2 to 2 s at random (a sleep drawn from the sample and the turn;
verdicts do not compete with each other), 64 rollouts, played on

- scripted: a hosted model as Assay sees it. Batch invariant; each completion takes 0.1 to 0.6 s, drawn from its seed,
  whatever else is asked.
- local_light: `TorchBackend` with a tiny model from scratch on one CPU thread. Verdicts take longer than sampling, so
  the setting is cohorts of one rollout (`local.cohort_tokens`).
- local_heavy: the same with a larger model and longer turns, so that sampling takes longer than the verdicts; cohorts
  of eight rollouts.

A step here is what comes before the update: every rollout sampled and scored. Its wall time is divided by that of its
longest stage, the larger of two times below which no schedule can come:

- the longest chain: over the rollouts, the largest sum of a rollout's own verdict waits and of its own sampling. On the
  scripted backend the latter is what its completions take; on the local one, what its tokens take when it is sampled
  alone on an idle device.
- the device's busy time (local): what sampling all turns takes by itself, with verdicts that take no time, in the
  largest batches there can be. Smaller batches of cohorts, and waits of the device, count against us.

`scoring_s` is the longest sum of verdict waits alone. The baseline arm is the former runner, kept below: all rollouts
of a turn in one `sample` call, then all verdicts. Both arms get the same seeds, alternate in order, and must give the
same rewards. Each seed is one pair; ratios are medians over seeds, with the lowest and highest, and the local figure is
that of the worse setting. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from assay.backends.base import Backend, Capabilities
from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.backend import TorchBackend
from assay.envs.base import Env, StepResult, TokenizerCorpus
from assay.rollouts.renderers.base import PlainRenderer, Renderer
from assay.rollouts.runner import PreparedGroup, prepare, run_groups
from assay.rollouts.seeds import derive, turn_seed
from assay.types import Completion, Message, SamplingParams, Score, Task, TrajectoryGroup
from common import Summary, kernel_overlap, machine, summary

GROUPS, GROUP = 8, 8
TURNS = 4
VERDICT_S = (0.2, 2.0)
LATENCY_S = (0.1, 0.6)
LETTERS = "abcdefgh"
Runner = Callable[..., Awaitable[list[TrajectoryGroup]]]


def drawn(low: float, high: float, *names: int | str) -> float:
    """A number between `low` and `high` that depends on the names alone."""
    return low + (high - low) * derive(*names) / 2**64


# The task


@dataclass
class SlowEnv:
    """Rewards the share of the letter a, after a wait, and asks again until the last turn."""

    task: Task
    waits_s: Sequence[float]
    turn: int = 0

    async def reset(self) -> list[Message]:
        return list(self.task.prompt)

    async def step(self, text: str) -> StepResult:
        await asyncio.sleep(self.waits_s[self.turn])
        self.turn += 1
        score = Score("scored", text.count("a") / max(1, len(text)))
        return StepResult(score, done=self.turn == TURNS, messages=(Message("user", "gh"),))


@dataclass
class SlowGroup:
    """The rollouts of one prompt; `scale` 0 gives verdicts at once."""

    task: Task
    seed: int
    group: int
    scale: float = 1.0

    def waits_s(self, sample: int) -> list[float]:
        """How long the verdicts of one rollout take."""
        return [self.scale * drawn(*VERDICT_S, "verdict", self.seed, self.group, sample, t) for t in range(TURNS)]

    async def make(self, n: int) -> list[Env]:
        return [SlowEnv(self.task, self.waits_s(sample)) for sample in range(n)]


def slow_groups(seed: int, scale: float = 1.0) -> list[SlowGroup]:
    """The groups of a step."""
    prompts = ["".join(LETTERS[derive("prompt", g, i) % 8] for i in range(12)) for g in range(GROUPS)]
    return [SlowGroup(Task("slow", p, (Message("user", p),)), seed, g, scale) for g, p in enumerate(prompts)]


# The former runner


@dataclass
class Rollout:
    """One rollout in progress."""

    group: int
    sample: int
    env: Any
    tokens: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    done: bool = False


async def barrier(
    groups: Sequence[PreparedGroup], backend: Backend, renderer: Renderer, params: SamplingParams, seed: int
) -> list[list[float]]:
    """Sample all rollouts of a turn, then score all of them, turn by turn; the rewards of each rollout."""
    params = replace(params, stop=(*params.stop, *renderer.stop))
    rollouts = [Rollout(g, s, env) for g, group in enumerate(groups) for s, env in enumerate(group.envs)]

    async def begin(rollout: Rollout) -> None:
        rollout.tokens = renderer.start(await rollout.env.reset())

    async def turn(rollout: Rollout, completion: Completion) -> None:
        result = await rollout.env.step(renderer.text(completion.tokens))
        rollout.rewards.append(result.score.value)
        rollout.done = result.done
        told = renderer.extend(result.messages, stopped=completion.stop_reason == "stop")
        rollout.tokens = [*rollout.tokens, *completion.tokens, *told]

    await asyncio.gather(*(begin(rollout) for rollout in rollouts))
    for index in range(TURNS):
        active = [rollout for rollout in rollouts if not rollout.done]
        seeds = [turn_seed((seed, rollout.group, rollout.sample), index) for rollout in active]
        completions = await backend.sample([rollout.tokens for rollout in active], params, seeds)
        await asyncio.gather(*(turn(r, c) for r, c in zip(active, completions, strict=True)))
    return [rollout.rewards for rollout in rollouts]


# The backends


class Hosted(Backend):
    """Completions that are hashes of prompt and seed, each after its own latency."""

    def __init__(self) -> None:
        none: frozenset[str] = frozenset()
        self.capabilities = Capabilities(none, none, False, False, False, batch_invariant=True)
        self.tokenizer: Any = LetterTokens()
        self.policy_version, self.context_length, self.vocab_size = 0, 10_000, len(LETTERS) + 1

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        began = asyncio.get_running_loop().time()
        for wait, place in sorted((self.latency_s(seed), place) for place, seed in enumerate(seeds)):
            await asyncio.sleep(began + wait - asyncio.get_running_loop().time())
            bits = derive(*prompts[place], seeds[place])
            tokens = tuple(1 + (bits >> 3 * i) % 8 for i in range(params.max_tokens))
            yield place, Completion(tokens, (-2.0,) * len(tokens), "length", 0)

    @staticmethod
    def latency_s(seed: int) -> float:
        """What the completion of a seed takes."""
        return drawn(*LATENCY_S, "latency", seed)


class LetterTokens:
    """A token per letter; 0 ends a text."""

    eos_token_id: int | None = 0

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [1 + LETTERS.index(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(LETTERS[token - 1] for token in token_ids if token)


@dataclass(frozen=True)
class Setting:
    """A model on this machine, and how long its turns are."""

    hidden_size: int
    num_layers: int
    max_tokens: int
    cohort: int
    """Rollouts of a cohort."""

    def backend(self) -> TorchBackend:
        """The model with random weights."""
        corpus = TokenizerCorpus([LETTERS] * 4, ".", LETTERS)
        shape = ScratchModel(
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            context_length=(TURNS + 1) * (self.max_tokens + 16),
            vocab_size=40,
        )
        local = LocalBackend(device="cpu", cohort_tokens=self.cohort * self.max_tokens)
        return TorchBackend.create("scratch", 0, local, shape, corpus, seed=0)


LOCAL = {"local_light": Setting(64, 2, 32, cohort=1), "local_heavy": Setting(256, 4, 256, cohort=8)}


# The measurement


@dataclass(frozen=True)
class Step:
    """One step of one arm."""

    wall_s: float
    rewards: list[list[float]]
    groups: list[TrajectoryGroup]


class Side:
    """A backend with both runners over it."""

    def __init__(self, backend: Backend, max_tokens: int) -> None:
        self.backend = backend
        self.renderer = PlainRenderer(backend.tokenizer)
        self.params = SamplingParams(max_tokens)

    async def streaming(self, seed: int, scale: float = 1.0) -> Step:
        """Assay's runner."""
        prepared = await prepare(slow_groups(seed, scale), GROUP)
        began = time.perf_counter()
        groups = await run_groups(prepared, self.backend, self.renderer, self.params, max_turns=TURNS, seed=seed)
        wall_s = time.perf_counter() - began
        rollouts = [t for group in groups for t in group.trajectories]
        return Step(wall_s, [[turn.score.value or 0.0 for turn in t.transitions] for t in rollouts], groups)

    async def with_barrier(self, seed: int, scale: float = 1.0) -> Step:
        """The former runner."""
        prepared = await prepare(slow_groups(seed, scale), GROUP)
        began = time.perf_counter()
        rewards = await barrier(prepared, self.backend, self.renderer, self.params, seed)
        return Step(time.perf_counter() - began, rewards, [])

    async def sampling_s(self, seed: int) -> float:
        """The device's busy time: all turns, in the largest batches, with verdicts that take no time."""
        return (await self.with_barrier(seed, scale=0.0)).wall_s

    async def token_s(self) -> float:
        """What a token takes when one rollout is sampled alone: the quickest of a few."""
        prompt = self.renderer.start(slow_groups(0)[0].task.prompt)
        seconds = []
        for seed in range(5):
            began = time.perf_counter()
            (completion,) = await self.backend.sample([prompt], self.params, [seed])
            seconds.append((time.perf_counter() - began) / len(completion.tokens))
        return min(seconds)


def chains(seed: int, own_sampling_s: Callable[[int, int], float]) -> tuple[float, float]:
    """The longest chain of one rollout, and the longest sum of verdict waits alone."""
    waits = {(g.group, s): sum(g.waits_s(s)) for g in slow_groups(seed) for s in range(GROUP)}
    return max(wait + own_sampling_s(*place) for place, wait in waits.items()), max(waits.values())


async def pair(side: Side, seed: int) -> tuple[Step, Step]:
    """A step of each arm; which comes first changes with the seed."""
    if seed % 2:
        return await side.streaming(seed), await side.with_barrier(seed)
    theirs = await side.with_barrier(seed)
    return await side.streaming(seed), theirs


async def measure_scripted(side: Side, seed: int) -> dict[str, Any]:
    """One pair of steps."""
    chain, scoring = chains(
        seed, lambda g, s: sum(Hosted.latency_s(turn_seed((seed, g, s), turn)) for turn in range(TURNS))
    )
    return row(*await pair(side, seed), longest=chain, chain_s=chain, scoring_s=scoring)


async def measure_local(side: Side, seed: int, token_s: float) -> dict[str, Any]:
    """One pair of steps, between two measurements of the device by itself."""
    before = await side.sampling_s(seed)
    ours, theirs = await pair(side, seed)
    busy = (before + await side.sampling_s(seed)) / 2
    lengths = {
        (g, s): sum(len(turn.completion.tokens) for turn in t.transitions)
        for g, group in enumerate(ours.groups)
        for s, t in enumerate(group.trajectories)
    }
    chain, scoring = chains(seed, lambda g, s: token_s * lengths[g, s])
    return row(ours, theirs, longest=max(chain, busy), chain_s=chain, scoring_s=scoring, sampling_s=busy)


def row(ours: Step, theirs: Step, *, longest: float, **stages: float) -> dict[str, Any]:
    """Both arms beside the stages."""
    return {
        "ratio": ours.wall_s / longest,
        "barrier_ratio": theirs.wall_s / longest,
        "wall_s": ours.wall_s,
        "barrier_wall_s": theirs.wall_s,
        "equal_rewards": ours.rewards == theirs.rewards,
        **stages,
    }


async def measure(name: str, seeds: int) -> list[dict[str, Any]]:
    """One row per seed."""
    if name == "scripted":
        hosted = Side(Hosted(), 12)
        return [await measure_scripted(hosted, seed) for seed in range(1, seeds + 1)]
    setting = LOCAL[name]
    local = Side(setting.backend(), setting.max_tokens)
    await local.sampling_s(0)
    token_s = await local.token_s()
    return [await measure_local(local, seed, token_s) for seed in range(1, seeds + 1)]


def show(name: str, rows: Sequence[dict[str, Any]]) -> None:
    for seed, found in enumerate(rows, 1):
        stages = ", ".join(f"{k} {found[k]:.2f}" for k in ("chain_s", "scoring_s", "sampling_s") if k in found)
        print(
            f"{name:11} seed {seed}   step {found['wall_s']:6.2f} s = {found['ratio']:.2f} x   "
            f"barrier {found['barrier_wall_s']:6.2f} s = {found['barrier_ratio']:.2f} x   ({stages})"
        )


def over_seeds(rows: Sequence[dict[str, Any]], name: str) -> Summary:
    return {k: round(v, 3) for k, v in summary([found[name] for found in rows]).items()}


def kernels(seeds: int) -> dict[str, Any]:
    """What `--env kernels` prints: the worst of its regimes first."""
    found = asyncio.run(kernel_overlap.measure(seeds))
    ratios = {name: over_seeds(rows, "ratio") for name, rows in found.items()}
    return {
        "env": "kernels",
        "kernels_step_wall_over_longest_stage": max(ratio["median"] for ratio in ratios.values()),
        "ratio": ratios,
        "one_after_the_other_ratio": {n: over_seeds(rows, "one_after_the_other_ratio") for n, rows in found.items()},
        "rows": found,
        "rollouts": kernel_overlap.GROUPS * kernel_overlap.GROUP,
        "shared_cores": "grading uses all cores, sampling none: completions are waited for, as a hosted model's are",
        "machine": machine("triton"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=("waits", "kernels"), default="waits", help="verdicts that wait, or grades")
    parser.add_argument("--seeds", type=int, help="5, or 3 with --env kernels")
    parser.add_argument("--only", default=",".join(["scripted", *LOCAL]), help="backends, separated by commas")
    parser.add_argument("--quick", action="store_true", help="2 seeds, to see that it works")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.env == "kernels":
        print(json.dumps(kernels(1 if args.quick else args.seeds or 3)))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for name in args.only.split(","):
        found[name] = asyncio.run(measure(name, 2 if args.quick else args.seeds or 5))
        show(name, found[name])
    ratios, barriers = (
        {name: over_seeds(rows, key) for name, rows in found.items()} for key in ("ratio", "barrier_ratio")
    )
    local = max((name for name in LOCAL if name in found), key=lambda name: ratios[name]["median"], default=None)
    headline = {
        "step_wall_over_longest_stage": ratios["scripted"]["median"] if "scripted" in found else None,
        "local_step_wall_over_longest_stage": ratios[local]["median"] if local else None,
        "barrier_wall_over_longest_stage": barriers["scripted"]["median"] if "scripted" in found else None,
        "local_barrier_wall_over_longest_stage": barriers[local]["median"] if local else None,
        "equal_rewards": all(r["equal_rewards"] for rows in found.values() for r in rows),
    }
    sizes = {"rollouts": GROUPS * GROUP, "turns": TURNS, "verdict_s": VERDICT_S, "latency_s": LATENCY_S}
    sizes |= {name: asdict(setting) for name, setting in LOCAL.items()}
    print(
        json.dumps(
            {**headline, "ratio": ratios, "barrier_ratio": barriers, "rows": found, **sizes, "machine": machine()}
        )
    )


if __name__ == "__main__":
    main()
