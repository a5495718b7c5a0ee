"""How much a reference's constructor is said to compute of what it draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from assay.kernels.inside.construction import ConstructionTrace
from assay.kernels.inside.problem.starts import telling


def norm(model: nn.Module) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(model)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: torch.rand(30) + 0.5, 30),
        (lambda: torch.randn(4, 6) @ torch.randn(6, 2), 2 * 4 * 6 * 2),
        (lambda: nn.Linear(6, 4), 0),
        (lambda: nn.Embedding(6, 4), 0),
        (lambda: torch.outer(torch.arange(9.0), torch.arange(5.0)).cos(), 0),
        (lambda: torch.stack([torch.rand(3), torch.rand(3)]).t().contiguous(), 0),
        (lambda: torch.zeros_like(torch.rand(9)) + 1, 0),
        (lambda: torch.rand(3)[:2].mul_(2.0), 2),
        (lambda: nn.init.orthogonal_(torch.empty(4, 4)).add_(torch.ones(4)), None),
        (lambda: norm(nn.Linear(6, 4)), None),
    ],
)
def test_arithmetic_on_what_is_drawn(build: Any, expected: int | None) -> None:
    with ConstructionTrace([]) as trace:
        build()
    assert trace.amount == expected if expected is not None else trace.amount > 16


def test_tensors_given_to_the_constructor_count_as_drawn() -> None:
    given = torch.ones(7)
    for inputs, expected in (([2, [given]], 7), ([2], 0)):
        with ConstructionTrace(inputs) as trace:
            _ = given[:] * 2
        assert trace.amount == expected


def test_storages_that_come_after_others_are_not_taken_for_them() -> None:
    with ConstructionTrace([]) as trace:
        for _ in range(50):
            torch.rand(1000)
            torch.zeros(1000).add_(1)
    assert trace.amount == 0


def test_a_trace_changes_no_number() -> None:
    torch.manual_seed(3)
    plain = nn.init.trunc_normal_(torch.empty(50))
    torch.manual_seed(3)
    with ConstructionTrace([]) as trace:
        traced = nn.init.trunc_normal_(torch.empty(50))
    assert torch.equal(plain, traced) and trace.amount >= 150


class Layers(nn.Module):
    """A module with the given parts; what is no module is a parameter."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))


def identity() -> nn.Module:
    linear = nn.Linear(6, 6)
    nn.init.eye_(linear.weight)
    return linear


def alike() -> list[Any]:
    weight = torch.randn(3, 5)
    return [weight, weight.clone()]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            lambda: {"fc": nn.Linear(6, 4), "trunc": nn.init.trunc_normal_(torch.empty(50)), "emb": nn.Embedding(9, 4)},
            [],
        ),
        (lambda: {"scaled": torch.rand(20) * 0.02 + 1, "joined": torch.cat((torch.randn(9), torch.randn(4)))}, []),
        (lambda: {"fc": identity()}, ["fc.weight"]),
        (lambda: {"decay": torch.arange(1, 9).log().repeat(5, 1), "free": torch.randn(9)}, ["decay"]),
        (lambda: {"emb": nn.Embedding(9, 40, padding_idx=0)}, ["emb.weight"]),
        (lambda: dict(zip(("one", "other"), alike(), strict=True)), ["one", "other"]),
        (lambda: {"rows": torch.randn(1, 9).repeat(4, 1), "free": torch.randn(9)}, ["rows"]),
        (lambda: {"basis": nn.init.orthogonal_(torch.empty(6, 6)), "free": torch.randn(9)}, ["basis"]),
        (
            lambda: {"fc": norm(nn.Linear(6, 4))},
            ["fc.parametrizations.weight.original0", "fc.parametrizations.weight.original1"],
        ),
    ],
)
def test_parameters_whose_start_gives_something_away(build: Any, expected: list[str]) -> None:
    def built(seed: int) -> tuple[nn.Module, ConstructionTrace]:
        torch.manual_seed(seed)
        with ConstructionTrace([]) as trace:
            return Layers(**build()), trace

    assert [name for name in telling(built, 3) if name != "fc.bias"] == expected
