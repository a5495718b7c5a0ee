"""How often the loops of a submission's kernels turn in its programs of several sizes.

    result = await sandbox.run(turns_job([first.text, published.text], limits))
    first, published = turns_in(result, 2)
    few = lacking(published, [first])

A kernel with blocks of 128 sums 32 products in one turn and 8,192 in 64: what it does from its second turn on shows at
no size at which there is none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from assay.kernels import language
from assay.kernels.language.flow.turns import MOST, lines_of_loops, turns_of
from assay.kernels.program.form import Launch, Program, table_of
from assay.kernels.program.jobs import REPLAY
from assay.kernels.program.limits import UNALLOCATED
from assay.kernels.program.reading import Refusal, read
from assay.sandbox.base import Job, JobResult, Limits, Round
from assay.types import Json

_NUMBERS = (bool, int, float, str)
_DIGITS = 32
_MOST_LOOPS, _MOST_LINES = 1 << 12, 1 << 20
_LOOPS = re.compile(r"^[ \t]*(?:for|while)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Loop:
    """A loop by the text of its function and its place in it."""

    text: str
    place: int
    line: int
    """Of the submission."""


Turns = Mapping[Loop, int]
"""How often each loop turns at most, up to `MOST`."""


def has_loops(program: Program) -> bool:
    """Whether any kernel may have a loop."""
    return any(_LOOPS.search(kernel.source) for kernel in program.kernels)


def turns_job(texts: Sequence[str], limits: Limits) -> Job:
    """The job that tells how often the loops of programs turn."""
    return Job(json.dumps(list(texts)), REPLAY, (Round((), ()),), {"turns": True}, limits)


def told_of(source: str) -> Json:
    """What such a job tells: for each program text, module, place, line and turns of each loop."""
    return [sorted(map(list, _of(text))) for text in json.loads(source)]


def _of(text: str) -> Iterator[tuple[str, int, int, int]]:
    program = read(text.encode(), UNALLOCATED)
    kernels = None if isinstance(program, Refusal) else language.parse(table_of(program))
    if isinstance(program, Refusal) or not isinstance(kernels, language.Kernels):
        return
    found: dict[tuple[str, int], int] = {}
    for step in program.forward:
        if not isinstance(step, Launch):
            continue
        for variant in step.variants:
            numbers = {
                name: value if isinstance(value, bool | int | float | str) else None for name, value in variant.args
            }
            for loop, turns in turns_of(kernels, str(step.kernel), numbers, variant.grid).items():
                found[loop] = max(turns, found.get(loop, 0))
    for (key, place), turns in found.items():
        text_of = hashlib.sha256(program.kernels[int(key)].source.encode()).hexdigest()[:_DIGITS]
        yield text_of, place, lines_of_loops(kernels.functions[key])[place], turns


def turns_in(result: JobResult, programs: int) -> list[Turns]:
    """What such a job told of so many programs; nothing of those of which it told nothing."""
    told = result.report.get("turns") if isinstance(result.report, Mapping) else None
    found: list[Turns] = [_read(each) for each in told] if isinstance(told, list) else []
    return (found + [{}] * programs)[:programs]


def _read(told: Json) -> Turns:
    loops = {}
    for each in told[:_MOST_LOOPS] if isinstance(told, list) else ():
        match each:
            case [str(text), int(place), int(line), int(turns)]:
                found = Loop(text[:_DIGITS], place, min(max(line, 0), _MOST_LINES))
                loops[found] = min(max(turns, 0), MOST)
    return loops


def lacking(wanted: Turns, graded: Sequence[Turns]) -> dict[Loop, int]:
    """Loops that turn more often than at any size that was graded -> how often they did there."""
    most = {loop: max((turns.get(loop, 0) for turns in graded), default=0) for loop in wanted}
    return {loop: seen for loop, seen in most.items() if seen < wanted[loop]}
