"""What training on each rollout more than once gives, with the learning rate and the substeps tuned for each arm.

    python benchmarks/rollout_epochs.py [--seeds 0 1 2] [--epochs 2 4] [--batches 100] [--out DIR] [--quick]

An arm is a number of `rollout_epochs` and a number of batches (16 x 16 completions each). The arms trained on equal
completions have `--batches` of them; for each arm with more epochs, a further arm with one has as many batches as cost
the same CPU time, at the setting that was tuned for one epoch and not for so many batches. All use the chess preset and
the clipped loss (`loss_fn=ppo`), and start from the same SFT checkpoint of a seed.

Tuning: on a seed of its own and on the `validation` set, each arm tries every rate of `--rates` with one substep, and
again the next rate by a factor of 2 for as long as the best lies at the edge; then `num_substeps` 2 and 4, each at the
best rate and at half of it. The setting with the highest held-out reward is the arm's own. Then each arm is trained
once per seed at its own setting and measured on 400 positions of the `final` set, 4 samples each. Settings (key=value)
may follow. A finished or interrupted run in --out is not done again.

The last line is one JSON object. `arms` has for each arm `epochs`, `substeps`, `learning_rate`, `batches`,
`completions`, `optimizer_steps`, means over the seeds of `legal`, `reward` and `cpu_s` (CPU seconds of RL without
evaluations and without Stockfish), `*_by_seed`, `curve` (completions, CPU seconds, legal, reward at five points),
`tried` (the tuning table, best first) and `against_one_epoch`: the paired 95 % intervals (over positions) of the arm's
difference from one epoch at equal completions, for each seed and for the mean over seeds.
`before` is the SFT checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.training.metrics.intervals import paired_difference_ci95
from assay.training.run.reader import RunRecords, read_run
from common import machine

POINTS = 5
"""Evaluations during RL of a final run, the last one at the end."""
METRICS = {"legal": "env/legal", "reward": "reward/mean"}
HELDOUT = 400
BATCHES_OF_DATA = 300
"""Batches in the preset's training positions; a longer run goes through them again."""
SUBSTEPS = (2, 4)
MOST_FURTHER_RATES = 3
QUICK = ["sft.num_steps=60", "dataset_builder.num_train=160"]


@dataclass(frozen=True)
class Arm:
    """So many passes over each rollout, for so many batches."""

    epochs: int
    batches: int

    @property
    def name(self) -> str:
        return f"epochs_{self.epochs}_batches_{self.batches}"


@dataclass(frozen=True)
class Setting:
    """What is tuned for each arm."""

    learning_rate: float
    substeps: int = 1


@dataclass(frozen=True)
class Lab:
    """Where runs are kept, and what all of them share."""

    out: Path
    settings: Sequence[str]
    heldout: int

    def train(self, name: str, split: str, settings: Sequence[str]) -> RunRecords:
        """`assay train` of the chess preset, in a process of its own; goes on where it was interrupted."""
        run = self.out / name
        log = self.out / f"{name}.log"
        data = [f"dataset_builder.heldout_split={split}", *self.settings, *settings]
        command = [sys.executable, "-m", "assay", "train", "--config", "chess", f"log_path={run}", *data]
        if not (run.exists() and read_run(run).complete):
            with log.open("a") as file:
                done = subprocess.run(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
            if done.returncode:
                sys.exit(f"training {run} failed; see {log}")
        return read_run(run)

    def warm_up(self, seed: int, split: str) -> Path:
        """The checkpoint of the SFT stage, which all arms of a seed start from."""
        name = f"seed_{seed}_sft"
        self.train(name, split, ["dataset_builder.num_heldout=10", f"seed={seed}", "max_batches=0"])
        return max((self.out / name / "checkpoints").glob("sft_*"))

    def grpo(self, arm: Arm, setting: Setting, seed: int, split: str, points: int) -> RunRecords:
        """One run of an arm, evaluated before, at `points` moments and so at the end."""
        name = f"{split}_seed_{seed}_{arm.name}_lr_{setting.learning_rate:g}_substeps_{setting.substeps}"
        rl = [
            f"dataset_builder.num_heldout={self.heldout}",
            f"seed={seed}",
            f"load_checkpoint_path={self.warm_up(seed, split)}",
            "sft.num_steps=0",
            "loss_fn=ppo",
            f"rollout_epochs={arm.epochs}",
            f"num_substeps={setting.substeps}",
            f"learning_rate={setting.learning_rate:g}",
            f"dataset_builder.num_epochs={-(-arm.batches // BATCHES_OF_DATA)}",
            f"max_batches={arm.batches}",
            f"eval_every={0 if points == 1 else max(1, arm.batches // points)}",
        ]
        return self.train(name, split, rl)


def end_of(run: RunRecords) -> dict[str, float]:
    """Held-out metrics at the end, what RL cost, and its optimizer steps."""
    last = [row for row in run.metrics if row.get("eval/reward/mean") is not None][-1]
    return {
        **{name: last[f"eval/{key}"] for name, key in METRICS.items()},
        "cpu_s": run.training_cpu_s("rl"),
        "completions": run.total("rollout/count", "rl"),
        "optimizer_steps": run.total("train/optimizer_steps", "rl"),
    }


def curve_of(run: RunRecords) -> list[list[float]]:
    """(completions, CPU seconds, legal, reward) at every evaluation of RL."""
    completions = cpu_s = 0.0
    points = []
    for row in run.metrics:
        if row["phase"] == "rl":
            completions += row.get("rollout/count") or 0.0
            cpu_s += (row.get("perf/cpu_s") or 0.0) - (row.get("perf/eval_cpu_s") or 0.0)
        if row.get("eval/reward/mean") is not None:
            points.append([completions, cpu_s, *(row[f"eval/{key}"] for key in METRICS.values())])
    return points


def further_rate(rewards: Mapping[float, float]) -> float | None:
    """The rate to try next, by a factor of 2 beyond the best one where that lies at an edge; None where it does not."""
    best = max(rewards, key=lambda rate: rewards[rate])
    if best == max(rewards):
        return best * 2
    return best / 2 if best == min(rewards) else None


def substep_settings(best_rate: float) -> Iterator[Setting]:
    """What is tried after the rates."""
    for substeps in SUBSTEPS:
        yield from (Setting(rate, substeps) for rate in (best_rate, best_rate / 2))


def tune(lab: Lab, arm: Arm, seed: int, rates: Sequence[float]) -> tuple[Setting, list[dict[str, Any]]]:
    """The arm's best setting by held-out reward on the validation set, and the table of all tried, best first."""
    tried: dict[Setting, dict[str, float]] = {}

    def measure(setting: Setting) -> None:
        tried[setting] = end = end_of(lab.grpo(arm, setting, seed, "validation", 1))
        print(f"tuning {arm.name}, {setting}: legal {end['legal']:.3f}, reward {end['reward']:.3f}", flush=True)

    for rate in rates:
        measure(Setting(rate))
    for _ in range(MOST_FURTHER_RATES):
        further = further_rate({setting.learning_rate: end["reward"] for setting, end in tried.items()})
        if further is None:
            break
        measure(Setting(further))
    best_rate = max(tried, key=lambda setting: tried[setting]["reward"]).learning_rate
    for setting in substep_settings(best_rate):
        measure(setting)
    ranked = sorted(tried, key=lambda setting: -tried[setting]["reward"])
    return ranked[0], [{"learning_rate": s.learning_rate, "substeps": s.substeps, **tried[s]} for s in ranked]


def equal_cpu_batches(batches: int, one: Mapping[str, float], more: Mapping[str, float]) -> int:
    """Batches of one epoch (a multiple of 10) that cost what the arm with more epochs costs, by both tuning runs."""
    return round(batches * more["cpu_s"] / one["cpu_s"] / 10) * 10


def differences(ones: Sequence[RunRecords], others: Sequence[RunRecords]) -> dict[str, Any]:
    """Paired 95 % intervals over held-out positions of other minus one: for each seed, and for the mean over seeds."""
    found: dict[str, Any] = {}
    for metric in METRICS:
        pairs = [(values(one, metric), values(other, metric)) for one, other in zip(ones, others, strict=True)]
        by_seed = [paired_difference_ci95(*pair) for pair in pairs]
        means = [[fmean(column) for column in zip(*side, strict=True)] for side in zip(*pairs, strict=True)]
        change = paired_difference_ci95(*means)
        found[metric] = {
            "mean": change.mean,
            "ci95": [change.low, change.high],
            "ci95_by_seed": [[seed.low, seed.high] for seed in by_seed],
        }
    return found


def values(run: RunRecords, metric: str) -> list[float]:
    """One value of each held-out position at the end of the run."""
    assert run.last is not None, f"{run.path} was not evaluated at its end"
    return [task.values[metric] for task in run.last.tasks]


def row_of(arm: Arm, setting: Setting, runs: Sequence[RunRecords]) -> dict[str, Any]:
    """What one arm reached on the final set, and what it cost."""
    ends = [end_of(run) for run in runs]
    moments = zip(*(curve_of(run) for run in runs), strict=True)
    return {
        "epochs": arm.epochs,
        "substeps": setting.substeps,
        "learning_rate": setting.learning_rate,
        "batches": arm.batches,
        **{name: fmean(end[name] for end in ends) for name in ends[0]},
        **{f"{name}_by_seed": [end[name] for end in ends] for name in (*METRICS, "cpu_s")},
        "curve": [[fmean(column) for column in zip(*points, strict=True)] for points in moments],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tuning-seed", type=int, default=10)
    parser.add_argument("--epochs", type=int, nargs="+", default=[2, 4], help="beside 1")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3, 4e-3])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--out", type=Path, help="keep the runs here (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    if args.tuning_seed in args.seeds:
        parser.error(f"--tuning-seed {args.tuning_seed} is one of --seeds; settings are chosen on another seed.")
    out = args.out or Path(tempfile.mkdtemp(prefix="rollout_epochs_"))
    out.mkdir(parents=True, exist_ok=True)
    lab = Lab(out, [*(QUICK if args.quick else []), *args.settings], 40 if args.quick else HELDOUT)
    batches = 5 if args.quick else args.batches
    one = Arm(1, batches)
    tuned = {
        arm: tune(lab, arm, args.tuning_seed, args.rates) for arm in (one, *(Arm(n, batches) for n in args.epochs))
    }
    best = {arm: table[0] for arm, (_, table) in tuned.items()}
    longer = [Arm(1, equal_cpu_batches(batches, best[one], best[arm])) for arm in tuned if arm != one]
    plan = {arm: setting for arm, (setting, _) in tuned.items()} | dict.fromkeys(longer, tuned[one][0])
    runs = {arm: [lab.grpo(arm, s, seed, "final", POINTS) for seed in args.seeds] for arm, s in plan.items()}
    rows = []
    for arm, setting in plan.items():
        row = row_of(arm, setting, runs[arm])
        row["seeds"] = args.seeds
        row["tried"] = tuned[arm][1] if arm in tuned else "the setting that one epoch was tuned to"
        row["against_one_epoch"] = None if arm == one else differences(runs[one], runs[arm])
        rows.append(row)
        print(f"{arm.name} at {setting}: " + ", ".join(f"{name} {row[name]:.3f}" for name in (*METRICS, "cpu_s")))
    at_start = [curve_of(run)[0][2:] for run in runs[one]]
    before = dict(zip(METRICS, map(fmean, zip(*at_start, strict=True)), strict=True))
    print(json.dumps({"arms": rows, "before": before, "seeds": args.seeds, "machine": machine("chess")}))


if __name__ == "__main__":
    main()
