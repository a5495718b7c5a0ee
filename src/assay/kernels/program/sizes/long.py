"""Sizes of which one is as large as published, or as large as a replay has time for, and the others stay small.

    async for scaled in long_sizes(size.scaled, [size.scaled, other.scaled], turns_at, fits): ...

How long a row is can matter without a loop or a program more: a key keeps fewer bits of a value the more places it has
to tell apart, a power of a place leaves its type, a sum reaches a limit.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import islice

from assay.kernels.problems.other_sizes import stretchable, stretched
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.program.sizes.turns import Turns, program_turns

MOST_LONG = 4
"""Published sizes that are looked at, the largest first."""
MOST_PROGRAM_TURNS = 512
"""Turns of all programs of a call, together: they take a replay a second."""


async def long_sizes(
    first: ScaledProblem,
    graded: Sequence[ScaledProblem],
    turns_at: Callable[[ScaledProblem], Awaitable[Turns]],
    fits: Callable[[ScaledProblem], Awaitable[bool]],
) -> AsyncIterator[ScaledProblem]:
    """The sizes to grade, one for each published size, where it is larger there than at all sizes that were graded.

    Args:
        first: The size graded first.
        graded: All sizes that were graded.
        turns_at: How often loops turn at a size; nothing where the submission or the reference does not run there.
        fits: Whether a size is as little work as a replay has time for.
    """
    for value, most in islice(stretchable(first), MOST_LONG):
        before = max(_size_of(value, scaled) for scaled in graded)
        power = most
        while power and _size_of(value, there := stretched(first, {value: power})) > before:
            turns = await turns_at(there) if await fits(there) else {}
            spare = program_turns(turns) / MOST_PROGRAM_TURNS if turns else 2
            if spare <= 1:
                yield there
                break
            power -= math.ceil(math.log2(spare))


def _size_of(published: int, scaled: ScaledProblem) -> int:
    return max((change.new for change in scaled.scaling.changes if change.old == published), default=published)
