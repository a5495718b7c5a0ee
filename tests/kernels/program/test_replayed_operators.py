"""Operators of a forged program: PyTorch takes more than a program may say."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from triton.runtime.interpreter import InterpreterError

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.calls import play
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.triton.ledger import UnsupportedError
from support.programs import N, launch, made, operation, window, written

SQUARE = window(0, (2, 4))
HEADER: Any = {"init_inputs": [], "inputs": [], "outputs": [], "parameters": [], "weight_seed": 0}
FORGED: dict[str, dict[str, Any]] = {
    "a tensor for a diagonal": operation("tril.default", SQUARE, window(2, (1,)), outs=(window(1, (2, 4)),)),
    "a tensor for a number": operation("add.Scalar", window(0), window(2, (1,)), outs=(window(1),)),
    "another result than what is written": operation("add_.Tensor", window(0), window(2), outs=(window(1),)),
    "no result": operation("mul_.Tensor", window(0), window(2), outs=()),
    "as many results as it finds": operation("where.default", window(0), outs=(window(1),)),
    "another result than its out": operation("neg.out", window(0), outs=(window(1),), out={"window": window(2)}),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_is_never_run(what: str) -> None:
    program = made(forward=[FORGED[what], launch()])
    with pytest.raises(operators.ForgedError):
        operators.run(Memory(program), program.forward[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(("strides", "there"), [([1, 4], True), ([2, 1], False)])
def test_results_lie_as_host_code_was_shown(strides: list[int], there: bool) -> None:
    out, given = [1, "bool", [4, 2], strides, 0], [0, "float32", [4, 2], [1, 4], 0]
    step = operation("logical_and.default", given, window(2, ()), outs=(out,))
    program = made(forward=[step, launch()])
    with contextlib.nullcontext() if there else pytest.raises(UnsupportedError, match="line 7: logical_and gives"):
        operators.run(Memory(program), program.forward[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["floor_divide.default", "div.Tensor_mode", "remainder.Tensor", "fmod.Tensor"])
def test_a_division_that_would_end_the_process_is_told(name: str) -> None:
    one, other, out = (window(place, dtype="int32") for place in (0, 2, 1))
    mode = {"rounding_mode": "trunc"} if "mode" in name else {}
    program = made(forward=[operation(name, one, other, outs=(out,), line=7, **mode), launch()])
    memory = Memory(program)
    memory.raw[0].fill_(0)
    memory.raw[0].view(torch.int32)[3] = -(2**31)
    memory.raw[2].view(torch.int32).fill_(-1)
    with pytest.raises(UnsupportedError, match=rf"line 7: {name.partition('.')[0]} divides the least int32"):
        operators.run(memory, program.forward[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["index.Tensor", "gather.default", "index_select.default"])
def test_what_pytorch_raises_quotes_no_value(name: str) -> None:
    place = 4_611_686_018_427_387_901
    index = {"window": window(2, (1,), dtype="int64")}
    given = {"index.Tensor": ([index],), "gather.default": (0, index), "index_select.default": (0, index)}[name]
    program = made(forward=[operation(name, window(0), *given, outs=(window(1, (1,)),), line=7), launch()])
    memory = Memory(program)
    memory.raw[2].view(torch.int64)[0] = place
    with pytest.raises(
        operators.OperatorError, match=rf"line 7: PyTorch raises \w+Error at {name.split('.')[0]}"
    ) as told:
        operators.run(memory, program.forward[0])  # type: ignore[arg-type]
    assert str(place) not in str(told.value) and told.value.__cause__ is None


class Failing:
    """A machine on which every program fails in the words of somebody else."""

    device, follows = "cpu", False

    def __init__(self, error: Exception) -> None:
        self._error = error

    def build(self, program: object) -> None:
        raise self._error

    def kind_of(self, error: Exception) -> str:
        return "error"


def test_words_of_others_quote_no_number_of_an_input() -> None:
    said = "index 3 of (64, 2048) of x1_ptr is 12345, 0.53, 1e-05, 0x7f or -2.5e+3 in float32 at line 7."
    caused = InterpreterError("anything")
    caused.__cause__ = IndexError(said)
    for error in (IndexError(said), caused):
        told = play(json.dumps(written()), HEADER, lambda: [], lambda outputs: None, Failing(error))  # type: ignore
        number = "(a number)"
        assert told["fault"]["type"] == "IndexError"
        assert told["fault"]["message"] == (
            f"index 3 of (64, 2048) of x1_ptr is {number}, {number}, {number}, {number} or -{number} in float32 at "
            "line 7."
        )
    ours = play(json.dumps(written()), HEADER, lambda: [], lambda outputs: None, Failing(UnsupportedError(said)))  # type: ignore
    assert ours["fault"]["message"] == said


def test_a_mask_whose_elements_are_counted_is_no_index() -> None:
    mask = {"window": window(2, (N,), dtype="bool")}
    program = made(forward=[operation("index.Tensor", window(0), [mask], outs=(window(1),)), launch()])
    with pytest.raises(operators.ForgedError, match="as many elements as a mask holds"):
        operators.run(Memory(program), program.forward[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 1.0, True])
def test_padding_is_nobodys_element(number: Any) -> None:
    padded = operation("constant_pad_nd.default", window(0, (N - 2,)), [0, 2], number, outs=(window(1),))
    program = made(forward=[padded, launch()])
    memory = Memory(program)
    memory.made[0].fill_(True)
    operators.run(memory, program.forward[0])  # type: ignore[arg-type]
    assert memory.is_made(program.outputs[0]).tolist() == [True] * (N - 2) + [False] * 2


def test_what_is_run() -> None:
    added = operation("add_.Tensor", window(0), window(2), outs=(window(0),))
    filled = operation("fill_.Scalar", window(0), 2.0, outs=(window(0),))
    program = made(forward=[filled, filled | {"outs": [window(0)]}, added, launch()])
    memory = Memory(program)
    memory.raw[2].fill_(0)
    for step in program.forward[:3]:
        operators.run(memory, step)  # type: ignore[arg-type]
    assert memory.tensor(program.inputs[0]).tolist() == [2.0] * N


def test_where_results_go_is_no_operand() -> None:
    half, out = window(2, (N // 2,)), {"window": window(1)}
    joined = operation("cat.out", [{"window": half}, {"window": half}], 0, outs=(window(1),), out=out)
    added = operation("add.out", window(0), window(0), outs=(window(1),), out=out)
    for name, step in {"joined": joined, "added": added}.items():
        program = made(forward=[step, launch()])
        memory = Memory(program)
        for storage in (0, 2):
            memory.raw[storage].fill_(0)
            memory.made[storage].fill_(True)
            memory.known[storage].fill_(True)
        operators.run(memory, program.forward[0])  # type: ignore[arg-type]
        assert memory.is_known(program.outputs[0]).all() and memory.is_made(program.outputs[0]).all(), name
        memory.known[0].fill_(False)
        memory.known[2].fill_(False)
        operators.run(memory, program.forward[0])  # type: ignore[arg-type]
        assert not memory.is_known(program.outputs[0]).any(), name


@pytest.mark.parametrize("named", [{}, {"self": {"window": window(1)}}])
def test_what_pytorch_takes_by_its_place_is_not_given_by_name(named: dict[str, Any]) -> None:
    places = () if named else (window(1),)
    copied = operation("copy_.default", *places, outs=(window(1),), src={"window": window(0)}, **named)
    program = made(forward=[copied, launch()])
    with pytest.raises(operators.ForgedError, match="by its place"):
        operators.run(Memory(program), program.forward[0])  # type: ignore[arg-type]


def test_fresh_memory_of_a_seed() -> None:
    memory = Memory(made())
    memory.fill([0], 0xFF)
    assert set(memory.raw[0].tolist()) == {0xFF}
    memory.fill([0, 1], 1000)
    first = [storage.tolist() for storage in memory.raw[:2]]
    assert len(set(first[0])) > 8 and first[0] != first[1]
    memory.fill([0, 1], 1000)
    assert [storage.tolist() for storage in memory.raw[:2]] == first


def test_one_number_everywhere_is_told_from_what_pytorch_computes() -> None:
    zeros = operation("zeros.default", [N], outs=(window(1),))
    steps = {
        "a fill": ([zeros], True),
        "a fill that was moved": ([zeros, operation("clone.default", window(1), outs=(window(1),))], True),
        "a ramp": ([operation("arange.default", float(N), outs=(window(1),))], False),
        "arithmetic on a fill": ([zeros, operation("add_.Tensor", window(1), window(0), outs=(window(1),))], False),
    }
    for name, (forward, filled) in steps.items():
        program = made(forward=[*forward, launch()])
        memory = Memory(program)
        for step in program.forward[:-1]:
            operators.run(memory, step)  # type: ignore[arg-type]
        assert bool(memory.is_filled(program.outputs[0]).all()) is filled, name
        memory.forget(1)
        assert not memory.is_filled(program.outputs[0]).any()
