"""What a submission would do at the size that its problem is published with, where it is graded at smaller ones.

    attempt = await record(sandbox, code, shapes, limits, precision, sizes=UNALLOCATED)
    outcome = at_published_size(first_program, attempt)

What its host code does is seen there, and its launches are read by Triton's compiler: nothing is allocated and no
kernel is run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator

from assay.kernels.program.form import DTYPES, Launch, Program, operations_in
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.judging.outcome import Attempt, Outcome, first_refused
from assay.kernels.program.operations import role_of

_Named = tuple[str, str]
"""Name and text of a kernel: its number may be another one at another size."""
_CONSTANT = re.compile(r"\b(\w{1,64})[ ]?:[ ]?[\w.]{0,64}constexpr\b")
"""A parameter whose annotation says that the compiler knows its value."""


def at_published_size(
    first: Program,
    attempt: Attempt,
    stored: int | None = None,
    strict: bool = True,
    partly: Collection[int] = (),
) -> Outcome:
    """What the program recorded at the published size shows, beside the one that was graded: `ok` or a `cheat`.

    Args:
        first: The program of the size graded first, every kernel of which changed the output.
        attempt: What was recorded at the published size, and breaks no rule that a program alone can break.
        stored: What its launches store at most (`outputs_reached`).
        strict: Whether all of the outputs must be written by kernels.
        partly: Outputs of which kernels wrote a part alone at the size graded first, the rest needing none.
    """
    reached = outputs_reached(attempt.program, stored, partly) if strict else []
    findings = (*attempt.findings, *launched_alike(first, attempt.program), *reached)
    examined, cpu_s = attempt.examined, attempt.cpu_s
    if (decided := first_refused(findings)) is None:
        return Outcome("ok", findings=findings, stage="rules", cpu_s=cpu_s, examined=examined)
    return Outcome("cheat", decided.message, decided.line, findings, "rules", cpu_s=cpu_s, examined=examined)


def outputs_reached(program: Program, stored: int | None, partly: Collection[int] = ()) -> list[Finding]:
    """The launches must be able to write all of the outputs: a block that is stored once by each program reaches no
    further than its size, at any size of the problem.

    Args:
        program: What was recorded at the published size.
        stored: Bytes that its launches store at most (`CompileReport.stored`); None where that is not known, as of
            kernels with loops.
        partly: Outputs of which kernels need to write a part alone.
    """
    wanted: dict[int, int] = {}
    for place, window in enumerate(program.outputs):
        if place in partly:
            continue
        extents = [size for size, stride in zip(window.size, window.stride, strict=True) if stride]
        shown = math.prod(extents) * DTYPES[window.dtype] if window.elements else 0
        wanted[window.storage] = max(shown, wanted.get(window.storage, 0))
    needed = sum(wanted.values())
    others = [each for each in operations_in(program.forward) if role_of(each) not in ("fill", "random")]
    moved = sum(out.nbytes for operation in others for out in operation.outs)
    if stored is None or stored + moved >= needed:
        return []
    said = (
        f"the launches of forward store {stored} bytes at most, and the output has {needed}: each program stores a "
        "block once, and blocks and their number do not grow with the problem. Launch more programs, or loop"
    )
    return [Finding("outputs", said)]


def launched_alike(first: Program, published: Program) -> list[Finding]:
    """Every kernel that was graded must be launched at the published size, with one program at least in each of its
    configurations, and with no fewer than at the smaller size unless a compile-time number grew, as larger blocks have
    it. Other kernels there are told: a reduction in two passes may need one."""
    before, after = programs_of(first), programs_of(published)
    found = []
    for kernel, (fewest, most) in before.items():
        name = kernel[0]
        least, count = after.get(kernel, (0, 0))
        if kernel not in after or least < min(fewest, 1):
            said = f"forward does not launch the kernel {name}, which was graded. Launch the same kernels at every size"
            found.append(Finding("kernels", said))
        elif count < most:
            said = f"forward launches {count} programs of {name}, fewer than the {most} at the smaller size"
            grown = blocks_grew(kernel, first, published)
            why = "" if grown else ", and no compile-time number is larger: the rest of the work is left undone"
            found.append(Finding("kernels", f"{said}{why}", refused=not grown))
    for name, _ in after.keys() - before.keys():
        found.append(
            Finding("kernels", f"forward launches {name}, which is not graded at smaller sizes", refused=False)
        )
    return found


def programs_of(program: Program) -> dict[_Named, tuple[int, int]]:
    """Kernel -> programs of all its launches in forward, each in the configuration that has fewest, and in the one that
    has most."""
    counts: dict[_Named, tuple[int, int]] = {}
    for kernel, step in _launches(program):
        programs = [math.prod(variant.grid) for variant in step.variants]
        fewest, most = counts.get(kernel, (0, 0))
        counts[kernel] = fewest + min(programs), most + max(programs)
    return counts


def blocks_grew(kernel: _Named, first: Program, published: Program) -> bool:
    """Whether some compile-time number of a kernel is larger at the published size than ever at the other one."""
    before, after = _largest(kernel, first), _largest(kernel, published)
    return any(number > before.get(name, number) for name, number in after.items())


def _largest(kernel: _Named, program: Program) -> dict[str, int]:
    """Name of a compile-time parameter -> the largest number that a launch in forward gives it."""
    constant = set(_CONSTANT.findall(kernel[1]))
    found: dict[str, int] = {}
    for launched, step in _launches(program):
        given = [argument for variant in step.variants for argument in variant.args] if launched == kernel else []
        for name, value in given:
            if name in constant and type(value) is int:
                found[name] = max(value, found.get(name, value))
    return found


def _launches(program: Program) -> Iterator[tuple[_Named, Launch]]:
    for step in program.forward:
        if isinstance(step, Launch):
            kernel = program.kernels[step.kernel]
            yield (kernel.name, kernel.source), step
