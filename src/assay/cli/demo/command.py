"""`assay demo`: a small chess model learns on this machine, and a report says what it learned.

Two runs of the `chess_pawn` preset share a folder: `grpo` (warm-up, then GRPO) and the control `sft_only`, which spends
the same CPU time on warm-up alone, with its own learning-rate decay, in a process beside it. Both are judged on the
same held-out positions, beside a mover of random legal moves, whose results are exact. The same command goes on where
an interruption left it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import chz
from rich.console import Console

from assay.cli.demo import console as words
from assay.cli.demo.control import Control, control_config, control_steps, is_foreseeable
from assay.cli.demo.outcome import RESULT, VERSION, Outcome, outcome_of, read_sessions, result_record
from assay.cli.demo.page import demo_report
from assay.cli.demo.progress import MetricsFile, Row, Story, is_told
from assay.envs.base import EnvData, build_data
from assay.errors import ConfigError, RunDirectoryError
from assay.storage.files import Writing, encode_json, read_object, replace_file
from assay.training.config import TrainingConfig, load_config
from assay.training.loop import train
from assay.training.report.page import render
from assay.training.report.report import known_baselines, run_report
from assay.training.run.reader import read_run
from assay.training.run.resume import REPORT, Refusal
from assay.training.session import num_batches, plan_run

PRESET = "chess_pawn"
LOG_PATH = "runs/demo"
"""Folder of the demo's runs and results, unless `log_path` says otherwise."""
GRPO, CONTROL = "grpo", "sft_only"
"""Folders of the two runs."""
METRICS_FILE = "metrics.jsonl"
SESSIONS, CONTROL_LOG = "sessions.jsonl", "sft_only.log"
POLL_S = 0.5
"""Seconds between two looks at a run."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Run or go on with the demo; print the result and write it beside the runs. Returns the exit status.

    Args:
        overrides: `key=value` settings on top of the preset; `log_path` is the folder of the whole demo.

    Raises:
        AssayError: the demo cannot start or go on; what has been done is kept.
    """
    console = Console()
    # The control is matched by CPU time, which says nothing about work on a GPU.
    config = load_config(PRESET, [f"log_path={LOG_PATH}", "local.device=cpu", *overrides])
    root = config.log_path.expanduser()
    check_settings(config)
    check_folder(root)
    demo = Demo(root, config, console)
    if not demo.is_complete():
        with quiet():
            demo.train()
    words.show(console, asyncio.run(_conclude(root, config)), root, root / GRPO)
    return 0


def check_settings(config: TrainingConfig) -> None:
    """Refuse settings under which there would be nothing to compare.

    Raises:
        ConfigError: the settings have no warm-up or no RL.
    """
    if config.sft.num_steps < 1:
        raise ConfigError("sft.num_steps=0: the demo compares GRPO with more warm-up. Set it to 1 or more.")
    if config.max_batches == 0:
        raise ConfigError("max_batches=0: the demo shows what GRPO adds to the warm-up. Set it to 1 or more.")


def check_folder(root: Path) -> None:
    """Refuse a folder that holds something other than a demo.

    Raises:
        RunDirectoryError: it does.
    """
    ours = {GRPO, CONTROL, CONTROL_LOG, REPORT, RESULT, SESSIONS}
    found = {entry.name.removesuffix(".tmp") for entry in root.iterdir()} if root.is_dir() else set()
    if foreign := sorted(found - ours):
        raise RunDirectoryError(
            f"{root} holds something other than a demo ({', '.join(foreign[:5])}), which its results could overwrite. "
            "Set log_path to a new or empty directory."
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Show only warnings of Assay's log, since the demo prints its own progress."""
    log = logging.getLogger("assay")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


class Demo:
    """The two runs of a demo: the trained one in this process, the control beside it."""

    def __init__(self, root: Path, config: TrainingConfig, console: Console) -> None:
        self._root, self._config, self._console = root, config, console
        self._trained = chz.replace(config, log_path=root / GRPO)
        self._control: Control | None = None
        self._control_is_done = False
        begun = read_object(root / CONTROL / "config.json")
        self._steps: int | None = begun["sft"]["num_steps"] if begun is not None else None
        """Steps of the control; None until they are chosen."""

    @property
    def control(self) -> TrainingConfig | None:
        """The config of the control; None until its steps are chosen."""
        if self._steps is None:
            return None
        return chz.replace(control_config(self._trained, self._steps), log_path=self._root / CONTROL)

    def is_complete(self) -> bool:
        """Whether both runs came to their end.

        Raises:
            RunDirectoryError: a run of other settings is there, or one that cannot go on.
        """
        configs = [self._trained, *([self.control] if self.control is not None else [])]
        done = [self._is_done(config) for config in configs]
        return len(done) == 2 and all(done)

    def _is_done(self, config: TrainingConfig) -> bool:
        plan = plan_run(config)
        if not isinstance(plan, Refusal):
            return plan.is_complete
        if not plan.changes:
            raise plan.error
        listed = "\n".join(f"  {change}" for change in plan.changes)
        raise RunDirectoryError(
            f"{self._root} holds a demo that ran with other settings, so its results are not those of the new "
            f"ones:\n{listed}\nRemove {self._root} to run the demo again, or set log_path to another directory."
        )

    def train(self) -> None:
        """Do what is left of both runs.

        Raises:
            AssayError: a run cannot go on. What is done is kept, also where the user interrupts.
        """
        with self._session():
            data = build_data(self._trained.active_builder, self._trained.build_context())
            try:
                words.introduce(self._console, self._config, data)
                self._train(data)
                self._wait_for_control()
            finally:
                if self._control is not None:
                    self._control.stop()
                asyncio.run(_close(data))

    def _train(self, data: EnvData) -> None:
        ended = threading.Event()
        with ThreadPoolExecutor(1, "demo") as thread:
            following = thread.submit(self._follow, data, ended)
            try:
                if not self._is_done(self._trained):
                    train(self._trained)
            finally:
                ended.set()
            following.result()

    def _follow(self, data: EnvData, ended: threading.Event) -> None:
        """Until the trained run has ended: print its progress, and start the control as soon as its length is known."""
        config, batches = self._trained, num_batches(self._trained, data)
        metrics = MetricsFile(config.log_path / METRICS_FILE)
        story = Story(config, batches, self._say, lambda: asyncio.run(known_baselines(config, data)))
        story.begin(metrics.new())
        going, failed = True, False
        while going:
            self._begin_control(metrics.rows, batches)
            if self._control is not None and self._control.failed and not failed:
                failed = True
                self._say("  The control has stopped early. GRPO goes on; what went wrong is said when it is done.")
            going = not ended.wait(POLL_S)
            for row in metrics.new():
                story.row(row)
        self._begin_control(metrics.rows, batches)

    def _begin_control(self, rows: Sequence[Row], batches: int) -> None:
        """Start the control or go on with it, where its length is known."""
        if self._control is not None or self._control_is_done:
            return
        if self._steps is None and is_foreseeable(rows, self._trained, batches):
            self._steps = control_steps(rows, batches)
        if self.control is None:
            return
        self._control_is_done = self._is_done(self.control)
        if not self._control_is_done:
            log = self._root / CONTROL_LOG
            self._say(
                f"  The control starts in a process of its own: warm-up alone, {self._steps:,} steps, as much CPU time "
                f"as warm-up and GRPO together. Its log: {log}"
            )
            self._control = Control(self.control, log)

    def _wait_for_control(self) -> None:
        if self._control is None or self.control is None:
            return
        if not self._control.wait(0):
            self._say("\n3. GRPO is done; the control is still going.")
        metrics, steps = MetricsFile(self.control.log_path / METRICS_FILE), self.control.sft.num_steps
        metrics.new()
        while not self._control.wait(POLL_S):
            for row in metrics.new():
                if row["phase"] == "sft" and is_told(row["index"] + 1, steps):
                    self._say(f"  step {row['index'] + 1:,} of {steps:,}")

    def _say(self, text: str) -> None:
        words.say(self._console, text)

    @contextmanager
    def _session(self) -> Iterator[None]:
        """Note the wall and CPU time of this session, also where it is interrupted."""
        wall, own, others = time.monotonic(), time.process_time(), _children_cpu_s()
        try:
            yield
        finally:
            # The control has ended by now, so its CPU time is among that of the children, as is its verifiers'.
            control = self._control.cpu_s if self._control is not None else 0.0
            children = _children_cpu_s() - others
            record = {
                "version": VERSION,
                "wall_s": time.monotonic() - wall,
                "cpu_s": time.process_time() - own + children,
                "verifier_cpu_s": children - control,
            }
            if self._root.is_dir():
                with Writing(self._root / SESSIONS, SESSIONS), (self._root / SESSIONS).open("ab") as file:
                    file.write(encode_json(record) + b"\n")


def _children_cpu_s() -> float:
    """CPU seconds of this process's child processes that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def _close(data: EnvData) -> None:
    await data.close()


async def _conclude(root: Path, config: TrainingConfig) -> Outcome:
    """Compare the policies, and write the result and the report."""
    trained, control = read_run(root / GRPO), read_run(root / CONTROL)
    data = build_data(config.active_builder, config.build_context())
    try:
        report = run_report(trained, config, data, await known_baselines(config, data))
        exact = [policy for policy in report.policies if policy.exact]
        outcome = outcome_of(trained, control, exact, read_sessions(root / SESSIONS))
        page = render(demo_report(outcome, report), data.figure)
    finally:
        await data.close()
    with Writing(root, "the demo's results"):
        replace_file(root / REPORT, page.encode())
        replace_file(root / RESULT, encode_json(result_record(outcome), indent=2) + b"\n")
    return outcome
