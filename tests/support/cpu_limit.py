"""A bound on CPU time that tells linear code from quadratic code, whatever the machine and its load.

It is far above what the linear code takes (thousands of times) and far below what the quadratic code would.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooMuchCpu(Exception):
    """The code under test took more CPU time than it may."""


@contextmanager
def at_most_cpu(seconds: float) -> Iterator[None]:
    """Raise `TooMuchCpu` inside the block once it has used so much of this process's CPU time."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooMuchCpu(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
