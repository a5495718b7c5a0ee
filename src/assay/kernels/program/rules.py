"""What a program must be for its right answers to be its kernels' work. Pure functions of a program and of what a
replay measured; each gives the findings of one rule.

    findings = static_findings(program, reference_arithmetic(result.work))

A finding that is not `refused` is told and does not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from assay.kernels.base import Policy
from assay.kernels.operators import Draw
from assay.kernels.program.form import (
    Launch,
    Operation,
    Program,
    Tuning,
    literal_bytes,
    operations_in,
    windows_in,
)
from assay.kernels.program.judging.arithmetic import MAX_ARITHMETIC_SHARE, host_arithmetic, partial_share
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.judging.reductions import host_reductions
from assay.kernels.program.operations import (
    arithmetic_of,
    base_name,
    casts,
    elements_read,
    moved_bytes,
    rearranges,
    role_of,
)
from assay.kernels.program.weight_work import weight_work

MAX_FOLDED = 1024
"""Arithmetic that a constructor may do on the weights beyond the reference's: 64 operators on 16 numbers each, enough
for scales and other small factors. Never more than the share that forward is allowed. A product of two matrices of 8 by
8 fills it."""
MAX_MOVED_SHARE = 1.0
"""Bytes that PyTorch may move, as a share of those of inputs and outputs, beside one move of each parameter; the most
that an honest program needs is 0.52."""
MAX_LITERAL_BYTES = 1 << 15
"""Of constants, numbers and texts of kernels together: room for any kernel, none for a table of answers or weights."""
MAX_WRITTEN_BYTES = 1 << 36
"""Of one replayed call with the constructor's, at published sizes on a GPU too."""


def static_findings(
    program: Program,
    reference: int,
    policy: Policy = "strict",
    slack: float = 1.0,
    *,
    rearranged: bool = False,
    moved_outputs: Sequence[int] = (),
    weights: int | None = None,
) -> list[Finding]:
    """All rules that need no replay.

    Args:
        program: What was recorded.
        reference: Arithmetic operations of the reference (`operations.reference_arithmetic`).
        policy: `partial` lets PyTorch do up to half of the work.
        slack: Times the shares of arithmetic and moves that are allowed. Sums of split products are a larger share of a
            smaller product, and rows of odd lengths have to be padded.
        rearranged: Whether the reference only moves elements, whatever it is traced to compute.
        moved_outputs: Outputs that have elements of inputs alone, beside others that do not.
        weights: Elements of the reference's parameters; None leaves out what is held against them.
    """
    found = [*launches(program), *operators(program), *constants(program), *calls(program), *written(program)]
    if policy == "partial":
        return [*found, *partial_share(program, reference)]
    strict = [*heavy_operators(program), *host_arithmetic(program, reference, slack), *moves(program, slack)]
    strict += host_reductions(program, weights)
    if rearranged or not reference:
        return [*found, *strict, *rearrangement(program)]
    return [*found, *strict, *rearranged_outputs(program, moved_outputs)]


def launches(program: Program) -> list[Finding]:
    """Forward must launch a kernel."""
    if any(isinstance(step, Launch) for step in program.forward):
        return []
    return [Finding("kernels", "forward launches no kernel")]


def operators(program: Program) -> list[Finding]:
    """Operators of forward that are never run, and random ones outside the constructor."""
    found = []
    for operation in operations_in(program.forward, tuning=True):
        if role_of(operation) == "unknown":
            said = f"PyTorch's {base_name(operation)} is none of the operators that forward may use: do it in a kernel"
            found.append(Finding("operators", said, operation.line))
    for step in program.steps:
        found += _hooks(step.tuning) if isinstance(step, Launch) and step.tuning is not None else []
    for operation in operations_in((*program.module, *program.forward), tuning=True):
        if role_of(operation) == "random":
            said = f"PyTorch's {base_name(operation)} draws random numbers outside the constructor"
            found.append(Finding("operators", said, operation.line))
    return found


def not_run(program: Program) -> Operation | None:
    """The first operator that is never run, of those that make weights: it may do no kernel's work there."""
    steps = (*program.module, *program.init)
    return next((step for step in operations_in(steps, tuning=True) if role_of(step) == "unknown"), None)


def _hooks(tuning: Tuning) -> list[Finding]:
    """What a tuner's hooks compute: a GPU runs them while it tunes, and in no call after that."""
    return [
        Finding("operators", f"PyTorch's {base_name(operation)} computes in a hook of a tuner", operation.line)
        for operation in (*tuning.before, *tuning.after, *tuning.reset)
        if arithmetic_of(operation)
    ]


def heavy_operators(program: Program) -> list[Finding]:
    """Operators that forward may not use at all."""
    return [
        Finding("operators", f"PyTorch's {base_name(step)} does work that a kernel is asked for", step.line)
        for step in operations_in(program.forward, tuning=True)
        if role_of(step) == "heavy"
    ]


def rearrangement(program: Program) -> list[Finding]:
    """Where the reference computes nothing, moving elements is the work: PyTorch may then put none elsewhere, nor cast
    them, nor choose which are copied or filled."""
    return [
        Finding("moves", f"PyTorch's {base_name(operation)} moves what a kernel is asked to move", operation.line)
        for operation in operations_in((*program.module, *program.forward))
        if rearranges(operation) or casts(operation) or _is_of_a_part(program, operation)
    ]


def rearranged_outputs(program: Program, places: Sequence[int]) -> list[Finding]:
    """Where some outputs only have elements of inputs, PyTorch may put half as many bytes elsewhere as the smallest of
    them has, those of parameters aside."""
    sizes = [program.outputs[place].nbytes for place in places if place < len(program.outputs)]
    own = {window.storage for _, window in program.params}
    steps = [
        step
        for step in operations_in((*program.module, *program.forward))
        if rearranges(step)
        and any(window.storage not in own for value in elements_read(step) for window in windows_in(value))
    ]
    total = sum(out.nbytes for step in steps for out in step.outs)
    if not sizes or not steps or 2 * total < min(sizes):
        return []
    worst = max(steps, key=lambda step: sum(out.nbytes for out in step.outs))
    said = f"PyTorch's {base_name(worst)} moves what a kernel is asked to move: an output has elements of inputs alone"
    return [Finding("moves", said, worst.line)]


def _is_of_a_part(program: Program, operation: Operation) -> bool:
    """Whether an operator fills or copies less than all of a storage."""
    return role_of(operation) in ("fill", "move") and any(
        out.nbytes != program.storages[out.storage] or 0 in out.stride for out in operation.outs if out.elements > 1
    )


def moves(program: Program, slack: float = 1.0) -> list[Finding]:
    """Bytes that PyTorch copies in forward and at import, against those of inputs and outputs."""
    moved = [(moved_bytes(operation), operation) for operation in operations_in((*program.module, *program.forward))]
    total = sum(amount for amount, _ in moved)
    whole = sum(window.nbytes for window in (*program.inputs, *program.outputs))
    allowed = int(MAX_MOVED_SHARE * slack * whole) + _of_parameters(program, moved)
    if total <= allowed:
        return []
    _, worst = max(moved, key=lambda pair: pair[0])
    said = (
        f"PyTorch moves {total} bytes, most of them in {base_name(worst)}; {allowed} are allowed beside the kernels: "
        f"inputs and outputs have {whole}, and each parameter may be moved once. Read the elements where they are."
    )
    return [Finding("moves", said, worst.line)]


def _of_parameters(program: Program, moved: Sequence[tuple[int, Operation]]) -> int:
    """Bytes of moves of parameters, which a call may make to have them as its kernels read them: of each parameter as
    many as it has. One that `forward` or the module's import writes into is memory like any other."""
    scratch = {out.storage for step in operations_in((*program.module, *program.forward)) for out in step.outs}
    bytes_of: dict[int, int] = {}
    for _, window in program.params:
        bytes_of[window.storage] = bytes_of.get(window.storage, 0) + window.nbytes
    own = {window.storage for _, window in program.params} - {window.storage for window in program.inputs} - scratch
    read: set[int] = set()
    total = 0
    for amount, operation in moved:
        windows = [window for value in operation.values for window in windows_in(value)]
        sources = {window.storage for window in windows if window not in operation.outs}
        if amount and sources and sources <= own:
            read |= sources
            total += amount
    return min(total, sum(min(bytes_of[each], program.storages[each]) for each in read))


def written(program: Program) -> list[Finding]:
    """Bytes that all operators of PyTorch write, fills and draws too: a replay takes time for each of them."""
    counted = [(sum(out.nbytes for out in step.outs), step) for step in operations_in(program.steps, tuning=True)]
    total = sum(amount for amount, _ in counted)
    if total <= MAX_WRITTEN_BYTES:
        return []
    _, worst = max(counted, key=lambda pair: pair[0])
    said = f"PyTorch writes {total} bytes, most of them in {base_name(worst)}; {MAX_WRITTEN_BYTES} are allowed"
    return [Finding("moves", said, worst.line)]


def constants(program: Program) -> list[Finding]:
    """Literals in which answers or weights might hide."""
    total = literal_bytes(program)
    if total <= MAX_LITERAL_BYTES:
        return []
    return [
        Finding(
            "constants", f"constants, numbers and texts of kernels have {total} bytes; {MAX_LITERAL_BYTES} are allowed"
        )
    ]


def constructor(
    program: Program,
    reference: int,
    init_work: int,
    replaced: Set[int] = frozenset(),
    refused: bool = True,
    draws: Sequence[Draw] | None = None,
) -> list[Finding]:
    """What the constructor computes of the weights beyond what the reference's does, where forward uses it: no call of
    forward pays for it, and it is stale once the weights change.

    Args:
        program: What was recorded.
        reference: Arithmetic operations of the reference's forward (`operations.reference_arithmetic`).
        init_work: Those of its constructor on what it draws.
        replaced: Storages of parameters that were set to other values, which the right outputs followed.
        refused: Whether it decides.
        draws: What the reference's constructor draws from; None for any.
    """
    found = weight_work(program, replaced, draws)
    if replaced:  # what made these is paid for, and pays for nothing else
        init_work = max(init_work - (weight_work(program).amount - weight_work(program, replaced).amount), 0)
    more = min(int(MAX_ARITHMETIC_SHARE * reference), MAX_FOLDED)
    if found.launches:
        first = found.launches[0]
        said, line = f"the constructor launches {program.kernels[first.kernel].name} on the weights", first.line
    elif found.worst is not None and found.amount > init_work + more:
        said = (
            f"the constructor does {found.amount} arithmetic operations on the weights, most of them in "
            f"{base_name(found.worst)}; {init_work + more} are allowed, the reference's constructor does {init_work}"
        )
        line = found.worst.line
    else:
        return []
    why = ": what is folded there no call of forward computes. Keep the reference's parameters, under their names, "
    advice = "and compute with them in a kernel of forward; cat, stack, transposed and cast weights are free"
    return [Finding("constructor", said + why + advice, line, refused)]


def calls(program: Program) -> list[Finding]:
    """Two calls of forward must launch the same."""
    return [Finding("calls", program.differs)] if program.differs else []


def outputs_written(program: Program, unwritten: Sequence[int]) -> list[Finding]:
    """Every element of every output must be written last by a kernel, or by a fill with one number beside what kernels
    wrote, moves of both included, or be an element of an input that the reference returns where it lies and as it was.

    Args:
        program: What was recorded.
        unwritten: Elements of each output for which that is not so, as a replay measured.
    """
    return [
        Finding("outputs", f"{count} of {window.elements} elements of output {place} were written by no kernel")
        for place, (window, count) in enumerate(zip(program.outputs, unwritten, strict=True))
        if count
    ]


def kernels_matter(program: Program, changed: Mapping[int, bool]) -> list[Finding]:
    """Each kernel of forward, left out once, must have changed the output.

    Args:
        program: What was recorded.
        changed: Kernel -> whether the output, or an input that the reference changes, had other bytes without its
            launches.
    """
    return [
        Finding("kernels", f"the output is the same without the kernel {program.kernels[kernel].name}")
        for kernel, other in sorted(changed.items())
        if not other
    ]


def races(found: Sequence[Mapping[str, object]]) -> list[Finding]:
    """Elements at which programs of a launch met, one of them writing plainly. Refused where what one reads or writes
    is what the other writes and no atomic operation orders the two: `lost` counts those. The others are told: programs
    that write the same bytes, or one after the other under a lock.

    Args:
        found: Of each call, what a replay saw: `kernel`, `line` of the launch, `elements`, `lost`.
    """
    worst: dict[tuple[object, object], Mapping[str, object]] = {}
    for race in found:
        key = race["kernel"], race["line"]
        worst[key] = max(worst.get(key, race), race, key=lambda one: (one["lost"], one["elements"]))
    return [_race(race) for race in worst.values()]


def _race(race: Mapping[str, object]) -> Finding:
    line = race["line"] if isinstance(race["line"], int) else 0
    if not race["lost"]:
        # No numbers: a kernel could make them of its inputs, and this is told of what is right.
        return Finding("races", f"programs of {race['kernel']} meet where one of them writes", line, False)
    said = (
        f"a race: programs of one launch of {race['kernel']} read or write {race['lost']} elements that other programs "
        "of it write, and a GPU runs them in no order. Let one program write an element, use atomic operations, or a "
        "lock: wait for the result of an atomic operation that acquires, and call tl.debug_barrier() before the one "
        "that releases."
    )
    return Finding("races", said, line)


def launched_kernels(program: Program) -> list[int]:
    """The kernels that forward launches, by number."""
    return sorted({step.kernel for step in program.forward if isinstance(step, Launch)})
