"""The grader against its catalogue of attacks and honest kernels, and against a fresh Python per candidate.

    python benchmarks/kernel_grading.py [--evals 200] [--skip-exploits] [--verbose]

Attacks are graded as in training; those that aim at the sandbox once more without the static checks, each followed by
an honest kernel that must still be `ok`. `contained`: an attack got a verdict that its file accepts, no `infra_error`,
and left nothing behind. Speed is that of a trivial Triton kernel (an addition of 256 elements; five checked calls, one
repeated, one without launches), isolation included, beside a fresh interpreter that makes five plain calls without any.
The last line of output is a JSON object.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.problems.scaling import unscaled
from assay.kernels.problems.sources import Problem, load_problems, make_problem
from assay.kernels.verdicts import Verdict
from assay.sandbox.local import LocalSandbox
from common.submissions import Submission, read_submissions

ROOT = Path(__file__).parents[1]
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


def shipped() -> dict[str, Problem]:
    return {problem.key: problem for problem in load_problems("shipped", (1, 2, 3))}


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


async def measure(config: GraderConfig, evals: int, repeats: int) -> Speed:
    """Grade so many different texts of the addition, all warm; the median of the repeats."""
    problem = unscaled(make_problem(1, 1, "Addition", ADDITION, "benchmark"))
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


async def grade_all(
    config: GraderConfig, submissions: Sequence[Submission], *, static: bool, control: str = ""
) -> tuple[list[Verdict], int, int]:
    """Verdicts of all; how many controls, graded after each, were not `ok`; and how many workers died."""
    problems = shipped()
    async with Grader(config, static=static) as grader:
        assert isinstance(grader.sandbox, LocalSandbox)
        limit = asyncio.Semaphore(grader.sandbox.width)
        failed = 0

        async def one(submission: Submission) -> Verdict:
            nonlocal failed
            async with limit:
                verdict = await grader.grade(problems[submission.problem], submission.code)
                if control:
                    after = await grader.grade(problems["1/1"], control)
                    failed += not after.ok
                    if not after.ok:
                        print(f"after {submission.id}: {after.kind} {after.message}", file=sys.stderr)
                return verdict

        verdicts = await asyncio.gather(*(one(submission) for submission in submissions))
        return verdicts, failed, grader.sandbox.deaths


def report(submissions: Sequence[Submission], verdicts: Sequence[Verdict], good: Sequence[bool], verbose: bool) -> None:
    for submission, verdict, fine in zip(submissions, verdicts, good, strict=True):
        if verbose or not fine:
            mark = "" if fine else "  <-- NOT AS EXPECTED"
            said = f"{verdict.kind} {verdict.cheat} {verdict.message[:100]!r}"
            print(f"{submission.id:36} {said}{mark}", file=sys.stderr)


async def exploits(verbose: bool) -> dict[str, int]:
    """The catalogue."""
    config = GraderConfig(cache=False, wall_s=20.0, cpu_s=8.0)
    attacks = read_submissions(ROOT / "exploits" / "attacks")
    honest = read_submissions(ROOT / "exploits" / "honest")
    canary = Path(tempfile.mkdtemp()) / "canary"
    canary.write_text("untouched")
    os.environ["ASSAY_BENCHMARK_SECRET"] = "sk-not-for-candidates"

    verdicts, _, deaths = await grade_all(config, attacks, static=True)
    fine = [verdict.kind in attack.expect for attack, verdict in zip(attacks, verdicts, strict=True)]
    report(attacks, verdicts, fine, verbose)
    rewarded = sum(verdict.ok for verdict in verdicts)

    aimed = [attack for attack in attacks if attack.sandbox]
    control = next(h.code for h in honest if h.id == "honest/snake")
    raw, disturbed, more_deaths = await grade_all(config, aimed, static=False, control=control)
    held = [verdict.kind != "infra_error" for verdict in raw]
    report(aimed, raw, held, verbose)
    leaks = sum("sk-not-for-candidates" in json.dumps(verdict.to_json()) for verdict in (*verdicts, *raw))
    uncontained = {a.id for a, good in zip(attacks, fine, strict=True) if not good}
    uncontained |= {a.id for a, good in zip(aimed, held, strict=True) if not good}

    ours, _, _ = await grade_all(config, honest, static=True)
    passed = [verdict.ok for verdict in ours]
    report(honest, ours, passed, verbose)
    stray = len(psutil.Process().children(recursive=True))
    return {
        "attacks": len(attacks),
        "contained": len(attacks) - len(uncontained) if canary.read_text() == "untouched" and not leaks else 0,
        "cheats_rewarded": rewarded,
        "attacks_without_static_checks": len(aimed),
        "controls_disturbed": disturbed,
        "worker_deaths": deaths + more_deaths,
        "processes_left": stray,
        "honest": len(honest),
        "false_alarms": len(honest) - sum(passed),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evals", type=int, default=200, help="evaluations per repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cold-runs", type=int, default=4, help="rounds of fresh interpreters, one per core each")
    parser.add_argument("--skip-exploits", action="store_true", help="measure speed only")
    parser.add_argument("--verbose", action="store_true", help="print every verdict")
    arguments = parser.parse_args()
    result: dict[str, float | int] = {}
    if not arguments.skip_exploits:
        result |= await exploits(arguments.verbose)
    width = len(os.sched_getaffinity(0))
    cold = measure_cold(arguments.cold_runs, width)
    warm = await measure(GraderConfig(cache=False, compile_check="off"), arguments.evals, arguments.repeats)
    compiled = await measure(GraderConfig(cache=False), max(arguments.evals // 2, 1), arguments.repeats)
    again = measure_cold(arguments.cold_runs, width)
    cold_per_s = (cold.per_s + again.per_s) / 2
    result |= {
        "evals_per_s": round(warm.per_s, 2),
        "cold_evals_per_s": round(cold_per_s, 3),
        "ratio": round(warm.per_s / cold_per_s, 1),
        "cpu_ms_per_eval": round(warm.cpu_ms, 1),
        "cold_cpu_ms_per_eval": round((cold.cpu_ms + again.cpu_ms) / 2, 1),
        "evals_per_s_with_compile_check": round(compiled.per_s, 2),
        "cpu_ms_per_eval_with_compile_check": round(compiled.cpu_ms, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
