"""Bounds of all operators of PyTorch's that a program may have: nothing raises where PyTorch does not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.outputs import inexact
from assay.kernels.inside.triton.error_bounds.memory import Bounds
from assay.kernels.inside.triton.ledger import UnsupportedError, WrongValueError
from assay.kernels.program.operations import ARITHMETIC, MOVES
from support.programs import launch, made, operation, window

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (2, 4), (1, 2, 4))
DTYPES = ("float32", "float64", "float16", "bool", "int32")
KNOWN = {getattr(torch, name) for name in (*DTYPES, "int64", "bfloat16")}
FILLED: dict[str, Any] = {
    **{"number": 2, "Scalar": 0.5, "int": 0, "bool": False, "float": 0.5},
    **{"List[int]": [0], "Optional[List[int]]": [0]},
}


def arguments_of(operator: Any, operand: Any) -> list[Any]:
    """The same tensor wherever an operator takes one, and small numbers.

    Raises:
        KeyError: it takes others.
    """
    known = FILLED | {"Tensor": operand, "List[Tensor]": [operand]}
    needed = [each for each in operator._schema.arguments if not (each.has_default_value() or each.kwarg_only)]
    return [known[str(argument.type)] for argument in needed]


def is_taken(operator: Any) -> bool:
    """Whether an operator gives tensors, and writes none that it is given."""
    schema = operator._schema
    if not schema.returns or any(str(each.type) != "Tensor" for each in schema.returns):
        return False
    try:
        arguments_of(operator, None)
    except KeyError:
        return False
    return all(argument.alias_info is None for argument in schema.arguments)


def cases() -> list[str]:
    """Operators with their overloads."""
    packets = {base: getattr(torch.ops.aten, base, None) for base in sorted({*ARITHMETIC, *MOVES})}
    names = [(base, each) for base, packet in packets.items() if packet is not None for each in packet.overloads()]
    return [f"{base}.{each}" for base, each in names if is_taken(getattr(packets[base], each))]


def results_of(operator: Any, shape: tuple[int, ...], dtype: str) -> list[torch.Tensor] | None:
    """What PyTorch gives of ones of that shape; None where it raises."""
    try:
        found = operator(*arguments_of(operator, torch.ones(shape, dtype=getattr(torch, dtype))))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return None
    return [found] if isinstance(found, torch.Tensor) else list(found)


def as_window(place: int, result: torch.Tensor) -> Any:
    """Where a result lies."""
    return [place, str(result.dtype).removeprefix("torch."), list(result.shape), list(result.stride()), 0]


def run(step: Any, given: Any, sizes: list[int]) -> None:
    """Run an operator on ones that are inexact."""
    program = made(forward=[step, launch()], outputs=[step["outs"][0]], storages=sizes, inputs=[given])
    memory = Memory(program)
    memory.bounds = Bounds([raw.data_ptr() for raw in memory.raw], [len(raw) for raw in memory.raw])
    memory.tensor(program.inputs[0]).fill_(1)
    inexact.note(memory, program.inputs[0], np.full(given[2], 1e-7))
    operators.run(memory, program.forward[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_raises_where_pytorch_does_not(dtype: str) -> None:
    ran, failing = 0, set[str]()
    for name, shape in itertools.product(cases(), SHAPES):
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, base), overload)
        results = results_of(operator, shape, dtype)
        if results is None or any(each.dtype not in KNOWN for each in results):
            continue
        given = window(0, shape, dtype=dtype)
        outs = tuple(as_window(place, each) for place, each in enumerate(results, start=1))
        step = operation(name, *arguments_of(operator, {"window": given}), outs=outs)
        sizes = [64, *(8 * each.numel() + 64 for each in results), 64, 64]
        try:
            run(step, given, sizes)
            ran += 1
        except UnsupportedError:
            failing.add(name)
        except (WrongValueError, operators.ForgedError):
            pass
    # A truth value that may be the other one is a divisor that may be 0.
    assert ran > 400 and failing == ({"remainder.Scalar_Tensor"} if dtype == "bool" else set())


@pytest.mark.parametrize(("one", "other"), list(itertools.product(DTYPES, (*DTYPES, "bfloat16"))))
def test_no_cast_raises(one: str, other: str) -> None:
    for shape in SHAPES:
        given = window(0, shape, dtype=one)
        step = operation("_to_copy.default", given, outs=(window(1, shape, dtype=other),), dtype={"dtype": other})
        run(step, given, [64, 64, 64])


def test_a_fault_of_the_grader_is_nobodys_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise TypeError("ours")

    monkeypatch.setattr(operators, "bounds_after", fails)
    given = window(0, (2,))
    with pytest.raises(UnsupportedError, match="line 7: the grader fails at sin of float32"):
        run(operation("sin.default", given, outs=(window(1, (2,)),)), given, [64, 64, 64])
    index = {"window": window(2, (1,), dtype="int64")}
    step = operation("index_select.default", given, 5, index, outs=(window(1, (1,)),))
    with pytest.raises(operators.OperatorError, match="line 7: PyTorch raises TypeError at index_select"):
        run(step, given, [64, 64, 64])
