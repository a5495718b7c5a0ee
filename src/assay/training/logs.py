"""Assay's log on standard error: for the command line, and in Python unless logging is set up."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from assay.terminal import inert


class StderrHandler(logging.Handler):
    """Writes to whatever `sys.stderr` is at the time, so that log lines go around a progress display."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record as a line. What it quotes (an answer, a judge, an exception) must not steer a terminal."""
        sys.stderr.write(f"{inert(self.format(record))}\n")


@contextmanager
def spoken() -> Iterator[None]:
    """Within it, Assay's log is shown, unless the program configured logging: then that decides alone."""
    log = logging.getLogger("assay")
    if log.hasHandlers() or log.level != logging.NOTSET:
        yield
        return
    handler = StderrHandler()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
