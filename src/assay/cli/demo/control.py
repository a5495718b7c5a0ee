"""The control of the demo: warm-up alone, for the CPU time of warm-up and GRPO, in a process of its own.

It runs beside GRPO, so its number of steps is chosen before GRPO has ended: from the CPU time of the warm-up and of the
first batches. Later batches cost less, since more of their groups are constant, so the control gets rather too much.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean, median

import chz

from assay.errors import AssayError, TrainingError
from assay.training.config import TrainingConfig
from assay.training.loop import train
from assay.types import Json

FIRST_BATCHES = 20
"""GRPO batches whose mean CPU time is used as that of all."""
STOP_S = 60.0
"""Seconds for an interrupted control to end by itself."""


def is_foreseeable(rows: Sequence[Mapping[str, Json]], config: TrainingConfig, num_batches: int) -> bool:
    """Whether the warm-up and enough GRPO batches are done to say what all of them will cost.

    Args:
        rows: the metrics of the steps so far.
        num_batches: GRPO batches of the whole run.
    """
    phases = [row["phase"] for row in rows]
    return phases.count("sft") >= config.sft.num_steps and phases.count("rl") >= min(FIRST_BATCHES, num_batches)


def control_steps(rows: Sequence[Mapping[str, Json]], num_batches: int) -> int:
    """Supervised steps that take the CPU time of the warm-up and of `num_batches` GRPO batches like those done.

    Evaluations are not counted. A supervised step is taken to cost the median, which the first steps of a process and a
    busy machine do not raise.

    Raises:
        TrainingError: no CPU time was measured.
    """
    warm_up, batches = (_cpu_s(rows, phase) for phase in ("sft", "rl"))
    if not warm_up or not batches:
        raise TrainingError("The run has no warm-up or no GRPO steps whose CPU time the control could be given.")
    return ceil((sum(warm_up) + num_batches * fmean(batches)) / median(warm_up))


def _cpu_s(rows: Sequence[Mapping[str, Json]], phase: str) -> list[float]:
    """CPU seconds of the steps of a phase, without their evaluations."""
    return [row["perf/cpu_s"] - (row.get("perf/eval_cpu_s") or 0.0) for row in rows if row["phase"] == phase]


def control_config(config: TrainingConfig, steps: int) -> TrainingConfig:
    """The demo's config with `steps` supervised steps and no GRPO. It saves as many checkpoints as the warm-up does."""
    save_every = max(1, round(config.sft.save_every * steps / config.sft.num_steps))
    sft = chz.replace(config.sft, num_steps=steps, save_every=save_every)
    return chz.replace(config, sft=sft, max_batches=0, resume_from_batch=None)


class Control:
    """A control run in a process of its own, which ends when this process does."""

    def __init__(self, config: TrainingConfig, log: Path) -> None:
        """Start or go on with the run of `config`; what it prints goes to the file `log`."""
        self._log = log
        processes = multiprocessing.get_context("spawn")
        self._cpu_s = processes.RawValue("d", 0.0)
        self._process = processes.Process(target=_work, args=(config, log, self._cpu_s), daemon=True)
        self._process.start()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the process itself, without those of its verifiers; 0 until it has ended."""
        return float(self._cpu_s.value)

    @property
    def failed(self) -> bool:
        """Whether the process ended before the run did; `wait` says why."""
        return bool(self._process.exitcode)

    def wait(self, seconds: float) -> bool:
        """Whether the run has come to its end, within so many seconds.

        Raises:
            TrainingError: the process ended before the run did.
        """
        self._process.join(seconds)
        if self._process.exitcode:
            lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
            last = next((line for line in reversed(lines) if line.strip()), "nothing was printed")
            raise TrainingError(
                f"The control ended early, with status {self._process.exitcode}, so there is nothing to compare with: "
                f"{last[:500]} All it printed is in {self._log}. The same command goes on where it stopped."
            )
        return self._process.exitcode == 0

    def stop(self) -> None:
        """Interrupt the run; the same command goes on with it."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGINT)
            self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _work(config: TrainingConfig, log: Path, cpu_s: ctypes.c_double) -> None:
    """Body of the control's process."""
    # A Ctrl-C typed at the terminal comes through the demo, once, and not to the whole group as well.
    os.setpgrp()
    # A demo in the background of a script ignores interrupts, and so would this process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        train(config)
    except AssayError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    finally:
        cpu_s.value = time.process_time()


def _end_with_parent() -> None:
    """Interrupt this process when the demo's has ended, however it did."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a child of the demo's process"
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGINT)
