"""CPU milliseconds that one sandboxed job costs, all processes counted, and how many of them are the walls.

    python benchmarks/sandbox_cost.py [--jobs N] [--repeats R]

The same trivial job runs behind walls and without (`sandbox=unsafe`: the same fork, the same Python, no namespaces, no
filter), in turns. It does so with a worker that has imported nothing and, where torch is installed, with one that has
imported torch, as a grader's has. CPU time is that of this process, the worker and its children, from the kernel's
accounts; work that the kernel puts off to its own threads is in no account. Medians over the repeats, with the lowest
and the highest. `cold_start` is a fresh interpreter that imports the same and does the same. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Literal

from assay.sandbox import Job, Round
from assay.sandbox.inside.worker import JOBS_OF_A_BUSY_WORKER
from assay.sandbox.local import LocalConfig, LocalSandbox

TORCH_HARNESS = """
from assay.sandbox.plain import execute
def preload():
    import torch
    torch.set_num_threads(1)
    torch.ones(2) + torch.ones(2)
"""
CANDIDATE = "def run(inputs, header):\n    return [inputs[0][::-1]]"
Figures = dict[str, float]


def worker_cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def measure(sandbox: LocalSandbox, harness: str, jobs: int) -> Figures:
    """CPU and wall milliseconds per job, over `jobs` jobs one after the other."""
    job = Job(CANDIDATE, harness, (Round((b"abc",), (3,)),))
    for _ in range(JOBS_OF_A_BUSY_WORKER + 1):  # the last waits until the worker has settled for many
        await sandbox.run(job)
    pid = sandbox.worker_pids()[0]
    cpu, own, wall = worker_cpu_s(pid), time.process_time(), time.perf_counter()
    for _ in range(jobs):
        result = await sandbox.run(job)
        if result.outputs != ((b"cba",),) or result.retried:
            raise RuntimeError(f"a job failed, so nothing was measured: {result}")
    own, wall, cpu = time.process_time() - own, time.perf_counter() - wall, worker_cpu_s(pid) - cpu
    return {"cpu_ms": 1000 * (cpu + own) / jobs, "parent_ms": 1000 * own / jobs, "wall_ms": 1000 * wall / jobs}


async def compare(harness: str, roots: tuple[str, ...], jobs: int, repeats: int) -> dict[str, Figures]:
    """Both arms in turns; per figure its median, lowest and highest."""
    seen: dict[str, list[float]] = {}
    arms: tuple[Literal["strict", "unsafe"], ...] = ("strict", "unsafe")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        boxes = {arm: LocalSandbox(LocalConfig(sandbox=arm, workers=1, import_roots=roots)) for arm in arms}
    try:
        for _ in range(repeats):
            now = {arm: await measure(box, harness, jobs) for arm, box in boxes.items()}
            for arm, figures in now.items():
                for name, value in figures.items():
                    seen.setdefault(f"{arm}_{name}", []).append(value)
            seen.setdefault("walls_cpu_ms", []).append(now["strict"]["cpu_ms"] - now["unsafe"]["cpu_ms"])
    finally:
        for box in boxes.values():
            await box.close()
    return {name: spread(values) for name, values in seen.items()}


def cold_start(imports: str, repeats: int) -> Figures:
    """CPU milliseconds of a fresh interpreter that imports the same."""
    values = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-I", "-c", f"{imports}\nb'abc'[::-1]"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        values.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return spread(values)


def spread(values: list[float]) -> Figures:
    return {
        name: round(value, 2)
        for name, value in zip(
            ("median", "low", "high"), (statistics.median(values), min(values), max(values)), strict=True
        )
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.jobs < 1 or options.repeats < 1:
        parser.error("--jobs and --repeats must be at least 1")
    load_before = os.getloadavg()[0]
    figures: dict[str, object] = {}
    bare = asyncio.run(compare("assay.sandbox.plain", (), options.jobs, options.repeats))
    figures["bare"] = {**bare, "cold_start_cpu_ms": cold_start("", options.repeats)}
    if importlib.util.find_spec("torch"):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            Path(folder, "torch_harness.py").write_text(TORCH_HARNESS, encoding="utf-8")
            warm = asyncio.run(compare("torch_harness", (folder,), options.jobs, options.repeats))
        figures["torch"] = {**warm, "cold_start_cpu_ms": cold_start("import torch", options.repeats)}
    figures["machine"] = {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_before": round(load_before, 2),
    }
    figures |= {"jobs": options.jobs, "repeats": options.repeats}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
