"""The error bounds of what an operation of a program computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.operands import machine_differences
from assay.kernels.inside.replay.operands.arguments import (
    flat,
    given_to,
    operands_of,
    own_outs,
    real,
    taken_elsewhere,
    with_tensors,
)
from assay.kernels.inside.replay.operands.doubtful_forms import doubtful
from assay.kernels.inside.replay.operator_bounds import Call, after, cast
from assay.kernels.inside.replay.outputs import inexact
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.operators import kind_of
from assay.kernels.program.form import DTYPES, Operation, Window, windows_in
from assay.kernels.program.operations import EXACT, OF_MANY, base_name, is_fraction, role_of

_OF_ONE, _OF_MANY = 4.0, 16.0
"""Last bits by which results may be off that a function or a fused step makes, and that many numbers make."""
_REMAINDERS = frozenset({"remainder", "fmod"})
_NEVER_EXACT = _REMAINDERS | {"topk", "sort"}
"""Operators that leave something undecided of exact operands too, though they round nothing."""


def bounds_after(memory: Memory, operation: Operation, operator: Any) -> Sequence[Any]:
    """The error bounds of the results, before the operation has run; None for exact ones."""
    exact = [None] * len(operation.outs)
    if memory.bounds is None or role_of(operation) == "random":
        return exact
    if role_of(operation) == "fill":
        return _of_range(memory, operation, operator) if base_name(operation) in ("arange", "linspace") else exact
    off, inputs = _bits_off(operation), operands_of(operation, operator)
    operands, limits = [memory.tensor(each) for each in inputs], [inexact.bounds_of(memory, each) for each in inputs]
    if role_of(operation) == "move":
        whole = any(not is_fraction(out) and out.dtype != "bool" for out in operation.outs)
        if all(limit is None for limit in limits) and not (whole and any(map(is_fraction, inputs))):
            return exact
        return _bounds_moved(memory, operation, operator)
    outs = [memory.tensor(each) for each in operation.outs]
    inexact_sum = any(limit is not None for limit in limits) or _has_factor(operation)
    if machine_differences.of_complex(base_name(operation), operands, outs, inexact=inexact_sum):
        return [np.full(each.size, UNKNOWN) for each in operation.outs]
    ends = partial(_ends, memory, operation, operator)
    numbers = _numbers(operation, operator)
    beside = operands if kind_of(base_name(operation)) == "pointwise" else [each for each in operands if each.dim()]
    narrow = machine_differences.half_with_numbers(beside, [value for _, value in numbers])
    if (
        not off
        and narrow is None
        and all(limit is None for limit in limits)
        and base_name(operation) not in _NEVER_EXACT
    ):
        return exact

    def compute(operands: Sequence[torch.Tensor], *, sizes: bool = False, factors: bool = True) -> list[torch.Tensor]:
        given = iter([operand.to(torch.float64) if sizes else operand.clone() for operand in operands])
        own = own_outs(operator, operation, memory.device)
        placed = [with_tensors(value, given) for value in operation.args]
        named = {name: with_tensors(value, given) for name, value in operation.kwargs if name not in own}
        if sizes:
            own = {name: each.to(torch.float64) for name, each in own.items()}
            named = {name: _as_size(value) for name, value in named.items()}
        if not factors:
            named |= {name: float(named[name] != 0) for name in ("alpha", "beta") if name in named}
        with torch.no_grad():
            return flat(operator(*placed, **named, **own))

    found = after(Call(base_name(operation), operands, limits, compute, ends, off, operation.line))
    if off and base_name(operation) not in OF_MANY:
        doubts = doubtful(base_name(operation), given_to(operation, operator), ends, operands, compute(operands))
        found = [np.where(doubt, UNKNOWN, limit) for doubt, limit in zip(doubts, found, strict=True)]
    if base_name(operation) in _REMAINDERS:
        far = machine_differences.of_remainders(ends("self")[0], ends("other")[0], outs[0])
        found = [np.maximum(limit, far) for limit in found]
    if narrow is None:
        return found

    def compute_numbers(wide: Sequence[torch.Tensor], change: Callable[[float], float]) -> list[torch.Tensor]:
        return _with_numbers(memory, operation, operator, wide, {name: change(value) for name, value in numbers})

    own = machine_differences.of_numbers(compute_numbers, operands, compute(operands), narrow)
    return [limit + each for limit, each in zip(found, own, strict=True)]


def _numbers(operation: Operation, operator: Any) -> list[tuple[str, float]]:
    """The numbers of Python's that an operator computes with, by the names of its arguments."""
    kinds = {argument.name: str(argument.real_type) for argument in operator._schema.arguments}
    return [
        (name, value)
        for name, value in given_to(operation, operator).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
        if any(word in kinds.get(name, "") for word in ("number", "float", "Tensor"))
    ]


def _with_numbers(
    memory: Memory, operation: Operation, operator: Any, tensors: Sequence[torch.Tensor], numbers: dict[str, float]
) -> list[torch.Tensor]:
    """The results of other operands and numbers."""
    given, own = iter([tensor.clone() for tensor in tensors]), own_outs(operator, operation, memory.device)
    own = {name: each.to(torch.float32) if each.dtype.is_floating_point else each for name, each in own.items()}
    values = {name: value for name, value in given_to(operation, operator).items() if name not in own} | numbers
    arguments = [argument for argument in operator._schema.arguments if argument.name not in own]
    values = {argument.name: argument.default_value for argument in arguments} | values
    with torch.no_grad():
        made = {argument.name: with_tensors(values[argument.name], given) for argument in arguments}
        plain = [made[argument.name] for argument in arguments if not argument.kwarg_only]
        return flat(operator(*plain, **{each.name: made[each.name] for each in arguments if each.kwarg_only}, **own))


def _of_range(memory: Memory, operation: Operation, operator: Any) -> Sequence[Any]:
    """The bounds of a range of numbers."""
    name, given, own = base_name(operation), given_to(operation, operator), own_outs(operator, operation, "cpu")
    named = {name: real(memory, value, "cpu") for name, value in operation.kwargs}
    last = "step" if name == "arange" else "steps"
    numbers = [given.get(each, default) for each, default in (("start", 0), ("end", 0), (last, 1))]
    results = flat(operator(*operation.args, **named | own))
    return [machine_differences.of_range(name, numbers, each, _OF_ONE) for each in results]


def _bounds_moved(memory: Memory, operation: Operation, operator: Any) -> Sequence[Any]:
    """The bounds of elements that are taken elsewhere, each rounded to the type that it has there."""
    seen = [window.dtype for window in operands_of(operation, operator)]
    source = max(seen, key=lambda each: ("float" in each, DTYPES[each]))
    if base_name(operation) == "copy":
        source = seen[-1]
    kind = getattr(torch, source)
    takes = (partial(inexact.as_tensor, memory), lambda window: memory.tensor(window).to(torch.float64))
    moved, values = (taken_elsewhere(operation, operator, take, torch.float64) for take in takes)
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
    value = given_to(operation, operator).get(name)
    if isinstance(value, Window):
        limits = inexact.bounds_of(memory, value)
        return memory.tensor(value).to(torch.float64).numpy(), 0.0 if limits is None else limits
    if value is None:
        value = next((each.default_value for each in operator._schema.arguments if each.name == name), None)
    return (float(value) if isinstance(value, bool | int | float) else math.nan), 0.0


def _bits_off(operation: Operation) -> float:
    """By how many last bits machines differ in what an operator computes."""
    name = base_name(operation)
    if role_of(operation) == "move" or (
        name in EXACT and not _has_factor(operation) and "decimals" not in operation.name
    ):
        return 0.0
    return _OF_MANY if name in OF_MANY else _OF_ONE


def _has_factor(operation: Operation) -> bool:
    """Whether a sum takes a multiple of an operand."""
    return any(name == "alpha" and value != 1 for name, value in operation.kwargs) or (
        base_name(operation) in ("add", "sub", "rsub") and operation.args[2:] not in ((), (1,))
    )


def loses_signs(memory: Memory, operation: Operation, operator: Any) -> bool:
    """Whether zeros among the results may have either sign; asked before the operation has run."""
    operands = [memory.tensor(window) for window in operands_of(operation, operator)]
    numbers = [torch.tensor(value) for value in operation.values if isinstance(value, float)]
    return machine_differences.may_lose_signs(base_name(operation), [*operands, *numbers])


def with_signs(operation: Operation, limits: Any, result: torch.Tensor, *, zeros: bool) -> Any:
    """The bounds of a result, with what its signs are worth. Fills and copies keep all bits."""
    role, kinds = role_of(operation), {window.dtype for value in operation.values for window in windows_in(value)}
    if role == "fill" or (role == "move" and len(kinds | {window.dtype for window in operation.outs}) == 1):
        return limits
    if (own := machine_differences.of_signs(result, zeros=zeros)) is None:
        return limits
    return own if limits is None else np.maximum(own, limits)
