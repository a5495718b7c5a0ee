"""Triton's interpreter as the numerics harness sets it up, asked through the sandbox: what it refuses, what it runs."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.kernels.arrays import host_tensor
from assay.kernels.inside.triton.libdevice import LIBRARY
from support.kernel_graders import Bench, Ran

HEAD = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

"""
N = 100
X = np.linspace(0.5, 2.0, N, dtype=np.float32)
OUT = [("float32", (N,))]


def module(kernel: str, forward: str, head: str = "") -> str:
    """A candidate with one kernel, or several, and a `forward(self, x)` that returns `out`."""
    body = "\n".join(f"        {line}" for line in forward.strip().splitlines())
    return (
        f"{HEAD}{head}\n{kernel}\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
        f"        out, n = torch.zeros_like(x), x.numel()\n{body}\n        return out\n"
    )


def pointwise(body: str, launch: str = "kernel[(1,)](x, out, n, BLOCK=128)", head: str = "") -> str:
    """A candidate whose kernel has offsets `i` (128 of them), a mask `m`, and pointers `x` and `out` of 100 numbers."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    kernel = (
        "@triton.jit\ndef kernel(x, out, n, BLOCK: tl.constexpr):\n"
        f"    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    m = i < n\n{lines}"
    )
    return module(kernel, launch, head)


COPY = "tl.store(out + i, tl.load(x + i, mask=m), mask=m)"


def ok(ran: Ran) -> Any:
    """The only output of a run without a fault."""
    assert ran.result.end == "ok" and not ran.fault, (ran.result, ran.fault)
    return ran.arrays[0]


@pytest.mark.parametrize(("offset", "fine"), [(0, True), (4, True), (1, False), (2, False)])
def test_an_access_is_at_a_multiple_of_its_size(bench: Bench, offset: int, fine: bool) -> None:
    body = (
        f"at = (x.to(tl.pointer_type(tl.int8), bitcast=True) + {offset}).to(tl.pointer_type(tl.int32), bitcast=True)\n"
        "tl.store(out + i, tl.load(at).to(tl.float32), mask=m)"
    )
    ran = bench.run(pointwise(body), X, outputs=OUT)
    assert fine == (not ran.fault) and (fine or "misaligned address" in ran.fault["message"]), ran


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (COPY, 0),
        ("tl.store(out + (i * 7) % 128, tl.load(x + i, mask=m), mask=m & ((i * 7) % 128 < n))", 0),
        ("tl.atomic_xchg(out.to(tl.pointer_type(tl.int32)) + i, i, mask=m)", 0),
        ("tl.store(out + i, tl.exp(tl.load(x + i, mask=m)) * 2.0 + 1.0, mask=m)", 3 * 128),
        ("v = tl.load(x + i, mask=m, other=0.0)\ntl.store(out + i, tl.maximum(v, tl.max(v, 0)) - v, mask=m)", 3 * 128),
        ("v = tl.load(x + i, mask=m)\ntl.store(out + i, tl.where(v > 1.0, v, 0.0), mask=m)", 128),
        ("v = tl.load(x + i, mask=m)\ntl.store(out + i, tl.cumsum(v, 0) + tl.sum(v, 0), mask=m)", 3 * 128),
        ("tl.atomic_add(out + i, tl.load(x + i, mask=m), mask=m)", 128),
        (
            "j = tl.arange(0, 16)\nv = tl.load(x + j[:, None] + j[None, :])\nd = tl.dot(v, tl.trans(v))\n"
            "tl.store(out + j[:, None] * 4 + j[None, :] * 0, d, mask=j[None, :] == 0)",
            2 * 16**3,
        ),
    ],
)
def test_arithmetic_of_kernels_is_counted(bench: Bench, body: str, expected: int) -> None:
    ran = bench.run(pointwise(body), X, outputs=OUT, controls=({"follow": False},))
    assert not ran.fault and ran.call["arithmetic"] == expected, ran


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("tl.store(out + i, tl.load(x + i), mask=m)", "a load of 4 bytes that ends 4 bytes past the end"),
        ("tl.store(out + i, tl.load(x + i, mask=i <= n), mask=m)", "1 of 101 addresses"),
        (
            "tl.store(out + i, tl.load(x + i - 1, mask=m), mask=m)",
            "a load of 4 bytes that begins 4 bytes before the start",
        ),
        ("tl.store(out + i, tl.load(x + i, mask=m))", "a store of 4 bytes that ends 4 bytes past the end"),
        ("tl.atomic_add(out + i, tl.load(x + i, mask=m))", "an? atomic operation of 4 bytes"),
        ("tl.atomic_max(out + i, 1.0, mask=i <= n)", "an? atomic operation of 4 bytes"),
        ("tl.atomic_cas(out.to(tl.pointer_type(tl.int32)) + n, 0, 1)", "an? atomic operation of 4 bytes"),
        ("tl.store(out + i, tl.load(x + i + 1000000000, mask=m), mask=m)", "more than 1048576 bytes past the end"),
        (
            "tl.store(out.to(tl.pointer_type(tl.float64)) + 49 + i, 1.0, mask=i < 2)",
            "a store of 8 bytes that ends 8 bytes past",
        ),
    ],
)
def test_accesses_outside_of_tensors_are_refused(bench: Bench, body: str, said: str) -> None:
    ran = bench.run(pointwise(body), X, outputs=OUT)
    assert ran.fault["type"] == "OutOfBoundsError" and ran.fault["kind"] == "error", ran
    assert ran.fault["stage"] == "forward" and ran.fault["line"] == 12 and len(ran.result.outputs) == 1
    assert re.search(said, ran.fault["message"]), ran.fault["message"]
    assert "Mask it" in ran.fault["message"]


def test_masked_accesses_pass(bench: Bench) -> None:
    assert np.array_equal(ok(bench.run(pointwise(COPY), X, outputs=OUT)), X)
    atomic = "tl.atomic_add(out + i, tl.load(x + i, mask=m, other=7.0), mask=m)"
    assert np.array_equal(ok(bench.run(pointwise(atomic), X, outputs=OUT)), X)
    far = "tl.store(out + i, tl.load(x + i + 1000000000, mask=i < 0, other=3.0), mask=m)"
    assert np.array_equal(ok(bench.run(pointwise(far), X, outputs=OUT)), np.full(N, 3, np.float32))
    pair = "tl.store(out, tl.atomic_max(out + 5, 2.0) + tl.load(out + 5))"
    assert ok(bench.run(pointwise(pair), X, outputs=OUT))[0] == 2.0


def test_a_view_may_be_used_up_to_the_end_of_its_storage(bench: Bench) -> None:
    launch = "kernel[(1,)](x[10:20], out, 50, BLOCK=64)"
    assert np.array_equal(ok(bench.run(pointwise(COPY, launch), X, outputs=OUT))[:50], X[10:60])


@pytest.mark.parametrize("low", [0, -2])
def test_pointers_that_wrap_around_are_refused(bench: Bench, low: int) -> None:
    # Addresses beyond 2**63: with the size of an element added they may lie before any end.
    body = "tl.store(out + i, tl.load(x + tl.where(i == 1, high, low), mask=i < 2), mask=i < 2)"
    code = module(
        f"@triton.jit\ndef kernel(x, out, high, low):\n    i = tl.arange(0, 4)\n    {body}",
        f"kernel[(1,)](x, out, -(1 << 61), {low})",
    )
    ran = bench.run(code, X, outputs=OUT)
    assert ran.fault["type"] == "OutOfBoundsError" and ran.result.signal is None, ran


def test_a_refusal_that_the_candidate_catches_stays_one(bench: Bench) -> None:
    launch = "try:\n    kernel[(1,)](x, out, n, BLOCK=128)\nexcept BaseException:\n    out = x.clone()"
    ran = bench.run(pointwise("tl.store(out + i, tl.load(x + i))", launch), X, outputs=OUT)
    assert ran.fault["type"] == "OutOfBoundsError"


def test_a_pointer_out_of_a_number_is_refused(bench: Bench) -> None:
    body = "p = tl.load(x.to(tl.pointer_type(tl.int64))).to(tl.pointer_type(tl.float32))\ntl.store(out, tl.load(p))"
    ran = bench.run(pointwise(body), X, outputs=OUT)
    assert ran.fault["kind"] == "unsupported" and "pointer made from an integer" in ran.fault["message"]


DOT = """
@triton.jit
def kernel(a, out, OPTIONS: tl.constexpr, BF16: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    v = tl.load(a + at)
    if BF16:
        v = v.to(tl.bfloat16)
    tl.store(out + at, tl.dot(v, v, input_precision=OPTIONS))
"""


def product(bench: Bench, options: str, bf16: bool = False) -> tuple[Any, Ran]:
    a = np.random.default_rng(5).normal(size=(16, 16)).astype(np.float32)
    ran = bench.run(module(DOT, f"kernel[(1,)](x, out, {options}, {bf16})"), a, outputs=[("float32", (16, 16))])
    return a, ran


def test_a_product_rounds_to_tf32_unless_told_otherwise(bench: Bench) -> None:
    a, ran = product(bench, "None")
    bits = a.view(np.uint32)
    # Round to nearest, ties to even, at 10 bits of mantissa.
    short = ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    exact = a.astype(np.float64) @ a.astype(np.float64)
    assert np.allclose(ok(ran), short @ short, rtol=1e-5, atol=1e-5)
    assert np.abs(ok(ran) - exact).max() > 2e-4
    assert np.array_equal(ok(product(bench, '"tf32"')[1]), ok(ran))
    _, ieee = product(bench, '"ieee"')
    assert np.allclose(ok(ieee), exact, rtol=1e-6, atol=1e-6)


def test_a_product_of_bfloat16_has_all_bits_of_its_operands(bench: Bench) -> None:
    a, ran = product(bench, "None", bf16=True)
    narrow = bfloat16(a).astype(np.float64)
    assert np.allclose(ok(ran), narrow @ narrow, rtol=1e-6, atol=1e-6)
    assert np.abs(ok(ran) - a.astype(np.float64) @ a.astype(np.float64)).max() > 2e-3


def test_sums_of_bfloat16_in_memory_are_unsupported(bench: Bench) -> None:
    body = "tl.atomic_add(out.to(tl.pointer_type(tl.bfloat16)) + i, tl.load(x + i, mask=m).to(tl.bfloat16), mask=m)"
    assert bench.run(pointwise(body), X, outputs=OUT).fault["kind"] == "unsupported"


def bfloat16(values: Any) -> Any:
    """Values rounded to bfloat16, by the way that the grader itself has of doing so."""
    return host_tensor(values, "bfloat16").array()


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("v", lambda v: v),
        ("v + v * 3", lambda v: bfloat16(v + bfloat16(v * 3))),
        ("v / (w - 4)", lambda v: v / bfloat16(v[::-1] - 4)),
        ("-v", lambda v: -v),
        ("tl.where(-v < v, v, w)", lambda v: v),
        ("tl.where(v > w, 1.5, v)", lambda v: np.where(v > v[::-1], np.float32(1.5), v)),
        ("tl.maximum(-v, w)", lambda v: v[::-1]),
        ("tl.fma(v, w, w)", lambda v: bfloat16(v * v[::-1] + v[::-1])),
        ("tl.clamp(v, w, w)", lambda v: v[::-1]),
        ("(i * 3).to(tl.bfloat16)", lambda v: bfloat16(np.arange(N) * 3)),
        ("v.to(tl.float64).to(tl.bfloat16)", lambda v: v),
        ("(v * 100).to(tl.int32)", lambda v: np.trunc(bfloat16(v * 100))),
        ("tl.abs(-v)", lambda v: v),
    ],
)
def test_arithmetic_on_bfloat16(bench: Bench, expression: str, function: Any) -> None:
    body = (
        "v = tl.load(x + i, mask=m).to(tl.bfloat16)\nw = tl.load(x + n - 1 - i, mask=m).to(tl.bfloat16)\n"
        f"tl.store(out + i, ({expression}).to(tl.float32), mask=m)"
    )
    found = ok(bench.run(pointwise(body), X, outputs=OUT))
    assert np.allclose(found, function(bfloat16(X)), rtol=3e-7 if "/" in expression else 0, atol=0)


@pytest.mark.parametrize(
    ("launch", "count"),
    [
        ("kernel[(101,)](x, out, n, BLOCK=128)", 101),
        ("kernel[(11, 10)](x, out, n, BLOCK=128)", 110),
        ("for _ in range(6): kernel[(20,)](x, out, n, BLOCK=128)", 120),
        ("try:\n    kernel[(1 << 30, 1 << 10, 1 << 10)](x, out, n, BLOCK=128)\nexcept Exception: pass", 2**50),
    ],
)
def test_the_budget_of_programs(bench: Bench, launch: str, count: int) -> None:
    ran = bench.run(pointwise(COPY, launch), X, outputs=OUT, max_programs=100)
    assert ran.fault["kind"] == "unsupported" and f"{count} program instances" in ran.fault["message"]
    assert "at most 100" in ran.fault["message"] and "larger blocks" in ran.fault["message"]


def test_the_budget_is_that_of_one_call(bench: Bench) -> None:
    ran = bench.run(
        pointwise(COPY, "kernel[(100,)](x, out, n, BLOCK=128)"), X, outputs=OUT, controls=[{}] * 3, max_programs=100
    )
    assert np.array_equal(ok(ran), X)
    assert ran.call["launches"] == {"kernel": 1} and ran.call["programs"] == 100


@pytest.mark.parametrize(
    "launch",
    [
        "kernel[(4,)](x, out, n, BLOCK=32)",
        "kernel[4,](x, out, n, BLOCK=32)",
        "kernel[[4]](x, out, n, BLOCK=32)",
        "kernel[(4, 1, 1)](x, out, n, BLOCK=32)",
        "kernel[torch.Size([4])](x, out, n, BLOCK=32)",
        "kernel[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, out, n, BLOCK=32)",
        "kernel[lambda meta: [triton.cdiv(meta['n'], 32)]](x, out, n, BLOCK=32)",
        "kernel.run(x, out, n, BLOCK=32, grid=(4,), warmup=False)",
        "kernel[(4,)](x, out, n=n, BLOCK=32, num_warps=2, num_stages=1)",
    ],
)
def test_grids(bench: Bench, launch: str) -> None:
    ran = bench.run(pointwise(COPY, launch), X, outputs=OUT)
    assert np.array_equal(ok(ran), X) and ran.call["programs"] == 4


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("4", "TypeError: the grid of kernel.. must be a tuple of whole numbers, not int"),
        ("(2.0, 1)", "TypeError: 'float' object cannot be interpreted as an integer"),
        ("()", "ValueError: the grid of kernel.. has 0 dimensions"),
        ("(1, 1, 1, 1)", "ValueError: the grid of kernel.. has 4 dimensions"),
        ("(-4, 1)", "ValueError: the grid of kernel.. has a negative extent"),
    ],
)
def test_grids_that_no_gpu_takes(bench: Bench, grid: str, said: str) -> None:
    ran = bench.run(pointwise(COPY, f"kernel[{grid}](x, out, n, BLOCK=128)"), X, outputs=OUT)
    assert re.match(said, f"{ran.fault['type']}: {ran.fault['message']}"), ran


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("num_ctas=2", "a barrier holds back only one of them"),
        ("launch_pdl=True", "may then begin before the one before it"),
        ("launch_cooperative_grid=True", "a GPU refuses a grid that does not fit"),
        ("debug=True", "exceed their type"),
        ("maxnreg=8", "maxnreg of a launch is 16 to 256, not 8"),
        ("num_warps=64", "num_warps of a launch is 1 to 32, not 64"),
        ("num_warps=True", "num_warps of a launch is 1 to 32, not True"),
        ("enable_fp_fusion=3", "enable_fp_fusion of a launch is False or True, not 3"),
        ("ptx_options='-O0'", "the compiler's option ptx_options is not taken"),
        ("sanitize_overflow=False", "the compiler's option sanitize_overflow is not taken"),
    ],
)
def test_options_that_change_what_a_kernel_means_are_unsupported(bench: Bench, option: str, said: str) -> None:
    ran = bench.run(pointwise(COPY, f"kernel[(1,)](x, out, n, BLOCK=128, {option})"), X, outputs=OUT)
    assert ran.fault["kind"] == "unsupported" and said in ran.fault["message"], ran


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("num_warps=3", "AssertionError: Triton raises at a launch of kernel.. with num_warps=3: .* power of 2"),
        ("num_warps=-4, num_stages=2", "AssertionError: .* with num_warps=-4, num_stages=2: .* power of 2"),
        ("num_warps=2.0", "TypeError: .* with num_warps=2.0: unsupported operand"),
        ("num_warps='4'", "TypeError: .* with num_warps='4': '>' not supported"),
    ],
)
def test_options_that_triton_does_not_take_raise(bench: Bench, option: str, said: str) -> None:
    launched = pointwise(COPY, f"kernel[(1,)](x, out, n, BLOCK=128, {option})")
    configured = f"@triton.autotune([triton.Config({{}}), triton.Config({{}}, {option})], key=[])\n@triton.jit"
    for code in (launched, pointwise(COPY).replace("@triton.jit", configured)):
        ran = bench.run(code, X, outputs=OUT)
        assert ran.fault["kind"] == "error", ran
        assert re.match(said, f"{ran.fault['type']}: {ran.fault['message']}"), ran.fault
        assert "kernel[(1,)]" in code.splitlines()[ran.fault["line"] - 1]


def test_a_kernel_that_checks_overflows_is_unsupported(bench: Bench) -> None:
    code = pointwise(COPY).replace("@triton.jit", "@triton.jit(debug=True)")
    ran = bench.run(code, X, outputs=OUT)
    assert ran.fault["kind"] == "unsupported" and "debug=True is not taken" in ran.fault["message"]


TUNED = """
@triton.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 2), (16, 4))], key=["n"],
                 reset_to_zero=["out"])
@triton.heuristics({"TWICE": lambda args: args["n"] == 100})
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    if TWICE:
        v = v * 2
    tl.atomic_add(out + i, v, mask=i < n)
"""


def test_autotuned_and_heuristic_kernels(bench: Bench) -> None:
    launch = "kernel[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, out, n)"
    ran = bench.run(module(TUNED, launch), X, outputs=OUT, controls=[{}, {}])
    assert np.array_equal(ok(ran), X * 2)
    assert ran.call["launches"] == {"kernel": 1}, "tuning costs no launches"


ARGUMENTS = """
@triton.jit
def helper(v, scale):
    return v * scale + shift


shift: tl.constexpr = tl.constexpr(1.0)


@triton.jit
def kernel(x, out, bias, n, scale=2.0, BLOCK: tl.constexpr = 128, ADD: tl.constexpr = True):
    i = tl.arange(0, BLOCK)
    v = helper(tl.load(x + i, mask=i < n), scale)
    if bias is not None:
        v += tl.load(bias)
    if ADD:
        v += 1.0
    tl.store(out + i, v, mask=i < n)
"""


@pytest.mark.parametrize(
    ("arguments", "scale", "shift"),
    [
        ("x, out, None, n", 2, 2),
        ("x, out, x, n", 2, 2.5),
        ("x, out, None, n, 3.0", 3, 2),
        ("x, out, None, n, 3.0, 128, False", 3, 1),
        ("x, out, None, n, BLOCK=256, ADD=False", 2, 1),
        ("x=x, out=out, bias=None, n=n, scale=-1.0", -1, 2),
        ("x, bias=x, n=n, out=out, num_warps=8", 2, 2.5),
        ("*(x, out), **{'bias': None, 'n': n}", 2, 2),
    ],
)
def test_arguments(bench: Bench, arguments: str, scale: float, shift: float) -> None:
    ran = bench.run(module(ARGUMENTS, f"kernel[(1,)]({arguments})"), X, outputs=OUT)
    assert np.allclose(ok(ran), X * scale + shift)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("x, out, None", "kernel() missing 1 required positional argument: 'n'"),
        ("BLOCK=128", "kernel() missing 4 required positional arguments: 'x', 'out', 'bias', and 'n'"),
        ("x, out, None, n, 1.0, 128, True, 5", "kernel() takes from 4 to 7 positional arguments but 8 were given"),
        ("x, out, None, n, x=x", "multiple values for argument 'x'"),
        ("x, out, None, n, colour=3", "colour"),
    ],
)
def test_arguments_that_do_not_fit(bench: Bench, arguments: str, said: str) -> None:
    code = module(ARGUMENTS, f"kernel[(1,)]({arguments})")
    ran = bench.run(code, X, outputs=OUT)
    assert ran.fault["type"] == "TypeError" and said in ran.fault["message"]
    assert "kernel[(1,)]" in code.splitlines()[ran.fault["line"] - 1]


PAIR = "@triton.jit\ndef {}(x, out):\n    tl.store(out, tl.load(out) + 1.0)\n\n"


def test_launches_are_counted_by_name_and_left_out_on_demand(bench: Bench) -> None:
    code = module(
        PAIR.format("first") + PAIR.format("second"),
        "first[(2,)](x, out)\nfirst[(1,)](x, out)\nsecond[(1,)](x, out)",
    ).replace("torch.empty_like", "torch.zeros_like")
    ran = bench.run(code, X, outputs=OUT)
    assert ran.call["launches"] == {"first": 2, "second": 1} and ran.call["programs"] == 4
    assert ok(ran)[0] == 4.0
    assert ok(bench.run(code, X, outputs=OUT, controls=[{}, {"skip": 0}]))[0] == 1.0
    assert ok(bench.run(code, X, outputs=OUT, controls=[{"skip": 0}, {}]))[0] == 4.0


def test_fresh_memory_is_filled(bench: Bench) -> None:
    code = module("", "out = torch.empty_like(x)")
    for poison in (0x00, 0x3E, 0xFF):
        (filled,) = set(ok(bench.run(code, X, outputs=OUT, controls=[{"poison": poison}])).view(np.uint32).tolist())
        assert filled == int.from_bytes(bytes([poison] * 4), "little")


BLOCKS = """
@triton.jit
def kernel(x, out, rows, columns, B: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (B, B), (1, 0))
    target = tl.make_block_ptr(out, (rows, columns), (columns, 1), (0, 0), (B, B), (1, 0))
    for _ in range(0, columns, B):
        tl.store(target, tl.load(source, CHECK) * 2, CHECK)
        source = tl.advance(source, (0, B))
        target = tl.advance(target, (0, B))
"""
IN_KERNEL = """
@triton.jit
def kernel(x, out, rows, columns, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [B, B])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [B, B])
    for at in range(0, columns, B):
        target.store([0, at], source.load([0, at]) * 2)
"""
ON_HOST = """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def kernel(source, target, columns, B: tl.constexpr):
    for at in range(0, columns, B):
        target.store([0, at], source.load([0, at]) * 2)
"""


@pytest.mark.parametrize(
    ("kernel", "launch"),
    [
        (BLOCKS.replace("CHECK", "boundary_check=(0, 1)"), "kernel[(1,)](x, out, *x.shape, B=16)"),
        (IN_KERNEL, "kernel[(1,)](x, out, *x.shape, B=16)"),
        (
            ON_HOST,
            "a, b = (TensorDescriptor.from_tensor(t, [16, 16]) for t in (x, out))\nkernel[(1,)](a, b, 20, B=16)",
        ),
    ],
    ids=["block_pointer", "descriptor", "host_descriptor"],
)
def test_block_pointers_and_descriptors(bench: Bench, kernel: str, launch: str) -> None:
    x = X.reshape(5, 20)
    assert np.array_equal(ok(bench.run(module(kernel, launch), x, outputs=[("float32", (5, 20))])), x * 2)


def test_block_pointers_and_descriptors_keep_within_bounds_or_are_refused(bench: Bench) -> None:
    x = X.reshape(5, 20)
    shape = [("float32", (5, 20))]
    ran = bench.run(module(BLOCKS.replace(", CHECK", ""), "kernel[(1,)](x, out, *x.shape, B=16)"), x, outputs=shape)
    assert ran.fault["type"] == "OutOfBoundsError"
    ran = bench.run(module(IN_KERNEL, "kernel[(1,)](x, out, 10, 20, B=16)"), x, outputs=shape)
    assert ran.fault["type"] == "OutOfBoundsError"


def libdevice_symbols() -> set[str]:
    """The names of libdevice's functions in Triton's own table."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "language" / "extra" / "cuda" / "libdevice.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("__nv_")
    }


def test_every_function_of_the_library_is_one_of_libdevice() -> None:
    assert LIBRARY.keys() - libdevice_symbols() == set()


MATH: dict[str, Any] = {
    **{name: getattr(math, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt")},
    **{name: getattr(math, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "atan", "asinh", "erf")},
    **{name: getattr(math, name) for name in ("erfc", "lgamma", "floor", "ceil", "trunc")},
    "tgamma": math.gamma,
    "abs": abs,
    "round": lambda v: math.floor(v + 0.5),
    "rint": round,
    "nearbyint": round,
    "rsqrt": lambda v: 1 / math.sqrt(v),
    "rcbrt": lambda v: 1 / math.cbrt(v),
    "exp10": lambda v: 10**v,
    "sinpi": lambda v: math.sin(math.pi * v),
    "cospi": lambda v: math.cos(math.pi * v),
    "normcdf": lambda v: 0.5 * math.erfc(-v / math.sqrt(2)),
    "acosh": lambda v: math.acosh(v) if v >= 1 else math.nan,
    "acos": lambda v: math.acos(v) if v <= 1 else math.nan,
    "asin": lambda v: math.asin(v) if v <= 1 else math.nan,
    "atanh": lambda v: math.atanh(v) if v < 1 else math.inf if v == 1 else math.nan,
}
PAIRS: dict[str, Any] = {
    **{name: getattr(math, name) for name in ("atan2", "pow", "hypot", "copysign", "fmod", "remainder")},
    "fdim": lambda a, b: max(a - b, 0.0),
}


def libdevice_module(names: list[str], call: str, dtype: str, module_name: str) -> str:
    lines = "\n".join(
        f"    tl.store(out + {p} * n + i, libdevice.{name}({call}), mask=m)" for p, name in enumerate(names)
    )
    kernel = (
        "@triton.jit\ndef kernel(x, out, n, BLOCK: tl.constexpr):\n    i = tl.arange(0, BLOCK)\n    m = i < n\n"
        f"    v = tl.load(x + i, mask=m, other=1.5)\n{lines}"
    )
    launch = f"out = x.new_zeros(({len(names)}, n), dtype=torch.{dtype})\nkernel[(1,)](x, out, n, BLOCK=128)"
    return module(kernel, launch, f"from triton.language.extra{module_name} import libdevice\n")


@pytest.mark.parametrize(("dtype", "module_name"), [("float32", ""), ("float64", ".cuda")])
def test_libdevice_agrees_with_the_mathematics(bench: Bench, dtype: str, module_name: str) -> None:
    x = X.astype(dtype)
    tolerance = 3e-6 if dtype == "float32" else 1e-12
    for table, call in ((MATH, "v"), (PAIRS, "v, 1.125 - v")):
        code = libdevice_module(list(table), call, dtype, module_name)
        found = ok(bench.run(code, x, outputs=[(dtype, (len(table), N))]))
        for row, (name, function) in zip(found, table.items(), strict=True):
            ys = (1.125 - x).tolist()
            wanted = [function(*((a,) if call == "v" else (a, b))) for a, b in zip(x.tolist(), ys, strict=True)]
            if name in ("pow", "fmod", "remainder"):  # where the mathematics jumps, or is not real, rounding decides
                smooth = np.isfinite(np.array([w if isinstance(w, float) else np.nan for w in wanted])) & (x < 1.0)
            else:
                smooth = np.ones(N, dtype=bool)
            both = np.array([w if isinstance(w, int | float) else np.nan for w in wanted])[smooth]
            assert np.allclose(row[smooth], both, rtol=tolerance, atol=tolerance, equal_nan=True), name


def test_libdevice_outside_of_its_domain_is_no_fault(bench: Bench) -> None:
    x = np.array([0.0, -1.0, -0.5, 200.0, np.inf, -np.inf, np.nan, 1e30], dtype=np.float32)
    names = ["lgamma", "tgamma", "log", "sqrt", "acos", "rsqrt", "erf", "normcdf"]
    found = ok(bench.run(libdevice_module(names, "v", "float32", ""), x, outputs=[("float32", (8, 8))]))
    inf, nan = np.inf, np.nan
    assert np.allclose(found[0][[0, 1, 4, 5, 6]], [inf, inf, inf, inf, nan], equal_nan=True)
    assert np.allclose(found[0][[2, 3]], [math.lgamma(-0.5), math.lgamma(200.0)], rtol=1e-6)
    assert np.allclose(found[1], [inf, nan, math.gamma(-0.5), inf, inf, nan, nan, inf], equal_nan=True)
    assert np.allclose(found[6], [0, math.erf(-1), math.erf(-0.5), 1, 1, -1, nan, 1], equal_nan=True)
    assert np.isnan(found[3][[1, 2, 5, 6]]).all() and np.isnan(found[4][[3, 4, 5, 6, 7]]).all()


def test_normcdf_of_float64_has_all_its_bits_far_from_zero(bench: Bench) -> None:
    x = np.array([-35.0, -20.0, -4.0, 0.0, np.inf, -np.inf])
    found = ok(bench.run(libdevice_module(["normcdf"], "v", "float64", ""), x, outputs=[("float64", (1, 6))]))
    wanted = [1.1249107064724062e-268, 2.7536241186062337e-89, 3.167124183311992e-05, 0.5, 1.0, 0.0]
    assert np.allclose(found[0], wanted, rtol=1e-15, atol=0.0)


def test_a_function_that_is_not_there_is_unsupported(bench: Bench) -> None:
    missing = sorted(symbol for symbol in libdevice_symbols() - LIBRARY.keys() if symbol == "__nv_j0f")
    assert missing, "choose another function"
    ran = bench.run(libdevice_module(["j0"], "v", "float32", ""), X, outputs=[("float32", (1, N))])
    assert ran.fault["kind"] == "language" and "j0" in ran.fault["message"]


def test_what_the_interpreter_lacks_is_unsupported(bench: Bench) -> None:
    ran = bench.run(pointwise("tl.atomic_xchg(out + i, 2.0, mask=m)"), X, outputs=OUT)
    assert ran.fault["kind"] == "unsupported" and "atomic" in ran.fault["message"]
    body = (
        "d = tl.make_tensor_descriptor(out, shape=[100], strides=[1], block_shape=[64])\n"
        "d.store([0], tl.zeros((64,), tl.float32))\nd.atomic_add([0], tl.full((64,), 1.0, tl.float32))"
    )
    ran = bench.run(pointwise(body), X, outputs=OUT)
    assert ran.fault["kind"] == "unsupported" and "create_descriptor_reduce" in ran.fault["message"]
    body = 'v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [i], dtype=tl.int32, is_pure=True, pack=1)'
    ran = bench.run(pointwise(body), X, outputs=OUT)
    assert ran.fault["kind"] == "language" and "inline_asm_elementwise" in ran.fault["message"]
