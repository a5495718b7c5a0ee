"""Atomic operations whose order does not matter, as far as nobody uses their results.

Operations have names. Two of one kind that combine commute, as do two that write the same number. Triton makes the
largest of floats of two operations on their bits: the signed maximum of those without a sign, and the unsigned minimum
of those with one. These commute, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_NAMES = 8
"""Of operations on one storage that are told apart; what has another one commutes with nothing."""
_WRITE = frozenset({"XCHG", "CAS"})
_SIGNED = " by sign"
_BY_SIGN = {"MAX": False, "UMIN": True, "MIN": False, "UMAX": True}
"""Operations of which those on numbers with, or without, a sign bit have a name of their own."""
_PAIRS = {frozenset({"MAX", "UMIN"}), frozenset({"MIN", "UMAX"})}


def commutes_as(operation: str, sides: Sequence[Any]) -> str:
    """The name of an operation.

    Args:
        operation: As Triton calls it (`ADD`, `XCHG`), or `CAS`.
        sides: Arrays of its operands, of the lanes that take part.

    Returns:
        A name, which is empty where it writes several numbers.
    """
    size = sides[0].dtype.itemsize
    if operation in _WRITE:
        written = [_only(side) for side in sides]
        return "" if None in written else f"{operation} {size} {written}"
    if operation in _BY_SIGN:
        signs = np.ascontiguousarray(sides[0]).view(f"i{size}") < 0
        return f"{operation} {size}{_SIGNED if (signs == _BY_SIGN[operation]).all() else ''}"
    return f"{operation} {size}"


def commute(one: str, other: str) -> bool:
    """Whether operations of two names make the same in whatever order."""
    if not one or not other:
        return False
    if one.removesuffix(_SIGNED) == other.removesuffix(_SIGNED):
        return True
    (first, size), (second, other_size) = (name.split(" ", 1) for name in (one, other))
    return size == other_size and size.endswith(_SIGNED) and frozenset({first, second}) in _PAIRS


def by_values(name: str) -> bool:
    """Whether an operation has its name by the numbers that it is given."""
    return name.endswith(_SIGNED) or name.split(" ", 1)[0] in _WRITE


def _only(values: Any) -> bytes | None:
    """The bytes of all of some numbers; None where they are not the same."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if not flat.size:
        return b""
    rows = flat.view(np.uint8).reshape(flat.size, -1)
    return rows[0].tobytes() if bool((rows == rows[0]).all()) else None
