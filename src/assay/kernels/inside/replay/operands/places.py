"""Where the operands of an operator lie: a GPU works on all elements at once, so that what is written may be nothing
else that it reads or writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.kernels.program.form import DTYPES, Window

_MOST = 1 << 22
"""Places that are compared one by one; windows with more are taken to overlap where their ranges do."""


def clash(outs: Sequence[Window], operands: Sequence[Window], *, lanewise: bool) -> str | None:
    """Why a GPU may write something else than the processor, in words; None where it may not.

    Args:
        outs: What an operator writes.
        operands: What it reads besides what it works on in place.
        lanewise: Whether each element is made of the same one of each operand, which may then be written over.
    """
    for place, out in enumerate(outs):
        if not is_distinct(out):
            return "writes several numbers to one element, of which a GPU keeps any"
        if not all(are_apart(out, other) for other in outs[:place]):
            return "writes two results to one place, of which a GPU keeps any"
        if not all((lanewise and operand == out) or are_apart(out, operand) for operand in operands):
            return "overwrites elements that it still reads, and a GPU may read them before or after that"
    return None


def is_distinct(window: Window) -> bool:
    """Whether a window shows no element twice."""
    if not window.elements:
        return True
    reach = 0
    for stride, size in _axes(window):
        if stride <= reach:
            return window.elements <= _MOST and len(np.unique(_places(window, 1))) == window.elements
        reach += (size - 1) * stride
    return True


def are_apart(one: Window, other: Window) -> bool:
    """Whether two windows share no byte."""
    if one.storage != other.storage or not one.elements or not other.elements:
        return True
    if one.end <= _start(other) or other.end <= _start(one):
        return True
    grain = min(DTYPES[one.dtype], DTYPES[other.dtype])
    parts = [DTYPES[each.dtype] // grain for each in (one, other)]
    if max(each.elements * part for each, part in zip((one, other), parts, strict=True)) > _MOST:
        return False
    places = [_places(each, part) for each, part in zip((one, other), parts, strict=True)]
    return not np.isin(*places).any()


def _axes(window: Window) -> list[tuple[int, int]]:
    return sorted((stride, size) for size, stride in zip(window.size, window.stride, strict=True) if size > 1)


def _start(window: Window) -> int:
    return window.offset * DTYPES[window.dtype]


def _places(window: Window, parts: int) -> Any:
    """The places of all elements in their storage, each of so many parts."""
    found = np.zeros(1, np.int64)
    for stride, size in _axes(window):
        found = (found[:, None] + stride * np.arange(size)).ravel()
    return ((window.offset + found)[:, None] * parts + np.arange(parts)).ravel()
