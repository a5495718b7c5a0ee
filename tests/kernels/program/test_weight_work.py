"""What counts as work of a constructor on the weights: storages, taint and what forward uses."""

from __future__ import annotations

from typing import Any

import pytest

from assay.kernels.program.form import Program
from assay.kernels.program.weight_work import once_on_weights, replaced_storages, weight_work
from support.programs import N, launch, made, operation, window

W, A, B, C = 2, 3, 4, 5
"""The storage of the weights, and others; 0 and 1 are the input and the output."""
DRAWN = operation("uniform_.default", window(W), outs=(window(W),))


def built(*steps: dict[str, Any], used: int = A, **changes: Any) -> Program:
    """A program with these steps in its constructor; forward's kernel reads the storage `used`."""
    forward = [launch(x={"window": window(0)}, y={"window": window(1)}, w={"window": window(used)})]
    return made(storages=[4 * N] * 6, init=list(steps), forward=forward, **changes)


def add(out: int, *operands: int) -> dict[str, Any]:
    return operation("add.Tensor", *[window(place) for place in operands], outs=(window(out),))


def test_arithmetic_on_what_was_drawn_counts() -> None:
    found = weight_work(built(DRAWN, add(A, W, W)))
    assert found.amount == N and found.worst is not None and found.worst.outs[0].storage == A and not found.launches


def test_arithmetic_on_what_was_not_drawn_is_free() -> None:
    positions = operation("arange.default", N, outs=(window(A),))
    assert weight_work(built(DRAWN, positions, add(A, A, A))).amount == 0
    assert weight_work(built(add(A, W, W), DRAWN)).amount == 0, "it was no random number by then"


@pytest.mark.parametrize("name", ["clone.default", "cat.default", "mul.Tensor", "_to_copy.default"])
def test_taint_goes_with_what_is_computed_and_moved(name: str) -> None:
    moved = operation(name, window(W), outs=(window(B),))
    before = weight_work(built(DRAWN, moved, used=B)).amount
    assert weight_work(built(DRAWN, moved, add(A, B, B))).amount == before + N


@pytest.mark.parametrize("name", ["zeros_like.default", "new_zeros.default", "ones_like.default", "zero_.default"])
def test_what_takes_only_a_shape_is_not_tainted(name: str) -> None:
    assert weight_work(built(DRAWN, operation(name, window(W), outs=(window(B),)), add(A, B, B))).amount == 0


def test_tensors_given_to_the_constructor_are_tainted() -> None:
    assert weight_work(built(add(A, W, W))).amount == 0
    assert weight_work(built(add(A, W, W), init_inputs=[window(W)])).amount == N


def test_a_weight_that_is_drawn_twice_costs_nothing_and_a_drawn_sum_does() -> None:
    assert weight_work(built(DRAWN, DRAWN, used=W)).amount == 0
    drawn = operation("normal.Tensor_float", window(W), 1.0, outs=(window(A),))
    assert weight_work(built(DRAWN, drawn)).amount == N


def test_gathers_at_fixed_places_are_moves() -> None:
    places = operation("arange.default", N, outs=(window(B),))
    fixed = operation("index_select.default", window(W), 0, window(B), outs=(window(A),))
    drawn = operation("index_select.default", window(B), 0, window(W), outs=(window(A),))
    assert weight_work(built(DRAWN, places, fixed)).amount == 0
    assert weight_work(built(DRAWN, places, drawn)).amount > 0
    assert weight_work(built(DRAWN, fixed, add(A, A, A))).amount == N


def test_what_a_drawn_sum_reads_counts_wherever_it_lies() -> None:
    scales = [W, "float32", [4], [1], 4]
    within = operation("normal.float_Tensor", 0.0, {"window": scales}, outs=(window(W),), out=window(W))
    assert weight_work(built(DRAWN, within, used=W)).amount == N
    itself = operation("normal.float_Tensor", 0.0, window(W), outs=(window(W),), out=window(W))
    assert weight_work(built(DRAWN, itself, used=W)).amount == N
    again = operation("normal_.default", window(W), 0.0, 1.0, outs=(window(W),))
    assert weight_work(built(DRAWN, again, used=W)).amount == 0


def test_launches_on_tainted_storages() -> None:
    launched = launch(x={"window": window(W)}, y={"window": window(A)})
    assert len(weight_work(built(DRAWN, launched)).launches) == 1
    assert weight_work(built(DRAWN, launched, add(B, A, A), used=B)).amount == N
    assert not weight_work(built(launched)).launches
    assert not weight_work(built(DRAWN, launched, used=C)).launches, "forward does not use it"


def test_hooks_of_launches_count() -> None:
    hooked = launch(x={"window": window(C)}, y={"window": window(C)})
    hooked["variants"][0]["before"] = [add(A, W, W)]
    assert weight_work(built(DRAWN, hooked)).amount == N


def test_only_what_forward_uses_counts() -> None:
    assert weight_work(built(DRAWN, add(A, W, W), used=W)).amount == 0
    assert weight_work(built(DRAWN, add(A, W, W), add(B, A, A), add(C, A, A), used=B)).amount == 2 * N
    returned = built(DRAWN, add(A, W, W), used=W, outputs=[window(A)])
    assert weight_work(returned).amount == N


def test_what_is_replaced_does_not_count_unless_something_else_was_made_of_it() -> None:
    assert weight_work(built(DRAWN, add(A, W, W)), frozenset({A})).amount == 0
    copied = operation("clone.default", window(A), outs=(window(B),))
    assert weight_work(built(DRAWN, add(A, W, W), copied, used=B), frozenset({A})).amount == N


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ([["scale", window(W)]], {W}),
        ([["table", window(A)], ["scale", window(W)]], {W}),
        ([["other", window(A)]], {A}),
        ([["scale", window(W, (N // 2,))]], set()),
        ([["scale", [W, "float32", [N], [0], 0]]], set()),
        ([["scale", [W, "float32", [2, N // 2], [1, 2], 0]]], {W}),
    ],
)
def test_storages_of_parameters_that_can_be_set(params: Any, expected: set[int]) -> None:
    """A table beside the parameters, or in one storage with one, is not replaced with them."""
    program = built(params=params)
    size = tuple(params[-1][1][2])
    starts = ["other"] * (len(params) - 1) + ["digest"]
    assert replaced_storages(program, [("scale", size)], ["digest"], starts) == expected
    assert replaced_storages(program, [("scale", size)], ["digest"], ["folded"] * len(params)) == set()
    assert replaced_storages(program, [("scale", size)], [], starts) == set()


def kept(*steps: dict[str, Any], once: int) -> Any:
    program = made(
        storages=[4 * N] * 6, init=[DRAWN], forward=[*steps, launch()], params=[["w", window(W)]], once=[once]
    )
    return once_on_weights(program)


def test_what_the_first_call_alone_makes_of_weights() -> None:
    packed, further = operation("clone.default", window(W), outs=(window(A),)), add(B, A, A)
    found = kept(packed, once=0)
    assert found is not None and found.name == "clone.default"
    found = kept(packed, further, once=1)
    assert found is not None and found.name == "add.Tensor", "what each call makes of the weights, kept"
    made_by_kernel = launch(x={"window": window(W)}, y={"window": window(A)})
    assert kept(made_by_kernel, further, once=1) is not None
    positions = operation("arange.default", N, outs=(window(C),))
    assert kept(positions, add(B, C, C), packed, once=1) is None
    for name in ("zeros_like.default", "new_zeros.default"):
        assert kept(operation(name, window(W), outs=(window(A),)), once=0) is None
    assert kept(packed, operation("zero_.default", window(A), outs=(window(A),)), once=1) is None
