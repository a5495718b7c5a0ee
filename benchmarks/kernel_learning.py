"""What a small policy from scratch learns about writing Triton kernels, on two CPU cores.

    python benchmarks/kernel_learning.py [--seeds 0 1 2] [--jobs 2] [--out DIR] [--quick] [--compare] [key=value ...]

For each seed `assay train` with the presets `kernels_cpu` (one turn) and `kernels_cpu_turns` (two turns, one row
operation hidden), each with a supervised stage of its own from other random weights. The kernels are whole modules,
graded as they are by the ordinary grader. Held out are compositions of operators (`heldout=final`) that neither the
supervised examples nor RL saw, and that no setting was chosen by; each is sampled four times before RL and after it.
What could not be graded counts as not right.

The last line is one JSON object. `*_before` and `*_after` are the shares of right kernels (in two turns: of rollouts
with one), means over the seeds; `*_low` is the least of the seeds' lower ends of the 95 % bootstrap interval of the
paired lift over problems. `two_turn_rate` is that of two turns after RL, `pass_at_2` the chance that one of two
independent first turns of the same policy is right, `feedback_low` the lower end of the interval of their difference on
the worst seed. Every hidden prompt is there with its three variants, so that two independent samples of perfect kernels
are right 5/9 of the time, and two turns 2/3. `pool_after` is the share of right kernels on training problems in the
last tenth of RL, `distinct_share` that of different candidates among all that were sampled in RL,
`turn_of_first_success` are shares of the rollouts after RL. `regraded` are final successes, one of each problem,
`stay_right` those that are right under the default checks too, `compiled` for a GPU among them. `transfer` is the share
of right kernels for the problems that come with Assay, which are like none in training. With `--compare`, two turns are
trained with each baseline and with gamma 0, 0.4 and 1, from the supervised checkpoint of each seed (`arms`).
`training_wall_s` is the wall time of all training with its supervised stages and evaluations, `cpu_s` CPU seconds of
all processes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.envs.kernelbench.reply import read_reply
from assay.kernels import GraderConfig, grade_many
from assay.training.config import load_config
from assay.training.run.reader import Measurement, RunRecords
from assay.training.run.rollouts import open_rollouts
from common import machine
from common.kernel_learning import Solved, lift, pass_at, rates, turn_shares
from common.trained_runs import train_apart

MODES = {"single": "kernels_cpu", "multi": "kernels_cpu_turns"}
VARIANTS = {"single": 1, "multi": 3}
"""Problems with one prompt, which are drawn together for an interval."""
RIGHT = {"single": "kernel/correct_rate", "multi": "multiturn/success_rate"}
SHARED = ["dataset_builder.heldout=final", "tensorboard_enabled=false"]
QUICK = ["sft.num_steps=60", "max_batches=2", "dataset_builder.num_train=24", "eval.max_tasks=6"]
ARMS: Mapping[str, Sequence[str]] = {
    "baseline=mean gamma=0.4": ["grpo.baseline=mean"],
    "baseline=turn gamma=0.4": ["grpo.baseline=turn"],
    "baseline=leave_one_out gamma=0.4": ["grpo.baseline=leave_one_out"],
    "baseline=mean gamma=0": ["grpo.baseline=mean", "gamma=0"],
    "baseline=mean gamma=1": ["grpo.baseline=mean", "gamma=1"],
}


def train(out: Path, mode: str, name: str, settings: Sequence[str], unwell: bool = False) -> RunRecords:
    """One run of a mode, with a cache of verdicts of its own."""
    started = time.monotonic()
    run = train_apart(MODES[mode], out / name, [*SHARED, f"cache_dir={out / 'cache' / name}", *settings], unwell)
    print(f"{name} done after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return run


def solved(run: RunRecords, evaluation: Measurement | None) -> Solved:
    """The turns of the first right kernels in an evaluation, problem by problem."""
    assert evaluation is not None, f"{run.path} was not evaluated twice"
    rollouts = open_rollouts(run.path, committed=True)
    keys = [key for key in rollouts.keys if key.split == "eval" and key.step == evaluation.step]
    return [
        [
            next((n for n, turn in enumerate(rollout.turns, 1) if turn.metrics.get("correct")), None)
            for rollout in rollouts.group(key).rollouts
        ]
        for key in sorted(keys, key=lambda key: key.group)
    ]


def distinct_share(run: RunRecords) -> float:
    """Share of different candidates, of the same problem, among all that were sampled in RL."""
    every = [
        (rollout.key, turn.text)
        for group in open_rollouts(run.path, committed=True)
        if group.key.split == "train"
        for rollout in group.rollouts
        for turn in rollout.turns
    ]
    return len(set(every)) / len(every)


def of_run(mode: str, run: RunRecords) -> dict[str, Any]:
    """What a run shows."""
    before, after = solved(run, run.first), solved(run, run.last)
    turns = 2 if mode == "multi" else 1
    ends = [rates(found, turns) for found in (before, after)]
    curve = [value for _, value in run.curve(RIGHT[mode], "rl")]
    row: dict[str, Any] = {
        "before": fmean(ends[0]),
        "after": fmean(ends[1]),
        "lift": lift(*ends, group=VARIANTS[mode]),
        "pool_after": fmean(curve[-max(1, len(curve) // 10) :]),
        "distinct_share": distinct_share(run),
        "batches": len(curve),
        "problems": len(after),
    }
    if mode == "multi":
        independent = pass_at(after, 2)
        row |= {
            "pass_at_2_before": fmean(pass_at(before, 2)),
            "pass_at_2": fmean(independent),
            "feedback": lift(independent, ends[1], group=VARIANTS[mode]),
            "turn_of_first_success": turn_shares(after, turns),
        }
    return row


def regraded(mode: str, run: RunRecords, settings: Sequence[str]) -> dict[str, int]:
    """The final successes, one of each problem, under the grader's default checks and compiled for a GPU."""
    assert run.last is not None, f"{run.path} was not evaluated twice"
    builder: Any = load_config(MODES[mode], [*SHARED, *settings]).active_builder
    candidates = []
    for (problem, _), task in zip(builder.heldout_problems(), run.last.tasks, strict=False):
        right = [answer.text for answer in task.answers if answer.parts.get("correctness") == 1]
        candidates += [(problem, read_reply(right[0]).kernel)] if right else []
    verdicts = list(grade_many(candidates, GraderConfig(scale="none", cache=False)))
    return {
        "successes": len(verdicts),
        "stay_right": sum(verdict.ok for verdict in verdicts),
        "compiled": sum(verdict.compiled is True for verdict in verdicts),
    }


def transfer(run: RunRecords) -> float:
    """Share of right kernels for the problems that come with Assay."""
    command = [sys.executable, "-m", "assay", "eval", "--run", str(run.path), "dataset_builder.heldout=shipped"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"evaluating {run.path} on the problems that come with Assay failed")
    return float(json.loads(done.stdout)["metrics"]["policy"]["correct"]["mean"])


def measured(mode: str, run: RunRecords, settings: Sequence[str]) -> dict[str, Any]:
    """What a run shows, its successes graded again, and for one turn the problems that come with Assay."""
    row = of_run(mode, run) | {"regraded": regraded(mode, run, settings)}
    return row | ({"transfer": transfer(run)} if mode == "single" else {})


def learned(seeds: Sequence[int], jobs: int, out: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Every mode of every seed, `jobs` runs at a time: all are trained first, then measured."""
    pairs = [(mode, seed, [f"seed={seed}", *settings]) for mode in MODES for seed in seeds]
    started = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        runs = list(pool.map(lambda pair: train(out, pair[0], f"{pair[0]}_{pair[1]}", pair[2]), pairs))
        training = time.monotonic() - started
        found = list(pool.map(lambda pair, run: measured(pair[0], run, pair[2]), pairs, runs))
    rows = [
        {"seed": seed} | {mode: row for (mode, of, _), row in zip(pairs, found, strict=True) if of == seed}
        for seed in seeds
    ]
    return summary(rows) | {"training_wall_s": training, "seeds": rows}


def compared(seed: int, out: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Two turns from the supervised checkpoint of a seed, with each baseline and discount."""
    stage = train(out, "multi", f"multi_{seed}_sft", [f"seed={seed}", *settings, "max_batches=0", "eval.max_tasks=6"])
    checkpoint = max((stage.path / "checkpoints").glob("sft_*"))
    found = {}
    for name, arm in ARMS.items():
        given = [f"seed={seed}", *settings, "sft.num_steps=0", f"load_checkpoint_path={checkpoint}", *arm]
        run = train(out, "multi", f"multi_{seed}_{name.replace(' ', '_')}", given, unwell=True)
        row = of_run("multi", run)
        found[name] = {key: row[key] for key in ("before", "after", "lift", "pass_at_2", "feedback")}
    return {"seed": seed, **found}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything about the seeds together."""
    result: dict[str, Any] = {}
    for mode in MODES:
        of_mode = [row[mode] for row in rows]
        result |= {f"{mode}_{name}": fmean(row[name] for row in of_mode) for name in ("before", "after")}
        result[f"{mode}_low"] = min(row["lift"]["low"] for row in of_mode)
        result[f"{mode}_regraded"] = {
            name: sum(row["regraded"][name] for row in of_mode) for name in of_mode[0]["regraded"]
        }
    multi = [row["multi"] for row in rows]
    every = [row[mode] for row in rows for mode in MODES]
    shares = multi[0]["turn_of_first_success"]
    return result | {
        "pass_at_2": fmean(row["pass_at_2"] for row in multi),
        "two_turn_rate": fmean(row["after"] for row in multi),
        "feedback_low": min(row["feedback"]["low"] for row in multi),
        "pool_after": {mode: fmean(row[mode]["pool_after"] for row in rows) for mode in MODES},
        "distinct_share": fmean(row["distinct_share"] for row in every),
        "turn_of_first_success": {name: fmean(row["turn_of_first_success"][name] for row in multi) for name in shares},
        "transfer": fmean(row["single"]["transfer"] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (with --compare: seeds)")
    parser.add_argument("--out", type=Path, help="keep the runs here; the same command goes on where it stopped")
    parser.add_argument("--compare", action="store_true", help="baselines and discounts side by side, and nothing else")
    parser.add_argument("--quick", action="store_true", help="a few steps of one seed, to see that it works")
    args, settings = parser.parse_known_args()
    seeds = args.seeds[:1] if args.quick else args.seeds
    settings = [*(QUICK if args.quick else []), *settings]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernel_learning_") as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        if args.compare:
            with ThreadPoolExecutor(args.jobs) as pool:
                result = {"arms": list(pool.map(lambda seed: compared(seed, out, settings), seeds))}
        else:
            result = learned(seeds, args.jobs, out, settings)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cost = {"wall_s": time.monotonic() - started, "cpu_s": sum(one.ru_utime + one.ru_stime for one in used)}
    print(json.dumps(result | cost | {"jobs": args.jobs, "quick": args.quick, "machine": machine()}))


if __name__ == "__main__":
    main()
