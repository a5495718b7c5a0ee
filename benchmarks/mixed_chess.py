"""One policy for both chess tasks: what GRPO adds to choosing moves (P:) and to making them (A:).

    python benchmarks/mixed_chess.py [--seeds 0 1 2] [--jobs 1] [--out DIR] [--quick] [key=value ...]

For each seed, `assay train --config chess_mixed` (20 % A: tasks) with the preset's own settings: a supervised stage,
then GRPO. Held-out positions are those of the `final` set, measured before and after GRPO. A finished or interrupted
run in --out is not done again.

The last line is one JSON object: per metric `before`, `after` (means over seeds), `*_by_seed`, `change_ci95_by_seed`,
the paired 95 % interval over held-out positions, and `lifted`: for how many seeds it lies above 0. Metrics: P: reward,
legal, best, keeps_win; A: reward, exact. `cpu_s` (without evaluations and Stockfish) is by stage, a mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.training.run.reader import HeldoutTask, RunRecords
from common import machine
from common.trained_runs import before_and_after, train_apart

METRICS = {"P": ("reward", "legal", "best", "keeps_win"), "A": ("reward", "exact")}
FINAL = ["dataset_builder.heldout_split=final", "eval_every=0"]
QUICK = ["sft.num_steps=40", "max_batches=4", "dataset_builder.num_train=160", "dataset_builder.num_heldout=60"]


def train(run: Path, seed: int, settings: Sequence[str]) -> RunRecords:
    """A run of one seed."""
    found = train_apart("chess_mixed", run, [f"seed={seed}", *FINAL, *settings])
    print(f"seed {seed} done", file=sys.stderr, flush=True)
    return found


def values(tasks: Sequence[HeldoutTask], kind: str, metric: str) -> list[float]:
    """One value per held-out task of a kind that has the metric (a drawn position has no win to keep)."""
    of_kind = [task for task in tasks if ("exact" in task.values) == (kind == "A")]
    return [task.values[metric] for task in of_kind if metric in task.values]


def compare(runs: Sequence[RunRecords], kind: str, metric: str) -> dict[str, Any]:
    """One metric before and after GRPO, over all seeds."""
    seeds = []
    for run in runs:
        assert run.first is not None and run.last is not None, f"{run.path} was not evaluated twice"
        seeds.append((values(run.first.tasks, kind, metric), values(run.last.tasks, kind, metric)))
    return before_and_after(seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, a core each")
    parser.add_argument("--out", type=Path, help="keep the runs here (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="mixed_chess_"))
    out.mkdir(parents=True, exist_ok=True)
    settings = [*(QUICK if args.quick else []), *args.settings]
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = list(pool.map(lambda seed: train(out / f"seed_{seed}", seed, settings), args.seeds))
    found = {f"{kind}/{metric}": compare(runs, kind, metric) for kind, names in METRICS.items() for metric in names}
    for name, row in found.items():
        print(f"{name:12} before {row['before']:.3f}  after {row['after']:.3f}  lifted {row['lifted']}/{len(runs)}")
    cpu = {stage: fmean(run.training_cpu_s(stage) for run in runs) for stage in ("sft", "rl")}
    print(json.dumps({**found, "cpu_s": cpu, "seeds": args.seeds, "machine": machine("chess")}))


if __name__ == "__main__":
    main()
