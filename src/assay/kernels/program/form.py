"""The parts of a program. All are plain data; `reading.read` makes them from untrusted bytes and checks every number.

    program.forward = (Operation("zeros.default", ...), Launch(kernel=0, variants=(Variant(grid=(4,), ...),)))

Every tensor is a window onto a storage, so views, parameters and `detach` need no operation and hide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.kernels.arrays import Layout, Lying, meetings

if TYPE_CHECKING:
    from assay.types import Json

DIFFERENCES_TOLD = 8
"""Values by which a configuration is named."""
LINE_CHARACTERS = 120
DTYPES = {
    **{"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8},
    **{"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16},
    **{"float8_e4m3fn": 1, "float8_e5m2": 1},
}
"""PyTorch's name of a dtype -> bytes of an element."""


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor: elements of a storage. Strides and offset count elements, as PyTorch's do."""

    storage: int
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        """How many elements it shows, repeated ones counted as often as they show."""
        return math.prod(self.size)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense copy."""
        return self.elements * DTYPES[self.dtype]

    @property
    def end(self) -> int:
        """The byte of the storage after its last one; 0 where it shows nothing."""
        if not self.elements:
            return 0
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        return (last + 1) * DTYPES[self.dtype]

    @property
    def reals(self) -> Window:
        """The same elements, complex ones as two fractions along an axis of their own."""
        if not self.dtype.startswith("complex"):
            return self
        stride = tuple(2 * step for step in self.stride)
        return Window(self.storage, _PARTS[self.dtype], (*self.size, 2), (*stride, 1), 2 * self.offset)


_PARTS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True, slots=True)
class Name:
    """A constant that has a name: a dtype of PyTorch's (`dtype`) or of Triton's language (`language`)."""

    kind: Literal["dtype", "language"]
    text: str


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel handed to a kernel, by its number."""

    kernel: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor descriptor made on the host."""

    base: Window
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    padding: str


Value = bool | int | float | str | None | Window | Name | Function | Descriptor | tuple["Value", ...]
"""An argument of an operation or of a launch."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One of PyTorch's operators. `name` has the overload: `add.Tensor`; other libraries keep theirs before `::`."""

    name: str
    args: tuple[Value, ...]
    kwargs: tuple[tuple[str, Value], ...]
    outs: tuple[Window, ...]
    line: int
    """Of the submission; 0 where it is not known."""

    @property
    def values(self) -> tuple[Value, ...]:
        """All arguments."""
        return (*self.args, *(value for _, value in self.kwargs))


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to make a launch: an autotuned kernel has one for each configuration."""

    grid: tuple[int, ...]
    args: tuple[tuple[str, Value], ...]
    """Every parameter of the kernel, defaults included."""
    options: tuple[tuple[str, int | bool | None], ...]
    """What the compiler is told: `num_warps` and the like."""
    before: tuple[Operation, ...]
    """What the hook of the configuration does first."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What an autotuner does around each of the launches that it tries, and once it is over."""

    before: tuple[Operation, ...]
    after: tuple[Operation, ...]
    reset: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel, in at least one variant."""

    kernel: int
    variants: tuple[Variant, ...]
    line: int
    tuning: Tuning | None = None
    """Where Triton first tries all variants, many times each, on the same memory; None where it need not."""
    allocator: bool = False
    """Whether Triton has an allocator for the memory that it may need beside the kernel's tensors."""


Step = Operation | Launch

Outside = bool | int | float | str | None | tuple["Outside", ...]
"""What a name outside a kernel stands for, as plain data."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Triton function: its text with its decorators, and what the names in its text stand for."""

    name: str
    source: str
    line: int
    """Where its text begins in the submission; 1 where that is not known."""
    names: tuple[tuple[str, str, Outside], ...]
    """Name, kind and value, as `assay.kernels.language.bindings` has them; a `function` is a kernel's number."""


@dataclass(frozen=True, slots=True)
class Program:
    """All that a submission does: when it is imported (`module`), built (`init`) and called (`forward`)."""

    storages: tuple[int, ...]
    """Bytes of each."""
    constants: tuple[tuple[int, bytes], ...]
    """Storages that hold literal bytes from the start."""
    inputs: tuple[Window, ...]
    """The tensors among the arguments of `forward`, in order."""
    init_inputs: tuple[Window, ...]
    """Those among the arguments of the constructor."""
    params: tuple[tuple[str, Window], ...]
    """The parameters by name, as they are once the model is built."""
    buffers: tuple[tuple[str, Window], ...]
    """The buffers of fractions by name, as they are then."""
    outputs: tuple[Window, ...]
    module: tuple[Step, ...]
    init: tuple[Step, ...]
    forward: tuple[Step, ...]
    kernels: tuple[Kernel, ...]
    differs: str
    """How a later call differed from the first; empty where all made the same launches."""
    kept: tuple[int, ...]
    """Storages that the first call of forward makes and later ones find as it left them."""
    once: tuple[int, ...]
    """Places of the operations in `forward` that the first call alone runs."""
    unchanged: tuple[int, ...]
    """Places of those that a call leaves out before which no weight has changed."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything, in the order in which it happens."""
        return (*self.module, *self.init, *self.forward)


def windows_in(value: Value) -> Iterator[Window]:
    """The tensors in an argument."""
    if isinstance(value, Window):
        yield value
    elif isinstance(value, Descriptor):
        yield value.base
    elif isinstance(value, tuple):
        for part in value:
            yield from windows_in(part)


def operations_in(steps: tuple[Step, ...], tuning: bool = False) -> Iterator[Operation]:
    """The operations of some steps, those of the hooks of every variant included. `tuning`: those, too, that only the
    first call of forward may run, while a kernel is tuned."""
    for step in steps:
        if isinstance(step, Operation):
            yield step
            continue
        for variant in step.variants:
            yield from variant.before
        if tuning and step.tuning is not None:
            yield from (*step.tuning.before, *step.tuning.after, *step.tuning.reset)


def lasting(program: Program) -> set[int]:
    """Storages that hold something before forward is called."""
    found = {storage for storage, _ in program.constants}
    found |= {window.storage for window in (*program.init_inputs, *(window for _, window in program.params))}
    for step in (*program.module, *program.init):
        found |= storages_of(step) if isinstance(step, Launch) else {out.storage for out in step.outs}
    return found


def storages_of(step: Step) -> set[int]:
    """Storages that a step is given or makes, in any of its variants."""
    if isinstance(step, Operation):
        given = [window.storage for value in step.values for window in windows_in(value)]
        return {*given, *(out.storage for out in step.outs)}
    values = [value for variant in step.variants for _, value in variant.args]
    found = {window.storage for value in values for window in windows_in(value)}
    return found | {out.storage for variant in step.variants for operation in variant.before for out in operation.outs}


def made_anew(program: Program) -> set[int]:
    """Storages of what a call makes of weights only where one has changed."""
    steps = tuple(program.forward[place] for place in program.unchanged)
    return {out.storage for operation in operations_in(steps) for out in operation.outs}


def of_earlier_calls(program: Program) -> set[int]:
    """Storages that forward may find as an earlier call of it left them. Not those that a parameter fills, which it
    must not change at all."""
    filled = {
        window.storage
        for _, window in program.params
        if window.nbytes >= program.storages[window.storage] and window.stride == dense_strides(window.size)
    }
    used = {storage for step in program.forward for storage in storages_of(step)}
    return (lasting(program) | set(program.kept)) & used - filled


def table_of(program: Program) -> dict[str, Json]:
    """The kernels of a program for `assay.kernels.language.parse`; keys are their numbers as text."""
    return {
        str(number): {
            "source": kernel.source,
            "line": kernel.line,
            "names": {name: {kind: value} for name, kind, value in kernel.names},
        }
        for number, kernel in enumerate(program.kernels)
    }


def contradiction(program: Program) -> str:
    """What a program says of itself that no recording does; empty where it says nothing of the kind."""
    for window in program.init_inputs:  # as the recorder makes them: around one nothing may be read
        dense = math.prod(window.size) * DTYPES[window.dtype]
        if window.offset or window.stride != dense_strides(window.size) or program.storages[window.storage] != dense:
            return "an input of the constructor does not fill a storage of its own, row by row"
    own = {window.storage for window in program.init_inputs}
    if len(own) != len(program.init_inputs) or own & {window.storage for window in program.inputs}:
        return "two inputs share a storage, one of the constructor"
    if any(isinstance(program.forward[place], Launch) for place in (*program.once, *program.unchanged)):
        return "a launch is left out of later calls, which make the same launches as the first"
    if {window.storage for window in program.inputs} & set(program.kept):
        return "an input is kept from call to call, and each call is given its own"
    return ""


def misplaced(program: Program, layouts: Sequence[Layout | None]) -> str:
    """How the inputs of forward lie otherwise in memory than those of the problem; empty where they do not. Around them
    nothing may be read.

    Args:
        program: What was recorded.
        layouts: Of each tensor among the arguments; None where it fills memory of its own, row by row.
    """
    if len(layouts) != len(program.inputs):
        return f"the program takes {len(program.inputs)} tensors and is given {len(layouts)}"
    owners: set[tuple[int, int]] = set()
    for place, (window, layout) in enumerate(zip(program.inputs, layouts, strict=True)):
        layout = layout or Layout(-1 - place, window.elements, dense_strides(window.size), 0)
        size = layout.extent * DTYPES[window.dtype]
        if (window.stride, window.offset, program.storages[window.storage]) != (layout.stride, layout.offset, size):
            return f"input {place} lies otherwise in memory than the problem's"
        owners.add((window.storage, layout.storage))
    if any(len({pair[side] for pair in owners}) < len(owners) for side in (0, 1)):
        return "inputs share other storages than the problem's"
    return ""


def lying_together(program: Program, meeting: Collection[tuple[int, int]]) -> str:
    """Which outputs of forward lie in one memory, though the reference's do not; empty where none do. Whoever writes
    into one in place would change the other.

    Args:
        program: What was recorded.
        meeting: The pairs of the reference's outputs that do (`arrays.meetings`).
    """
    outputs = [Lying(each.storage, DTYPES[each.dtype], each.size, each.stride, each.offset) for each in program.outputs]
    found = sorted(meetings(outputs) - set(meeting))
    if not found:
        return ""
    one, other = found[0]
    if one == other:
        return (
            f"output {one} shows an element of its memory at several places, as expand() has it, and the reference's "
            "does not: whoever writes into it in place changes several elements, or fails. Return each element at a "
            "place of its own"
        )
    return (
        f"outputs {one} and {other} lie in the same memory, and the reference's do not: whoever writes into one of "
        "them in place changes the other. Return two tensors, each in memory of its own"
    )


def dense_strides(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor that lies row by row, as PyTorch gives them."""
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


_NUMBER_BYTES = 8


def difference(variants: Sequence[Variant], number: int) -> str:
    """What tells one variant from the others of its launch, in words; empty where nothing does."""
    every = [dict((*each.args, *each.options)) for each in variants]
    found = {
        name: value
        for name, value in every[number].items()
        if any(name not in each or each[name] != value for each in every)
        if value is None or isinstance(value, bool | int | float | str)
    }
    return ", ".join(f"{name}={value!r}"[:LINE_CHARACTERS] for name, value in list(found.items())[:DIFFERENCES_TOLD])


def literal_bytes(program: Program) -> int:
    """Bytes of all that a program carries as literals: constants, numbers and texts."""
    total = sum(len(content) for _, content in program.constants)
    total += sum(_bytes_of_kernel(kernel) for kernel in program.kernels)
    return total + sum(_bytes_of(value) for value in _values(program.steps))


def _values(steps: Sequence[Step]) -> Iterator[Value]:
    for step in steps:
        if isinstance(step, Operation):
            yield from step.values
            continue
        for variant in step.variants:
            yield from (value for _, value in variant.args)
            yield from (value for operation in variant.before for value in operation.values)


def _bytes_of(value: Value) -> int:
    """Bytes of the literals in an argument. The numbers of a window say where it is and reach no kernel."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, tuple):
        return sum(_bytes_of(part) for part in value)
    if isinstance(value, Descriptor):  # its numbers reach the kernel, which those of a window do not
        return _bytes_of((*value.shape, *value.strides, *value.block))
    return _NUMBER_BYTES if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _bytes_of_kernel(kernel: Kernel) -> int:
    return len(kernel.source) + sum(_bytes_of(value) for _, kind, value in kernel.names if kind == "constant")
