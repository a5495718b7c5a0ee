"""Runs the operations of a program: those on the lists of `program.operations`, on real tensors, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.operator_bounds import Call, after, cast, of_fill
from assay.kernels.inside.replay.outputs import inexact
from assay.kernels.inside.replay.state import State
from assay.kernels.inside.triton.ledger import OutOfBoundsError
from assay.kernels.program.form import DTYPES, Name, Operation, Value, Window, windows_in
from assay.kernels.program.operations import CONSTANT_FILLS, EXACT, OF_MANY, base_name, role_of

_OF_ONE, _OF_MANY = 4.0, 16.0
"""Last bits by which results may be off that a function or a fused step makes, and that many numbers make."""


class ForgedError(Exception):
    """A program says of itself what is not so. No recording of ours makes such a one."""


def run(memory: Memory, operation: Operation) -> None:
    """Run one operation, and note which elements are now a kernel's.

    Raises:
        ForgedError: the operation is on no list, or its results are not what the program says.
        OutOfBoundsError: it reaches beyond what the caller gave.
        Exception: whatever PyTorch raises for its arguments.
    """
    if role_of(operation) == "unknown":
        raise ForgedError(f"the operator {operation.name} is never run")
    operator = _operator(operation.name)
    _check_places(operation, operator)
    if memory.others:
        _check_reach(memory, operation)
    tensors = [memory.tensor(window) for window in operation.outs]
    limits = _bounds_after(memory, operation, operator)
    if memory.marked or not _done_in_place(memory, operation, tensors):
        _copy_results(memory, operation, operator, tensors)
    for window, limit in zip(operation.outs, limits, strict=True):
        inexact.note(memory, window, limit)
    if memory.state is not None:
        _follow(memory, memory.state, operation)
    if memory.marked:
        known = _known(memory, operation, operator)
        filled = _filled(memory, operation, operator)
        for window, flag in zip(operation.outs, _made(memory, operation, operator), strict=True):
            memory.mark(window, flag, known)
            memory.fill_in(window, filled)


def _check_reach(memory: Memory, operation: Operation) -> None:
    """Raises OutOfBoundsError where an operation comes to memory of an input's that is no part of the input."""
    given = (*operation.args, *(value for _, value in operation.kwargs))
    for window in (*operation.outs, *(window for value in given for window in windows_in(value))):
        if memory.reaches_others(window):
            raise OutOfBoundsError(
                f"line {operation.line}: {base_name(operation)} reads or writes memory of an input between or beyond "
                "the input's own elements, which belongs to another tensor of the caller's. Keep to the input as it is"
            )


def _follow(memory: Memory, state: State, operation: Operation) -> None:
    """Note what an operation read and wrote of memory that lasts."""
    step = state.step(operation.line)
    given = (*operation.args, *(value for name, value in operation.kwargs if name != "out"))
    read = [window for value in given for window in windows_in(value)]
    if role_of(operation) in ("fill", "random"):
        read = []
    elif base_name(operation) in ("copy", "fill"):
        read = read[1:]
    for window in read:
        step.reads.add(window.storage)
        if window.storage in state.read:
            flags = (memory.flags(window, kind[window.storage]) for kind in (state.read, state.written))
            for known, written in zip(*flags, strict=True):
                known |= ~written
    for window in operation.outs:
        step.writes.add(window.storage)
        for part in memory.flags(window, state.written[window.storage]) if window.storage in state.written else ():
            part.fill_(True)


def _done_in_place(memory: Memory, operation: Operation, tensors: list[torch.Tensor]) -> bool:
    """Write zeros and plain copies where they are to be, which costs no more than it costs the submission: where nobody
    follows who wrote what, calls may be timed."""
    name = base_name(operation)
    if name in ("zeros", "zeros_like", "new_zeros", "zero") and len(tensors) == 1:
        tensors[0].zero_()
        return True
    if name not in ("clone", "_to_copy", "contiguous") or len(tensors) != 1 or len(operation.args) != 1:
        return False
    source, (out,) = operation.args[0], operation.outs
    if not isinstance(source, Window) or source.size != out.size:
        return False
    if name != "_to_copy" and source.dtype != out.dtype:
        return False
    tensors[0].copy_(memory.tensor(source))
    return True


def _copy_results(memory: Memory, operation: Operation, operator: Any, tensors: list[torch.Tensor]) -> None:
    """Run the operator, and put what it gives where the program says, unless it is there."""
    # Random numbers are drawn on the host, as the reference's are, so that a seed gives the same ones on any device.
    device = "cpu" if role_of(operation) == "random" else memory.device
    with torch.no_grad():
        named = _named(memory, operation, operator, device) | _own_outs(operator, operation, device)
        results = _flat(operator(*_real(memory, operation.args, device), **named))
    if len(results) != len(tensors):
        raise ForgedError(f"{operation.name} gives {len(results)} tensors, the program says {len(tensors)}")
    for result, tensor in zip(results, tensors, strict=True):
        if result.shape != tensor.shape or result.dtype != tensor.dtype:
            raise ForgedError(
                f"{operation.name} gives {result.dtype} {tuple(result.shape)}, the program says otherwise"
            )
        same = result.device == tensor.device and result.data_ptr() == tensor.data_ptr()
        if not same or result.stride() != tensor.stride():
            tensor.copy_(result)


def _check_places(operation: Operation, operator: Any) -> None:
    """Tensors may stand only where the operator says that it takes some, and what it writes is what it is said to make.

    PyTorch reads a tensor where a number belongs, writes into tensors that the program does not name as results, and
    takes a number for a dtype, a layout or a memory format without looking whether there is one of that number.
    """
    schema = operator._schema
    if not schema.returns or any("Tensor" not in str(result.type) for result in schema.returns):
        raise ForgedError(f"{operation.name} gives no tensor")
    given = _given(operation, operator)
    written: list[Window] = []
    for argument in schema.arguments:
        value, kind = given.get(argument.name), str(argument.real_type)
        found = list(windows_in(value))
        if found and "Tensor" not in kind:
            raise ForgedError(f"{operation.name} takes no tensor for {argument.name}")
        if value is not None and not _may_be(value, kind):
            raise ForgedError(f"{operation.name} takes no such {argument.name}")
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += found
    if written and tuple(written) != operation.outs:
        raise ForgedError(f"{operation.name} writes into what the program does not name as its result")


def _given(operation: Operation, operator: Any) -> dict[str, Any]:
    """The arguments by the names that the operator has for them."""
    names = (argument.name for argument in operator._schema.arguments)
    return {**dict(zip(names, operation.args, strict=False)), **dict(operation.kwargs)}


def _may_be(value: Value, kind: str) -> bool:
    """Whether a recording of ours may give this where an operator takes that kind: a dtype by its name, and nothing
    that only says where a result is or how it lies."""
    if "ScalarType" in kind:
        return isinstance(value, Name)
    return not any(word in kind for word in ("Layout", "MemoryFormat", "Device", "Generator", "Enum"))


def _operator(name: str) -> Any:
    """An operator of ATen's by its name with overload."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    found = getattr(packet, overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise ForgedError(f"PyTorch has no operator {name}")
    return found


def _real(memory: Memory, value: Value, device: str) -> Any:
    if isinstance(value, Window):
        return memory.tensor(value).to(device)
    if isinstance(value, tuple):
        return [_real(memory, part, device) for part in value]
    if isinstance(value, Name):
        return getattr(torch, value.text)
    return value


def _named(memory: Memory, operation: Operation, operator: Any, device: str) -> dict[str, Any]:
    named = {name: _real(memory, value, device) for name, value in operation.kwargs}
    makes = device != "cpu" and any(argument.name == "device" for argument in operator._schema.arguments)
    return named | {"device": device} if makes else named


def _own_outs(operator: Any, operation: Operation, device: str) -> dict[str, torch.Tensor]:
    """Empty tensors for what an operator is to write into (`out=`): it gives them the size that it makes, which is then
    compared with the program's. Given the program's own, it would make that one larger."""
    named = dict(operation.kwargs)
    outs = [(argument.name, named.get(argument.name)) for argument in operator._schema.arguments if argument.is_out]
    return {
        name: torch.empty(0, dtype=getattr(torch, window.dtype), device=device)
        for name, window in outs
        if isinstance(window, Window)
    }


def _flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, list | tuple):
        return [part for item in result for part in _flat(item)]
    return [result] if isinstance(result, torch.Tensor) else []


def _made(memory: Memory, operation: Operation, operator: Any) -> list[Any]:
    """For each result which of its elements are made by kernels once the operation has run.

    A move takes marks along with elements. Of arithmetic an element counts where any of its operands does; what
    neither shape nor broadcasting relates counts where all of some operand does.
    """
    role, inputs = role_of(operation), _operands(operation, operator)
    if role in ("fill", "random") or not inputs:
        return [False for _ in operation.outs]
    if role == "move":
        return [_moved(operation, operator, memory.is_made)] * len(operation.outs)
    flags = [memory.is_made(window) for window in inputs]
    return [_joined(flags, out) for out in operation.outs]


def _filled(memory: Memory, operation: Operation, operator: Any) -> Any:
    """Which elements of the results are one number of the program's own, or moved from where such ones are."""
    role = role_of(operation)
    if role == "fill":
        return base_name(operation) in CONSTANT_FILLS
    if role != "move" or not memory.filled or not _operands(operation, operator):
        return False
    return _moved(operation, operator, memory.is_filled)


def _operands(operation: Operation, operator: Any) -> list[Window]:
    """The tensors that an operation reads: all that it is given but those that it only writes into (`out=`)."""
    outs = {argument.name for argument in operator._schema.arguments if argument.is_out}
    read = (*operation.args, *(value for name, value in operation.kwargs if name not in outs))
    return [window for value in read for window in windows_in(value)]


def _known(memory: Memory, operation: Operation, operator: Any) -> Any:
    """Which elements of the results had values to come from: all, unless operands have memory that nothing wrote."""
    inputs = _operands(operation, operator)
    if role_of(operation) in ("fill", "random") or all(bool(memory.is_known(window).all()) for window in inputs):
        return True
    if role_of(operation) != "move":
        return False
    return ~_moved(operation, operator, lambda window: ~memory.is_known(window))


def _bounds_after(memory: Memory, operation: Operation, operator: Any) -> Sequence[Any]:
    """The error bounds of the results, before the operation has run; None for exact ones."""
    exact = [None] * len(operation.outs)
    if memory.bounds is None or role_of(operation) == "random":
        return exact
    if role_of(operation) == "fill":
        return _of_fill(memory, operation, operator) if base_name(operation) in ("arange", "linspace") else exact
    off, inputs = _bits_off(operation), _operands(operation, operator)
    operands, limits = [memory.tensor(each) for each in inputs], [inexact.bounds_of(memory, each) for each in inputs]
    if role_of(operation) == "move":
        whole = any("float" not in out.dtype and out.dtype != "bool" for out in operation.outs)
        if all(limit is None for limit in limits) and not (whole and any("float" in each.dtype for each in inputs)):
            return exact
        return _bounds_moved(memory, operation, operator)
    if not off and all(limit is None for limit in limits) and base_name(operation) != "topk":
        return exact

    def compute(operands: Sequence[torch.Tensor], *, sizes: bool = False) -> list[torch.Tensor]:
        given = iter([operand.to(torch.float64) if sizes else operand.clone() for operand in operands])
        own = _own_outs(operator, operation, memory.device)
        named = {name: _with(value, given) for name, value in operation.kwargs if name not in own}
        if sizes:
            own = {name: each.to(torch.float64) for name, each in own.items()}
            named = {name: _as_size(value) for name, value in named.items()}
        with torch.no_grad():
            return _flat(operator(*(_with(value, given) for value in operation.args), **named, **own))

    ends = partial(_ends, memory, operation, operator)
    return after(Call(base_name(operation), operands, limits, compute, ends, off, operation.line))


def _of_fill(memory: Memory, operation: Operation, operator: Any) -> Sequence[Any]:
    """The bounds of a range of fractions."""
    own = _own_outs(operator, operation, "cpu")
    named = {name: _real(memory, value, "cpu") for name, value in operation.kwargs}
    return [of_fill(each, _OF_ONE) for each in _flat(operator(*operation.args, **named | own))]


def _bounds_moved(memory: Memory, operation: Operation, operator: Any) -> Sequence[Any]:
    """The bounds of elements that are taken elsewhere, each rounded to the type that it has there."""
    seen = [window.dtype for window in _operands(operation, operator)]
    source = max(seen, key=lambda each: ("float" in each, DTYPES[each]))
    if base_name(operation) == "copy":
        source = seen[-1]
    kind = getattr(torch, source)
    takes = (partial(inexact.as_tensor, memory), lambda window: memory.tensor(window).to(torch.float64))
    moved, values = (_moved(operation, operator, take, torch.float64) for take in takes)
    return [
        cast(moved.expand(out.size).numpy(), values.expand(out.size).to(kind), getattr(torch, out.dtype))
        for out in operation.outs
    ]


def _as_size(value: Any) -> Any:
    """A factor without its sign, and a type that holds all sizes."""
    if isinstance(value, torch.dtype):
        return torch.float64
    return abs(value) if isinstance(value, float | int) and not isinstance(value, bool) else value


def _ends(memory: Memory, operation: Operation, operator: Any, name: str) -> tuple[Any, Any]:
    """Values and bounds of an argument by its name, a tensor or a number."""
    value = _given(operation, operator).get(name)
    if isinstance(value, Window):
        limits = inexact.bounds_of(memory, value)
        return memory.tensor(value).to(torch.float64).numpy(), 0.0 if limits is None else limits
    if value is None:
        value = next((each.default_value for each in operator._schema.arguments if each.name == name), None)
    return (float(value) if isinstance(value, bool | int | float) else math.nan), 0.0


def _bits_off(operation: Operation) -> float:
    """By how many last bits machines differ in what an operator computes."""
    name = base_name(operation)
    if role_of(operation) == "move" or (name in EXACT and not _has_factor(operation)):
        return 0.0
    return _OF_MANY if name in OF_MANY else _OF_ONE


def _has_factor(operation: Operation) -> bool:
    """Whether a sum takes a multiple of an operand."""
    return any(name == "alpha" and value != 1 for name, value in operation.kwargs) or (
        base_name(operation) in ("add", "sub", "rsub") and operation.args[2:] not in ((), (1,))
    )


def _with(value: Value, tensors: Iterator[torch.Tensor]) -> Any:
    """An argument with other tensors in the places of windows."""
    if isinstance(value, Window):
        return next(tensors)
    if isinstance(value, tuple):
        return [_with(part, tensors) for part in value]
    return getattr(torch, value.text) if isinstance(value, Name) else value


def _moved(
    operation: Operation, operator: Any, flags: Callable[[Window], torch.Tensor], dtype: torch.dtype = torch.bool
) -> Any:
    """What an operator that takes elements elsewhere makes of flags of theirs, or of other numbers of a type."""
    if base_name(operation) in ("clone", "_to_copy", "copy", "contiguous", "lift_fresh_copy"):
        given = _given(operation, operator)
        return flags(given.get("src", given["self"])).expand(operation.outs[0].size)
    results = {argument.name for argument in operator._schema.arguments if argument.is_out}
    named = {
        name: torch.empty(value.size, dtype=dtype)
        if isinstance(value, Window) and name in results
        else _flagged(value, flags)
        for name, value in operation.kwargs
        if not isinstance(value, Name)
    }
    return operator(*(_flagged(value, flags) for value in operation.args), **named)


def _flagged(value: Value, flags: Callable[[Window], torch.Tensor]) -> Any:
    if isinstance(value, Window):
        return flags(value)
    if isinstance(value, tuple):
        return [_flagged(part, flags) for part in value]
    return False if isinstance(value, float) else value


def _joined(flags: list[torch.Tensor], out: Window) -> Any:
    joined = torch.zeros(out.size, dtype=torch.bool)
    for flag in flags:
        try:
            shape = torch.broadcast_shapes(flag.shape, out.size)  # type: ignore[no-untyped-call]
        except RuntimeError:
            shape = torch.Size()
        if tuple(shape) == out.size and math.prod(flag.shape) > 0:
            joined |= flag
        else:
            joined |= bool(flag.all())
    return joined
