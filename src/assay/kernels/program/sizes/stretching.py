"""Sizes at which loops turn as often, and launches have as many programs, as at the published one, as far as that is
told apart.

    verdict = await where_loops_turn(verdict, size, sizes, [published.text, first.text, other.text], deeper)

Loops follow one size of a problem, as a rule: the others stay as small as they are. What cannot be graded so is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from assay.kernels.language.flow.turns import UNKNOWN
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.problems.other_sizes import stretchable, stretched
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.kernels.program.sizes.given import OtherSizes, Size
from assay.kernels.program.sizes.turns import Loop, Turns, lacking
from assay.kernels.program.verdict import at_another_size, with_calls, with_findings
from assay.kernels.verdicts import Verdict

_UNKNOWN = "how often a loop turns depends on values, or on numbers that the grader does not follow"
MOST_SIZES = 3
"""Sizes that are graded so: one for each size of the problem that a loop may follow."""
_SAYS_NOTHING = frozenset({"timeout", "unsupported", "infra_error"})
"""Verdicts at a larger size that say nothing about a submission."""

TurnsAt = Callable[[ScaledProblem], Awaitable[Turns]]
"""How often loops turn at a size; nothing where the submission or the reference does not run there."""


@dataclass(frozen=True, slots=True)
class Deeper:
    """What is done with a submission at other sizes."""

    record: Callable[[Shapes], Awaitable[Attempt | Outcome]]
    turns: Callable[[Sequence[str]], Awaitable[list[Turns]]]
    """How often loops turn in programs."""
    grade: Callable[[Size], Awaitable[Verdict]]


async def where_loops_turn(
    verdict: Verdict, size: Size, sizes: OtherSizes, texts: Sequence[str], deeper: Deeper
) -> Verdict:
    """The verdict once a submission was graded where its loops turn as often as at the published size.

    Args:
        verdict: So far, `ok`.
        size: The one graded first.
        sizes: Others.
        texts: The program at the published size, and those at the sizes graded so far.
        deeper: What is done at a size.
    """
    wanted, *graded = await deeper.turns(texts)

    async def turns_at(scaled: ScaledProblem) -> Turns:
        shapes = await sizes.shapes(scaled)
        attempt = None if shapes is None else await deeper.record(shapes)
        return (await deeper.turns([attempt.text]))[0] if isinstance(attempt, Attempt) else {}

    for _ in range(MOST_SIZES):
        few = lacking(wanted, graded)
        found = await size_with_turns(size.scaled, wanted, few, turns_at) if few else None
        other = await sizes.stretched(found[0]) if found is not None else None
        if found is None or other is None:
            break
        again = await deeper.grade(other)
        if again.kind in _SAYS_NOTHING:
            break
        scaling = other.scaled.scaling
        if not again.ok:
            where = f"right where loops turn once or launches have one program, but not where they do more ({scaling})"
            return at_another_size(again, verdict, where)
        verdict = with_calls(verdict, again, {"stretched": [*verdict.evidence.get("stretched", []), scaling.to_json()]})
        graded.append(found[1])
    findings = [_few(loop, seen, wanted[loop]) for loop, seen in sorted(lacking(wanted, graded).items())]
    unknown = sorted(loop for loop, turns in wanted.items() if turns == UNKNOWN)
    findings += [Finding("turns", _UNKNOWN, loop.line, refused=False) for loop in unknown]
    return with_findings(verdict, findings)


def _few(loop: Loop, seen: int, most: int) -> Finding:
    said = f"at the published size there are {most} {loop.name}, and at most {seen} where the submission was graded"
    return Finding("turns", said, loop.line, refused=False)


async def size_with_turns(
    first: ScaledProblem, wanted: Turns, seen: Mapping[Loop, int], turns_at: TurnsAt
) -> tuple[ScaledProblem, Turns] | None:
    """The smallest size, of those at which one published size alone is larger than graded first, at which some loop
    turns more often, as often as it does where that one is as large as published; and how often loops turn there.

    Args:
        first: The size graded first.
        wanted: How often loops turn at the published size.
        seen: Loops that turned less often than that, and how often.
        turns_at: Asked about few sizes.
    """
    for value, most in stretchable(first):
        far = await turns_at(stretched(first, value, most))
        more = [loop for loop, turns in seen.items() if far.get(loop, UNKNOWN) > turns]
        goal = {loop: min(far[loop], wanted[loop], loop.enough) for loop in more}
        if not goal:
            continue
        # What grows with a size does so in proportion, as a rule: the first guess is the one.
        spare = min(far[loop] // enough for loop, enough in goal.items())
        low, high, found = 1, most, far
        middle = min(max(most + 1 - max(spare, 1).bit_length(), low), high)
        while low < high:
            turns = await turns_at(stretched(first, value, middle))
            if all(turns.get(loop, UNKNOWN) >= enough for loop, enough in goal.items()):
                high, found = middle, turns
                if spare > 1:
                    break
            else:
                low = middle + 1
            middle, spare = (low + high) // 2, 0
        return stretched(first, value, high), found
    return None
