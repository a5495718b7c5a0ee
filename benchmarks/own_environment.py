"""What the example of an own environment learns from scratch on a CPU: held-out score before and after, by seed.

python benchmarks/own_environment.py [--seeds 0 1 2] [key=value ...]

Runs `assay train dataset_builder=examples/own_env.py:LargestDigit` for each seed, in a folder that is thrown away. The
last line is JSON: `before`, `after` (held-out reward, the worst of the seeds), `cpu_s` (CPU time of the whole process,
start and evaluations included, the most of the seeds), and each seed's own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_env.py"
TASK = f"{EXAMPLE}:LargestDigit"


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(seed: int, overrides: list[str]) -> dict[str, float]:
    """One run: held-out reward before and after, and the CPU seconds of its process."""
    with tempfile.TemporaryDirectory() as folder:
        before = children_cpu_s()
        command = [sys.executable, "-m", "assay", "train", f"dataset_builder={TASK}", f"log_path={folder}/run"]
        settings = [f"seed={seed}", "local.device=cpu", "tensorboard_enabled=false", *overrides]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *settings], check=True, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
        cpu_s = children_cpu_s() - before
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rewards = [row["eval/reward/mean"] for row in map(json.loads, lines) if "eval/reward/mean" in row]
    return {"seed": seed, "before": rewards[0], "after": rewards[-1], "cpu_s": round(cpu_s, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args, overrides = parser.parse_known_args()
    runs = []
    for seed in args.seeds:
        runs.append(measure(seed, overrides))
        print(f"seed {seed}: {runs[-1]['before']:.3f} -> {runs[-1]['after']:.3f} in {runs[-1]['cpu_s']:.1f} CPU s")
    worst = {
        "before": max(run["before"] for run in runs),
        "after": min(run["after"] for run in runs),
        "cpu_s": max(run["cpu_s"] for run in runs),
    }
    print(json.dumps({**worst, "runs": runs}))


if __name__ == "__main__":
    main()
