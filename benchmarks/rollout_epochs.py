"""What training on each rollout more than once really gives: held-out results at equal numbers of sampled completions.

    python benchmarks/rollout_epochs.py [--seeds 0 1 2] [--epochs 1 2 4] [--batches 100] [--out DIR] [--quick]

For each seed, the SFT stage of the chess preset is run once; from its checkpoint, GRPO is run with `rollout_epochs` of
1, 2 and 4: the same prompts, batches of 16 x 16 completions, learning rate and clipped loss (`loss_fn=ppo`), so that
the runs differ in how often each rollout is trained on and in nothing else. Settings (key=value) may follow. All are
measured on the same 400 held-out positions of the `final` set, 4 samples each, after equal numbers of sampled
completions. A finished or interrupted run in --out is not done again.

The last line is one JSON object: `epochs_N` holds the means over seeds at the end (`legal`, `reward`, each seed's
values, `legal_curve` by completions sampled, `cpu_s` of RL without evaluations), `efficiency_N` how many times fewer
completions N epochs needed for the share of legal moves that 1 epoch reaches at the end (by linear interpolation of the
mean curves; null where it is never reached).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.training.run.reader import read_run
from common import machine

POINTS = 5
"""Evaluations during RL, the last one at the end."""
METRICS = {"legal": "env/legal", "reward": "reward/mean"}
FINAL = ["dataset_builder.heldout_split=final", "dataset_builder.num_heldout=400"]
QUICK = ["sft.num_steps=60", "dataset_builder.num_train=160", "dataset_builder.num_heldout=40"]


def train(run: Path, settings: list[str]) -> None:
    """`assay train` of the chess preset, in a process of its own; goes on where it was interrupted."""
    command = [sys.executable, "-m", "assay", "train", "--config", "chess", f"log_path={run}", *settings]
    with run.with_suffix(".log").open("a") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"training {run} failed; see {run.with_suffix('.log')}")


def of_run(run: Path) -> dict[str, Any]:
    """Held-out metrics by completions sampled, and what RL cost."""
    records = read_run(run)
    rollouts, points = 0.0, []
    for row in records.metrics:
        rollouts += row.get("rollout/count") or 0.0
        if row.get("eval/env/legal") is not None:
            points.append({"completions": rollouts, **{n: row[f"eval/{key}"] for n, key in METRICS.items()}})
    steps = records.total("train/optimizer_steps", "rl")
    return {"points": points, "cpu_s": records.training_cpu_s("rl"), "optimizer_steps": steps}


def completions_to_reach(curve: list[tuple[float, float]], level: float) -> float | None:
    """Where the piecewise linear curve of (completions, value) first comes to the level."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y0 < level <= y1:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    return None


def summary_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of one number of epochs."""
    ends = [run["points"][-1] for run in runs]
    curve = [
        [fmean(p["completions"] for p in points), fmean(p["legal"] for p in points)]
        for points in zip(*(run["points"] for run in runs), strict=True)
    ]
    return {
        **{name: fmean(end[name] for end in ends) for name in METRICS},
        **{f"{name}_by_seed": [end[name] for end in ends] for name in METRICS},
        "legal_curve": curve,
        "cpu_s": fmean(run["cpu_s"] for run in runs),
        "optimizer_steps": fmean(run["optimizer_steps"] for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--out", type=Path, help="keep the runs here (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="rollout_epochs_"))
    out.mkdir(parents=True, exist_ok=True)
    batches = 5 if args.quick else args.batches
    data = [*FINAL, *(QUICK if args.quick else []), *args.settings]
    found: dict[int, list[dict[str, Any]]] = {n: [] for n in args.epochs}
    for seed in args.seeds:
        warm = out / f"seed_{seed}_sft"
        train(warm, [*data, f"seed={seed}", "max_batches=0", "dataset_builder.num_heldout=10"])
        checkpoint = max((warm / "checkpoints").glob("sft_*"))
        for epochs in args.epochs:
            run = out / f"seed_{seed}_epochs_{epochs}"
            rl = [
                f"seed={seed}",
                f"load_checkpoint_path={checkpoint}",
                "loss_fn=ppo",
                f"rollout_epochs={epochs}",
                f"max_batches={batches}",
                f"eval_every={max(1, batches // POINTS)}",
            ]
            train(run, [*data, "sft.num_steps=0", *rl])
            found[epochs].append(of_run(run))
            end = found[epochs][-1]["points"][-1]
            print(f"seed {seed}, {epochs} epochs: legal {end['legal']:.3f}, reward {end['reward']:.3f}", flush=True)
    results = {n: summary_of(runs) for n, runs in found.items()}
    output: dict[str, Any] = {f"epochs_{n}": result for n, result in results.items()}
    if 1 in results:
        completions, level = results[1]["legal_curve"][-1]
        for n in (n for n in results if n != 1):
            needed = completions_to_reach([(x, y) for x, y in results[n]["legal_curve"]], level)
            output[f"efficiency_{n}"] = None if needed is None else completions / needed
    print(json.dumps({**output, "seeds": args.seeds, "machine": machine("chess")}))


if __name__ == "__main__":
    main()
