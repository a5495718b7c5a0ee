"""A limit on how long code that is being checked may take, also where it never gives control back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from assay.errors import DeadlineError
from assay.plugins import place_of
from assay.terminal import inert

GRACE_S = 5.0
"""Seconds after a deadline in which the program may end by itself. Code may catch everything and go on, or block a
thread that the end of the program waits for; then its process is ended."""
Begin = Callable[[str], None]
"""Called with what is done next, in words; it has the whole time anew."""


def unlimited(_: str) -> None:
    """A `Begin` for what may take as long as it likes."""


class _OverdueError(BaseException):
    """The time is up; not an `Exception`, which the code being checked could take for its own."""


@contextmanager
def deadline(seconds: float, *, grace_s: float = GRACE_S) -> Iterator[Begin]:
    """Limit each thing that is begun inside to so many seconds, by an alarm in the main thread.

    Elsewhere, and on systems without such alarms, nothing is limited.

    Raises:
        DeadlineError: something took longer; the message says what, and the line of the user's code that was running.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield unlimited
        return
    doing, overdue = "It", False

    def message(place: str = "") -> str:
        return (
            f"{doing} was not done after {seconds:g} s, so the check was stopped{place}. A run would wait there too. "
            "Find the loop or the wait that does not end, or allow more with --deadline."
        )

    def ring(_signal: int, _frame: FrameType | None) -> None:
        nonlocal overdue
        if overdue:
            _print_last(f"error: {message()}")
            os._exit(DeadlineError.exit_code)
        overdue = True
        raise _OverdueError

    def begin(what: str) -> None:
        nonlocal doing
        if not overdue:  # what follows is the end of what was too slow
            doing = what
            signal.setitimer(signal.ITIMER_REAL, seconds, grace_s)

    handler, started = signal.signal(signal.SIGALRM, ring), time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, grace_s)
    try:
        yield begin
    except _OverdueError as error:
        raise DeadlineError(message(place_of(error))) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - started), 0.001), interval)


def _print_last(text: str) -> None:
    """Write a line to standard error and leave nothing in a buffer."""
    sys.stdout.flush()
    sys.stderr.write(f"{inert(text)}\n")
    sys.stderr.flush()
