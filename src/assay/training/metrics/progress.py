"""Progress of a run's phases: a bar with the time left on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds, monotonic."""


class Pace:
    """Decides when a log line is due and estimates the time left. Pure: times are arguments."""

    def __init__(self, total: int, done: int, start_s: float, every_s: float, *, brief: bool = False) -> None:
        """`done` of `total` steps were done before `start_s`; lines are at least `every_s` seconds apart.

        A `brief` phase that ends within `every_s` has none.
        """
        self.total = total
        self.done = done
        self._start_done = done
        self._start_s = start_s
        self._every_s = every_s
        self._last_line_s = start_s
        self._silent = brief

    def advance(self, steps: int, now_s: float) -> bool:
        """Count `steps` as done; whether a log line is due now (the last step has one)."""
        self.done += steps
        late = now_s - self._last_line_s >= self._every_s
        due = late or (self.done >= self.total and not self._silent)
        if due:
            self._last_line_s, self._silent = now_s, False
        return due

    def seconds_left(self, now_s: float) -> float | None:
        """Estimate at the mean pace since the start; None before the first step."""
        steps = self.done - self._start_done
        return None if steps <= 0 else (self.total - self.done) * (now_s - self._start_s) / steps


class PhaseProgress:
    """One phase in progress; made by `RunProgress.phase`."""

    def __init__(self, name: str, pace: Pace, clock: Clock, bar: Progress | None, task: TaskID | None) -> None:
        self._name = name
        self._pace = pace
        self._clock = clock
        self._bar = bar
        self._task = task

    @property
    def done(self) -> int:
        """Steps done."""
        return self._pace.done

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Count `steps` as done; `note` is shown beside the bar or in the log line."""
        now = self._clock()
        due = self._pace.advance(steps, now)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=steps, note=note)
        elif due:
            left = self._pace.seconds_left(now)
            remaining = "" if not left else f", {format_seconds(left)} left"
            suffix = f": {note}" if note else ""
            logger.info("%s %d/%d%s%s", self._name, self._pace.done, self._pace.total, remaining, suffix)


class RunProgress:
    """Shows the phases of a run; phases may be nested (an evaluation within RL). Use as a context manager."""

    def __init__(self, console: Console | None = None, *, every_s: float = 10.0, clock: Clock = time.monotonic) -> None:
        """Draws bars on `console` (standard error) if it is a terminal; else logs every `every_s` seconds."""
        self.console = console or Console(stderr=True)
        self._every_s = every_s
        self._clock = clock
        self._bar: Progress | None = None
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description:>5}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", style="dim"),
            )
            self._bar = Progress(*columns, console=self.console)

    @contextmanager
    def phase(self, name: str, total: int, done: int = 0, *, brief: bool = False) -> Iterator[PhaseProgress]:
        """A phase of `total` steps of which `done` were done in an earlier session; `brief`: see `Pace`."""
        task = self._bar.add_task(name, total=total, completed=done, note="") if self._bar is not None else None
        pace = Pace(total, done, self._clock(), self._every_s, brief=brief)
        try:
            yield PhaseProgress(name, pace, self._clock, self._bar, task)
        finally:
            if self._bar is not None and task is not None:
                self._bar.stop_task(task)

    @contextmanager
    def building(self) -> Iterator[Callable[[str, int, int], None]]:
        """What a dataset builder reports its progress to: a phase for each thing that it makes."""
        with ExitStack() as stack:
            phases: dict[str, PhaseProgress] = {}

            def show(what: str, done: int, total: int) -> None:
                if what not in phases:
                    phases[what] = stack.enter_context(self.phase("data", total, brief=True))
                phases[what].advance(done - phases[what].done, note=what)

            yield show

    def __enter__(self) -> RunProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def format_seconds(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
