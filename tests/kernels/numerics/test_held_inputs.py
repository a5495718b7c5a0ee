"""Inputs that a reference changes, and outputs that it makes in their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from assay.kernels.arrays import host_tensor
from assay.kernels.inside.problem.held import Held, Left
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.outputs.written import Own, written
from assay.kernels.numerics.held_inputs import Left as LeftInput
from assay.kernels.numerics.held_inputs import compare_left, forms_of
from support.programs import N, launch, made, window


def called(forward: Callable[..., Any]) -> Left:
    arguments = [torch.arange(1.0, 13.0).reshape(3, 4), [torch.ones(2)]]
    held = Held(arguments)
    return held.left(forward(*arguments))


@pytest.mark.parametrize(
    ("forward", "changed", "returned"),
    [
        (lambda x, y: x + 1, set(), set()),
        (lambda x, y: x.mul_(1), set(), set()),  # PyTorch counts it, and no byte moves
        (lambda x, y: x.mul_(2), {0}, {0}),
        (lambda x, y: x.data.mul_(2) + 1, {0}, set()),
        (lambda x, y: (x.numpy().fill(3), y[0] + 1)[1], {0}, set()),
        (lambda x, y: x.mul_(2)[:, :3], {0}, set()),
        (lambda x, y: (x.mul_(2)[:, :3], {"b": x[0], "a": x[:, 3:]}), {0}, {0}),
        (lambda x, y: x.mul_(2).t(), {0}, {0}),
        (lambda x, y: x.mul_(2)[:1].expand(3, 4), {0}, set()),
        (lambda x, y: (y[0].neg_(), 2.0), {1}, {1}),
        (lambda x, y: x[1].add_(-0.0) * 1, set(), set()),
        (lambda x, y: y[0].mul_(-0.0), {1}, {1}),
    ],
)
def test_bytes_say_which_inputs_a_call_changed(
    forward: Callable[..., Any], changed: set[int], returned: set[int]
) -> None:
    left = called(forward)
    assert set(left.after) == changed and left.returned == returned


def test_an_input_that_becomes_another_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="input 0 another shape or dtype"):
        called(lambda x, y: setattr(x, "data", torch.ones(3)))


def test_what_an_output_shows_of_an_input_as_it_was() -> None:
    def forward(x: torch.Tensor, y: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x[:, 1].mul_(2)
        return x[1:, :2], x.clone(), y[0]

    same = called(forward).same
    assert {place: alike.tolist() for place, alike in same.items()} == {
        (0, 0, 4, (4, 1)): [[True, False], [True, False]],
        (2, 1, 0, (1,)): [True, True],
    }


def test_only_inputs_that_fill_their_memory_have_elements_of_their_own() -> None:
    both = torch.zeros(2, 3, 4)
    held = Held([both[0], both[1]])
    left = held.left((both[0], both[1].add_(1)))
    assert set(left.after) == {1} and not left.same and not left.returned
    held = Held([both, both[0]])
    same = held.left(both[1:].mul_(2)).same
    assert {place: alike.any().item() for place, alike in same.items()} == {(0, 0, 12, (12, 4, 1)): False}


FIRST, LATER = host_tensor(np.arange(4.0), "float32"), host_tensor(np.arange(4.0) + 1, "float32")


@pytest.mark.parametrize(("returned", "data", "ok"), [(True, FIRST, True), (False, FIRST, False), (True, LATER, True)])
def test_what_is_returned_whole_may_be_left_alone(returned: bool, data: Any, ok: bool) -> None:
    after = (LeftInput(0, LATER, LATER, returned),)
    found = compare_left(forms_of([(), after]), after, (FIRST, 3), (data.data,), "float32")
    assert found.ok is ok and ("input 0 is left otherwise" in found.message) is not ok
    garbage = host_tensor(np.arange(4.0) + 2, "float32").data
    assert not compare_left(forms_of([after]), after, (FIRST, 3), (garbage,), "float32").ok


@pytest.mark.parametrize(
    ("offset", "same", "missing"),
    [(0, [True] * 8, 0), (0, [True] * 6 + [False] * 2, 2), (1, [True] * 8, 5)],
)
def test_elements_at_the_references_places_need_no_kernel_where_it_leaves_them(
    offset: int, same: list[bool], missing: int
) -> None:
    program = made(outputs=[window(0)], forward=[launch()])
    memory, given = Memory(program), torch.arange(float(N))
    memory.tensor(program.inputs[0]).copy_(given)
    memory.tensor(program.inputs[0])[:3] *= 2
    memory.made[0][:3] = True
    own = {0: Own(0, offset, (1,), torch.tensor(same))}
    assert written(memory, program, 0, [given], own).unwritten == missing
    memory.made[0][:3] = False
    # Of those that no kernel wrote then, the first has the bytes that it was given.
    assert written(memory, program, 0, [given], own).unwritten == (N if offset else missing + 2)
