"""The whole protocol on CPU tensors through the real sandbox: honest candidates, and those that cheat the clock."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import chz
import numpy as np
import pytest
from benchmarks.common.timing_cheats import CHEATS, HONEST, REFERENCE, forging

from assay.errors import ConfigError
from assay.kernels.arrays import Value, host_tensor
from assay.kernels.base import TimedAgainst
from assay.kernels.numerics.tolerance import Tolerance
from assay.kernels.timing.config import TimingConfig
from assay.kernels.timing.jobs import Form, TimedProblem, make_job, sample_set
from assay.kernels.timing.statistics import Finding, Timing
from assay.kernels.timing.stopwatch import Stopwatch
from assay.sandbox import Job, JobResult
from assay.sandbox.base import AfterRound
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.sandboxes import FEATURES, children, needs_walls, running

pytest.importorskip("torch")
pytestmark = needs_walls

CONFIG = TimingConfig(
    device="cpu",
    samples=6,
    warm_ups=1,
    alone=2,
    max_calls=2,
    round_ms=10_000.0,
    wall_s=60,
    memory_mb=4096,
    buffer_mb=64,
)
SHAPE = (16, 24)


def drawing(seed: int = 0) -> Callable[[], tuple[Value, ...]]:
    rng = np.random.default_rng(seed)
    return lambda: (host_tensor(rng.standard_normal(SHAPE), "float32"),)


PROBLEM = TimedProblem(REFERENCE, (24,), drawing(), (("float32", SHAPE),), (Tolerance(1e-5, 1e-5),))


class Bench:
    """One sandbox and stopwatch with an event loop of their own."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._runner = asyncio.Runner()
        self.sandbox = LocalSandbox(LocalConfig(workers=2, environment=environment or {}), FEATURES)
        self.stopwatch = Stopwatch(self.sandbox, CONFIG)

    def time(
        self,
        source: str,
        problem: TimedProblem = PROBLEM,
        baseline: TimedAgainst = "eager",
        form: Form = "module",
        **fields: float,
    ) -> Timing | Finding:
        stopwatch = Stopwatch(self.sandbox, chz.replace(CONFIG, **fields)) if fields else self.stopwatch
        return self._runner.run(stopwatch.time(source, problem, baseline, form))

    def run(self, work: Callable[[], object]) -> object:
        return self._runner.run(work())  # type: ignore[arg-type]

    def close(self) -> None:
        self._runner.run(self.sandbox.close())
        self._runner.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_an_honest_candidate_is_timed(bench: Bench) -> None:
    timing = bench.time(HONEST)
    assert isinstance(timing, Timing), timing
    assert (timing.samples, timing.calls, timing.device, timing.baseline) == (6, 2, "cpu", "eager")
    assert 0 < timing.lower <= timing.speedup <= timing.upper
    assert timing.candidate_ms > 0
    assert timing.floor_ms is None


@pytest.mark.parametrize(("reference_s", "candidate_s"), [(0.02, 0.12), (0.12, 0.02)])
def test_slower_is_slower_and_faster_is_faster(bench: Bench, reference_s: float, candidate_s: float) -> None:
    def sleeping(source: str, seconds: float) -> str:
        return source.replace("        return", f"        import time; time.sleep({seconds})\n        return")

    problem = replace(PROBLEM, code=sleeping(REFERENCE, reference_s))
    timing = bench.time(sleeping(HONEST, candidate_s), problem, max_calls=1)
    assert isinstance(timing, Timing), timing
    if candidate_s > reference_s:
        assert timing.upper < 1
    else:
        assert 1 < timing.lower <= 6.5


MANY = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, scale, pair, flags):
        return (x.float() * scale).to(torch.bfloat16), {"b": ~flags, "a": pair[0] + pair[1]}
"""


def test_inputs_and_outputs_of_many_kinds(bench: Bench) -> None:
    rng = np.random.default_rng(1)

    def draw() -> tuple[Value, ...]:
        pair = (host_tensor(rng.integers(0, 9, 3), "int32"), host_tensor(rng.integers(0, 9, 3), "int32"))
        return (
            host_tensor(rng.standard_normal((3, 5)), "bfloat16"),
            2.5,
            pair,
            host_tensor(rng.integers(0, 2, 5), "bool"),
        )

    outputs = (("bfloat16", (3, 5)), ("bool", (5,)), ("int32", (3,)))
    exact = Tolerance(0, 0)
    problem = TimedProblem(MANY, (), draw, outputs, (Tolerance(0, 0.02), exact, exact))
    timing = bench.time(MANY.replace("class Model(", "class ModelNew("), problem)
    assert isinstance(timing, Timing), timing
    finding = bench.time(MANY.replace("class Model(", "class ModelNew(").replace("~flags", "flags"), problem)
    assert isinstance(finding, Finding)
    assert finding.kind == "wrong"


@pytest.mark.parametrize("body", ["return self.right(x).T", "return self.right(x), x", "return 'right'"])
def test_another_form_of_output_is_wrong(bench: Bench, body: str) -> None:
    finding = bench.time(forging(body))
    assert isinstance(finding, Finding)
    assert finding.kind == "wrong"


@pytest.mark.parametrize(("source", "kinds"), CHEATS.values(), ids=CHEATS)
def test_a_cheat_is_caught(bench: Bench, source: str, kinds: frozenset[str]) -> None:
    finding = bench.time(source)
    assert isinstance(finding, Finding), finding
    assert finding.kind in kinds
    assert finding.evidence


def test_a_fault_is_explained(bench: Bench) -> None:
    finding = bench.time(forging("raise RuntimeError('boom')"))
    assert isinstance(finding, Finding)
    assert finding.kind == "crash"
    assert "RuntimeError: boom" in finding.evidence
    missing = bench.time("x = 1")
    assert isinstance(missing, Finding)
    assert "ModelNew" in missing.evidence


def test_slow_first_calls_change_no_count(bench: Bench) -> None:
    timing = bench.time(forging("if calls <= 2: time.sleep(0.1)\nreturn self.right(x)"))
    honest = bench.time(HONEST)
    assert isinstance(timing, Timing)
    assert isinstance(honest, Timing)
    assert (timing.samples, timing.calls) == (honest.samples, honest.calls)


def test_it_ends_at_its_wall_limit(bench: Bench) -> None:
    finding = bench.time(forging("while True: pass"), wall_s=2.0)
    assert isinstance(finding, Finding)
    assert finding.kind == "timeout"
    assert isinstance(bench.time(HONEST), Timing)


def test_a_reference_that_fails_says_nothing_about_the_candidate(bench: Bench) -> None:
    broken = replace(PROBLEM, code=REFERENCE.replace("torch.tanh", "torch.no_such_thing"))
    finding = bench.time(HONEST, broken)
    assert isinstance(finding, Finding)
    assert finding.kind == "infra"
    assert "no_such_thing" in finding.evidence


def test_a_worker_that_dies_says_nothing_about_the_candidate(bench: Bench) -> None:
    assert isinstance(bench.time(HONEST), Timing)
    workers = bench.sandbox.worker_pids()
    quiet = running(workers)

    async def killed() -> Timing | Finding:
        task = asyncio.create_task(bench.stopwatch.time(forging("time.sleep(0.1)\nreturn self.right(x)"), PROBLEM))
        while not (at_work := running(workers) - quiet):
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
        while len(running(workers) - quiet) < len(workers):
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
        (first,) = (pid for pid in workers if children(pid) & at_work)
        os.kill(first, signal.SIGKILL)  # the baseline's, which has gone on by the time that the candidate is there
        return await task

    outcome = bench.run(killed)
    assert isinstance(outcome, Finding), outcome
    assert outcome.kind == "infra"
    assert isinstance(bench.time(HONEST), Timing)


def test_one_at_a_time_and_none_stuck(bench: Bench) -> None:
    async def many() -> list[Timing | Finding]:
        sources = [HONEST, forging("raise RuntimeError('boom')"), HONEST]
        return await asyncio.gather(*(bench.stopwatch.time(source, PROBLEM) for source in sources))

    assert [type(outcome) for outcome in bench.run(many)] == [Timing, Finding, Timing]  # type: ignore[attr-defined]


class Watched:
    """A sandbox that tells when a candidate has been built, and so is about to be called."""

    width = 2

    def __init__(self, sandbox: LocalSandbox) -> None:
        self._sandbox = sandbox
        self.built = asyncio.Event()

    async def run(self, job: Job, after_round: AfterRound | None = None) -> JobResult:
        assert after_round is not None and isinstance(job.header, dict)

        async def seen(number: int, outputs: tuple[bytes, ...]) -> bool:
            if job.header["entry"] == "ModelNew":
                self.built.set()
            going = after_round(number, outputs)
            return going if isinstance(going, bool) else await going

        return await self._sandbox.run(job, seen)

    async def close(self) -> None:
        await self._sandbox.close()


def test_a_cancelled_comparison_frees_its_workers(bench: Bench) -> None:
    async def cancelled() -> set[int]:
        watched = Watched(bench.sandbox)
        task = asyncio.create_task(Stopwatch(watched, CONFIG).time(forging("time.sleep(30)"), PROBLEM))
        built = asyncio.create_task(watched.built.wait())
        await asyncio.wait({task, built}, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.result()
        busy = running(bench.sandbox.worker_pids())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return busy

    assert isinstance(bench.time(HONEST), Timing)
    quiet = running(bench.sandbox.worker_pids())
    busy = bench.run(cancelled)
    assert isinstance(busy, set) and len(busy - quiet) >= 2
    assert not (busy - quiet) & running(bench.sandbox.worker_pids())
    assert isinstance(bench.time(HONEST), Timing)


def test_both_sides_are_treated_alike() -> None:
    sets = [sample_set(PROBLEM, 2, random.Random(0)) for _ in range(3)]
    jobs = [make_job("text", PROBLEM, baseline, 2, sets, CONFIG) for baseline in ("eager", None)]
    reference, candidate = (dict(job.header) for job in jobs)  # type: ignore[call-overload]
    assert (reference.pop("entry"), candidate.pop("entry")) == ("Model", "ModelNew")
    assert (reference.pop("baseline"), candidate.pop("baseline")) == ("eager", None)
    assert reference == candidate
    assert jobs[0].rounds == jobs[1].rounds
    assert (jobs[0].profile, jobs[0].limits, jobs[0].pause) == (jobs[1].profile, jobs[1].limits, True)
    for device, profile in (("cuda", "gpu-compile"), ("cpu", "numerics")):
        assert make_job("text", PROBLEM, None, 2, sets, chz.replace(CONFIG, device=device)).profile == profile


def test_no_two_calls_have_the_same_inputs() -> None:
    sets = [sample_set(PROBLEM, 2, random.Random(seed)) for seed in range(3)]
    blobs = [blob for item in sets for blob in item.blobs]
    assert len(set(blobs)) == len(blobs) == 6
    assert len({item.key for item in sets}) == 3


def test_one_slot_is_not_enough() -> None:
    async def main() -> None:
        async with LocalSandbox(LocalConfig(workers=1), FEATURES) as sandbox:
            with pytest.raises(ConfigError, match="workers=2"):
                Stopwatch(sandbox, CONFIG)

    asyncio.run(main())


def test_what_does_not_fit_is_refused(bench: Bench) -> None:
    wide = (512, 64)
    rng = np.random.default_rng(2)
    problem = replace(
        PROBLEM,
        code=REFERENCE.replace("self.layer(x)", "x"),
        draw=lambda: (host_tensor(rng.random(wide), "float32"),),
        outputs=(("float32", wide),),
    )
    with pytest.raises(ConfigError, match="buffer_mb"):
        bench.time(HONEST, problem, buffer_mb=1)


KERNEL = """@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
"""
DOUBLING = replace(
    PROBLEM,
    code="import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + x\n",
    init_inputs=(),
)


def doubling(elements: int = SHAPE[0] * SHAPE[1], blocks: tuple[int, ...] = (64,)) -> str:
    """A recorded program that doubles the first elements of its input, in one variant for each size of block."""
    total = SHAPE[0] * SHAPE[1]
    given, made_ = ([storage, "float32", list(SHAPE), [SHAPE[1], 1], 0] for storage in (0, 1))
    kernel = {"name": "double", "source": KERNEL, "names": {"tl": {"module": "triton.language"}}, "line": 1}
    variants = [
        {
            "grid": [-(-total // block)],
            "args": {"x": {"window": given}, "y": {"window": made_}, "n": elements, "BLOCK": block},
            "options": {"num_warps": 4},
            "before": [],
        }
        for block in blocks
    ]
    program = {
        **{"version": 1, "storages": [4 * total, 4 * total], "constants": [], "inputs": [given], "init_inputs": []},
        **{
            "params": [],
            "buffers": [],
            "outputs": [made_],
            "module": [],
            "init": [],
            "kernels": [kernel],
            "differs": "",
            "kept": [],
            "once": [],
            "unchanged": [],
        },
        "forward": [{"launch": 0, "variants": variants, "line": 9}],
    }
    return json.dumps(program)


@pytest.fixture(scope="module")
def interpreting() -> Iterator[Bench]:
    """Workers in which Triton interprets, as the grader's are where programs are timed on a processor."""
    pytest.importorskip("triton")
    bench = Bench({"TRITON_INTERPRET": "1"})
    yield bench
    bench.close()


def test_a_program_is_timed_without_host_code(interpreting: Bench) -> None:
    timing = interpreting.time(doubling(blocks=(64, 128)), DOUBLING, form="program")
    assert isinstance(timing, Timing), timing
    assert timing.launched == "one by one" and 0 < timing.lower <= timing.speedup < 1
    module = interpreting.time(DOUBLING.code.replace("class Model(", "class ModelNew("), DOUBLING)
    assert isinstance(module, Timing) and module.launched == "host code"


WRONG_PROGRAMS = {
    "half of the output": (doubling(elements=192), "wrong", ""),
    "no program": ("{}", "crash", "a program has"),
    "a module": (HONEST, "crash", "JSON"),
    "not in the kernel language": (doubling().replace("2 * tl", "__import__('os') and tl"), "crash", "line 4"),
}


@pytest.mark.parametrize(("program", "kind", "words"), WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS)
def test_a_program_that_is_not_right_has_no_timing(interpreting: Bench, program: str, kind: str, words: str) -> None:
    finding = interpreting.time(program, DOUBLING, form="program")
    assert isinstance(finding, Finding), finding
    assert finding.kind == kind and words in finding.evidence
