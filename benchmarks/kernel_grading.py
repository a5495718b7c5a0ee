"""The grader against its catalogue of attacks and honest kernels, and against a fresh Python per candidate.

    python benchmarks/kernel_grading.py [--evals 200] [--skip-exploits] [--only TEXT] [--data FILE] [--verbose]

Attacks are graded as in training, and once more without what the text alone decides, where each attack on a wall of the
sandbox is followed by an honest kernel that must still be `ok`. `contained`: an attack got a verdict that its file
accepts in both passes, and left nothing behind. `cheats_rewarded` counts each `ok` of both. Honest are the controls,
the unusual kernels and the solutions of published problems. `limits_met` are grades of attacks that ended at a limit of
time (8 CPU seconds; of honest kernels the default) where their file accepts no `timeout`: a matter of how fast the
machine is, so that they are graded again with 240 CPU seconds, and count by that verdict. `blocked_loop_ms` is the
longest time by which the event loop was late in all of this (`blocked_loop_idle_ms`: beside a grader that does
nothing); `longest_callback_cpu_ms` the most CPU time that it spent at a stretch, on which other programs of the machine
have no influence.

Speed is that of a trivial Triton kernel (an addition of 256 elements at this size alone, and scaled to two sizes),
isolation included, beside a fresh interpreter that makes five plain calls without any. The last line of
output is a JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.problems.scaling import ScaledProblem, unscaled
from assay.kernels.problems.sources import Problem, make_problem
from assay.kernels.verdicts import Verdict
from assay.sandbox.local import LocalSandbox
from common.catalogue import (
    ATTACKS,
    HONEST,
    PUBLISHED,
    SECRET,
    control_code,
    grade_all,
    idle_lateness_ms,
    problems_of,
    report,
)
from common.submissions import read_submissions

IN_FLIGHT = 4

ADDITION = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        return x + y


def get_inputs():
    return [torch.rand(256), torch.rand(256)]


def get_init_inputs():
    return []
"""

PUBLISHED_SIZE = ADDITION.replace("256", "65536")

KERNEL = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=inside) + tl.load(y_ptr + i, mask=inside), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
"""

COLD = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton
torch.set_num_threads(1)
import importlib.util
def load(path):
    spec = importlib.util.spec_from_file_location(path[-9:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
reference, candidate = load(sys.argv[1]), load(sys.argv[2])
with torch.no_grad():
    for seed in range(5):
        torch.manual_seed(seed)
        inputs = reference.get_inputs()
        torch.manual_seed(0)
        expected = reference.Model()(*[x.clone() for x in inputs])
        torch.manual_seed(0)
        assert torch.allclose(candidate.ModelNew()(*inputs), expected, atol=1e-4, rtol=1e-4)
print("ok")
"""


@dataclass(slots=True)
class Speed:
    """Evaluations a second, and CPU milliseconds of every process involved for each."""

    per_s: float
    cpu_ms: float


def cpu_seconds(sandbox: LocalSandbox) -> float:
    """CPU time so far of this process, its workers, and everything that they have waited for."""
    own = psutil.Process()
    below = [own, *own.children(recursive=True)]
    seconds = 0.0
    for process in below:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system
        # This process waits for its workers only when they end, which none does meanwhile.
        seconds += (times.children_user + times.children_system) if process.pid != own.pid else 0.0
    return seconds


def fixed(text: str) -> ScaledProblem:
    """A problem at one size, that of its text."""
    return unscaled(make_problem(1, 1, "Addition", text, "benchmark"))


async def measure(config: GraderConfig, evals: int, repeats: int, problem: Problem | ScaledProblem) -> Speed:
    """Grade so many different texts of the addition, all warm; the median of the repeats."""
    async with Grader(config) as grader:
        assert isinstance(grader.sandbox, LocalSandbox)
        width = grader.sandbox.width

        async def one(number: int) -> Verdict:
            verdict = await grader.grade(problem, f"{KERNEL}# {number}\n")
            assert verdict.ok, verdict
            return verdict

        await asyncio.gather(*(one(number) for number in range(8 * width)))
        rates, costs = [], []
        for repeat in range(repeats):
            limit = asyncio.Semaphore(IN_FLIGHT * width)

            async def bounded(number: int, limit: asyncio.Semaphore = limit) -> None:
                async with limit:
                    await one(number)

            cpu, begin = cpu_seconds(grader.sandbox), time.perf_counter()
            await asyncio.gather(*(bounded(1000 * (repeat + 1) + number) for number in range(evals)))
            rates.append(evals / (time.perf_counter() - begin))
            costs.append((cpu_seconds(grader.sandbox) - cpu) / evals * 1e3)
        return Speed(statistics.median(rates), statistics.median(costs))


def measure_cold(runs: int, width: int) -> Speed:
    """The same kernel in a fresh interpreter for each evaluation, as many at a time as there are cores."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("refers.py", "kernel.py", "grade.py")]
        for path, text in zip(paths, (ADDITION, KERNEL, COLD), strict=True):
            path.write_text(text)
        command = [sys.executable, str(paths[2]), str(paths[0]), str(paths[1])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        before, begin = os.times(), time.perf_counter()
        for _ in range(runs):
            batch = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(width)]
            assert all(process.communicate()[0] == b"ok\n" for process in batch)
        wall, after = time.perf_counter() - begin, os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return Speed(runs * width / wall, cpu / (runs * width) * 1e3)


async def exploits(data: Path, only: str, verbose: bool) -> dict[str, float | int]:
    """The catalogue: attacks with text checks and without, each followed by a control where it aims at a wall; then
    every honest kernel."""
    config = GraderConfig(cache=False, wall_s=20.0, cpu_s=8.0)
    attacks = [found for found in read_submissions(ATTACKS) if only in found.id]
    honest = [found for folder in HONEST for found in read_submissions(folder) if only in found.id]
    there = problems_of(honest, data)
    if missing := sorted({found.problem for found in honest if found.id not in there}):
        print(f"{len(missing)} problems are not at {data}; their solutions are left out", file=sys.stderr)
    honest = [found for found in honest if found.id in there]
    canary = Path(tempfile.mkdtemp()) / "canary"
    canary.write_text("untouched")
    os.environ["ASSAY_BENCHMARK_SECRET"] = SECRET

    idle_ms = await idle_lateness_ms(config, 5.0)
    patient = GraderConfig(cache=False, wall_s=480.0, cpu_s=240.0)
    checked = await grade_all(config, attacks, text_checks=True, data=data, patient=patient)
    fine = report(attacks, checked, verbose)
    bare = await grade_all(config, attacks, text_checks=False, data=data, control=control_code(), patient=patient)
    fine_bare = report(attacks, bare, verbose)
    ours = await grade_all(GraderConfig(cache=False), honest, text_checks=True, data=data, patient=patient)
    passed = report(honest, ours, verbose)
    passes = (checked, bare, ours)
    for line in (line for done in passes for line in done.raised):
        print(f"raised: {line}", file=sys.stderr)
    longest = max(passes, key=lambda done: done.callback_ms)
    print(f"longest callback: {longest.callback_ms:.1f} ms of CPU, {longest.callback}", file=sys.stderr)
    held = canary.read_text() == "untouched" and not checked.leaks and not bare.leaks
    return {
        "attacks": len(attacks),
        "contained": sum(a and b for a, b in zip(fine, fine_bare, strict=True)) if held else 0,
        "cheats_rewarded": checked.rewarded + bare.rewarded,
        "controls_disturbed": bare.disturbed,
        "worker_deaths": sum(done.deaths for done in passes),
        "processes_left": len(psutil.Process().children(recursive=True)),
        "honest": len(honest),
        "false_alarms": len(honest) - sum(passed),
        "limits_met": checked.limits_met + bare.limits_met,
        "limits_met_by_honest": ours.limits_met,
        "raised": sum(len(done.raised) for done in passes),
        "blocked_loop_ms": round(max(done.late_ms for done in passes), 1),
        "blocked_loop_idle_ms": round(idle_ms, 1),
        "longest_callback_cpu_ms": round(longest.callback_ms, 1),
        "attacks_s": round(checked.wall_s, 1),
        "attacks_without_text_checks_s": round(bare.wall_s, 1),
        "honest_s": round(ours.wall_s, 1),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evals", type=int, default=200, help="evaluations per repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cold-runs", type=int, default=4, help="rounds of fresh interpreters, one per core each")
    parser.add_argument("--skip-exploits", action="store_true", help="measure speed only")
    parser.add_argument("--skip-speed", action="store_true", help="grade the catalogue only")
    parser.add_argument("--only", default="", help="only submissions whose id has this in it")
    parser.add_argument("--data", type=Path, default=PUBLISHED, help="the published problems, as JSON lines")
    parser.add_argument("--verbose", action="store_true", help="print every verdict")
    arguments = parser.parse_args()
    result: dict[str, float | int] = {}
    if not arguments.skip_exploits:
        result |= await exploits(arguments.data, arguments.only, arguments.verbose)
    if not arguments.skip_speed:
        result |= await speed(arguments)
    print(json.dumps(result))


async def speed(arguments: argparse.Namespace) -> dict[str, float | int]:
    """What a trivial kernel costs."""
    width = len(os.sched_getaffinity(0))
    cold = measure_cold(arguments.cold_runs, width)
    plain = GraderConfig(cache=False, compile_check="off")
    warm = await measure(plain, arguments.evals, arguments.repeats, fixed(ADDITION))
    two_sizes = await measure(plain, arguments.evals, 1, make_problem(1, 1, "Addition", ADDITION, "benchmark"))
    large = await measure(plain, max(arguments.evals // 4, 1), 1, fixed(PUBLISHED_SIZE))
    compiled = await measure(
        GraderConfig(cache=False), max(arguments.evals // 2, 1), arguments.repeats, fixed(ADDITION)
    )
    again = measure_cold(arguments.cold_runs, width)
    cold_per_s = (cold.per_s + again.per_s) / 2
    return {
        "evals_per_s": round(warm.per_s, 2),
        "cold_evals_per_s": round(cold_per_s, 3),
        "ratio": round(warm.per_s / cold_per_s, 1),
        "cpu_ms_per_eval": round(warm.cpu_ms, 1),
        "cpu_ms_per_eval_two_sizes": round(two_sizes.cpu_ms, 1),
        "cpu_ms_per_eval_65536_elements": round(large.cpu_ms, 1),
        "cold_cpu_ms_per_eval": round((cold.cpu_ms + again.cpu_ms) / 2, 1),
        "evals_per_s_with_compile_check": round(compiled.per_s, 2),
        "cpu_ms_per_eval_with_compile_check": round(compiled.cpu_ms, 1),
    }


if __name__ == "__main__":
    asyncio.run(main())
