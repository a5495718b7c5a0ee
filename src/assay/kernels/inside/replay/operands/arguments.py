"""The arguments of an operation: as the program has them, and as PyTorch takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from assay.kernels.inside.replay.memory import Memory
from assay.kernels.program.form import Name, Operation, Value, Window, windows_in
from assay.kernels.program.operations import COPIES, base_name


def given_to(operation: Operation, operator: Any) -> dict[str, Any]:
    """The arguments by the names that the operator has for them."""
    names = (argument.name for argument in operator._schema.arguments)
    return {**dict(zip(names, operation.args, strict=False)), **dict(operation.kwargs)}


def operands_of(operation: Operation, operator: Any) -> list[Window]:
    """The tensors that an operation reads: all that it is given but those that it only writes into (`out=`)."""
    outs = {argument.name for argument in operator._schema.arguments if argument.is_out}
    read = (*operation.args, *(value for name, value in operation.kwargs if name not in outs))
    return [window for value in read for window in windows_in(value)]


def real(memory: Memory, value: Value, device: str) -> Any:
    """An argument as PyTorch takes it."""
    if isinstance(value, Window):
        return memory.tensor(value).to(device)
    if isinstance(value, tuple):
        return [real(memory, part, device) for part in value]
    if isinstance(value, Name):
        return getattr(torch, value.text)
    return value


def own_outs(operator: Any, operation: Operation, device: str) -> dict[str, torch.Tensor]:
    """Empty tensors for what an operator is to write into (`out=`): it gives them the size that it makes, which is then
    compared with the program's. Given the program's own, it would make that one larger."""
    named = dict(operation.kwargs)
    outs = [(argument.name, named.get(argument.name)) for argument in operator._schema.arguments if argument.is_out]
    return {
        name: torch.empty(0, dtype=getattr(torch, window.dtype), device=device)
        for name, window in outs
        if isinstance(window, Window)
    }


def flat(result: Any) -> list[torch.Tensor]:
    """All tensors among the results of an operator."""
    if isinstance(result, list | tuple):
        return [part for item in result for part in flat(item)]
    return [result] if isinstance(result, torch.Tensor) else []


def with_tensors(value: Value, tensors: Iterator[torch.Tensor]) -> Any:
    """An argument with other tensors in the places of windows."""
    if isinstance(value, Window):
        return next(tensors)
    if isinstance(value, tuple):
        return [with_tensors(part, tensors) for part in value]
    return getattr(torch, value.text) if isinstance(value, Name) else value


def taken_elsewhere(
    operation: Operation, operator: Any, flags: Callable[[Window], torch.Tensor], dtype: torch.dtype = torch.bool
) -> Any:
    """What an operator that takes elements elsewhere makes of flags of theirs, or of other numbers of a type."""
    if base_name(operation) in COPIES:
        given = given_to(operation, operator)
        return flags(given.get("src", given["self"])).expand(operation.outs[0].size)
    arguments = operator._schema.arguments
    results = {argument.name for argument in arguments if argument.is_out}
    elements = {argument.name for argument in arguments if "number" in str(argument.type)}
    given = {
        name: torch.empty(value.size, dtype=dtype)
        if isinstance(value, Window) and name in results
        else False
        if name in elements and not isinstance(value, Window)
        else _flagged(value, flags)
        for name, value in given_to(operation, operator).items()
        if not isinstance(value, Name)
    }
    return operator(**given)


def _flagged(value: Value, flags: Callable[[Window], torch.Tensor]) -> Any:
    if isinstance(value, Window):
        return flags(value)
    if isinstance(value, tuple):
        return [_flagged(part, flags) for part in value]
    return value
