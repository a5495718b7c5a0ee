"""How often the loops of a submission's kernels turn, how many programs their launches have along each axis, and how
many launches there are, in its programs of several sizes.

    result = await sandbox.run(turns_job([first.text, published.text], limits))
    first, published = turns_in(result, 2)
    few = lacking(published, [first])

A kernel with blocks of 128 sums 32 products in one turn and 8,192 in 64, and writes 32 rows by one program: what it
does from its second turn on, and what its second program does, shows at no size at which there is none.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from assay.kernels import language
from assay.kernels.language.flow.turns import MOST, UNKNOWN, Place, Split, follow, lines_of_loops
from assay.kernels.program.form import Launch, table_of
from assay.kernels.program.jobs import REPLAY
from assay.kernels.program.limits import UNALLOCATED
from assay.kernels.program.reading import Refusal, read
from assay.sandbox.base import Job, JobResult, Limits, Round
from assay.types import Json

_NUMBERS = (bool, int, float, str)
_DIGITS, _PATH, _LAUNCHES_APART = 32, 96, 8
_MOST_LOOPS, _MOST_LINES = 1 << 12, 1 << 20
_MOST_TURNS = 1 << 40


LAUNCHES = -4
"""The place of the launches of a kernel; -1, -2 and -3 are those of the axes of their grids."""
WRAPS, BROKEN = -5, -6
"""Those of a line that makes a whole number which 32 bits do not hold, and of one whose promise numbers break."""
SPLITS = -16
"""That of the first part of a number (`//`, `%`, `>>`, `&`) in a function, by which one axis of a grid has tiles along
several sizes; of further ones one less each."""
ENOUGH_PROGRAMS = 2
"""How many programs, launches, and values of a quotient are told apart at least; of turns as many as are followed
(`MOST`)."""


@dataclass(frozen=True, slots=True, order=True)
class Loop:
    """A loop by the text of its function and its place in it; or an axis of a kernel's launches, these alone, or a
    part of program ids."""

    text: str
    place: int
    launch: int
    """Of the kernel in a call, for the first few: they may have blocks of other sizes."""
    line: int
    """Of the submission."""

    @property
    def enough(self) -> int:
        """How many turns, programs or launches are told apart."""
        return MOST if self.place >= 0 else ENOUGH_PROGRAMS

    @property
    def name(self) -> str:
        """What turns."""
        if self.place >= 0:
            return "turns of a loop"
        if self.place <= SPLITS:
            return "values of a part (//, %, >>, &) of program ids or turns"
        return (
            "launches of a kernel" if self.place == LAUNCHES else f"programs of a kernel along axis {-1 - self.place}"
        )


_Counted = Place | Split | int
"""What is counted of a launch: a loop, a part of a number, or an axis."""
Turns = Mapping[Loop, int]
"""How often each loop turns at most; `UNKNOWN` where that is not known."""


def turns_job(texts: Sequence[str], limits: Limits) -> Job:
    """The job that tells how often the loops of programs turn."""
    return Job(json.dumps(list(texts)), REPLAY, (Round((), ()),), {"turns": True}, limits)


def told_of(source: str) -> Json:
    """What such a job tells: for each program text, module, place, line and turns of each loop."""
    return [sorted(map(list, _of(text))) for text in json.loads(source)]


def _of(text: str) -> Iterator[tuple[str, int, int, int, int]]:
    program = read(text.encode(), UNALLOCATED)
    kernels = None if isinstance(program, Refusal) else language.parse(table_of(program))
    if isinstance(program, Refusal) or not isinstance(kernels, language.Kernels):
        return
    launches: Counter[int] = Counter()
    for step in program.forward:
        if not isinstance(step, Launch):
            continue
        number = launches[step.kernel]
        launches[step.kernel] += 1
        if number >= _LAUNCHES_APART:
            continue
        function, text = kernels.functions[str(step.kernel)], _digest(program.kernels[step.kernel].source)
        counted, wrong = _fewest(kernels, step)
        yield from ((text, what, 0, line, 1) for what, line in wrong)
        for place, turns in counted.items():
            if isinstance(place, Split):
                yield f"{text}{place.path}", SPLITS - place.number, number, place.line, turns
            elif isinstance(place, Place):
                line = lines_of_loops(kernels.functions[place.function])[place.number]
                yield f"{text}{place.path}", place.number, number, line, turns
            else:
                yield text, place, number, function.line, turns
    for kernel, count in launches.items():
        yield _digest(program.kernels[kernel].source), LAUNCHES, 0, kernels.functions[str(kernel)].line, count


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:_DIGITS]


def _fewest(kernels: language.Kernels, step: Launch) -> tuple[dict[_Counted, int], set[tuple[int, int]]]:
    """What is counted of a launch -> how often in the configuration in which it is least; and what is wrong of numbers
    in any (`WRAPS`, `BROKEN`), and in which line."""
    fewest: dict[_Counted, int] = {}
    wrong = set[tuple[int, int]]()
    for variant in step.variants:
        numbers = {name: value if isinstance(value, _NUMBERS) else None for name, value in variant.args}
        found = follow(kernels, str(step.kernel), numbers, variant.grid)
        wrong |= {(WRAPS, line) for line in found.wraps} | {(BROKEN, line) for line in found.broken}
        axes = {-1 - axis: size for axis, size in enumerate(variant.grid)}
        every: list[tuple[_Counted, int]] = [*found.turns.items(), *found.values.items(), *axes.items()]
        for place, turns in every:
            fewest[place] = min(turns, fewest.get(place, turns))
    return fewest, wrong


def turns_in(result: JobResult, programs: int) -> list[Turns]:
    """What such a job told of so many programs; nothing of those of which it told nothing."""
    told = result.report.get("turns") if isinstance(result.report, Mapping) else None
    found: list[Turns] = [_read(each) for each in told] if isinstance(told, list) else []
    return (found + [{}] * programs)[:programs]


def _read(told: Json) -> Turns:
    """What was told: wrong numbers first, parts of ids last, up to so much, and of the first loop or axis beyond that
    that it is not known."""
    loops = dict[Loop, int]()
    for each in told if isinstance(told, list) else ():
        match each:
            case [str(text), int(place), int(launch), int(line), int(turns)]:
                found = Loop(text[:_PATH], place, launch, min(max(line, 0), _MOST_LINES))
                loops[found] = min(max(turns, UNKNOWN), _MOST_TURNS)
    order = sorted(loops, key=lambda loop: (loop.place <= SPLITS, loop.place not in (WRAPS, BROKEN)))
    left_out = [loop for loop in order[_MOST_LOOPS:] if loop.place > SPLITS][:1]
    return {loop: loops[loop] for loop in order[:_MOST_LOOPS]} | dict.fromkeys(left_out, UNKNOWN)


def only_there(wanted: Turns, graded: Sequence[Turns]) -> list[Loop]:
    """The lines whose numbers are wrong at the published size, and at none that was graded."""
    there = [loop for loop in wanted if loop.place in (WRAPS, BROKEN)]
    return sorted(loop for loop in there if not any(loop in turns for turns in graded))


def program_turns(turns: Turns) -> int:
    """How often loops turn in all programs of a call together, about, and at most what can be told: loops of a launch
    that turn alike often are taken to follow each other, and others to be in one another."""
    programs: Counter[tuple[str, int]] = Counter()
    looping: dict[tuple[str, int], set[int]] = {}
    for loop, often in turns.items():
        launch = loop.text[:_DIGITS], loop.launch
        if loop.place >= 0:
            looping.setdefault(launch, set()).add(max(often, 1))
        elif loop.place > LAUNCHES:
            programs[launch] = max(programs[launch], 1) * max(often, 1)
    return min(sum(count * math.prod(looping.get(launch, ())) for launch, count in programs.items()), _MOST_TURNS)


def goal_of(wanted: Turns, first: Turns, programs: int = ENOUGH_PROGRAMS, often: int = MOST) -> dict[Loop, int]:
    """How often what is at the first size too has to turn to be told from what does so as often as at the published
    size. `programs`: and launches, how many of them are told apart; `often`: and how many turns of loops."""
    goal = {}
    for loop, turns in wanted.items():
        if loop in first and turns != UNKNOWN:
            goal[loop] = min(turns, often if loop.place >= 0 else programs)
    return goal


def lacking(wanted: Turns, graded: Sequence[Turns]) -> dict[Loop, int]:
    """Loops that turn more often than at any size that was graded, as far as that is told apart -> how often they did
    there. Those that are not at the first of these sizes are left out."""
    most = {loop: max(turns.get(loop, UNKNOWN) for turns in graded) for loop in graded[0]}
    return few_of(goal_of(wanted, graded[0]), most)


def taken_apart(goal: Turns, turns: Turns) -> dict[Loop, int]:
    """The axes of launches whose program ids are taken apart, and how many programs they have to have: as a rule
    several sizes are in such an axis, and how they are put together shows where none is small. Those are left out
    of which all is often enough. `turns`: at the size graded first."""
    apart = {(loop.text[:_DIGITS], loop.launch) for loop, often in goal.items() if loop.place <= SPLITS and often > 1}
    few = {(loop.text[:_DIGITS], loop.launch) for loop in few_of(goal, turns) if loop.place < 0}
    axes = {loop: often for loop, often in goal.items() if LAUNCHES < loop.place < 0}
    return {
        loop: often * max(turns.get(loop, 1), 1)
        for loop, often in axes.items()
        if (loop.text, loop.launch) in apart & few
    }


def few_of(goal: Turns, turns: Turns) -> dict[Loop, int]:
    """What turns less often than it has to, and how often."""
    seen = {loop: turns.get(loop, UNKNOWN) for loop in goal}
    return {loop: often for loop, often in seen.items() if often < goal[loop]}
