"""Runs the operations of a program: those on the lists of `program.operations`, on real tensors, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.operands.arguments import flat, given_to, operands_of, own_outs, real, taken_elsewhere
from assay.kernels.inside.replay.operands.inexact_results import bounds_after, loses_signs, with_signs
from assay.kernels.inside.replay.operands.places import clash
from assay.kernels.inside.replay.outputs import inexact
from assay.kernels.inside.replay.state import State
from assay.kernels.inside.triton.ledger import OutOfBoundsError, UnsupportedError, WrongValueError
from assay.kernels.operators import kind_of
from assay.kernels.program.form import Name, Operation, Value, Window, windows_in
from assay.kernels.program.operations import CONSTANT_FILLS, base_name, elements_read, role_of, wide_casts

_QUOTIENTS = frozenset({"div", "floor_divide", "remainder", "fmod"})
"""Those that whole numbers are divided by."""
_OF_PYTORCH = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
_SHOWN = 200
"""Characters of shapes in a message."""


class ForgedError(Exception):
    """A program says of itself what is not so. No recording of ours makes such a one."""


class OperatorError(Exception):
    """PyTorch raises at an operation, in words that may quote what is in its operands: those stay here."""


def run(memory: Memory, operation: Operation) -> None:
    """Run one operation, and note which elements are now a kernel's.

    Raises:
        ForgedError: the operation is on no list, or its results are not what the program says.
        OutOfBoundsError: it reaches beyond what the caller gave.
        WrongValueError: it writes what a GPU may have in several ways.
        UnsupportedError: a GPU may lay its results out otherwise, or a processor does not come to an end of it.
        OperatorError: PyTorch raises for its arguments.
    """
    try:
        _run(memory, operation)
    except _OF_PYTORCH as error:
        shapes = [f"{window.dtype} {window.size}" for value in operation.values for window in windows_in(value)]
        of = f"{base_name(operation)} of {', '.join(shapes)[:_SHOWN] or 'no tensor'}"
        if not _raises(memory, operation):
            said = f"the grader fails at {of}: compute that in a kernel"
            raise UnsupportedError(f"line {operation.line}: {said}") from None
        raise OperatorError(
            f"line {operation.line}: PyTorch raises {type(error).__name__} at {of}, for the values that these have "
            "here. Its message may quote inputs or weights, which a grade keeps secret. Run it yourself to read it"
        ) from None


def _raises(memory: Memory, operation: Operation) -> bool:
    """Whether it is PyTorch that raises."""
    try:
        _results(memory, operation, _operator(operation.name))
    except _OF_PYTORCH:
        return True
    return False


def _run(memory: Memory, operation: Operation) -> None:
    if role_of(operation) == "unknown":
        raise ForgedError(f"the operator {operation.name} is never run")
    operator = _operator(operation.name)
    _check_places(operation, operator)
    _check_clash(operation, operator)
    _check_truth(memory, operation, operator)
    _check_casts(memory, operation)
    _check_quotients(memory, operation, operator)
    if memory.others:
        _check_reach(memory, operation)
    tensors = [memory.tensor(window) for window in operation.outs]
    limits = bounds_after(memory, operation, operator)
    zeros = memory.bounds is not None and loses_signs(memory, operation, operator)
    if memory.marked or not _done_in_place(memory, operation, tensors):
        _copy_results(memory, operation, operator, tensors)
    for window, limit, tensor in zip(operation.outs, limits, tensors, strict=True):
        if memory.bounds is not None:
            inexact.note(memory, window, with_signs(operation, limit, tensor, zeros=zeros))
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


def _check_clash(operation: Operation, operator: Any) -> None:
    """Raises WrongValueError where a GPU, which works on all elements at once, may write something else."""
    name, role = base_name(operation), role_of(operation)
    written = {argument.name for argument in operator._schema.arguments if _is_written(argument)}
    if name in CONSTANT_FILLS and len(operation.outs) == 1:  # the same number, however often
        return
    given = given_to(operation, operator)
    others = [window for argument, value in given.items() if argument not in written for window in windows_in(value)]
    # What else computes, or chooses, makes an element of others than the same one of an operand.
    lanewise = role == "move" or (role == "arithmetic" and kind_of(name) != "reduction")
    if (found := clash(operation.outs, others, lanewise=lanewise)) is not None:
        raise WrongValueError(
            f"line {operation.line}: {name} {found}. Write to memory of its own, or clone() what is read first"
        )


def _check_truth(memory: Memory, operation: Operation, operator: Any) -> None:
    """Raises WrongValueError for truth values of other bytes than 0 and 1, which some copies keep and others do not."""
    given = operands_of(operation, operator)
    read = given[1:] if base_name(operation) in ("copy", "fill") else given
    for window in read:
        if window.dtype == "bool" and bool((memory.tensor(window).view(torch.uint8) > 1).any()):
            raise WrongValueError(
                f"line {operation.line}: {base_name(operation)} reads a truth value whose byte is neither 0 nor 1, and "
                "a GPU may keep that byte. Store 0 or 1"
            )


def _check_casts(memory: Memory, operation: Operation) -> None:
    """Raises WrongValueError for whole numbers that the type does not hold to which they are cast: that wraps."""
    for window, out in wide_casts(operation):
        held = torch.iinfo(getattr(torch, out.dtype))
        values = memory.tensor(window).cpu().numpy()
        if values.size and (int(values.min()) < held.min or int(values.max()) > held.max):
            raise WrongValueError(
                f"line {operation.line}: {base_name(operation)} casts whole numbers to {out.dtype} that it does not "
                "hold, which wraps them: do that in a kernel"
            )


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _follow(memory: Memory, state: State, operation: Operation) -> None:
    """Note what an operation read and wrote of memory that lasts."""
    for window in (window for value in elements_read(operation) for window in windows_in(value)):
        if window.storage in state.read:
            flags = (memory.flags(window, kind[window.storage]) for kind in (state.read, state.written))
            for known, written in zip(*flags, strict=True):
                known |= ~written
    for window in operation.outs:
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
    results = _results(memory, operation, operator)
    if len(results) != len(tensors):
        raise ForgedError(f"{operation.name} gives another number of tensors than the program says")
    lies_anew = _lies_as_made(operation, operator)
    for result, tensor in zip(results, tensors, strict=True):
        if result.shape != tensor.shape or result.dtype != tensor.dtype:
            raise ForgedError(f"{operation.name} gives another shape or dtype than the program says")
        if lies_anew and result.stride() != tensor.stride():
            raise UnsupportedError(
                f"line {operation.line}: {base_name(operation)} gives a tensor with strides {result.stride()}, and "
                f"host code was shown {tensor.stride()}, as PyTorch says of tensors without memory: machines order its "
                "results in their own ways. Give it operands that are contiguous(), and whose extents of 1 have the "
                "strides of one (reshape(shape))"
            )
        same = result.device == tensor.device and result.data_ptr() == tensor.data_ptr()
        if not same or result.stride() != tensor.stride():
            tensor.copy_(result)


def _results(memory: Memory, operation: Operation, operator: Any) -> list[torch.Tensor]:
    """What the operator gives."""
    # Random numbers are drawn on the host, as the reference's are, so that a seed gives the same ones on any device.
    device = "cpu" if role_of(operation) == "random" else memory.device
    with torch.no_grad():
        named = _named(memory, operation, operator, device) | own_outs(operator, operation, device)
        return flat(operator(*real(memory, operation.args, device), **named))


def _lies_as_made(operation: Operation, operator: Any) -> bool:
    """Whether results have the strides that an operator gives them: neither those of memory that it is given, nor an
    order that the program does not name. Of what does a problem's work, GPUs have other kernels than processors."""
    arguments = operator._schema.arguments
    asked = any(_is_written(argument) or argument.name == "memory_format" for argument in arguments)
    return not asked and role_of(operation) in ("move", "arithmetic")


def _check_quotients(memory: Memory, operation: Operation, operator: Any) -> None:
    """Raises UnsupportedError where a processor would end this process: at the least whole number divided by -1."""
    if base_name(operation) not in _QUOTIENTS:
        return
    given = given_to(operation, operator)
    one, other = (torch.as_tensor(real(memory, given.get(name), "cpu")) for name in ("self", "other"))
    kind, fraction = torch.result_type(one, other), base_name(operation) == "div" and given.get("rounding_mode") is None
    if fraction or kind not in (torch.int32, torch.int64):
        return
    least = torch.iinfo(kind).min
    if bool(((one == least) & (other == -1)).any()):
        raise UnsupportedError(
            f"line {operation.line}: {base_name(operation)} divides the least {str(kind)[6:]}, {least}, by "
            "-1, which no such number is the quotient of, and at which a processor stops. Divide in a kernel, or leave "
            "such numbers out"
        )


def _check_places(operation: Operation, operator: Any) -> None:
    """Tensors may stand only where the operator says that it takes some, and what it writes is what it is said to make.

    PyTorch reads a tensor where a number belongs, writes into tensors that the program does not name as results, and
    takes a number for a dtype, a layout or a memory format without looking whether there is one of that number.
    """
    schema = operator._schema
    if not schema.returns or any(str(result.type) != "Tensor" for result in schema.returns):
        raise ForgedError(f"{operation.name} gives no tensor, or as many as it finds")
    if torch.Tag.dynamic_output_shape in operator.tags and any(
        window.dtype in ("bool", "uint8") for window in operands_of(operation, operator)[1:]
    ):
        raise ForgedError(f"{operation.name} gives as many elements as a mask holds, which is no shape of a program")
    given, named = given_to(operation, operator), {name for name, _ in operation.kwargs}
    written: list[Window] = []
    for argument in schema.arguments:
        value, kind = given.get(argument.name), str(argument.real_type)
        found = list(windows_in(value))
        if found and "Tensor" not in kind:
            raise ForgedError(f"{operation.name} takes no tensor for {argument.name}")
        if value is not None and not _may_be(value, kind):
            raise ForgedError(f"{operation.name} takes no such {argument.name}")
        if not argument.kwarg_only and argument.name in named:
            raise ForgedError(f"{operation.name} is given {argument.name} by name, and PyTorch gives it by its place")
        if _is_written(argument):
            written += found
    if written and tuple(written) != operation.outs:
        raise ForgedError(f"{operation.name} writes into what the program does not name as its result")


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


def _named(memory: Memory, operation: Operation, operator: Any, device: str) -> dict[str, Any]:
    named = {name: real(memory, value, device) for name, value in operation.kwargs}
    makes = device != "cpu" and any(argument.name == "device" for argument in operator._schema.arguments)
    return named | {"device": device} if makes else named


def _made(memory: Memory, operation: Operation, operator: Any) -> list[Any]:
    """For each result which of its elements are made by kernels once the operation has run.

    A move takes marks along with elements. Of arithmetic an element counts where any of its operands does; what
    neither shape nor broadcasting relates counts where all of some operand does.
    """
    role, inputs = role_of(operation), operands_of(operation, operator)
    if role in ("fill", "random") or not inputs:
        return [False for _ in operation.outs]
    if role == "move":
        return [taken_elsewhere(operation, operator, memory.is_made)] * len(operation.outs)
    flags = [memory.is_made(window) for window in inputs]
    return [_joined(flags, out) for out in operation.outs]


def _filled(memory: Memory, operation: Operation, operator: Any) -> Any:
    """Which elements of the results are one number of the program's own, or moved from where such ones are."""
    role = role_of(operation)
    if role == "fill":
        return base_name(operation) in CONSTANT_FILLS
    if role != "move" or not memory.filled or not operands_of(operation, operator):
        return False
    return taken_elsewhere(operation, operator, memory.is_filled)


def _known(memory: Memory, operation: Operation, operator: Any) -> Any:
    """Which elements of the results had values to come from: all, unless operands have memory that nothing wrote."""
    inputs = operands_of(operation, operator)
    if role_of(operation) in ("fill", "random") or all(bool(memory.is_known(window).all()) for window in inputs):
        return True
    if role_of(operation) != "move":
        return False
    return ~taken_elsewhere(operation, operator, lambda window: ~memory.is_known(window))


def _joined(flags: list[torch.Tensor], out: Window) -> Any:
    joined = torch.zeros(out.size, dtype=torch.bool)
    for flag in flags:
        # By NumPy: PyTorch's broadcast_shapes imports SymPy, which costs each process that replays 200 ms.
        try:
            shape = np.broadcast_shapes(tuple(flag.shape), out.size)
        except ValueError:
            shape = ()
        if shape == out.size and math.prod(flag.shape) > 0:
            joined |= flag
        else:
            joined |= bool(flag.all())
    return joined
