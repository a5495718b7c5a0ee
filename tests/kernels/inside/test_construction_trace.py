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
    """A module with the given parts; what is neither module nor buffer is a parameter."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module | nn.Buffer) else nn.Parameter(part))


def identity() -> nn.Module:
    linear = nn.Linear(6, 6)
    nn.init.eye_(linear.weight)
    return linear


def alike() -> dict[str, Any]:
    weight = torch.randn(3, 5)
    return {"one": weight, "other": weight.clone()}


def blocks() -> torch.Tensor:
    weight = torch.empty(6, 5)
    nn.init.uniform_(weight[2:], -0.5, 0.5)
    nn.init.normal_(weight[:2])
    return weight


def halves() -> torch.Tensor:
    weight = torch.randn(2, 4, 5)
    weight[1].copy_(weight[0])
    return weight


def of_norm_one() -> torch.Tensor:
    weight = torch.randn(20)
    return weight / weight.norm().item()


def larger() -> torch.Tensor:
    weight = torch.randn(20)
    return torch.where(weight > weight.flip(0), weight, weight.flip(0))


def by_list() -> torch.Tensor:
    weight = torch.randn(20)
    torch._foreach_add_([weight], [torch.randn(20)])
    return weight


def by_numpy() -> torch.Tensor:
    weight = torch.randn(2, 20)
    weight.numpy()[1] = weight.numpy()[0]
    return weight


def symmetric() -> torch.Tensor:
    weight = torch.randn(5, 5)
    return weight + weight.t()


def two_by_numpy() -> dict[str, Any]:
    weight = torch.randn(20)
    other = torch.randn(20)
    other.numpy()[:] = weight.numpy() * -3
    return {"one": weight, "other": other}


def seen(build: Any) -> tuple[list[str], list[str]]:
    """What `telling` says of a module with the given parts, but for the bias of `fc`."""

    def built(seed: int) -> tuple[nn.Module, ConstructionTrace]:
        torch.manual_seed(seed)
        with ConstructionTrace([]) as trace:
            return Layers(**build()), trace

    weights, buffers = telling(built, 3)
    return [name for name in weights if name != "fc.bias"], buffers


@pytest.mark.parametrize(
    "build",
    [
        lambda: {"fc": nn.Linear(6, 4), "trunc": nn.init.trunc_normal_(torch.empty(50)), "emb": nn.Embedding(9, 4)},
        lambda: {"scaled": torch.rand(20) * 0.02 + 1, "joined": torch.cat((torch.randn(9), torch.randn(4)))},
        lambda: {"turned": torch.stack((nn.Linear(6, 4).weight.detach().t(), torch.randn(6, 4)))},
        lambda: {
            "step": (torch.rand(9) * 4 - 7).exp().expm1().log(),
            "divided": torch.randn(9) / torch.tensor(5.0).sqrt(),
        },
        lambda: {"blocks": blocks(), "rnn": nn.GRUCell(3, 5), "conv": nn.ConvTranspose2d(3, 2, 3)},
        lambda: {"narrowed": nn.init.trunc_normal_(torch.empty(50), mean=3.0)},
        lambda: {"wide": torch.randn(9, dtype=torch.float64), "both": torch.randn(9, dtype=torch.complex64)},
    ],
)
def test_parameters_of_one_draw_for_each_element_need_no_name(build: Any) -> None:
    assert seen(build) == ([], [])


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: {"fc": identity()}, ["fc.weight"]),
        (lambda: {"decay": torch.arange(1, 9).log().repeat(5, 1), "free": torch.randn(9)}, ["decay"]),
        (lambda: {"emb": nn.Embedding(9, 40, padding_idx=0)}, ["emb.weight"]),
        (alike, ["one", "other"]),
        (two_by_numpy, ["one", "other"]),
        (lambda: dict(zip(("one", "other"), torch.randn(2, 9), strict=True)), ["one", "other"]),
        (lambda: {"rows": torch.randn(1, 9).repeat(4, 1), "free": torch.randn(9)}, ["rows"]),
        (lambda: {"rows": torch.randn(1, 9).expand(4, 9)}, ["rows"]),
        (lambda: {"basis": nn.init.orthogonal_(torch.empty(6, 6)), "free": torch.randn(9)}, ["basis"]),
        (lambda: {"halves": halves(), "free": torch.randn(9)}, ["halves"]),
        (lambda: {"halves": by_numpy(), "free": torch.randn(9)}, ["halves"]),
        (lambda: {"symmetric": symmetric()}, ["symmetric"]),
        (lambda: {"sign": torch.randint(0, 2, (9,)).float() * 2 - 1}, ["sign"]),
        (lambda: {"sign": torch.where(torch.rand(2) < 0.5, -1.0, 1.0)}, ["sign"]),
        (lambda: {"sign": torch.randn(9).sign()}, ["sign"]),
        (lambda: {"sign": (torch.randn(9) * 1e9).tanh()}, ["sign"]),
        (lambda: {"cut": torch.randn(50).clamp(min=0.0)}, ["cut"]),
        (lambda: {"whole": torch.rand(50) * 3e9 + 2.0**40}, ["whole"]),
        (lambda: {"whole": torch.div(torch.rand(50) * 9, 1, rounding_mode="floor")}, ["whole"]),
        (lambda: {"ternary": torch.randint(-1, 2, (3, 9)).float()}, ["ternary"]),
        (lambda: {"unit": of_norm_one()}, ["unit"]),
        (lambda: {"list": by_list()}, ["list"]),
        (lambda: {"given": torch.tensor(torch.rand(9).tolist())}, ["given"]),
        (lambda: {"larger": larger()}, ["larger"]),
        (lambda: {"sum": torch.randn(9) + torch.randn(9)}, ["sum"]),
        (lambda: {"narrow": torch.randn(9, dtype=torch.float16).float()}, ["narrow"]),
        (
            lambda: {"fc": norm(nn.Linear(6, 4))},
            ["fc.parametrizations.weight.original0", "fc.parametrizations.weight.original1"],
        ),
    ],
)
def test_parameters_whose_start_gives_something_away(build: Any, expected: list[str]) -> None:
    assert seen(build) == (expected, [])


def anchored(persistent: bool) -> dict[str, Any]:
    weight = torch.randn(3, 5)
    return {"weight": weight, "anchor": nn.Buffer(weight.clone(), persistent=persistent)}


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: anchored(True), (["weight"], ["anchor"])),
        (lambda: anchored(False), (["weight"], [])),
        (lambda: {"features": nn.Buffer(torch.randn(3, 9)), "free": torch.randn(9)}, ([], [])),
        (lambda: {"table": nn.Buffer(torch.arange(40.0).cos())}, ([], [])),
        (lambda: {"mask": nn.Buffer((torch.rand(40) < 0.5).float())}, ([], [])),
        (lambda: {"basis": nn.Buffer(nn.init.orthogonal_(torch.empty(6, 6)))}, ([], ["basis"])),
    ],
)
def test_buffers_whose_start_gives_something_away(build: Any, expected: tuple[list[str], list[str]]) -> None:
    assert seen(build) == expected
