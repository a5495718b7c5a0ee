"""One policy, both chess tasks: what GRPO adds to P: and to A:, and what the literal faults of the specification cost.

    python benchmarks/mixed_chess.py [--seeds 0 1 2] [--jobs 1] [--out DIR] [--quick] [key=value ...]

For each seed, the SFT stage of the preset `chess_mixed` (20 % A: tasks) is run once. From its checkpoint GRPO is run
twice on the same prompts: `right` is the preset, token by token; `literal` is what the specification's ancestor
really did: the ratio and the KL penalty are taken on the mean log-ratio of each sequence, and however many epochs were
asked for, one optimizer step is taken per batch of rollouts. Everything else is equal. Both are measured on held-out
positions of the `final` set before and after, 2 samples each. A finished or interrupted run in --out is not done again.

The last line is one JSON object: per metric `before`, `right`, `literal` (means over seeds), `*_by_seed`, and `lifted`:
for how many seeds the paired 95 % interval (over positions) of the change lies above 0; `beats_literal`: likewise for
right minus literal. Metrics: P: reward, legal, best, keeps_win; A: reward, exact. `cpu_s` per seed: SFT, and each run.
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

from assay.training.metrics.intervals import paired_difference_ci95
from assay.training.run.reader import HeldoutTask, RunRecords, read_run
from common import machine

METRICS = {"P": ("reward", "legal", "best", "keeps_win"), "A": ("reward", "exact")}
FINAL = ["dataset_builder.heldout_split=final"]
QUICK = ["sft.num_steps=40", "dataset_builder.num_train=160", "dataset_builder.num_heldout=60"]
LITERAL = [
    "loss_fn=gspo",
    "loss_fn_config.clip_low_threshold=0.8",
    "loss_fn_config.clip_high_threshold=1.2",
    "rollout_epochs=1",
    "grpo.kl_estimator=kl3",
    "grpo.kl_placement=loss",
]
"""The sequence-mean ratio with the usual clip is gspo with these thresholds; `_literal` patches the penalty in."""


def _literal(arguments: Sequence[str]) -> int:
    """`assay ...` with the KL penalty on the mean log-ratio of each sequence, as the ancestor computed it."""
    from assay.backends.base import LossSpec
    from assay.backends.local import backend
    from assay.backends.local.losses import Streams, policy_loss, sequence_mean
    from assay.cli.main import main as assay

    def token_losses(spec: LossSpec, logprobs: Any, entropies: Any, data: Streams) -> dict[str, Any]:
        terms = {"policy": policy_loss(spec, logprobs, data)}
        if spec.kl is not None:
            mean = sequence_mean(logprobs - data.reference, data.sequences)
            terms["kl"] = data.weights * spec.kl.coef * mean.square() / 2
        return terms

    backend.token_losses = token_losses  # type: ignore[assignment]
    return assay(list(arguments))


def train(run: Path, settings: Sequence[str], *, literal: bool = False) -> RunRecords:
    """A run in a process of its own; goes on where it was interrupted."""
    program = [__file__, "--literal-run"] if literal else ["-m", "assay"]
    command = [sys.executable, *program, "train", "--config", "chess_mixed", f"log_path={run}", *settings]
    with run.with_suffix(".log").open("a") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"training {run} failed; see {run.with_suffix('.log')}")
    return read_run(run)


def of_seed(seed: int, out: Path, settings: Sequence[str]) -> dict[str, RunRecords]:
    """The three runs of one seed."""
    common = [*FINAL, *settings, f"seed={seed}"]
    sft = train(out / f"seed_{seed}_sft", [*common, "max_batches=0", "dataset_builder.num_heldout=10"])
    checkpoint = max((sft.path / "checkpoints").glob("sft_*"))
    rl = [*common, "sft.num_steps=0", f"load_checkpoint_path={checkpoint}", "eval_every=0"]
    right = train(out / f"seed_{seed}_right", rl)
    literal = train(out / f"seed_{seed}_literal", [*rl, *LITERAL], literal=True)
    print(f"seed {seed} done", file=sys.stderr, flush=True)
    return {"sft": sft, "right": right, "literal": literal}


def values(tasks: Sequence[HeldoutTask], kind: str, metric: str) -> list[float]:
    """One value per held-out task of a kind that has the metric (a drawn position has no win to keep)."""
    of_kind = [task for task in tasks if ("exact" in task.values) == (kind == "A")]
    return [task.values[metric] for task in of_kind if metric in task.values]


def compare(runs: Sequence[Mapping[str, RunRecords]], kind: str, metric: str) -> dict[str, Any]:
    """One metric over all seeds."""
    by_seed: dict[str, list[float]] = {"before": [], "right": [], "literal": []}
    lifted = beats = 0
    for run in runs:
        right, literal = run["right"], run["literal"]
        assert right.first is not None and right.last is not None and literal.last is not None
        before, after = values(right.first.tasks, kind, metric), values(right.last.tasks, kind, metric)
        other = values(literal.last.tasks, kind, metric)
        for name, column in (("before", before), ("right", after), ("literal", other)):
            by_seed[name].append(fmean(column))
        lifted += paired_difference_ci95(before, after).low > 0
        beats += paired_difference_ci95(other, after).low > 0
    means = {name: fmean(column) for name, column in by_seed.items()}
    return {**means, "lifted": lifted, "beats_literal": beats, **{f"{n}_by_seed": c for n, c in by_seed.items()}}


def main() -> None:
    if sys.argv[1:2] == ["--literal-run"]:
        sys.exit(_literal(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, a core each")
    parser.add_argument("--out", type=Path, help="keep the runs here (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="mixed_chess_"))
    out.mkdir(parents=True, exist_ok=True)
    settings = [*([*QUICK, "max_batches=4"] if args.quick else []), *args.settings]
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = list(pool.map(lambda seed: of_seed(seed, out, settings), args.seeds))
    found = {f"{kind}/{metric}": compare(runs, kind, metric) for kind, names in METRICS.items() for metric in names}
    for name, row in found.items():
        cells = "  ".join(f"{role} {row[role]:.3f}" for role in ("before", "right", "literal"))
        print(
            f"{name:12} {cells}  lifted {row['lifted']}/{len(runs)}, above literal {row['beats_literal']}/{len(runs)}"
        )
    cpu = {name: fmean(run[name].training_cpu_s() for run in runs) for name in ("sft", "right", "literal")}
    print(json.dumps({**found, "cpu_s": cpu, "seeds": args.seeds, "machine": machine("chess")}))


if __name__ == "__main__":
    main()
