"""Numbers that problems have beside plain fractions: complex weights, masks in outputs, columns in a domain of their
own. A kernel that leaves a part of the work out is wrong, and one that does it is right."""

from __future__ import annotations

import textwrap

import pytest

from assay.kernels.problems.sources import make_problem
from support.kernel_graders import Bench

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        WEIGHTS

    def forward(self, *given):
        RETURNED


def get_inputs():
    return [INPUTS]


def get_init_inputs():
    return []
"""
SUBMISSION = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, w_ptr, m_ptr, y_ptr, n, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    KERNEL


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        WEIGHTS

    def forward(self, *given):
        BODY
"""
ROTATED = "self.turn = torch.nn.Parameter(torch.view_as_complex(torch.randn(16, 2)))"
KEPT = "self.register_buffer('turn', torch.polar(torch.ones(16), torch.linspace(0.1, 3.0, 16)))"
ROTATING = """
a, b = tl.load(x_ptr + 2 * i, mask=inside), tl.load(x_ptr + 2 * i + 1, mask=inside)
c, s = tl.load(w_ptr + 2 * (i % D), mask=inside), tl.load(w_ptr + 2 * (i % D) + 1, mask=inside)
tl.store(y_ptr + 2 * i, a * c - b * s, mask=inside)
tl.store(y_ptr + 2 * i + 1, a * s + b * c, mask=inside)
"""
LAUNCHED = """
y = torch.empty_like(given[0])
x, w = torch.view_as_real(given[0]), torch.view_as_real(self.turn)
kernel[(4,)](x, w, x, torch.view_as_real(y), y.numel(), 16, 64)
return y
"""
MASKED = """
m = tl.load(m_ptr + i, mask=inside, other=0)
k = tl.arange(0, 8)[None, :]
x = tl.load(x_ptr + (i // D)[:, None] * 8 + k)
s = tl.sum(x * tl.load(w_ptr + (i % D)[:, None] * 8 + k), 1)
tl.store(y_ptr + i, tl.where(m != 0, -1e9, s), mask=inside)
"""
SCORED = """
y = torch.empty((16, 16), device=given[0].device)
kernel[(4,)](given[0], given[1], given[2], y, 256, 16, 64)
return y
"""
COLUMNS = """
x = tl.load(x_ptr + i, mask=inside, other=1.0)
tl.store(y_ptr + i, tl.where(i % D == 0, tl.log(x), tl.maximum(x, 0.0) * 2), mask=inside)
"""
ELEMENTS = """
y = torch.empty_like(given[0])
kernel[(4,)](given[0], given[0], given[0], y, y.numel(), 16, 64)
return y
"""
ROOTS = "x = tl.sqrt(tl.load(x_ptr + i, mask=inside, other=1.0)) / 4\ntl.store(y_ptr + i, tl.exp(x), mask=inside)"
POLYNOMIAL = ROOTS.replace("tl.exp(x)", "1 + x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4)))")
SCALED = (
    "x, w = tl.load(x_ptr + i, mask=inside), tl.load(w_ptr + i, mask=inside)\ntl.store(y_ptr + i, x * w, mask=inside)"
)
DRAWN = "self.w = torch.nn.Parameter(torch.randn(16, 16))"
WIDER = "self.wide = torch.nn.Parameter(torch.empty(16, 16).normal_(0, 8))"
AS_WIDE = "self.named = torch.nn.Parameter(torch.empty(16, 16).normal_(mean=0.0, std=1.0))"
TIMES = "return given[0] * (given[0] + self.w * 8)"
BY = "y = torch.empty_like(given[0])\nkernel[(4,)](given[0], self.NAME, given[0], y, 256, 16, 64)\nreturn y"
DECAY = "self.w = torch.nn.Parameter(torch.rand(16, 16))"
COPIED = f"{DECAY}\nself.register_buffer('kept', self.w.detach().clone())"
DECAYS = "return given[0] * torch.sqrt(-torch.log(self.w))"
DECAYING = SCALED.replace("x * w", "x * tl.sqrt(-tl.log(w))")
BIASED = f"{DECAY}\nself.b = torch.nn.Parameter(torch.randn(16, 16))"
BIAS_COPIED = f"{BIASED}\nself.register_buffer('kept', self.b.detach().clone())"
BIASES = "return given[0] * torch.sqrt(-torch.log(self.w)) + self.b"
BIASING = f"{DECAYING.replace('x * tl', 'tl.load(m_ptr + i, mask=inside) + x * tl')}"
WITH_BIAS = BY.replace("given[0], self.NAME, given[0]", "given[0], self.w, self.NAME")
ZEROS = "self.w = torch.nn.Parameter(torch.zeros(16, 16))"
FEW = "self.w = torch.nn.Parameter(torch.full((16, 16), 0.02))"
ROOTED = "return given[0] * 2 + torch.sqrt(self.w)"
ROOTING = SCALED.replace("x * w", "x * 2 + tl.sqrt(w)")
PADDED = "self.w = torch.nn.Parameter(torch.cat([torch.zeros(1, 16), torch.randn(59, 16)]))"
SQUARED, FEW_ROWS = "v = self.w[given[0]]; return v * v + v", "torch.randint(0, 60, (2,))"
SQUARES = """
t = tl.load(x_ptr + i // D, mask=inside, other=0)
v = tl.load(w_ptr + t * D + i % D, mask=inside)
tl.store(y_ptr + i, v * v + v, mask=inside)
"""
OF_ROWS = "y = self.w.new_empty(2, 16)\nkernel[(1,)](given[0], self.w, given[0], y, 32, 16, 64)\nreturn y"
OF_ITS_TYPE = "return torch.log(given[0] * given[0] + torch.finfo(given[0].dtype).eps)"
AT_LEAST = "x = tl.load(x_ptr + i, mask=inside, other=1.0)\ntl.store(y_ptr + i, tl.log(x * x + LEAST), mask=inside)"
CAUSAL = "self.w = torch.nn.Parameter(torch.full((16, 16), float('-inf')).triu(1))"
CAUSES = "return torch.exp(given[0] + self.w)"
CAUSING = SCALED.replace("x * w", "tl.exp(x + w)")
TRIANGLE = CAUSING.replace("x + w", "x + tl.where(i % D > i // D, float('-inf'), 0.0)")
ORDERS = "torch.randn(16, 16), torch.rand(16, 16).argsort(1)"
PLACING = """
x, p = tl.load(x_ptr + i, mask=inside), tl.load(w_ptr + i, mask=inside)
tl.store(y_ptr + i // D * D + p, x, mask=inside)
"""
INVERSES = SCALED.replace("x * w", "x + 0.5 * (tl.log(1 + w) - tl.log(1 - w))")
PLACED = BY.replace("self.NAME", "given[1]")
COMPLEX = "torch.randn(16, 16, dtype=torch.complex64)"
CASES = {
    "complex weights": (ROTATED, "return given[0] * self.turn", COMPLEX, ROTATING, LAUNCHED, "ok"),
    "complex buffers": (KEPT, "return given[0] * self.turn", COMPLEX, ROTATING, LAUNCHED, "ok"),
    "complex weights, of which one part is used": (
        *(ROTATED, "return given[0] * self.turn", COMPLEX),
        *(ROTATING.replace("- b * s", "").replace("a * s +", ""), LAUNCHED, "wrong"),
    ),
    "complex buffers, of which one part is used": (
        *(KEPT, "return given[0] * self.turn", COMPLEX),
        *(ROTATING.replace("- b * s", "").replace("a * s +", ""), LAUNCHED, "wrong"),
    ),
    "scores beside a mask": (
        *("", "return (given[0] @ given[1].T).masked_fill(given[2], -1e9)"),
        *("torch.randn(16, 8), torch.randn(16, 8), torch.rand(16, 16) < 0.4", MASKED, SCORED, "ok"),
    ),
    "a mask without the scores": (
        *("", "return (given[0] @ given[1].T).masked_fill(given[2], -1e9)"),
        *("torch.randn(16, 8), torch.randn(16, 8), torch.rand(16, 16) < 0.4", MASKED.replace(", s)", ", 0.5)")),
        *(SCORED, "wrong"),
    ),
    "a column of logarithms": (
        *("", "x = given[0]; return torch.cat([torch.log(x[:, :1]), torch.relu(x[:, 1:]) * 2], 1)"),
        *("torch.rand(16, 16)", COLUMNS, ELEMENTS, "ok"),
    ),
    "a column of logarithms, and the others as they are where they are positive": (
        *("", "x = given[0]; return torch.cat([torch.log(x[:, :1]), torch.relu(x[:, 1:]) * 2], 1)"),
        *("torch.rand(16, 16)", COLUMNS.replace("tl.maximum(x, 0.0)", "x"), ELEMENTS, "wrong"),
    ),
    "weights drawn with a wider distribution": (
        *(DRAWN, TIMES, "torch.randn(16, 16)", SCALED.replace("x * w", "x * (x + w)"), BY.replace("NAME", "wide")),
        *("cheat", WIDER),
    ),
    "weights drawn in another way from the same one": (
        *(DRAWN, TIMES, "torch.randn(16, 16)", SCALED.replace("x * w", "x * (x + 8 * w)"), BY.replace("NAME", "named")),
        *("ok", AS_WIDE),
    ),
    "weights of which a logarithm is taken": (
        DECAY,
        DECAYS,
        "torch.randn(16, 16)",
        DECAYING,
        BY.replace("NAME", "w"),
        "ok",
    ),
    "a copy of weights of which a logarithm is taken": (
        *(DECAY, DECAYS, "torch.randn(16, 16)", DECAYING, BY.replace("NAME", "kept"), "wrong", COPIED),
    ),
    "weights beside those of which a logarithm is taken": (
        *(BIASED, BIASES, "torch.randn(16, 16)", BIASING, WITH_BIAS.replace("NAME", "b"), "ok"),
    ),
    "a copy of weights beside those of which a logarithm is taken": (
        *(BIASED, BIASES, "torch.randn(16, 16)", BIASING, WITH_BIAS.replace("NAME", "kept"), "wrong", BIAS_COPIED),
    ),
    "zeros of which a root is taken": (
        *(ZEROS, ROOTED, "torch.randn(16, 16)", ROOTING, BY.replace("NAME", "w"), "ok"),
    ),
    "zeros of which a root is taken, left out": (
        *(
            ZEROS,
            ROOTED,
            "torch.randn(16, 16)",
            ROOTING.replace("tl.sqrt(w)", "0 * w"),
            BY.replace("NAME", "w"),
            "wrong",
        ),
    ),
    "zeros in a buffer of which a root is taken, left out": (
        *(ZEROS.replace("w = torch.nn.Parameter", "register_buffer").replace("(torch", "('w', torch"), ROOTED),
        *("torch.randn(16, 16)", ROOTING.replace("tl.sqrt(w)", "0 * w"), BY.replace("NAME", "w"), "wrong"),
    ),
    "logarithms that end where the weights start": (
        *(FEW, "return given[0] * 2 + torch.log(self.w)", "torch.randn(16, 16)"),
        *(ROOTING.replace("tl.sqrt(w)", "tl.log(tl.minimum(w, 0.02))"), BY.replace("NAME", "w"), "wrong"),
    ),
    "ones of which no smaller ones are taken": (
        *(FEW.replace("0.02", "1.0"), "return given[0] * 2 + torch.sqrt(self.w * self.w - 1)", "torch.randn(16, 16)"),
        *(ROOTING.replace("sqrt(w)", "sqrt(w * w - 1)"), BY.replace("NAME", "w"), "ok"),
    ),
    "a row that starts at zero": (PADDED, SQUARED, FEW_ROWS, SQUARES, OF_ROWS, "ok"),
    "a row that starts at zero, left out": (
        *(
            PADDED,
            SQUARED,
            FEW_ROWS,
            SQUARES.replace("v * v + v", "tl.where(t == 0, 0.0, v * v + v)"),
            OF_ROWS,
            "wrong",
        ),
    ),
    "a number that belongs to the type": (
        *("", OF_ITS_TYPE, "torch.randn(16, 16)", AT_LEAST.replace("LEAST", "1.1920928955078125e-07"), ELEMENTS, "ok"),
    ),
    "a number that belongs to another type": (
        *(
            "",
            OF_ITS_TYPE,
            "torch.randn(16, 16)",
            AT_LEAST.replace("LEAST", "2.220446049250313e-16"),
            ELEMENTS,
            "wrong",
        ),
    ),
    "a number that a function takes of its type": (
        *("", "return torch.nn.functional.rms_norm(given[0][..., None], (1,))[..., 0]", "torch.randn(16, 16)"),
        *(AT_LEAST.replace("tl.log(x * x + LEAST)", "x / tl.sqrt(x * x + 1.1920928955078125e-07)"), ELEMENTS, "ok"),
    ),
    "the same of another type": (
        *("", "return torch.nn.functional.rms_norm(given[0][..., None], (1,))[..., 0]", "torch.randn(16, 16)"),
        *(AT_LEAST.replace("tl.log(x * x + LEAST)", "x / tl.sqrt(x * x + 2.220446049250313e-16)"), ELEMENTS, "wrong"),
    ),
    "a mask among the weights": (CAUSAL, CAUSES, "torch.randn(16, 16)", CAUSING, BY.replace("NAME", "w"), "ok"),
    "a triangle for a mask among the weights": (
        *(CAUSAL, CAUSES, "torch.randn(16, 16)", TRIANGLE, BY.replace("NAME", "w"), "wrong"),
    ),
    "zeros of which an inverse is taken": (
        *("", "return given[0] + torch.atanh(given[1])", "torch.randn(16, 16), torch.zeros(16, 16)", INVERSES),
        *(PLACED, "ok"),
    ),
    "zeros of which an inverse is taken, left out": (
        *("", "return given[0] + torch.atanh(given[1])", "torch.randn(16, 16), torch.zeros(16, 16)"),
        *(INVERSES.replace("x + ", "x + 0 * "), PLACED, "wrong"),
    ),
    "places in an order": ("", "return given[0].scatter(1, given[1], given[0])", ORDERS, PLACING, PLACED, "ok"),
    "roots": ("", "return torch.exp(torch.sqrt(given[0]) / 4)", "torch.rand(16, 16)", ROOTS, ELEMENTS, "ok"),
    "roots, right where they are small": (
        *("", "return torch.exp(torch.sqrt(given[0]) / 4)", "torch.rand(16, 16)", POLYNOMIAL, ELEMENTS, "wrong"),
    ),
}


def _filled(text: str, **parts: str) -> str:
    for name, part in parts.items():
        indent = next(line for line in text.splitlines() if line.strip() == name)[: -len(name)]
        text = text.replace(
            f"{indent}{name}\n", textwrap.indent(textwrap.dedent(part or "pass").strip() + "\n", indent)
        )
    return text


@pytest.mark.parametrize("name", CASES)
def test_what_is_left_out_of_these_numbers_is_missed(bench: Bench, name: str) -> None:
    weights, returned, inputs, kernel, body, kind, *own = CASES[name]
    code = _filled(REFERENCE.replace("[INPUTS]", f"[{inputs}]"), WEIGHTS=weights, RETURNED=returned)
    problem = make_problem(1, 77, "numbers", code, "own")
    found = bench.grade(problem, _filled(SUBMISSION, WEIGHTS=own[0] if own else weights, KERNEL=kernel, BODY=body))
    assert found.kind == kind, found
