"""Which results of functions every GPU has to the last bit: a closed list. All else may be off.

That a result is a whole number proves nothing: a GPU takes roots by way of an approximation, and powers by way of two,
so that the root of 9 and the third power of 10 may be off by a last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_NEAR_ZERO = 2.0**-11
"""Below it a cosine is 1."""

Test = Callable[[Any, Sequence[Any]], Any]


def powers_of_two(values: Any) -> Any:
    """Which numbers are powers of two: a quotient by one is exact."""
    return np.abs(np.frexp(values)[0]) == 0.5


def _at_zero(_: Any, args: Sequence[Any]) -> Any:
    return args[0] == 0


_TESTS: dict[str, Test] = {
    # CUDA's documents say so of these.
    **dict.fromkeys(("exp", "exp10"), _at_zero),
    **dict.fromkeys(("pow", "powi"), lambda _, args: (args[0] == 1) | (args[1] == 0)),
    "hypot": lambda _, args: (args[0] == 0) | (args[1] == 0),
    "sqrt": lambda values, _: np.full(values.shape, values.dtype == np.float64),
    # What is left to approximate is 0 in these.
    "exp2": lambda _, args: np.rint(args[0]) == args[0],
    # Of float64 it is a natural logarithm times two parts of 1 / ln 2, in which a third of the powers are off.
    "log2": lambda values, args: (args[0] == 1) | (powers_of_two(args[0]) & (values.dtype != np.float64)),
    **dict.fromkeys(("sinpi", "cospi"), lambda _, args: np.rint(2 * args[0]) == 2 * args[0]),
    "cos": lambda values, args: (np.abs(values) == 1) & (np.abs(args[0]) < _NEAR_ZERO),
}
_OF_FUNCTION: dict[str, Test] = {
    symbol: test for name, test in _TESTS.items() for symbol in (name, f"__nv_{name}", f"__nv_{name}f")
}


def settled_results(name: str, values: Any, args: Sequence[Any]) -> Any:
    """Which results of a function no GPU has otherwise, as truth values.

    name: As Triton's builder has it, or libdevice's symbol.
    """
    test = _OF_FUNCTION.get(name)
    return np.zeros(values.shape, bool) if test is None else np.broadcast_to(test(values, args), values.shape)
