"""What one `assay grade` costs from the shell: seconds, CPU seconds of all its processes, and where they go.

    python benchmarks/cold_grade.py [--repeats 5] [--problem 1/1] [--kernel FILE] [--against TREE]

Every grade starts cold: a new process, no verdict kept, workers that must import PyTorch. Files are in the page cache
after the first grade, which is not counted. CPU seconds are read from /proc every 10 ms, so what a process does in its
last 10 ms is missed. `stages` comes from further grades, watched from within: seconds from the start of the process at
which each stage began and ended. `--against` names another checkout, whose grades take turns with this one's. All
figures are medians over the repeats with lowest and highest. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import machine, summary

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ROOT / "exploits" / "honest" / "snake.py"
LOOK_S = 0.01
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_by_process(root: int, seen: dict[int, float]) -> None:
    """Bring `seen` (process id -> CPU seconds of its own) up to date for a process and all below it."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split())
        except OSError:  # it has ended
            continue
        seen[pid] = (int(fields[11]) + int(fields[12])) * TICK_S


def environment(tree: Path) -> dict[str, str]:
    """That of a grade by the sources of a checkout."""
    return {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": ""}


def grade(tree: Path, words: list[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of one `assay grade`."""
    seen: dict[int, float] = {}
    began = time.perf_counter()
    command = [sys.executable, "-m", "assay", "grade", "--no-cache", *words]
    with subprocess.Popen(command, env=environment(tree), stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            cpu_by_process(process.pid, seen)
            time.sleep(LOOK_S)
        wall_s = time.perf_counter() - began
        said = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"the kernel was not found right, so nothing was measured: {said}")
    return wall_s, sum(seen.values())


def watched(tree: Path, words: list[str]) -> dict[str, list[float]]:
    """Stage -> seconds at which it began and ended, of one `assay grade`."""
    command = [sys.executable, __file__, "--watched", *words]
    done = subprocess.run(command, env=environment(tree), stdout=subprocess.PIPE, text=True, check=True)
    stages: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return stages


def watch(words: list[str]) -> None:
    """Grade in this process, and print when each stage began and ended."""
    began = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + _started()
    from assay.cli.main import main
    from assay.kernels.numerics.conversation import Conversation
    from assay.kernels.numerics.reference import ReferenceProcess
    from assay.sandbox.host.worker_process import WorkerProcess
    from assay.sandbox.local import LocalSandbox

    stages: dict[str, list[float]] = {}

    def span(name: str, start: float) -> None:
        first = stages.setdefault(name, [start - began, 0.0])
        first[1] = time.time() - began

    def around(owner: Any, method: str, name: Callable[..., str]) -> None:
        plain = getattr(owner, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.time()
            try:
                return plain(*args, **kwargs)
            finally:
                span(name(*args), start)

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            start = time.time()
            try:
                return await plain(*args, **kwargs)
            finally:
                span(name(*args), start)

        setattr(owner, method, call_async if plain.__code__.co_flags & 0x80 else call)

    def last(harness: str) -> str:
        return harness.rpartition(".")[2]

    around(LocalSandbox, "__init__", lambda *_: "probe the sandbox")
    around(WorkerProcess, "boot", lambda worker: f"start the worker {last(worker._blueprint.harness)}")
    around(WorkerProcess, "run", lambda _, job, *__: f"run the job {last(job.harness)}")
    around(Conversation, "_start", lambda *_: "start the reference process")
    around(ReferenceProcess, "evaluate", lambda *_: "evaluate the reference")
    around(LocalSandbox, "close", lambda *_: "close the sandbox")
    status = main(["grade", "--no-cache", *words])
    stages["imports and settings"] = [0.0, stages["probe the sandbox"][0]]
    stages["all"] = [0.0, time.time() - began]
    if status:
        raise SystemExit("the kernel was not found right, so nothing was measured")
    print(json.dumps({name: stages[name] for name in sorted(stages, key=lambda name: stages[name])}))


def _started() -> float:
    """When this process began, on the clock that counts from the machine's start."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[19]) * TICK_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--problem", default="1/1")
    parser.add_argument("--kernel", type=Path, default=KERNEL)
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    words = ["--problem", options.problem, "--kernel", str(options.kernel)]
    if options.watched:
        watch(words)
        return
    trees = {"this": ROOT, **({"other": options.against.resolve()} if options.against else {})}
    load = os.getloadavg()[0]
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    spans: dict[str, list[dict[str, list[float]]]] = {name: [] for name in trees}
    for tree in trees.values():
        grade(tree, words)
    for _ in range(options.repeats):
        for name, tree in trees.items():
            seen[name].append(grade(tree, words))
        for name, tree in trees.items():
            spans[name].append(watched(tree, words))
    figures: dict[str, dict[str, object]] = {}
    for name in trees:
        walls, cpus = zip(*seen[name], strict=True)
        stages = {
            stage: [round(statistics.median(run[stage][end] for run in spans[name]), 2) for end in (0, 1)]
            for stage in spans[name][0]
        }
        figures[name] = {"wall_s": summary(walls), "cpu_s": summary(cpus), "stages": stages}
    print(
        json.dumps(
            {
                "wall_s": round(figures["this"]["wall_s"]["median"], 2),  # type: ignore[index]
                "cpu_s": round(figures["this"]["cpu_s"]["median"], 2),  # type: ignore[index]
                "stages": figures["this"]["stages"],
                "spread": {name: {k: v for k, v in told.items() if k != "stages"} for name, told in figures.items()},
                **({"other_stages": figures["other"]["stages"]} if "other" in figures else {}),
                "repeats": options.repeats,
                "load": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
                "machine": machine("torch", "triton"),
            }
        )
    )


if __name__ == "__main__":
    main()
