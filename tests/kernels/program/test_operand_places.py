"""Which windows overlap, and operators that write what a GPU may have in several ways."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.operands.places import are_apart, is_distinct
from assay.kernels.inside.triton.ledger import WrongValueError
from assay.kernels.program.form import DTYPES, Window
from support.programs import N, launch, made, operation, window


def some(chance: random.Random, dtype: str) -> Window:
    size = tuple(chance.randint(0, 4) for _ in range(chance.randint(0, 3)))
    stride = tuple(chance.choice((0, 1, 2, 3, 4, 6, 12)) for _ in size)
    return Window(0, dtype, size, stride, chance.randint(0, 12))


def occupied(shown: Window) -> list[frozenset[int]]:
    """The bytes of each element."""
    width = DTYPES[shown.dtype]
    places = (
        shown.offset + sum(index * stride for index, stride in zip(at, shown.stride, strict=True))
        for at in itertools.product(*map(range, shown.size))
    )
    return [frozenset(range(place * width, place * width + width)) for place in places]


def test_windows_are_distinct_and_apart_as_their_bytes_are() -> None:
    chance, seen = random.Random(5), set()
    for _ in range(3000):
        one, other = (some(chance, chance.choice(("float16", "float32", "float64"))) for _ in range(2))
        mine, theirs = occupied(one), occupied(other)
        distinct, apart = len(set(mine)) == len(mine), not frozenset().union(*mine) & frozenset().union(*theirs)
        assert is_distinct(one) == distinct, one
        assert are_apart(one, other) == apart and are_apart(other, one) == apart, (one, other)
        seen.add((distinct, apart))
    assert len(seen) == 4


def run(step: dict[str, Any]) -> None:
    program = made(forward=[step, launch()], outputs=[window(1)], storages=[8 * N] * 4)
    operators.run(Memory(program), program.forward[0])  # type: ignore[arg-type]


ONE_FURTHER = window(1, (N - 1,), offset=1)
PLACES, SQUARE = window(3, (N,), "int64"), window(1, (2, 2))
PAIR = window(1, (2,))
REPEATED = [1, "float32", [N], [0], 0]
CLASHES: dict[str, tuple[dict[str, Any], str]] = {
    "a copy of what is beside it": (
        operation("copy_.default", ONE_FURTHER, window(1, (N - 1,)), outs=(ONE_FURTHER,)),
        "that it still reads",
    ),
    "a sum with what is beside it": (
        operation("add_.Tensor", ONE_FURTHER, window(1, (N - 1,)), outs=(ONE_FURTHER,)),
        "that it still reads",
    ),
    "a copy into one element": (
        operation("copy_.default", REPEATED, window(0), outs=(REPEATED,)),
        "several numbers to one element",
    ),
    "a product into its factor": (
        operation(
            "mv.out", window(2, (2, 2)), window(1, (2,)), out={"window": window(1, (2,))}, outs=(window(1, (2,)),)
        ),
        "that it still reads",
    ),
    "a sort into what it sorts": (
        operation(
            "sort.values", window(0), values={"window": window(0)}, indices={"window": PLACES}, outs=(window(0), PLACES)
        ),
        "that it still reads",
    ),
    "two results in one place": (
        operation("sort.default", window(0), outs=(window(1), window(1, (N,), "int64"))),
        "two results to one place",
    ),
}


@pytest.mark.parametrize("name", CLASHES)
def test_what_a_gpu_writes_in_any_order_is_refused(name: str) -> None:
    step, said = CLASHES[name]
    with pytest.raises(WrongValueError, match=said):
        run(step)


@pytest.mark.parametrize(
    "step",
    [
        operation("add_.Tensor", window(1), window(1), outs=(window(1),)),
        operation("copy_.default", window(1, (4,), offset=4), window(1, (4,)), outs=(window(1, (4,), offset=4),)),
        operation("mul_.Tensor", window(1), window(0), outs=(window(1),)),
        operation("add.out", window(1), window(0), out={"window": window(1)}, outs=(window(1),)),
        operation("addmm_.default", SQUARE, window(0, (2, 2)), window(2, (2, 2)), outs=(SQUARE,)),
        operation("cumsum_.default", window(1), 0, outs=(window(1),)),
        operation("fill_.Scalar", REPEATED, 3.0, outs=(REPEATED,)),
    ],
)
def test_what_is_apart_or_the_same_is_written(step: dict[str, Any]) -> None:
    run(step)


@pytest.mark.parametrize("byte", [1, 2])
def test_truth_values_of_other_bytes_than_0_and_1_are_refused(byte: int) -> None:
    flags, copied = window(2, dtype="bool"), window(1, dtype="bool")
    step = operation("clone.default", flags, outs=(copied,))
    program = made(forward=[step, launch()], outputs=[copied], storages=[8 * N] * 4)
    memory = Memory(program)
    (given,) = program.forward[0].args  # type: ignore[union-attr]
    memory.tensor(given).view(torch.uint8).fill_(byte)
    with pytest.raises(WrongValueError, match="neither 0 nor 1") if byte > 1 else contextlib.nullcontext():
        operators.run(memory, program.forward[0])  # type: ignore[arg-type]
