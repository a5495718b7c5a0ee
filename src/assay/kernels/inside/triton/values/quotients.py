"""Quotients and remainders of negative numbers, of which Triton's compiler takes too much for granted.

Of a block x that counts up, and of a divisor d, it takes it that x // d has one value in groups as long as the largest
power of two that divides both, and that x % d counts up in them. That is so from 0 on. Below 0 a quotient is cut
towards zero, so that the first of a group is alone. Such lanes are broken as by a false promise (`promises`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.kernels.inside.triton.values.promises import NEVER, break_lanes, broken_in_line
from assay.kernels.inside.triton.values.ptx import unspecified


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`), around divisions of whole numbers."""
    for name, quotient in (("create_idiv", True), ("create_srem", False)):
        _watch(builder, name, quotient)


def _watch(builder: Any, name: str, quotient: bool) -> None:
    compute = getattr(builder, name)

    def divided(self: Any, lhs: Any, rhs: Any) -> Any:
        found = compute(self, lhs, rhs)
        data = lhs.data
        if data.size > 1 and data.dtype.kind == "i" and (data < 0).any():
            broken = _broken(data, np.broadcast_to(rhs.data, data.shape), found.data, quotient)
            if broken is not None:
                break_lanes(found, broken, _SAID, counts=not quotient)
                if quotient:  # computed once for a whole group
                    found.data = unspecified(found.data, broken < NEVER)
        return found

    setattr(builder, name, divided)


_SAID = (
    "// or % of negative numbers, of which Triton's compiler takes groups for equal or for counting up as if they were "
    "not negative: add a multiple of the divisor first"
)


def _broken(left: Any, right: Any, found: Any, quotient: bool) -> Any:
    """The shortest access that breaks each lane; None where the compiler is right."""
    broken = None
    for axis in range(left.ndim):
        line, divisors = (np.moveaxis(side, axis, -1) for side in (left, right))
        if (divisors != divisors[..., :1]).any():
            continue
        # The compiler knows at most what is so of all of them. Numbers may count up in groups alone: those that wrap.
        bits = line.shape[-1] | int(np.bitwise_or.reduce(divisors[..., :1].reshape(-1)))
        group = bits & -bits
        while group >= 2 and not _counts_up(line, group):
            group //= 2
        if group < 2:
            continue
        run, equal = (1, group) if quotient else (group, 1)
        one = broken_in_line(np.moveaxis(found, axis, -1).astype(np.int64), 1, 1, run, equal)
        if one is not None:
            one = np.moveaxis(one, -1, axis)
            broken = one if broken is None else np.minimum(broken, one)
    return broken


def _counts_up(line: Any, group: int) -> bool:
    """Whether all groups of so many lanes begin with a multiple of their number and count up."""
    parts = line.reshape(*line.shape[:-1], -1, group)
    return bool((np.diff(parts) == 1).all() and (parts[..., 0] % group == 0).all())
