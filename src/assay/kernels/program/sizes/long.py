"""Sizes of which one is as large as published, or as large as a replay has time for, and the others stay small.

    for value, most in lengths(first):
        found = await longest(first, value, most, before, limit, turns_at, fits)

How long a row is can matter without a loop or a program more: a key keeps fewer bits of a value the more places it has
to tell apart, a power of a place leaves its type, a sum reaches a limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from assay.kernels.problems.other_sizes import largest_of, stretchable, stretched
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.program.sizes.turns import Turns, program_turns

MOST_LONG = 4
"""Published sizes that are looked at, the largest first."""
MOST_PROGRAM_TURNS = 512
"""Turns of all programs of a call, together: each is some hundred operations of the interpreter."""
MOST_ELEMENTS = 1 << 20
"""Elements of the inputs and outputs: a grader keeps them for each problem."""
OF_FIRST = 4
"""Times as many as at the size graded first are no more than that, however many these are: a loop may be in a branch
that is never taken."""
MOST_UNRECORDED = 2
"""Sizes in a row at which the submission does not run before it is left at that."""


def lengths(first: ScaledProblem) -> list[tuple[int, int]]:
    """Published sizes to look at, and how many times they can be doubled."""
    return stretchable(first)[:MOST_LONG]


def limit_of(turns: Turns) -> int:
    """How many turns of all programs may be run at a long size, by those at the size graded first."""
    return max(MOST_PROGRAM_TURNS, OF_FIRST * program_turns(turns))


async def longest(
    first: ScaledProblem,
    value: int,
    most: int,
    before: int,
    limit: int,
    turns_at: Callable[[ScaledProblem], Awaitable[Turns]],
    fits: Callable[[ScaledProblem], Awaitable[bool]],
) -> tuple[ScaledProblem, Turns] | None:
    """The size to grade for one published size, and how often loops turn there; None where none is larger than before.

    Args:
        first: The size graded first.
        value: A published size.
        most: How many times it can be doubled.
        before: Its largest size at which the submission was graded.
        limit: Turns of all programs.
        turns_at: How often loops turn at a size; nothing where the submission or the reference does not run there.
        fits: Whether a size is as little work as a replay has time for.
    """
    power, unrecorded = most, 0
    while power > 0 and unrecorded < MOST_UNRECORDED:
        there = stretched(first, {value: power})
        if largest_of(value, first, there) <= before:
            break
        if not await fits(there):
            power -= 1
            continue
        turns = await turns_at(there)
        times = -(-program_turns(turns) // limit) if turns else 2
        if times <= 1:
            return there, turns
        unrecorded += not turns
        power -= (times - 1).bit_length()
    return None
