"""What PyTorch does beside kernels, and what a model keeps and changes, through the whole grader on own problems."""

from __future__ import annotations

import textwrap

import chz
import pytest

from assay.kernels.problems.sources import Problem, load_problems, make_problem
from support.kernel_graders import QUICK, Bench
from support.trials import HEAD, PRODUCT, SNAKE, multiplying, snaking

PARTIAL = chz.replace(QUICK, policy="partial")
SHIPPED = {problem.key: problem for problem in load_problems("shipped", (1, 2))}
KERNELS = """
@triton.jit
def product(x_ptr, w_ptr, out_ptr, K, N, B: tl.constexpr):
    k = tl.arange(0, B)
    x = tl.load(x_ptr + tl.program_id(0) * K + k, mask=k < K, other=0.0)
    w = tl.load(w_ptr + k[:, None] * N + k[None, :], mask=(k < K)[:, None] & (k < N)[None, :], other=0.0)
    tl.store(out_ptr + tl.program_id(0) * N + k, tl.sum(x[:, None] * w, axis=0), mask=k < N)


@triton.jit
def norm(x_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, out_ptr, n, F, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    w, b = tl.load(w_ptr + i % F, mask=m), tl.load(b_ptr + i % F, mask=m)
    mean, var = tl.load(mean_ptr + i % F, mask=m), tl.load(var_ptr + i % F, mask=m, other=1.0)
    y = (tl.load(x_ptr + i, mask=m) - mean) / tl.sqrt(var + eps) * w + b
    tl.store(out_ptr + i, tl.maximum(y, 0.0), mask=m)


@triton.jit
def leak(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(x_ptr + i, tl.where(x < 0.0, 0.1 * x, x), mask=i < n)


@triton.jit
def batch_norm(x_ptr, w_ptr, b_ptr, out_ptr, R, F, eps, B: tl.constexpr):
    r, f = tl.arange(0, B), tl.program_id(0)
    x = tl.load(x_ptr + r * F + f, mask=r < R, other=0.0)
    mean = tl.sum(x, 0) / R
    gap = tl.where(r < R, x - mean, 0.0)
    y = gap / tl.sqrt(tl.sum(gap * gap, 0) / R + eps) * tl.load(w_ptr + f) + tl.load(b_ptr + f)
    tl.store(out_ptr + r * F + f, tl.maximum(y, 0.0), mask=r < R)


@triton.jit
def lower(x_ptr, out_ptr, n, F, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, tl.where(i % F <= i // F, x, 0.0), mask=i < n)


def multiplied(x, w):
    out = x.new_empty((x.shape[0], w.shape[1]))
    product[(x.shape[0],)](x, w, out, x.shape[1], w.shape[1], B=32)
    return out

"""


def problem(name: str, constructor: str, forward: str, inputs: str, arguments: str = "24") -> Problem:
    """One with a `Model(features)`, all of whose parts are a line or two."""
    body = textwrap.indent(textwrap.dedent(constructor).strip(), " " * 8)
    text = (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\nclass Model(nn.Module):\n"
        f"    def __init__(self, features):\n        super().__init__()\n{body}\n\n    def forward(self, x):\n"
        f"        return {forward}\n\n\ndef get_inputs():\n    return [{inputs}]\n\n\n"
        f"def get_init_inputs():\n    return [{arguments}]\n"
    )
    return make_problem(9, 1, name, text, name)


def candidate(constructor: str, forward: str) -> str:
    """A candidate for one of those."""
    built, called = (textwrap.indent(textwrap.dedent(part).strip(), " " * 8) for part in (constructor, forward))
    return (
        f"{HEAD}{KERNELS}\nclass ModelNew(nn.Module):\n    def __init__(self, features):\n        super().__init__()\n"
        f"{built}\n\n    def forward(self, x):\n{called}\n"
    )


WASTEFUL = "self.conv = nn.ConvTranspose2d(features, 4, 3)"
WASTES = problem("wasteful", WASTEFUL, "self.conv(x).mean((2, 3))", "torch.randn(2, 8, 20, 20)", "8")
IDLE = problem("idle", "pass", "(x @ x @ x @ x, x * 2 + 1)[1]", "torch.randn(2, 64, 64)")
TWO = "self.first = nn.Parameter(torch.randn(features, features) * 0.3)\n" + (
    "self.second = nn.Parameter(torch.randn(features, features) * 0.3)"
)
CHAIN = problem("chain", TWO, "(x @ self.first) @ self.second", "torch.randn(32, 24)")
SILU = problem("silu", "pass", "x * torch.sigmoid(x)", "torch.randn(32, 24)")
NORM = """
self.bn = nn.BatchNorm1d(features)
nn.init.uniform_(self.bn.weight, 0.5, 1.5)
nn.init.uniform_(self.bn.bias, -0.5, 0.5)
"""
IN_EVAL = problem("in_eval", NORM + "self.bn.eval()", "torch.relu(self.bn(x))", "torch.randn(32, 40)", "40")
IN_TRAINING = problem("in_training", NORM, "torch.relu(self.bn(x))", "torch.randn(32, 40)", "40")
IN_PLACE = problem("in_place", "pass", "F.leaky_relu_(x, 0.1)", "torch.randn(32, 24)")

LEAK = "leak[(triton.cdiv(x.numel(), 512),)](x, x.numel(), BLOCK=512)\nreturn x"
STATISTICS = "self.bn.running_mean, self.bn.running_var"
FRESH = "torch.zeros_like(self.bn.weight), torch.ones_like(self.bn.weight)"


def normed(statistics: str) -> str:
    return (
        "out, n, bn = torch.empty_like(x), x.numel(), self.bn\n"
        f"norm[(triton.cdiv(n, 512),)](x, bn.weight, bn.bias, {statistics}, out, n, x.shape[1], bn.eps, BLOCK=512)\n"
        "return out"
    )


BY_ALGEBRA = """
w, b = self.conv.weight, self.conv.bias
places = (x.shape[2] + 2) * (x.shape[3] + 2)
return copied((x.sum((2, 3))[:, :, None] * w.sum((2, 3))).sum(1) / places + b)
"""
IN_BATCH = """
own = "weight", "bias"
self.bn = nn.ParameterDict({name: torch.empty(features) for name in own})
nn.init.uniform_(self.bn["weight"], 0.5, 1.5)
nn.init.uniform_(self.bn["bias"], -0.5, 0.5)
"""
BY_BATCH = """
out = torch.empty_like(x)
batch_norm[(x.shape[1],)](x, self.bn["weight"], self.bn["bias"], out, x.shape[0], x.shape[1], 1e-5, B=64)
return out
"""
MASKED = problem("masked", "pass", "x * torch.tril(torch.ones_like(x))", "torch.randn(32, 24)")
DOUBLED = problem("doubled", "pass", "F.interpolate(x, scale_factor=2, mode='nearest')", "torch.randn(2, 3, 8, 8)")
UNPACKED = problem("unpacked", "pass", "(x >> 8) & 255", "torch.randint(0, 1 << 30, (32, 24), dtype=torch.int32)")
WRAPPED = problem("wrapped", "pass", "(x + 2**31) % 2**32 - 2**31", "torch.randint(-(1 << 40), 1 << 40, (32, 24))")
BY_FILLS = "y = copied(x)\nfor row in range(x.shape[0]):\n    y[row, row + 1 :].zero_()\nreturn y"
BY_SLICES = """
y, z = copied(x), torch.zeros_like(x)
for row in range(x.shape[0]):
    z[row, : row + 1].copy_(y[row, : row + 1])
return z
"""
BY_EXPANSION = (
    "b, c, h, w = x.shape\nreturn copied(x)[:, :, :, None, :, None].expand(b, c, h, 2, w, 2).reshape(b, c, 16, 16)"
)
BY_BYTES = "y = copied(x).view(torch.uint8).view(*x.shape, 4)\nreturn y[..., 1].to(torch.int32)"
LOWER = "y = torch.empty_like(x)\nlower[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), x.shape[1], BLOCK=64)\nreturn y"
STRICT = {
    "a mask by a kernel": ("ok", MASKED, candidate("pass", LOWER)),
    "a mask by fills of PyTorch's": ("cheat", MASKED, candidate("pass", BY_FILLS)),
    "a mask by copies of slices": ("cheat", MASKED, candidate("pass", BY_SLICES)),
    "elements that PyTorch repeats": ("cheat", DOUBLED, candidate("pass", BY_EXPANSION)),
    "bytes of whole numbers": ("cheat", UNPACKED, candidate("pass", BY_BYTES)),
    "a cast that wraps": ("wrong", WRAPPED, candidate("pass", "return copied(x).to(torch.int32).to(torch.int64)")),
    "what a wasteful reference comes to, by PyTorch": ("cheat", WASTES, candidate(WASTEFUL, BY_ALGEBRA)),
    "what is left of a wasteful reference, by PyTorch": ("cheat", IDLE, candidate("pass", "return copied(x * 2 + 1)")),
    "statistics of a norm": ("ok", IN_EVAL, candidate(NORM, normed(STATISTICS))),
    "a norm without its statistics": ("wrong", IN_EVAL, candidate(NORM, normed(FRESH))),
    "a norm of the batch, whose statistics are not used": ("ok", IN_TRAINING, candidate(IN_BATCH, BY_BATCH)),
    "in place where the reference works in place": ("ok", IN_PLACE, candidate("pass", LEAK)),
    "in place where it does not": ("wrong", SHIPPED[SNAKE], snaking("return snake(x, self.frequency, x)")),
}
CHUNKS = """
M, K = a.shape
g = max(d for d in range(1, K) if K % d == 0)
left, right = a.view(M, g, K // g).transpose(0, 1), b.view(-1, g, K // g).permute(1, 2, 0)
return copied(torch.addbmm(torch.zeros(M, b.shape[0], device=left.device), left, right))
"""
OUT = "torch.mm(a, b.t(), out=out)\nreturn copied(out)"
SPREAD = """
M, K = a.shape
spread = torch.conv_transpose1d(a.t().reshape(1, K, M), b.t().reshape(K, -1, 1))
return copied(spread[0].t())
"""
PARTIALLY = {
    "a sum of products": ("cheat", SHIPPED[PRODUCT], multiplying(CHUNKS)),
    "a product with a place for its result": ("cheat", SHIPPED[PRODUCT], multiplying(OUT)),
    "a transposed convolution": ("cheat", SHIPPED[PRODUCT], multiplying(SPREAD)),
    "an operator that is two": ("cheat", SILU, candidate("pass", "return copied(torch.nn.functional.silu(x))")),
    "one of two products": ("ok", CHAIN, candidate(TWO, "return multiplied(x @ self.first, self.second)")),
}


@pytest.mark.parametrize("what", STRICT)
def test_what_pytorch_and_the_kernels_do(bench: Bench, what: str) -> None:
    kind, asked, code = STRICT[what]
    verdict = bench.grade(asked, code)
    assert verdict.kind == kind, verdict


@pytest.mark.parametrize("what", PARTIALLY)
def test_kernels_do_half_of_a_partial_solution(bench: Bench, what: str) -> None:
    kind, asked, code = PARTIALLY[what]
    verdict = bench.grade(asked, code, PARTIAL)
    assert (verdict.kind, verdict.cheat) == (kind, "arithmetic" if kind == "cheat" else ""), verdict
    assert kind != "ok" or 0.4 < verdict.evidence["kernel_share"] <= 0.5, verdict.evidence


def test_sums_by_pytorch_are_refused_however_wasteful_the_reference_is(bench: Bench) -> None:
    kind, asked, code = STRICT["what a wasteful reference comes to, by PyTorch"]
    verdict = bench.grade(asked, code)
    assert (verdict.kind, verdict.cheat) == (kind, "arithmetic") and "PyTorch adds up" in verdict.message


def test_a_wasteful_reference_is_held_against_the_kernels(bench: Bench) -> None:
    kind, asked, code = STRICT["what is left of a wasteful reference, by PyTorch"]
    verdict = bench.grade(asked, code)
    assert (verdict.kind, verdict.cheat) == (kind, "arithmetic") and "beside kernels that do 0" in verdict.message
    assert verdict.evidence["host_share"] < 0.02
