"""The two jobs of a submission: one that records its program without values, one that replays it on real ones.

    result = await sandbox.run(record_job(code, draw, limits, precision))
    found = recorded_for(draw, result)
    if isinstance(found, Recorded): result = await sandbox.run(replay_job(found.text, draw, calls, limits))

The recording job is given nothing secret: no seed, no input, no expected output.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from assay.kernels.arrays import DIGEST_CHARACTERS, HostTensor, Layout, host_tensors, layout_of, size_in_bytes
from assay.kernels.frames import Frame, parts_of
from assay.kernels.job_reports import explain, fault_of, line_of, told
from assay.kernels.numerics.calls import job_inputs
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.program.form import Launch, Program, difference, lying_together, misplaced
from assay.kernels.program.limits import Limits as ProgramLimits
from assay.kernels.program.reading import Refusal, read
from assay.kernels.text.examined import Examined
from assay.kernels.verdicts import plain_text
from assay.sandbox.base import Job, JobResult, Limits, Round
from assay.types import Json

RECORD = "assay.kernels.inside.record.harness"
REPLAY = "assay.kernels.inside.replay.harness"
NO_KERNEL = -1
_THREADS = 192
"""Of a replay, in which only code of the grader's runs."""
_MOST = 1 << 62
"""Counts of a report are cut here: whoever wrote it may write thousands of digits."""
_LISTED = 16
_NAMED_CHARACTERS = 200
"""Of the configurations of a call."""
MOST_SHARE = 1e300
"""A share of a report is cut here."""
_MOST_STRUCTURE = 1 << 12
"""Characters of a structure of outputs above which it is not compared."""
_OUTPUTS = ProgramLimits().tensors
TRIED = ", after an autotuner tried configurations on the same memory, as it does on a GPU"
NAMED = " (reset_to_zero and restore_value name what a kernel adds to or changes in place)"
BATCH_BYTES = 1 << 18
"""Of inputs and outputs that calls of one round may have together."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program that may be replayed."""

    program: Program
    text: str
    """The bytes it was read from."""


@dataclass(frozen=True, slots=True)
class NotRecorded:
    """Why there is no program. `kind` is `host_read` (the message names the call), `unsupported`, `error` (the
    candidate's own), `refused` (the program breaks a limit), or how the job ended."""

    kind: str
    message: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """One call of a replay; the fields from `poison` to `tuning` are those of `inside.replay.player.Manner`."""

    case: Case
    poison: int = 0xFF
    skip: int = NO_KERNEL
    seed: int = 0
    in_order: bool = False
    follow: bool = True
    restored: bool = True
    configurations: tuple[int, ...] = ()
    bounded: bool = False
    tuning: bool = False
    weights: Mapping[str, HostTensor] = field(default_factory=dict)
    """Parameters of the reference that hold other values than at the start in this call."""
    needed: bool = True
    """Whether a program without parameters of those names is wrong for it."""
    moved_back: bool = False
    """Whether weights had other values in the call before, and have those of the start again."""

    def circumstances(self, program: Program, right: Collection[tuple[int, ...]] = ()) -> str:
        """On what it was made, for whoever wrote a kernel that is wrong in it. `right`: configurations in which the
        kernel was right where nothing was tried before."""
        moved = ", once the weights have other values than at the start" if self.weights else ""
        moved += ", once the weights, which had other values before, have those of the start" * self.moved_back
        later = "" if self.restored else ", in a call that finds memory as an earlier call left it"
        tuned = TRIED if self.tuning else ""
        tuned += NAMED if self.tuning and self.configurations in right else ""
        launches = (step for step in program.steps if isinstance(step, Launch))
        chosen = dict.fromkeys(
            difference(launch.variants, number)
            for launch, number in zip(launches, self.configurations, strict=False)
            if len(launch.variants) > 1
        )
        named = f", in the configuration {'; '.join(filter(None, chosen))[:_NAMED_CHARACTERS]}" if any(chosen) else ""
        return f"on inputs of the family {self.case.family!r}{moved}{named}{later}{tuned}"


class SameLanes(NamedTuple):
    """A kernel that touches a block where the same lanes of a block of that form have written, with no barrier between.
    A GPU has the two in order where its compiler spreads both over threads alike."""

    kernel: str
    shape: tuple[int, ...]
    bytes: int
    """Of an element."""
    storage: int
    line: int
    """Of the submission, of the first such access; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a replay measured of one call. The kernels ran in the process that says so."""

    launches: Mapping[str, int]
    races: tuple[Mapping[str, object], ...]
    unwritten: tuple[int, ...]
    weights_set: bool
    fault: str = ""
    inputs_changed: tuple[int, ...] = ()
    params_changed: tuple[str, ...] = ()
    arithmetic: int | None = None
    """Operations that the kernels did; None where nobody counted them, on a GPU."""
    notes: tuple[str, ...] = ()
    """What may explain wrong results."""
    left: tuple[Mapping[str, int], ...] = ()
    """Memory of earlier calls that it read and left otherwise: `elements`, and the `line` that writes them."""
    partly: tuple[int, ...] = ()
    """Outputs that have elements that need no kernel beside those that kernels wrote: of a fill of PyTorch's, or those
    of an input that the reference returns as they are."""
    inexact: tuple[float, ...] = ()
    """Of each output, and each input that was handed back, how far a GPU may be from it: as a part of the size of its
    elements. Empty where nobody looked."""
    mostly_inexact: tuple[float, ...] = ()
    """The same of all but one in 16 elements."""
    undecided: tuple[int, ...] = ()
    """Lines in which numbers are compared that GPUs have in either order."""
    same_lanes: tuple[SameLanes, ...] = ()
    """Blocks that were touched where the same lanes had written, with no barrier between."""


def record_job(
    code: str,
    draw: InputSet | Shapes,
    limits: Limits,
    precision: str,
    text_checks: bool = True,
    reads: int = 0,
) -> Job:
    """The job that examines a text and records its program, for the shapes of a draw or for shapes alone. `reads`: what
    Triton reads in its kernels for a GPU of that capability is told, too (`program.own_text`)."""
    room = ProgramLimits().json_bytes
    shapes = _shapes_of(draw) if isinstance(draw, InputSet) else draw
    header: dict[str, Json] = {"init_inputs": list(shapes.init_inputs), "inputs": list(shapes.inputs)}
    header |= {"precision": precision, "program_bytes": room, "text_checks": text_checks, "reads": reads}
    if isinstance(draw, InputSet) and draw.after:
        header["changed"] = [place for place, *_ in draw.after]
    if isinstance(draw, InputSet) and draw.fixed:
        header["fixed"] = list(draw.fixed)
    if isinstance(draw, InputSet):
        header["weights"] = [[name, list(shape)] for name, shape in draw.weights]
    if isinstance(draw, InputSet) and len(json.dumps(draw.structure)) <= _MOST_STRUCTURE:
        header["structure"] = draw.structure
    return Job(code, RECORD, (Round((), (room,)),), header, limits)


def _shapes_of(draw: InputSet) -> Shapes:
    header, _ = job_inputs(draw, draw.cases[0])
    return Shapes(tuple(header["init_inputs"]), tuple(header["inputs"]), draw.work)


def examined_of(result: JobResult) -> Examined:
    """What a recording says of the text."""
    return Examined.from_json(result.report.get("examined") if isinstance(result.report, Mapping) else None)


def recorded_bytes(result: JobResult) -> int:
    """How many bytes of a program a recording says that it left; 0 where it left none."""
    return int.from_bytes(result.outputs[0][0][:8], "little") if result.end == "ok" and result.outputs else 0


def recorded_for(
    draw: InputSet | Shapes, result: JobResult, sizes: ProgramLimits | None = None
) -> Recorded | NotRecorded:
    """What came of a recording for a draw, as `recorded` has it: its inputs lie in memory as those of the draw do, and
    its outputs in one memory only where the reference's do, if that was run."""
    found = recorded(result, sizes)
    if not isinstance(found, Recorded):
        return found
    if said := misplaced(found.program, _layouts_of(draw)):
        return NotRecorded("refused", said)
    # Only of as many outputs as there are to be: of many more it takes long to tell.
    if not isinstance(draw, InputSet) or len(found.program.outputs) != len(draw.outputs):
        return found
    said = lying_together(found.program, draw.meeting)
    return NotRecorded("wrong_output", said) if said else found


def recorded(result: JobResult, sizes: ProgramLimits | None = None) -> Recorded | NotRecorded:
    """What came of a recording; `sizes`: how large the program may be. Never raises for what a candidate left there."""
    fault = fault_of(result)
    if result.end == "ok" and not fault and result.outputs:
        data, size = result.outputs[0][0], recorded_bytes(result)
        program = read(data[8 : 8 + size], sizes)
        if isinstance(program, Refusal):
            return NotRecorded("refused", program.reason)
        return Recorded(program, data[8 : 8 + size].decode())
    if fault:
        kind = fault.get("kind")
        kind = kind if kind in ("host_read", "unsupported", "wrong_output") else "error"
        return NotRecorded(kind, told(fault, crashed=kind == "error"), line_of(fault))
    return NotRecorded(result.end if result.end != "ok" else "error", explain(result)[:2000])


def _layouts_of(draw: InputSet | Shapes) -> list[Layout | None]:
    """How the tensors among the arguments of forward lie in memory."""
    if isinstance(draw, InputSet):
        return [tensor.layout for tensor in host_tensors(draw.cases[0].inputs)]
    return [layout_of(entry.get("layout")) for entry in _entries_of_tensors(draw.inputs)]


def _entries_of_tensors(entries: Sequence[Json]) -> Iterator[Mapping[str, Json]]:
    for entry in entries:
        if (parts := parts_of(entry)) is not None:
            yield from _entries_of_tensors(parts)
        elif isinstance(entry, Mapping):
            yield entry


def replay_job(text: str, draw: InputSet, calls: Sequence[Replay], limits: Limits, max_programs: int) -> Job:
    """The job that replays a program, each call with inputs of its own. Programs under way have threads."""
    limits = replace(limits, processes=max(limits.processes, _THREADS))
    header, (init, _) = job_inputs(draw, calls[0].case)
    header |= {
        "max_programs": max_programs,
        "initial": list(draw.initial),
        "after": [[place, dtype, list(shape)] for place, dtype, shape in draw.after],
    }
    forms = (*draw.outputs, *((dtype, shape) for _, dtype, shape in draw.after))
    sizes = tuple(size_in_bytes(dtype, shape) for dtype, shape in forms)
    made = [_round([calls[place] for place in places], sizes) for places in rounds_of(draw, calls)]
    return Job(text, REPLAY, (Round(init), *made), header, limits)


def rounds_of(draw: InputSet, calls: Sequence[Replay]) -> tuple[range, ...]:
    """The calls that are made in each round after the first, by their places.

    The first one has a round of its own: most kernels that are wrong are wrong there. The others share one where they
    are small, since the way of a round through three processes takes longer than a small call. Nothing is given away
    by that: whoever could read the inputs of a later call in the replaying process could also compute its outputs.
    """
    tensors = [value for call in calls[1:] for value in (*host_tensors(call.case.inputs), *call.weights.values())]
    given = sum(len(tensor.data) for tensor in tensors)
    forms = (*draw.outputs, *((dtype, shape) for _, dtype, shape in draw.after))
    made = len(calls[1:]) * sum(size_in_bytes(dtype, shape) for dtype, shape in forms)
    if given + made <= BATCH_BYTES:
        return (range(1), range(1, len(calls)))[: len(calls)]
    return tuple(range(place, place + 1) for place in range(len(calls)))


def _round(calls: Sequence[Replay], outputs: tuple[int, ...]) -> Round:
    """The round of some calls: their buffers one after the other, and last what they are."""
    buffers = [_buffers(call) for call in calls]
    told = [control | {"blobs": len(blobs)} for blobs, control in buffers]
    inputs = (*(blob for blobs, _ in buffers for blob in blobs), json.dumps(told).encode())
    return Round(inputs, outputs * len(calls))


def _buffers(call: Replay) -> tuple[list[bytes], dict[str, Json]]:
    frame = Frame({})
    for value in call.case.inputs:
        frame.add(value)
    weights = {name: frame.add(tensor) for name, tensor in call.weights.items()}
    own: list[Json] = [
        [each.output, each.place, each.offset, list(each.stride), frame.add(each.same)] for each in call.case.own
    ]
    manner: dict[str, Json] = {"poison": call.poison, "skip": call.skip, "seed": call.seed}
    manner |= {"in_order": call.in_order, "follow": call.follow, "restored": call.restored}
    manner |= {"configurations": list(call.configurations), "bounded": call.bounded, "tuning": call.tuning}
    return frame.blobs, {**manner, "weights": weights, "needed": call.needed, "own": own}


def starts(result: JobResult) -> tuple[str, ...]:
    """Digests of the parameters as the constructor leaves them, in the program's order."""
    found = result.report.get("starts") if isinstance(result.report, Mapping) else None
    return tuple(plain_text(text)[:DIGEST_CHARACTERS] for text in _list(found)[: ProgramLimits().tensors])


def narrow(result: JobResult) -> list[Json] | None:
    """What accesses allow a thread to move at once, where that is less than it could (`running.widths`): numbers of a
    launch's step and of its variant, of the access and of the helper's call around it, and bytes. None where that is
    not known."""
    found = result.report.get("narrow") if isinstance(result.report, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(entry, list) and len(entry) == 5 for entry in found):
        return None
    return [[_count(number) for number in entry] for entry in found if isinstance(entry, list)]


def measured(result: JobResult) -> tuple[Measured, ...]:
    """What a replay's report says of each call, every number bounded."""
    calls = result.report.get("calls") if isinstance(result.report, Mapping) else None
    return tuple(_measured(entry if isinstance(entry, Mapping) else {}) for entry in _list(calls))


def _measured(entry: Mapping[str, Json]) -> Measured:
    counts, fault = entry.get("launches"), entry.get("fault")
    arithmetic = entry.get("arithmetic")
    launches = counts if isinstance(counts, Mapping) else {}
    return Measured(
        {plain_text(name)[:128]: _count(number) for name, number in list(launches.items())[:_LISTED]},
        tuple(_race(race) for race in _list(entry.get("races"))[:_LISTED]),
        tuple(_count(number) for number in _list(entry.get("unwritten"))[:_OUTPUTS]),
        entry.get("weights") is True,
        plain_text(fault.get("message"))[:500] if isinstance(fault, Mapping) else "",
        tuple(_count(number) for number in _list(entry.get("inputs_changed"))[:_OUTPUTS]),
        tuple(plain_text(name)[:128] for name in _list(entry.get("params_changed"))[:_LISTED]),
        None if arithmetic is None else _count(arithmetic),
        tuple(plain_text(note)[:200] for note in _list(entry.get("notes"))[:2]),
        tuple(_left(found) for found in _list(entry.get("left"))[:_LISTED]),
        tuple(_count(number) for number in _list(entry.get("partly"))[:_OUTPUTS]),
        tuple(_share(number) for number in _list(entry.get("inexact"))[:_OUTPUTS]),
        tuple(_share(number) for number in _list(entry.get("mostly_inexact"))[:_OUTPUTS]),
        tuple(_count(number) for number in _list(entry.get("undecided"))[:_LISTED]),
        tuple(_lanes(found) for found in _list(entry.get("same_lanes"))[:_LISTED]),
    )


def _left(found: Json) -> dict[str, int]:
    said = found if isinstance(found, Mapping) else {}
    return {"elements": _count(said.get("elements")), "line": line_of(said)}


def _lanes(found: Json) -> SameLanes:
    said = found if isinstance(found, Mapping) else {}
    shape = tuple(_count(size) for size in _list(said.get("shape"))[:_LISTED])
    kernel = plain_text(said.get("kernel"))[: ProgramLimits().string_characters]
    return SameLanes(kernel, shape, _count(said.get("bytes")), _count(said.get("storage")), line_of(said))


def _race(race: Json) -> dict[str, object]:
    found = race if isinstance(race, Mapping) else {}
    return {
        "kernel": plain_text(found.get("kernel"))[:128],
        "elements": _count(found.get("elements")),
        "lost": _count(found.get("lost")),
        "line": line_of(found),
    }


def _list(found: Json) -> list[Json]:
    return found if isinstance(found, list) else []


def _share(number: Json) -> float:
    """A share that a child tells; anything else is one that is too large."""
    return float(number) if type(number) in (int, float) and 0 <= number < MOST_SHARE else MOST_SHARE


def _count(number: Json) -> int:
    return max(0, min(number, _MOST)) if type(number) is int else 0
