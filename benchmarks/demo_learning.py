"""What the demo learns, over several seeds, on held-out positions that no setting was chosen by.

    python benchmarks/demo_learning.py [--seeds 0 1 2] [--jobs 1] [--out DIR] [--quick] [key=value ...]

Each seed is a whole `assay demo` in a process of its own (initial weights, training positions and sampling differ),
judged on the positions of `heldout_split=final`, which are the same for all seeds. The settings are those of the
preset `chess_pawn`, which were chosen on the positions of `heldout_split=validation`. With `--quick` a small run on
those shows that everything works, and says nothing about learning.

The last line is one JSON object. `*_before` is the warm-up alone, `sft_only_*` the warm-up of the same CPU time,
`*_after` is after GRPO, `random_legal_*` a mover of random legal moves (exact): means over the seeds. `*_ci95` are 95 %
intervals over positions, each position's values averaged over the seeds first; `legal_after_ci95_over_seeds` is
Student's interval over the seeds. `reward_after_low`, `keeps_win_after_low` and `best_after_low` are the lower ends of
the intervals after GRPO, to be compared with `random_reward`, `random_keeps_win` and `random_best`; `above_random`
counts the seeds whose own lower end is above. `claims` says of each seed whether GRPO is above (1), below (-1) or not
shown to differ from (0) another policy, by paired intervals over positions. `constant_groups_end` is the share of
constant groups in the last fifth of GRPO. `cpu_s` (warm-up and GRPO), `control_cpu_s`, `verifier_cpu_s` (Stockfish),
`total_cpu_s` (all processes) and `wall_s` (the control runs beside GRPO) are means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.cli.demo.command import CONTROL, GRPO
from assay.cli.demo.outcome import METRICS, RESULT
from assay.training.metrics.intervals import Interval, mean_ci95
from assay.training.report.comparison import Policy, measured_policy
from assay.training.run.reader import read_run

POSITIONS = 500
FINAL = ["dataset_builder.heldout_split=final", f"dataset_builder.num_heldout={POSITIONS}"]
QUICK = ["sft.num_steps=40", "max_batches=6", "dataset_builder.num_heldout=60", "dataset_builder.num_train=96"]
ROLES = {"before": "warm_up", "sft_only": "same_cpu", "after": "grpo", "random_legal": "random_legal"}
PLAYED = ("reward", "keeps_win", "best")
"""Metrics in which a policy can beat the random legal mover, whose moves are all legal."""
COSTS = ("control_cpu_s", "verifier_cpu_s", "wall_s")


def run_demo(seed: int, out: Path, settings: Sequence[str], log: bool) -> dict[str, Any]:
    """The result of one demo; `log` keeps its output in a file instead of showing it."""
    root = out / f"seed_{seed}"
    command = [sys.executable, "-m", "assay", "demo", f"log_path={root}", *settings, f"seed={seed}"]
    path = out / f"seed_{seed}.log"
    with path.open("w") if log else os.fdopen(os.dup(sys.stderr.fileno()), "w") as output:
        done = subprocess.run(command, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"the demo of seed {seed} failed{f'; see {path}' if log else ''}")
    result: dict[str, Any] = json.loads((root / RESULT).read_text())
    print(f"seed {seed}: {result['wall_s']:.0f} s", *result["verdicts"], sep="\n  ", file=sys.stderr)
    return result


def of_seed(seed: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one seed that the mean is made of, with the interval of the policy after GRPO."""
    row: dict[str, Any] = {"seed": seed}
    for metric in METRICS:
        found = {role: result["policies"].get(name, {}).get(metric) for role, name in ROLES.items()}
        row |= {column(metric, role): estimate["mean"] for role, estimate in found.items() if estimate}
        if found["after"]:
            row[f"{metric}_after_ci95"] = [found["after"]["low"], found["after"]["high"]]
    row["cpu_s"] = result["warm_up_cpu_s"] + result["grpo_cpu_s"]
    row["total_cpu_s"] = result["cpu_s"]
    row["constant_groups_end"] = result["constant_groups"][-1]
    return row | {name: result[name] for name in COSTS} | {"differences": result["differences"]}


def column(metric: str, role: str) -> str:
    """`legal_after`, but `sft_only_legal` and `random_legal_best`."""
    return f"{metric}_{role}" if role in ("before", "after") else f"{role}_{metric}"


def over_positions(runs: Sequence[Path], metric: str, control: bool) -> Interval:
    """Mean and interval, over positions, of what the runs ended with (a control: its only evaluation)."""
    values: dict[str, list[float]] = {}
    for path in runs:
        records = read_run(path)
        measurement = records.first if control else records.last
        assert measurement is not None, f"{path} was not evaluated"
        for position, value in measured_policy("", measurement).values.get(metric, {}).items():
            values.setdefault(position, []).append(value)
    mean = Policy("", {metric: {position: fmean(samples) for position, samples in values.items()}})
    interval = mean.estimate(metric)
    assert interval is not None, f"no run reports {metric}"
    return interval


def claims(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """Comparison -> metric -> what each seed's interval allows to claim."""
    return {
        name: {
            metric: [direction(row["differences"][name][metric]) for row in rows]
            for metric in metrics
            if all(row["differences"][name].get(metric) for row in rows)
        }
        for name, metrics in rows[0]["differences"].items()
    }


def direction(gap: Mapping[str, float]) -> int:
    """1 above 0, -1 below 0, 0 where the interval includes 0."""
    return (gap["low"] > 0) - (gap["high"] < 0)


def summary(rows: Sequence[Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """Everything about the seeds together."""
    shared = [name for name, value in rows[0].items() if isinstance(value, float) and all(name in row for row in rows)]
    result: dict[str, Any] = {name: fmean(row[name] for row in rows) for name in shared}
    runs = [out / f"seed_{row['seed']}" for row in rows]
    for metric in METRICS:
        if f"{metric}_after" in result:
            after = over_positions([run / GRPO for run in runs], metric, control=False)
            alone = over_positions([run / CONTROL for run in runs], metric, control=True)
            result[f"{metric}_after_ci95"] = [after.low, after.high]
            result[f"sft_only_{metric}_ci95"] = [alone.low, alone.high]
    if len(rows) > 1:
        seeds = mean_ci95([row["legal_after"] for row in rows])
        result["legal_after_ci95_over_seeds"] = [seeds.low, seeds.high]
    for metric in PLAYED:
        if f"{metric}_after" in result:
            result[f"{metric}_after_low"] = result[f"{metric}_after_ci95"][0]
            result[f"random_{metric}"] = result[f"random_legal_{metric}"]
    above = {
        metric: sum(row[f"{metric}_after_ci95"][0] > row[f"random_legal_{metric}"] for row in rows)
        for metric in PLAYED
        if f"{metric}_after" in result
    }
    return result | {
        "above_random": above,
        "claims": claims(rows),
        "seeds": [{k: v for k, v in r.items() if k != "differences"} for r in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="demos at a time; more than 1 makes wall times longer")
    parser.add_argument("--out", type=Path, help="keep the runs here; the same command goes on where it stopped")
    parser.add_argument("--quick", action="store_true", help="one small run, on validation positions")
    args, settings = parser.parse_known_args()
    seeds = args.seeds[:1] if args.quick else args.seeds
    settings = [*(QUICK if args.quick else FINAL), *settings]
    with tempfile.TemporaryDirectory(prefix="demo_learning_") as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(lambda seed: run_demo(seed, out, settings, log=args.jobs > 1), seeds))
        found = summary([of_seed(seed, result) for seed, result in zip(seeds, results, strict=True)], out)
    heldout = {"positions": results[0]["tasks"], "samples_per_position": results[0]["samples_per_task"]}
    print(json.dumps(heldout | {"jobs": args.jobs, "quick": args.quick} | found))


if __name__ == "__main__":
    main()
