"""Whether GRPO teaches good moves, not only legal ones: king and pawn against king, beside a random legal mover.

    python benchmarks/move_quality.py [--seeds 0 1] [--positions 1000] [--out DIR] [--quick] [key=value ...]

For each seed: `assay train --config chess_pawn` (a long SFT stage on random legal moves, then GRPO), then `assay eval`
of the checkpoints after SFT and after GRPO on positions of `heldout_split=final`. The random legal mover is exact.
Rates are sampled, 4 answers a position; intervals are 95 % over positions. A finished or interrupted seed in --out is
not done again. The last line is one JSON object: per seed and metric, `after_sft`, `after_grpo`, `random_legal` (each
mean, low, high), and `above_random`: for how many seeds the interval after GRPO lies above the random legal mover's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import machine

METRICS = ("legal", "best", "keeps_win", "rank", "reward")
QUICK = ["sft.num_steps=100", "max_batches=10", "dataset_builder.num_train=160", "dataset_builder.num_heldout=40"]


def assay(*arguments: str) -> str:
    """Standard output of an `assay` command, whose progress goes to standard error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "assay", *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    if done.returncode:
        sys.exit(f"assay {' '.join(arguments)} failed with status {done.returncode}")
    return done.stdout


def training_cpu_s(run: Path) -> float:
    """CPU seconds of the training process, evaluations included and Stockfish left out."""
    return sum(json.loads(line)["perf/cpu_s"] for line in (run / "metrics.jsonl").read_text().splitlines())


def of_seed(seed: int, out: Path, positions: int, settings: list[str]) -> dict[str, Any]:
    """Train one seed and measure it."""
    run = out / f"seed_{seed}"
    assay("train", "--config", "chess_pawn", f"log_path={run}", f"seed={seed}", *settings)
    final = ["dataset_builder.heldout_split=final", f"dataset_builder.num_heldout={positions}"]
    # The checkpoint before the first RL batch is the one after SFT.
    before, after = (json.loads(assay("eval", "--run", str(run), *step, *final)) for step in (["--step", "0"], []))
    policies = {
        "after_sft": before["metrics"]["policy"],
        "after_grpo": after["metrics"]["policy"],
        "random_legal": after["metrics"]["random_legal"],
    }
    rates = {m: {name: values[m] for name, values in policies.items()} for m in METRICS if m in policies["after_grpo"]}
    return {"seed": seed, "cpu_s": training_cpu_s(run), **rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="keep the runs here (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="move_quality_"))
    settings = [*(QUICK if args.quick else []), *args.settings]
    begun = time.monotonic()
    seeds = [of_seed(seed, out, 60 if args.quick else args.positions, settings) for seed in args.seeds]
    for row in seeds:
        print(f"seed {row['seed']}, {row['cpu_s']:.0f} CPU seconds")
        for metric in (m for m in METRICS if m in row):
            cells = (f"{name} {v['mean']:.3f} [{v['low']:.3f}, {v['high']:.3f}]" for name, v in row[metric].items())
            print(f"  {metric:10}", "   ".join(cells))
    above = {
        metric: sum(row[metric]["after_grpo"]["low"] > row[metric]["random_legal"]["high"] for row in seeds)
        for metric in METRICS
        if all(metric in row for row in seeds)
    }
    wall_s = time.monotonic() - begun
    print(json.dumps({"seeds": seeds, "above_random": above, "wall_s": wall_s, "machine": machine("chess")}))


if __name__ == "__main__":
    main()
