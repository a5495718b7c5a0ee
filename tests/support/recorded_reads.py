"""Which settings code reads while it runs: reads by checks, by what prints a config and by copying do not count."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import chz

import assay
from assay.config import Settings
from assay.config.schema import settings
from assay.training.config import TrainingConfig

SRC = Path(assay.__file__).parent
_CHZ = str(Path(chz.__file__).parent)
_SAYING = (
    *(str(SRC / name) for name in ("config", "training/plan.py", "training/report", "training/export/card.py")),
    _CHZ,
)
"""Code that checks, compares, copies, writes down or describes settings."""
_COPYING = {TrainingConfig.trainer.__code__}
Reads = set[tuple[type, str]]


def _is_no_use(frame: FrameType | None) -> bool:
    """Whether a read is on behalf of code that does nothing with a setting."""
    while frame is not None:
        if frame.f_code in _COPYING or frame.f_code.co_filename.startswith(_SAYING):
            return True
        frame = frame.f_back
    return False


@contextmanager
def recorded_reads() -> Iterator[Reads]:
    """The settings that are read meanwhile, as (class of the node, name)."""
    seen: Reads = set()

    def read(self: Any, name: str) -> Any:
        kind = type(self)
        new = (kind, name) not in seen and not name.startswith("_") and name in settings(kind)
        if new and not _is_no_use(sys._getframe(1)):
            seen.add((kind, name))
        return object.__getattribute__(self, name)

    Settings.__getattribute__ = read  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del Settings.__getattribute__


def is_read(reads: Reads, cls: type, name: str) -> bool:
    """Whether the field of a class was read, on a node of the class or of one below it."""
    return any(name == found and issubclass(kind, cls) for kind, found in reads)
