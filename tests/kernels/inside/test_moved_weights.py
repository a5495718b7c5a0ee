"""Other values of weights: what is special about them stays."""

from __future__ import annotations

import pytest
import torch

from assay.kernels.base import Manner
from assay.kernels.inside.problem.weights import move, move_in_manner

INFINITE = float("-inf")


@pytest.mark.parametrize("growth", [0.0, 10.0])
def test_infinite_weights_stay_infinite_and_the_others_finite(growth: float) -> None:
    torch.manual_seed(0)
    mask = torch.full((8, 8), INFINITE).triu(1)
    moved = mask.clone()
    move(moved, growth)
    assert sorted(moved.isinf().sum(1).tolist()) == sorted(mask.isinf().sum(1).tolist())
    assert not moved.isnan().any() and (moved[moved.isfinite()] != 0).all()
    assert torch.equal(moved.isinf(), mask.isinf()) == (growth == 0.0)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (2,)])
def test_weights_stay_between_their_elements(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight = torch.rand(shape)
    moved = weight.clone()
    move_in_manner(moved, "within")
    assert (moved != weight).float().mean() > 0.8 or weight.numel() == 2
    assert weight.min() <= moved.min() and moved.max() <= weight.max()


def test_constant_weights_come_closer_to_zero() -> None:
    torch.manual_seed(0)
    for value in (1.0, -1.0):
        moved = torch.full((16,), value)
        move_in_manner(moved, "within")
        assert ((moved / value > 0.7) & (moved / value < 1)).all()


def test_sorted_weights_stay_sorted_and_whole_ones_whole() -> None:
    torch.manual_seed(0)
    edges, places = torch.rand(16).sort().values, torch.randperm(16)
    moved, others = edges.clone(), places.clone()
    move_in_manner(moved, "within")
    move_in_manner(others, "within")
    assert not torch.equal(moved, edges) and torch.equal(moved, moved.sort().values)
    assert not torch.equal(others, places) and torch.equal(others.sort().values, places.sort().values)


def test_both_parts_of_complex_weights_move_within() -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, dtype=torch.complex64)
    moved = weight.clone()
    move_in_manner(moved, "within")
    assert (moved.real != weight.real).any() and (moved.imag != weight.imag).any()


@pytest.mark.parametrize("manner", ["scaled", "larger"])
@pytest.mark.parametrize("growth", [0.0, 10.0])
def test_factors_leave_signs_and_make_zeros_positive(manner: Manner, growth: float) -> None:
    torch.manual_seed(0)
    weight = torch.tensor([0.02, -0.5, 0.0, 3.0]).repeat(64)
    moved = weight.clone()
    move_in_manner(moved, manner, growth)
    assert (moved != weight).all() and (moved[weight == 0] > 0).all()
    factors = (moved / weight)[weight != 0]
    assert factors.min() >= 0.5 and (factors.min() < 0.99) == (manner == "scaled")
    assert factors.max() > 1.2 and (factors.max() > 2.0) == (growth > 0)


def test_zeros_of_which_no_larger_ones_are_taken_move_below_zero() -> None:
    moved = torch.zeros(16)
    move_in_manner(moved, "within")
    assert (moved < 0).all()
