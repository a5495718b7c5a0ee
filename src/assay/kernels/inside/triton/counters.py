"""Counters of loops that the compiler computes with: what it makes of them has to stay within their type."""

from __future__ import annotations

from typing import Any

from assay.kernels.inside.triton.arithmetic import MeaningError
from assay.kernels.inside.triton.bounds import NEAR

COUNTER_BITS = 32
"""Of a counter that holds the turns of a flattened loop: of more, no replay would see the end."""
AHEAD = 33
"""Turns that Triton may look ahead for in a loop that it pipelines: more than it takes stages."""


def check_flat(first: int, last: int, stride: int, kind: Any) -> None:
    """Triton counts the turns of a flattened loop and of those in it by one counter, and makes at least one turn of a
    loop in it whose end is before its start."""
    if first != last and (first < last) != (stride > 0):
        raise MeaningError(
            f"a loop {_between(first, last, stride)} in, or with, flatten=True: the compiler makes a turn of it. "
            "Leave flatten out, or let it end where it starts"
        )
    if kind.int_bitwidth < COUNTER_BITS:
        raise MeaningError(f"a loop of {kind} in, or with, flatten=True: it may not hold the turns. Use int32 bounds")


def check(first: int, last: int, stride: int, kind: Any, factor: int, early: bool) -> None:
    """A counter goes a step beyond the last value, and begins anew where its type ends: the loop would go on. Triton
    makes a loop upwards of one downwards, takes one bound from the other, and looks some turns ahead for what it loads
    early, also of a loop without turns. A loop that it unrolls by a `factor` has steps so much longer, and turns where
    its end is before its start."""
    empty = first == last or (first < last) != (stride > 0)
    if empty and first != last and factor > 1:
        raise MeaningError(
            f"a loop {_between(first, last, stride)} with loop_unroll_factor={factor}: the compiler makes turns of "
            "it. Leave the factor out, or let it end where it starts"
        )
    if empty and not early:
        return
    low, high = min(first, last), max(first, last)
    ahead, most = AHEAD * abs(stride) * factor, 1 << (kind.int_bitwidth - 1)
    end = low + -(-(high - low) // abs(stride)) * abs(stride)
    if end >= most:
        raise MeaningError(
            f"a loop whose counter would reach {in_words(end)}, which {kind} does not hold: use int64 bounds"
        )
    if high - low >= most or low - ahead < -most or high + ahead >= most:
        raise MeaningError(
            f"a loop {_between(first, last, stride)}, of which {kind} does not hold the distance, or "
            f"{AHEAD * factor} steps more: Triton takes one bound from the other, and looks that far ahead. Use int64 "
            "bounds"
        )


def in_words(number: int) -> str:
    """A number that a kernel may have made of its inputs, in words: of a large one its order alone."""
    return str(number) if abs(number) <= NEAR else f"about {'-' * (number < 0)}2^{(abs(number) + 1).bit_length() - 1}"


def _between(first: int, last: int, stride: int) -> str:
    return f"from {in_words(first)} to {in_words(last)} by {in_words(stride)}"
