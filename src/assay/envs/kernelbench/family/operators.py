"""What the modules of the family compute, statement by statement, in PyTorch and in Triton, with common mistakes.

A program of a kernel holds one row `t`, padded to `BLOCK` lanes; `m` is true where a lane is within the row. `{b}`
stands for the second operand of a statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["unary", "binary", "row", "end"]
Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of statement."""

    name: str
    kind: Kind
    torch: str
    """The PyTorch expression."""
    triton: Lines
    """Statements of a kernel that compute it, one per line."""
    mistakes: tuple[Lines, ...] = ()
    """What beginners write instead."""


_ZERO, _LEAST = "t = tl.where(m, t, 0.0)", 't = tl.where(m, t, -float("inf"))'

_ALL = (
    Operator("relu", "unary", "torch.relu(t)", ("t = tl.maximum(t, 0.0)",), (("t = tl.relu(t)",),)),
    Operator("abs", "unary", "torch.abs(t)", ("t = tl.abs(t)",)),
    Operator("square", "unary", "t * t", ("t = t * t",)),
    Operator("half", "unary", "t * 0.5", ("t = t * 0.5",)),
    Operator("negate", "unary", "-t", ("t = -t",)),
    Operator("sigmoid", "unary", "torch.sigmoid(t)", ("t = tl.sigmoid(t)",)),
    Operator("tanh", "unary", "torch.tanh(t)", ("t = 2.0 * tl.sigmoid(2.0 * t) - 1.0",), (("t = tl.tanh(t)",),)),
    Operator("silu", "unary", "nn.functional.silu(t)", ("t = t * tl.sigmoid(t)",), (("t = tl.silu(t)",),)),
    Operator(
        "leaky_relu",
        "unary",
        "nn.functional.leaky_relu(t, 0.1)",
        ("t = tl.where(t > 0.0, t, 0.1 * t)",),
        (("t = tl.where(t > 0.0, t, 0.0)",),),
    ),
    Operator("add", "binary", "t + {b}", ("t = t + {b}",)),
    Operator("subtract", "binary", "t - {b}", ("t = t - {b}",)),
    Operator("multiply", "binary", "t * {b}", ("t = t * {b}",)),
    Operator("maximum", "binary", "torch.maximum(t, {b})", ("t = tl.maximum(t, {b})",), (("t = tl.max(t, {b})",),)),
    Operator(
        "softmax",
        "row",
        "torch.softmax(t, dim=-1)",
        (_LEAST, "t = t - tl.max(t, axis=0)", "t = tl.exp(t)", "t = t / tl.sum(t, axis=0)"),
        (
            ("t = t - tl.max(t, axis=0)", "t = tl.exp(t)", "t = t / tl.sum(t, axis=0)"),
            (_LEAST, "t = tl.exp(t)", "t = t / tl.sum(t, axis=0)"),
        ),
    ),
    Operator(
        "centre",
        "row",
        "t - t.mean(dim=-1, keepdim=True)",
        (_ZERO, "t = t - tl.sum(t, axis=0) / C"),
        (("t = t - tl.sum(t, axis=0) / C",), (_ZERO, "t = t - tl.sum(t, axis=0) / BLOCK")),
    ),
    Operator(
        "rms",
        "row",
        "t * torch.rsqrt((t * t).mean(dim=-1, keepdim=True) + 1e-5)",
        (_ZERO, "t = t * tl.rsqrt(tl.sum(t * t, axis=0) / C + 1e-5)"),
        (
            ("t = t * tl.rsqrt(tl.sum(t * t, axis=0) / C + 1e-5)",),
            (_ZERO, "t = t * tl.rsqrt(tl.sum(t * t, axis=0) / BLOCK + 1e-5)"),
        ),
    ),
    Operator(
        "subtract_max",
        "row",
        "t - t.amax(dim=-1, keepdim=True)",
        (_LEAST, "t = t - tl.max(t, axis=0)"),
        (("t = t - tl.max(t, axis=0)",),),
    ),
    Operator("sum", "end", "t.sum(dim=-1)", (_ZERO, "t = tl.sum(t, axis=0)"), (("t = tl.sum(t, axis=0)",),)),
    Operator(
        "mean",
        "end",
        "t.mean(dim=-1)",
        (_ZERO, "t = tl.sum(t, axis=0) / C"),
        (("t = tl.sum(t, axis=0) / C",), (_ZERO, "t = tl.sum(t, axis=0) / BLOCK")),
    ),
    Operator("max", "end", "t.amax(dim=-1)", (_LEAST, "t = tl.max(t, axis=0)"), (("t = tl.max(t, axis=0)",),)),
)

OPERATORS: Mapping[str, Operator] = {operator.name: operator for operator in _ALL}


def of_kind(kind: Kind) -> tuple[Operator, ...]:
    """All operators of a kind."""
    return tuple(operator for operator in _ALL if operator.kind == kind)
