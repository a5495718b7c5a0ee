"""Sizes at which loops turn as often, and launches have as many programs, as at the published one, as far as that is
told apart.

    verdict = await where_loops_turn(verdict, first, sizes, published.text, [(program.text, first), ...], deeper)

As few sizes of a problem as possible are larger: the others stay as small as they are. What cannot be graded so is
told. Then each is as large as published, alone (`long`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from assay.kernels.language.flow.turns import UNKNOWN
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.problems.other_sizes import largest_of, stretchable, stretched
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.kernels.program.sizes.given import OtherSizes, Size
from assay.kernels.program.sizes.long import MOST_ELEMENTS, lengths, limit_of, longest
from assay.kernels.program.sizes.turns import (
    ENOUGH_PROGRAMS,
    WRAPS,
    Loop,
    Turns,
    few_of,
    goal_of,
    lacking,
    only_there,
    taken_apart,
)
from assay.kernels.program.verdict import at_another_size, verdict_of, with_calls, with_findings
from assay.kernels.verdicts import Verdict

_UNKNOWN = "how often a loop turns depends on values, or on numbers that the grader does not follow"
_NOT_TOLD = (
    "how often loops turn, and how many programs there are, could not be told: sizes may be too small to show it"
)
_WRAPS = (
    "at the published size a whole number of this line is more than 32 bits hold, and wraps around. Make an operand "
    "64 bits wide first, as by x.to(tl.int64)"
)
_BROKEN = (
    "at the published size what this line promises the compiler is not so, and a GPU may do anything. Leave that out"
)
_FEW_TURNS = "right where loops turn once or launches have one program, but not where they do more"
_LONG = "right at small sizes, but not where the size {0} is {1}"
_SHORT = "the size {0} was {1} at most where the submission was graded: more is too much work, or does not run"
MOST_SIZES, MOST_STEPS = 3, 4
"""Sizes that are graded where not all loops can turn often at once, and integers that are larger at once where they
can."""
PROGRAMS = (3, ENOUGH_PROGRAMS)
"""Programs and launches that are told apart: the third, where that is little work, or else the second."""
_SAYS_NOTHING = frozenset({"timeout", "unsupported", "infra_error"})
"""Verdicts at a larger size that say nothing about a submission."""

TurnsAt = Callable[[ScaledProblem], Awaitable[Turns]]
"""How often loops turn at a size; nothing where the submission or the reference does not run there."""
Fits = Callable[[ScaledProblem], Awaitable[bool]]
"""Whether a size is as little work as a replay has time for."""


@dataclass(frozen=True, slots=True)
class Deeper:
    """What is done with a submission at other sizes."""

    record: Callable[[Shapes], Awaitable[Attempt | Outcome]]
    turns: Callable[[Sequence[str]], Awaitable[list[Turns]]]
    """How often loops turn in programs."""
    grade: Callable[[Size, bool], Awaitable[Verdict]]
    """The verdict at a size; in few calls, if the flag `long` says that one size is as large as published there."""


async def where_loops_turn(
    verdict: Verdict,
    first: ScaledProblem,
    sizes: OtherSizes,
    published: str,
    graded_so_far: Sequence[tuple[str, ScaledProblem]],
    deeper: Deeper,
) -> Verdict:
    """The verdict once a submission was graded where its loops turn as often as at the published size, and where each
    size is as large as there.

    Args:
        verdict: So far, `ok`.
        first: The size graded first.
        sizes: Others.
        published: The program at the published size.
        graded_so_far: The program and the size, of the first size and of what was graded since.
        deeper: What is done at a size.
    """
    known = [scaled for _, scaled in graded_so_far]
    wanted, *graded = await deeper.turns([published, *(text for text, _ in graded_so_far)])
    if not all((wanted, *graded)):  # of each program some launches are told, so this is of none
        return with_findings(verdict, [Finding("turns", _NOT_TOLD, refused=False)])

    if lines := only_there(wanted, graded):
        said = _WRAPS if lines[0].place == WRAPS else _BROKEN
        outcome = Outcome("wrong", said, lines[0].line, stage="rules")
        return at_another_size(verdict_of(outcome, {}), verdict, "right at the sizes it was graded at, but")

    told: dict[str, Turns] = {}

    async def turns_at(scaled: ScaledProblem) -> Turns:
        if scaled.code not in told:
            shapes = await sizes.shapes(scaled)
            attempt = None if shapes is None else await deeper.record(shapes)
            told[scaled.code] = (await deeper.turns([attempt.text]))[0] if isinstance(attempt, Attempt) else {}
        return told[scaled.code]

    async def graded_at(scaled: ScaledProblem, where: str, *, long: bool = False) -> Verdict | None:
        """The verdict at a size, and if that is `ok` with what was seen before; None where it says nothing."""
        other = await (sizes.long if long else sizes.stretched)(scaled)
        again = await deeper.grade(other, long) if other is not None else None
        if again is None or again.kind in _SAYS_NOTHING:
            return None
        if not again.ok:
            return at_another_size(again, verdict, f"{where} ({scaled.scaling})")
        stretched_so_far = [*verdict.evidence.get("stretched", []), scaled.scaling.to_json()]
        return with_calls(verdict, again, {"stretched": stretched_so_far})

    async for scaled, turns in _sizes(first, wanted, graded, turns_at, sizes.fits):
        if (again := await graded_at(scaled, _FEW_TURNS)) is None:
            continue
        if not again.ok:
            return again
        verdict = again
        graded.append(turns)
        known.append(scaled)
    limit, fits, short = limit_of(graded[0]), partial(sizes.fits, elements=MOST_ELEMENTS), []
    for value, most in lengths(first):
        if (before := max(largest_of(value, first, scaled) for scaled in known)) >= value:
            continue
        again = None
        if (found := await longest(first, value, most, before, limit, turns_at, fits)) is not None:
            scaled, turns = found
            there = largest_of(value, first, scaled)
            where = _LONG.format(value, "as published" if there == value else there)
            again = await graded_at(scaled, where, long=True)
        if found is None or again is None:
            short.append(Finding("turns", _SHORT.format(value, before), refused=False))
            continue
        if not again.ok:
            return again
        verdict = again
        graded.append(turns)
    findings = [_few(loop, seen, wanted[loop]) for loop, seen in sorted(lacking(wanted, graded).items())]
    unknown = sorted(loop for loop, turns in wanted.items() if turns == UNKNOWN)
    findings += [Finding("turns", _UNKNOWN, loop.line, refused=False) for loop in unknown]
    findings += short
    return with_findings(verdict, findings)


def _few(loop: Loop, seen: int, most: int) -> Finding:
    said = f"at the published size there are {most} {loop.name}, and at most {seen} where the submission was graded"
    return Finding("turns", said, loop.line, refused=False)


async def _sizes(
    first: ScaledProblem, wanted: Turns, graded: list[Turns], turns_at: TurnsAt, fits: Fits
) -> AsyncIterator[tuple[ScaledProblem, Turns]]:
    """The sizes to grade, and how often loops turn there: one at which all do at once, or else some for some of them.

    `graded`: at the sizes graded so far; the caller adds to it.
    """
    for programs in PROGRAMS:
        goal = goal_of(wanted, graded[0], programs)
        if any(not few_of(goal, turns) for turns in graded):
            return
        powers, _ = await powers_for(first, goal, graded[0], turns_at)
        for value, power in (await powers_alone(first, taken_apart(goal), graded[0], turns_at)).items():
            powers[value] = max(power, powers.get(value, 0))
        if powers and await fits(there := stretched(first, powers)):
            yield there, await turns_at(there)
            return
    for _ in range(MOST_SIZES):
        few = lacking(wanted, graded)
        goal = {loop: min(wanted[loop], loop.enough) for loop in few}
        powers, turns = await powers_for(first, goal, few, turns_at, steps=1) if few else ({}, {})
        if not powers or not await fits(stretched(first, powers)):
            return
        count = len(graded)
        yield stretched(first, powers), turns
        if len(graded) == count:  # it said nothing
            return


async def powers_for(
    first: ScaledProblem, goal: Mapping[Loop, int], turns: Turns, turns_at: TurnsAt, steps: int = MOST_STEPS
) -> tuple[dict[int, int], Turns]:
    """How many times some published sizes have to be doubled, from the size graded first on, so that loops turn as
    often as they have to, as far as they come to it; and how often they turn then.

    Args:
        first: The size graded first.
        goal: How often loops have to turn.
        turns: How often they do at that size.
        turns_at: Asked about few sizes.
        steps: How many published sizes may be larger at once.
    """
    powers: dict[int, int] = {}
    for _ in range(steps):
        few = few_of(goal, turns)
        found = await _one_more(first, powers, goal, few, turns_at) if few else None
        if found is None:
            break
        powers, turns = found
    return powers, turns


async def powers_alone(
    first: ScaledProblem, goal: Mapping[Loop, int], turns: Turns, turns_at: TurnsAt
) -> dict[int, int]:
    """How many times each published size has to be doubled so that what turns more often where it alone is larger than
    at the size graded first turns as often as it has to."""
    powers: dict[int, int] = {}
    few = few_of(goal, turns)
    for value, most in stretchable(first) if few else ():
        if (found := await _least(first, {}, (value, most), goal, few, turns_at)) is not None:
            powers[value], _ = found
    return powers


async def _one_more(
    first: ScaledProblem,
    powers: Mapping[int, int],
    goal: Mapping[Loop, int],
    few: Mapping[Loop, int],
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
    powers: Mapping[int, int],
    size: tuple[int, int],
    goal: Mapping[Loop, int],
    few: Mapping[Loop, int],
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


def _spare(turns: Turns, goal: Mapping[Loop, int]) -> int:
    """How many times as often as they have to loops turn, at least; what grows with a size does so in proportion, as a
    rule, so that the size can be about as many times smaller."""
    return max(min(turns[loop] // enough for loop, enough in goal.items()), 1)
