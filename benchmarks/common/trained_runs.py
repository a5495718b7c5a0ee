"""Runs that a benchmark trains in processes of their own, and what they show before and after, seed by seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.errors import HealthError
from assay.training.metrics.intervals import paired_difference_ci95
from assay.training.run.reader import RunRecords, read_run


def train_apart(preset: str, run: Path, settings: Sequence[str], unwell: bool = False) -> RunRecords:
    """`assay train` of a preset in a process of its own, on one core; it goes on where it was interrupted.

    Args:
        unwell: whether a run counts that did all its batches and whose policy is not what it was.
    """
    command = [sys.executable, "-m", "assay", "train", "--config", preset, f"log_path={run}", *settings]
    with run.with_suffix(".log").open("a") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode and not (unwell and done.returncode == HealthError.exit_code and read_run(run).last is not None):
        sys.exit(f"training {run} failed; see {run.with_suffix('.log')}")
    return read_run(run)


def before_and_after(seeds: Iterable[tuple[Sequence[float], Sequence[float]]]) -> dict[str, Any]:
    """A metric on the same held-out tasks before and after training, of each seed: means, paired 95 % intervals of the
    change, and for how many seeds (`lifted`) it lies above 0."""
    row: dict[str, Any] = {"before_by_seed": [], "after_by_seed": [], "change_ci95_by_seed": []}
    for before, after in seeds:
        change = paired_difference_ci95(before, after)
        row["before_by_seed"].append(fmean(before))
        row["after_by_seed"].append(fmean(after))
        row["change_ci95_by_seed"].append([change.low, change.high])
    row["before"], row["after"] = fmean(row["before_by_seed"]), fmean(row["after_by_seed"])
    row["lifted"] = sum(low > 0 for low, _ in row["change_ci95_by_seed"])
    return row
