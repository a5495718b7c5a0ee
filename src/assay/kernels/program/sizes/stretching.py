"""Sizes at which loops turn as often, and launches have as many programs, as at the published one, as far as that is
told apart.

    verdict = await where_loops_turn(verdict, first, sizes, published.text, [(program.text, first), ...], deeper)

As few sizes of a problem as possible are larger: the others stay as small as they are. What cannot be graded so is
told. Then each is as large as published, alone (`long`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from assay.kernels.language.flow.turns import MOST, UNKNOWN
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.problems.other_sizes import largest_of, stretched
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.kernels.program.sizes.given import OtherSizes, Size
from assay.kernels.program.sizes.long import MOST_ELEMENTS, lengths, limit_of, longest
from assay.kernels.program.sizes.powers import Fits, Powers, TurnsAt, apart, at_once, in_step, of_tiles, powers_for
from assay.kernels.program.sizes.turns import (
    ENOUGH_PROGRAMS,
    WRAPS,
    Loop,
    Turns,
    few_of,
    goal_of,
    lacking,
    only_there,
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
_NOT_AT_ONCE = "tiles along the sizes {0} were never several at once where the submission was graded"
MOST_SIZES = 3
"""Sizes that are graded for what does not turn often enough at once with the rest."""
LEVELS = ((3, MOST), (ENOUGH_PROGRAMS, MOST), (ENOUGH_PROGRAMS, 2))
"""Programs and launches, and turns of loops, that are told apart at once: the most that are little enough work."""
_SAYS_NOTHING = frozenset({"timeout", "unsupported", "infra_error"})
"""Verdicts at a larger size that say nothing about a submission."""


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

    together = await _together(first, wanted, graded, turns_at, sizes.fits)
    async for scaled, turns in _sizes(first, wanted, graded, together, turns_at, sizes.fits):
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
    if (unlike := await _unlike(first, together, graded[0], known, turns_at, sizes.fits)) is not None:
        again = await graded_at(unlike, _FEW_TURNS, long=True)
        if again is not None and not again.ok:
            return again
        verdict = again or verdict
    findings = [_few(loop, seen, wanted[loop]) for loop, seen in sorted(lacking(wanted, graded).items())]
    unknown = sorted(loop for loop, turns in wanted.items() if turns == UNKNOWN)
    findings += [Finding("turns", _UNKNOWN, loop.line, refused=False) for loop in unknown]
    findings += short
    tiles = _without_batch(await of_tiles(first, goal_of(wanted, graded[0]), graded[0], turns_at))
    if len(tiles) > 1 and not any(_as_large(first, tiles, scaled) for scaled in known):
        said = _NOT_AT_ONCE.format(" and ".join(str(value) for value in sorted(tiles)))
        findings.append(Finding("turns", said, refused=False))
    return with_findings(verdict, findings)


def _without_batch(tiles: Powers) -> Powers:
    """All sizes but the last of three or more: that of a batch, where there is one, has several programs as it is."""
    return dict(list(tiles.items())[:-1]) if len(tiles) > 2 else tiles


def _as_large(first: ScaledProblem, powers: Powers, scaled: ScaledProblem) -> bool:
    """Whether some published sizes are, at a size, at least doubled so many times."""
    there = stretched(first, powers)
    return all(largest_of(value, first, scaled) >= largest_of(value, first, there) for value in powers)


def _few(loop: Loop, seen: int, most: int) -> Finding:
    said = f"at the published size there are {most} {loop.name}, and at most {seen} where the submission was graded"
    return Finding("turns", said, loop.line, refused=False)


async def _sizes(
    first: ScaledProblem, wanted: Turns, graded: list[Turns], together: Powers, turns_at: TurnsAt, fits: Fits
) -> AsyncIterator[tuple[ScaledProblem, Turns]]:
    """The sizes to grade, and how often loops turn there: one at which as much as possible does at once, then some
    for the rest.

    `graded`: at the sizes graded so far; the caller adds to it.
    """
    if together:
        yield (scaled := stretched(first, together)), await turns_at(scaled)
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


async def _together(
    first: ScaledProblem, wanted: Turns, graded: Sequence[Turns], turns_at: TurnsAt, fits: Fits
) -> Powers:
    """With which sizes the most turns often enough at once; none where all does at a size that was graded."""
    best: tuple[int, Powers] | None = None
    most = goal_of(wanted, graded[0])
    for programs, often in LEVELS:
        goal = goal_of(wanted, graded[0], programs, often)
        if any(not few_of(goal, turns) for turns in graded):
            return {}
        async for powers in _ways(first, goal, graded[0], turns_at, fits):
            if not powers or not await fits(there := stretched(first, powers)):
                continue
            turns = await turns_at(there)
            if not few_of(goal, turns):
                return powers
            if best is None or len(few_of(most, turns)) < best[0]:
                best = len(few_of(most, turns)), powers
    return {} if best is None else best[1]


async def _unlike(
    first: ScaledProblem,
    together: Powers,
    turns: Turns,
    known: Sequence[ScaledProblem],
    turns_at: TurnsAt,
    fits: Fits,
) -> ScaledProblem | None:
    """A size at which numbers of tiles differ that may be equal at the one at which the most turns at once; None where
    they differ there, where that was not graded, and where this does not fit."""
    if len(together) < 2 or not any(_as_large(first, together, scaled) for scaled in known):
        return None
    if (powers := await apart(first, together, turns, turns_at)) == together:
        return None
    return scaled if await fits(scaled := stretched(first, powers)) else None


async def _ways(
    first: ScaledProblem, goal: Turns, turns: Turns, turns_at: TurnsAt, fits: Fits
) -> AsyncIterator[Powers]:
    yield await at_once(first, goal, turns, turns_at)
    yield await in_step(first, goal, turns, turns_at, fits)
    tiles = await of_tiles(first, goal, turns, turns_at)
    yield tiles
    yield _without_batch(tiles)
