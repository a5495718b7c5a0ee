"""Operators of a forged program: PyTorch takes more than a program may say."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.triton.ledger import UnsupportedError
from support.programs import N, launch, made, operation, window

SQUARE = window(0, (2, 4))
FORGED: dict[str, dict[str, Any]] = {
    "a tensor for a diagonal": operation("tril.default", SQUARE, window(2, (1,)), outs=(window(1, (2, 4)),)),
    "a tensor for a number": operation("add.Scalar", window(0), window(2, (1,)), outs=(window(1),)),
    "another result than what is written": operation("add_.Tensor", window(0), window(2), outs=(window(1),)),
    "no result": operation("mul_.Tensor", window(0), window(2), outs=()),
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


def test_the_source_of_a_copy_has_its_name_wherever_it_stands() -> None:
    copied = operation("copy_.default", window(1), outs=(window(1),), src={"window": window(0)})
    program = made(forward=[copied, launch()])
    memory = Memory(program)
    memory.made[0].fill_(True)
    operators.run(memory, program.forward[0])  # type: ignore[arg-type]
    assert memory.is_made(program.outputs[0]).all()


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
