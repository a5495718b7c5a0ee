"""How many times published sizes are doubled, from the size graded first on, so that loops turn often enough.

    powers = await at_once(first, goal, turns, turns_at)
    powers = await in_step(first, goal, turns, turns_at, fits)
    powers = await apart(first, powers, turns, turns_at)
    scaled = stretched(first, powers)

`at_once` makes as few sizes larger as it can, each as little as it can. That is the least work as a rule, and not where
a loop turns once more only if several sizes are large, as one over all tiles by few programs does: one size would be as
published, and the others small. `in_step` doubles these sizes together. Where each is as large as it has to be, there
are about as many tiles along one as along another: `apart` makes their numbers differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from assay.kernels.language.flow.turns import UNKNOWN
from assay.kernels.problems.other_sizes import sizes_of_batch, stretchable, stretched
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.program.sizes.turns import LAUNCHES, Loop, Turns, few_of, taken_apart

MOST_STEPS = 4
"""Published sizes that are larger at once."""

MOST_APART = 2
"""Times that a size is doubled on, for there to be more tiles along it than along another."""

TurnsAt = Callable[[ScaledProblem], Awaitable[Turns]]
"""How often loops turn at a size; nothing where the submission or the reference does not run there."""
Fits = Callable[[ScaledProblem], Awaitable[bool]]
"""Whether a size is as little work as a replay has time for."""
Powers = Mapping[int, int]
"""Published size -> how many times it is doubled."""


async def at_once(first: ScaledProblem, goal: Turns, turns: Turns, turns_at: TurnsAt) -> dict[int, int]:
    """The fewest sizes with which loops turn as often as they have to, as far as they come to it, and those of axes
    that hold several sizes.

    Args:
        first: The size graded first.
        goal: How often loops have to turn.
        turns: How often they do at that size.
        turns_at: Asked about few sizes.
    """
    powers, _ = await powers_for(first, goal, turns, turns_at)
    return _larger(powers, await of_tiles(first, goal, turns, turns_at))


async def in_step(first: ScaledProblem, goal: Turns, turns: Turns, turns_at: TurnsAt, fits: Fits) -> dict[int, int]:
    """The same, where loops that no size alone makes turn so often do so by several sizes that are doubled together, as
    far as that fits.

    Args:
        first: The size graded first.
        goal: How often loops have to turn.
        turns: How often they do at that size.
        turns_at: Asked about few sizes.
        fits: Whether a size is little enough work.
    """
    far = [await turns_at(stretched(first, {value: most})) for value, most in stretchable(first)]
    alone = {loop: often for loop, often in goal.items() if any(there.get(loop, UNKNOWN) >= often for there in far)}
    powers = await at_once(first, alone, turns, turns_at)
    few = few_of(goal, await turns_at(stretched(first, powers)))
    most = dict(stretchable(first))
    needed = []
    for value in most if few else ():
        without = await turns_at(stretched(first, {**most, value: powers.get(value, 0)}))
        if any(without.get(loop, UNKNOWN) < goal[loop] for loop in few):
            needed.append(value)
    for power in range(1, max((most[value] for value in needed), default=0) + 1):
        larger = _larger(powers, {value: min(power, most[value]) for value in needed})
        if larger == powers:
            continue
        if not await fits(there := stretched(first, larger)):
            break
        powers = larger
        if not few_of({loop: goal[loop] for loop in few}, await turns_at(there)):
            break
    return powers


async def of_tiles(first: ScaledProblem, goal: Turns, turns: Turns, turns_at: TurnsAt) -> dict[int, int]:
    """The sizes that an axis is made of whose program ids are taken apart: each so large that it alone makes as many
    times as many programs as have to be told apart."""
    powers: dict[int, int] = {}
    axes = taken_apart(goal, turns)
    few = {axis: turns[axis] for axis in axes}
    for value, most in stretchable(first) if few else ():
        if (found := await _least(first, {}, (value, most), axes, few, turns_at)) is not None:
            powers[value], _ = found
    return powers


async def apart(first: ScaledProblem, powers: Powers, turns: Turns, turns_at: TurnsAt) -> dict[int, int]:
    """The same sizes, doubled on where there are no more tiles along one than along another that has fewer of them as
    published: a kernel that takes one number for the other is right where the two are equal.

    Args:
        first: The size graded first.
        powers: Of several sizes.
        turns: How often loops turn at the size graded first.
        turns_at: Asked about each size alone, as it is and as published.
    """
    most, found = dict(stretchable(first)), dict(powers)
    every = [await _tiles(first, value, (power, most[value]), turns, turns_at) for value, power in powers.items()]
    tiles = [each for each in every if each is not None]
    if len(tiles) > 2:  # a batch has several programs as it is
        of_batch = sizes_of_batch(first)
        tiles = [each for each in tiles if each.value not in of_batch]
    there = dict[int, int]()
    for each in sorted(tiles, key=lambda each: each.published):
        shared = sum(other.axis == each.axis for other in tiles) > 1  # and then may be counted twice
        times = min(turns[each.axis], 2) if shared else 1
        fewer = max((there[other.value] for other in tiles if other.published < each.published), default=0)
        there[each.value] = each.now
        enough = min(found[each.value] + MOST_APART, most[each.value])
        while there[each.value] <= fewer * times and found[each.value] < enough:
            found[each.value] += 1
            there[each.value] *= 2
    return found


class _Tiles(NamedTuple):
    """How many programs a size makes."""

    value: int
    axis: Loop
    published: int
    now: int
    """Of a size as large as it is among others."""


async def _tiles(
    first: ScaledProblem, value: int, powers: tuple[int, int], turns: Turns, turns_at: TurnsAt
) -> _Tiles | None:
    """How many programs a size alone makes along an axis; None of a size that makes none. `powers`: how many times it
    is doubled among others, and as published."""
    now, far = [await turns_at(stretched(first, {value: power})) for power in powers]
    axes = (loop for loop, often in far.items() if LAUNCHES < loop.place < 0 and often > turns.get(loop, often))
    if (axis := min(axes, default=None)) is None or axis not in now:
        return None
    return _Tiles(value, axis, far[axis], now[axis])


def _larger(one: Powers, other: Powers) -> dict[int, int]:
    return {value: max(one.get(value, 0), other.get(value, 0)) for value in {**one, **other}}


async def powers_for(
    first: ScaledProblem, goal: Turns, turns: Turns, turns_at: TurnsAt, steps: int = MOST_STEPS
) -> tuple[dict[int, int], Turns]:
    """The fewest sizes with which loops turn as often as they have to, as far as they come to it, and how often they
    turn then. `steps`: how many sizes may be larger at once."""
    powers: dict[int, int] = {}
    for _ in range(steps):
        few = few_of(goal, turns)
        found = await _one_more(first, powers, goal, few, turns_at) if few else None
        if found is None:
            break
        powers, turns = found
    return powers, turns


async def _one_more(
    first: ScaledProblem,
    powers: Powers,
    goal: Turns,
    few: Turns,
    turns_at: TurnsAt,
) -> tuple[dict[int, int], Turns] | None:
    """One published size more, doubled as often as it takes, with which some of few turns are more."""
    for value, most in stretchable(first):
        if value in powers:
            continue
        if (found := await _least(first, powers, (value, most), goal, few, turns_at)) is not None:
            power, turns = found
            return {**powers, value: power}, turns
    return None


async def _least(
    first: ScaledProblem,
    powers: Powers,
    size: tuple[int, int],
    goal: Turns,
    few: Turns,
    turns_at: TurnsAt,
) -> tuple[int, Turns] | None:
    """How many times a published size has to be doubled beside others, at least, so that what turns more often where it
    is as published does so as often as it has to, or as there; and all turns then. None where nothing does.

    Args:
        first: The size graded first.
        powers: How many times the others are doubled.
        size: The published size, and how many times it can be doubled.
        goal: How often loops have to turn.
        few: Those that turn less often, and how often they do.
        turns_at: Asked about few sizes.
    """
    value, high = size
    far = await turns_at(stretched(first, {**powers, value: high}))
    more = {loop: min(far[loop], goal[loop]) for loop, turns in few.items() if far.get(loop, UNKNOWN) > turns}
    if not more:
        return None
    low, found = 1, far
    growing: dict[Loop, int] = {}
    guess = high + 1 - _spare(far, more).bit_length()
    while low < high and all(-(-found[loop] // 2) >= enough for loop, enough in growing.items()):
        middle = min(max(guess, low), high - 1)
        turns = await turns_at(stretched(first, {**powers, value: middle}))
        if all(turns.get(loop, UNKNOWN) >= enough for loop, enough in more.items()):
            high, found = middle, turns
            growing = {loop: enough for loop, enough in more.items() if turns[loop] < far[loop]}
            guess = high - max(_spare(found, growing).bit_length() - 1, 1) if growing else (low + high) // 2
        else:
            low, guess = middle + 1, (middle + 1 + high) // 2
    return high, found


def _spare(turns: Turns, goal: Turns) -> int:
    """Loops turn at least this many times as often as they have to. As a rule turns grow in proportion to a size, which
    can then be about as many times smaller."""
    return max(min(turns[loop] // max(enough, 1) for loop, enough in goal.items()), 1)
