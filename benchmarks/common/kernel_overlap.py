"""A step on kernels: sampling that costs this machine nothing, and the real grader on all of its cores.

Completions come as a hosted model's, or those of a server with GPUs of its own: kernels for shipped problems, each with
a text of its own (so that none is graded once for two), each after a wait of its own. Half of them are right, a quarter
crashes, a quarter is not Python. A step is `run_groups` with the env of a training run, over one `GradingPool` whose
problems are ready, as those of a run are that were prepared while the batch before was sampled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.backends.base import Backend, Capabilities
from assay.envs.kernelbench.dataset import KernelBenchDatasetBuilder
from assay.envs.kernelbench.env import KernelGroupBuilder, KernelShop, payload_of
from assay.kernels.config import GraderConfig, GraderSettings
from assay.kernels.pool import GradingPool
from assay.kernels.problems.sources import Problem, load_problems
from assay.rollouts.renderers.base import PlainRenderer
from assay.rollouts.runner import prepare, run_groups
from assay.rollouts.seeds import derive, turn_seed
from assay.types import Completion, Message, SamplingParams, Task
from common.catalogue import HONEST
from common.submissions import read_submissions

GROUPS, GROUP = 6, 4
REGIMES = {"sampling_takes_longer": 2.0, "equally_long": 1.0, "grading_takes_longer": 0.5}
"""How long sampling takes, as a multiple of what grading takes."""
FIRST = 0.05
"""When the first completions come, as a share of the time of the last; the others come evenly between the two."""


class Bytes:
    """A token per byte, from 1; 0 ends a text."""

    eos_token_id: int | None = 0

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [1 + byte for byte in text.encode()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token - 1 for token in token_ids if token).decode()


class Hosted(Backend):
    """Completions drawn from prompt and seed, each after a wait drawn from its seed."""

    def __init__(self, kernels: Mapping[str, str], sampling_s: float) -> None:
        none: frozenset[str] = frozenset()
        self.capabilities = Capabilities(none, none, False, False, False, batch_invariant=True)
        self.tokenizer: Any = Bytes()
        self.policy_version, self.context_length, self.vocab_size = 0, 1_000_000, 257
        self._kernels, self._sampling_s = kernels, sampling_s

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        """The wait of a completion is its seed's; Assay asks for one rollout at a time or for all alike."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for wait, place in sorted((self.wait_s(seed), place) for place, seed in enumerate(seeds)):
            await asyncio.sleep(began + wait - loop.time())
            tokens = tuple(
                self.tokenizer.encode(reply(self._kernels, self.tokenizer.decode(prompts[place]), seeds[place]))
            )
            yield place, Completion((*tokens, 0), (-2.0,) * (len(tokens) + 1), "stop", 0)

    def wait_s(self, seed: int) -> float:
        """What the completion of a seed takes."""
        share = derive("wait", seed) / 2**64
        return self._sampling_s * (FIRST + (1 - FIRST) * share)


def kernel(kernels: Mapping[str, str], problem: str, seed: int) -> str:
    """A kernel with a text of its own: right, one that raises, or no Python."""
    kind, name = derive("kind", seed) % 4, f"# {seed}\n"
    if kind == 3:
        return f"{name}{kernels[problem]}\nclass ModelNew("
    return f"{name}{kernels[problem]}" + ("\nModelNew.forward = None\nModelNew.forward(1)\n" if kind == 2 else "")


def reply(kernels: Mapping[str, str], problem: str, seed: int) -> str:
    """The same as a model writes it."""
    return f"<KERNEL>\n```python\n{kernel(kernels, problem, seed)}\n```\n</KERNEL>"


@dataclass
class Bench:
    """Problems with a right kernel each, and a grader for which they are ready."""

    kernels: Mapping[str, str]
    problems: Mapping[str, Problem]
    pool: GradingPool
    builder: KernelBenchDatasetBuilder

    @classmethod
    async def made(cls) -> Bench:
        """The first problems that have an honest kernel in Triton, graded once each."""
        shipped = {problem.key: problem for problem in load_problems("shipped", (1, 2, 3))}
        found: dict[str, str] = {}
        for submission in read_submissions(HONEST[0]):
            if submission.problem in shipped and submission.backend == "triton":
                found.setdefault(submission.problem, submission.code)
        kernels = dict(sorted(found.items())[:GROUPS])
        settings = GraderSettings(compile_check="off", cache=False)
        builder = KernelBenchDatasetBuilder(dataset_src="shipped", use_modal=False, grader=settings)
        config: GraderConfig = builder.grading()
        self = cls(kernels, {key: shipped[key] for key in kernels}, GradingPool(config), builder)
        verdicts = await self.pool.grade_many((self.problems[key], code) for key, code in kernels.items())
        wrong = [key for key, verdict in zip(kernels, verdicts, strict=True) if not verdict.ok]
        if wrong:
            raise SystemExit(f"the honest kernels of {', '.join(wrong)} are not graded ok, so nothing can be measured")
        return self

    async def grading_s(self, seed: int) -> float:
        """What grading the candidates of a step takes when they are all there at once. Nothing is cached."""
        codes = [
            (problem, kernel(self.kernels, key, turn_seed((seed, group, sample), 0)))
            for group, (key, problem) in enumerate(self.problems.items())
            for sample in range(GROUP)
        ]
        began = time.perf_counter()
        await self.pool.grade_many(codes)
        return time.perf_counter() - began

    async def step(self, seed: int, sampling_s: float) -> tuple[float, float]:
        """A step's wall time, and what its sampling takes by itself."""
        backend = Hosted(self.kernels, sampling_s)
        shop = KernelShop(self.pool, self.builder.rules, self.builder.course(1))
        groups = [
            KernelGroupBuilder(Task("kernelbench", key, (Message("user", key),), payload_of(each, {})), each, shop)
            for key, each in self.problems.items()
        ]
        prepared = await prepare(groups, GROUP)
        began = time.perf_counter()
        params = SamplingParams(100_000)
        found = await run_groups(prepared, backend, PlainRenderer(backend.tokenizer), params, max_turns=1, seed=seed)
        wall_s = time.perf_counter() - began
        if errored := sum(rollout.errored for group in found for rollout in group.trajectories):
            raise SystemExit(f"{errored} rollouts could not be graded, so the step is no step")
        return wall_s, max(backend.wait_s(turn_seed((seed, g, s), 0)) for g in range(len(groups)) for s in range(GROUP))


async def measure(seeds: int) -> dict[str, list[dict[str, float]]]:
    """One row per regime and seed: a step between two measurements of its grading by itself."""
    bench = await Bench.made()
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in REGIMES}
    try:
        for seed in range(1, seeds + 1):
            for name, factor in REGIMES.items():
                before = await bench.grading_s(seed)
                wall_s, sampling_s = await bench.step(seed, factor * before)
                rows[name].append(row(wall_s, sampling_s, (before + await bench.grading_s(seed)) / 2))
                show(name, seed, rows[name][-1])
    finally:
        await bench.pool.close()
    return rows


def row(wall_s: float, sampling_s: float, grading_s: float) -> dict[str, float]:
    """A step beside its stages."""
    longest = max(sampling_s, grading_s)
    return {
        "ratio": wall_s / longest,
        "one_after_the_other_ratio": (sampling_s + grading_s) / longest,
        "wall_s": wall_s,
        "sampling_s": sampling_s,
        "grading_s": grading_s,
    }


def show(name: str, seed: int, found: Mapping[str, float]) -> None:
    print(
        f"{name:22} seed {seed}   step {found['wall_s']:6.2f} s = {found['ratio']:.2f} x   sampling "
        f"{found['sampling_s']:6.2f} s, grading {found['grading_s']:6.2f} s",
        flush=True,
    )
