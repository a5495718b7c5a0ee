"""Calls that act as one GPU: what is true on every GPU is true in them, and nothing inexact is rounded to nearest."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from support.own_process import program

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="no torch or no triton here"
)
KNOWS_LITTLE, KNOWS_MUCH = DEVICES = (0x1_2345_6789, 0x1_0BAD_CAFE)
"""Two GPUs, and what their compilers know (`device.KNOWS`)."""
chance = np.random.default_rng(5)
A = chance.uniform(0.51, 7.9, 256).astype(np.float32)
B = chance.uniform(0.3, 20.0, 256).astype(np.float32)
ADD = {
    "add": "def add(x, y):\n    return x + y\n",
    "branch": "def branch(x, y):\n    z = x + y\n    if x > 1e30:\n        z = y\n    return z\n",
}
MATRICES = "tl.reshape(a, (16, 16)), tl.reshape(b, (16, 16))"
CONSTANTS = {number: f"tl.full((N,), {number}, tl.float32)" for number in (1.3, 1.7, 2.9, 3.3, 3.7, 5.1)}

SAME: dict[str, tuple[str, str]] = {
    "quotients are odd": ("(-a) / b", "-(a / b)"),
    "quotients double": ("(a * 2.0) / b", "(a / b) * 2.0"),
    "quotients halve": ("a / (b * 2.0)", "(a / b) * 0.5"),
    "quotients are products with inverses": ("a / b", "a * (1.0 / b)"),
    "sines are odd": ("tl.sin(-a)", "-tl.sin(a)"),
    "cosines are even": ("tl.cos(-a)", "tl.cos(a)"),
    "erf is odd": ("tl.erf(-a)", "-tl.erf(a)"),
    "tanh is odd": ("libdevice.tanh(-a)", "-libdevice.tanh(a)"),
    "roots of four times as much": ("tl.sqrt(a * 4.0)", "tl.sqrt(a) * 2.0"),
    "inverse roots of four times as much": ("tl.rsqrt(a * 4.0)", "tl.rsqrt(a) * 0.5"),
    "powers of two": ("tl.exp2(a + 1.0)", "tl.exp2((a + 1.0) - 1.0) * 2.0"),
    "exp is a power of two": ("tl.exp(a)", "tl.exp2(a * 1.4426950408889634)"),
    "hypot of both orders": ("libdevice.hypot(a, b)", "libdevice.hypot(b, a)"),
    "a function by both of its names": ("tl.sin(a)", "libdevice.sin(a)"),
    "a root by both of its names": ("tl.rsqrt(a)", "libdevice.rsqrt(a)"),
    "sums are odd": ("tl.sum(tl.reshape(-a, (16, 16)), 1)", "-tl.sum(tl.reshape(a, (16, 16)), 1)"),
    "sums are scaled": ("tl.sum(tl.reshape(a * 8.0, (16, 16)), 1)", "tl.sum(tl.reshape(a, (16, 16)), 1) * 8.0"),
    "sums by both names": ("tl.sum(tl.reshape(a, (16, 16)), 1)", "tl.reduce(tl.reshape(a, (16, 16)), 1, add)"),
    "scans by both names": ("tl.cumsum(a, 0)", "tl.associative_scan(a, 0, add)"),
    "sums of halves": (
        "tl.sum(tl.reshape(a, (16, 16)).to(tl.float16), 1).to(tl.float32)",
        "tl.reduce(tl.reshape(a, (16, 16)).to(tl.float16), 1, add).to(tl.float32)",
    ),
    **{
        f"what is added to a product of matrices, {name}": (
            f"tl.dot({MATRICES}{more}) + tl.reshape(b, (16, 16))",
            f"tl.dot({MATRICES}, tl.reshape(b, (16, 16)){more})",
        )
        for name, more in {"TF32": "", "float32": ", input_precision='ieee'"}.items()
    },
    "products of matrices are odd": (
        "tl.dot(tl.reshape(-a, (16, 16)), tl.reshape(b, (16, 16)))",
        "-tl.dot(tl.reshape(a, (16, 16)), tl.reshape(b, (16, 16)))",
    ),
    **{
        f"1 by {number}": (f"1.0 / {of}", f"tl.div_rn(tl.full((N,), 1.0, tl.float32), {number})")
        for number, of in CONSTANTS.items()
    },
    **{f"the root of {number}": (f"tl.sqrt({of})", f"tl.sqrt_rn({of})") for number, of in CONSTANTS.items()},
    **{
        f"the power of {number}": (
            f"tl.exp({of})",
            f"tl.full((N,), {float(np.float32(np.exp(np.float64(np.float32(number)))))}, tl.float32)",
        )
        for number, of in CONSTANTS.items()
    },
    "branching scans": ("tl.cumsum(a, 0)", "tl.associative_scan(a, 0, branch)"),
    "NaN of the compiler": (
        "((tl.full((N,), float('inf'), tl.float32) * 0.0).to(tl.int32, bitcast=True) & 0xFF).to(tl.float32)",
        "a * 0.0",
    ),
    "NaN of arithmetic": ("((a / 0.0 * 0.0).to(tl.int32, bitcast=True) & 0xFF).to(tl.float32)", "a * 0.0 + 255.0"),
    "float64 by both names": (
        "(tl.exp(a.to(tl.float64)) - libdevice.exp(a.to(tl.float64))).to(tl.float32)",
        "a * 0.0",
    ),
    **{
        f"{name} of next to nothing": (f"{name}(a * 1e-9)", "a * 1e-9")
        for name in (
            *("tl.sin", "libdevice.tan", "libdevice.asin", "libdevice.atan", "libdevice.sinh", "libdevice.tanh"),
            *("libdevice.asinh", "libdevice.atanh", "libdevice.expm1", "libdevice.log1p"),
        )
    },
    "the slope of erf": ("tl.erf(a * 1e-9)", "tl.fma(a * 1e-9, 0.12837915, a * 1e-9)"),
    "cosh of next to nothing": ("libdevice.cosh(a * 1e-9)", "a * 0.0 + 1.0"),
    "sines are cosines": ("libdevice.sinpi(a * 0.03 + 0.25)", "libdevice.cospi(0.5 - (a * 0.03 + 0.25))"),
    "sines of other half turns": ("libdevice.sinpi(HALVES)", "-libdevice.sinpi(HALVES + 1.0)"),
    "arc cosines are arc sines": ("libdevice.acos(a * 0.07)", "1.57079637 - libdevice.asin(a * 0.07)"),
    "arc sines are arc cosines": ("libdevice.asin(1.0 - a * 0.05)", "1.57079637 - libdevice.acos(1.0 - a * 0.05)"),
    "arc cosines of less than 0": ("libdevice.acos(-a * 0.12)", "3.14159274 - libdevice.acos(a * 0.12)"),
    "arc tangents of inverses": (
        "libdevice.atan(a + 1.0)",
        "1.57079637 - libdevice.atan(tl.div_rn(a * 0.0 + 1.0, a + 1.0))",
    ),
    "arc tangents by both names": ("libdevice.atan(a * 0.1)", "libdevice.atan2(a * 0.1, b * 0.0 + 1.0)"),
    "large hyperbolic functions": ("libdevice.sinh(a + 10.0)", "libdevice.cosh(a + 10.0)"),
    "decimal logarithms": ("libdevice.log10(a)", "tl.log(a) * 0.4342944819"),
    "lengths are roots": (
        "libdevice.hypot(a, b + 8.0)",
        "tl.sqrt(tl.fma(b + 8.0, b + 8.0, tl.fma(a, a, 0.0)))",
    ),
    "erfc of less than 0": ("libdevice.erfc(-a)", "2.0 - libdevice.erfc(a)"),
    "denormal powers of two": (
        "libdevice.ldexp(a, (a * 0.0).to(tl.int32) - 132) * 1.0e37",
        "a * 1.8367099e-40 * 1.0e37",
    ),
    "denormal powers": ("(tl.exp(a * 0.01 - 90.0) > 0.0).to(tl.float32)", "a * 0.0 + 1.0"),
    "denormal powers of libdevice": ("(libdevice.exp(a * 0.01 - 90.0) > 0.0).to(tl.float32)", "a * 0.0 + 1.0"),
    "denormal differences": ("libdevice.fdim(a * 2e-39, a * 1e-39) * 1e37", "(a * 2e-39 - a * 1e-39) * 1e37"),
    "denormal logarithms": ("libdevice.log1p(a * 1e-40)", "a * 0.0"),
    "fused sums": ("tl.fma(a, b, -1.0)", "a * b - 1.0"),
    "casts beyond the range": ("(a * 1e20).to(tl.int32).to(tl.float32)", "a * 0.0 + 2147483648.0"),
    "shifts beyond the width": (
        "((a * 100).to(tl.int32) << ((b * 0.0).to(tl.int32) + 40)).to(tl.float32)",
        "a * 0.0",
    ),
}
HALVES = "((a * 1024.0).to(tl.int32).to(tl.float32) * 0.000244140625)"
SAME = {name: tuple(side.replace("HALVES", HALVES) for side in sides) for name, sides in SAME.items()}
PAIRS = """
p = (i // 2 * 7 + 3).to(tl.float32) * 0.37 + a * 0.0
q = (i // 2 * 5 + 11).to(tl.float32) * 0.73 + a * 0.0
products = tl.reshape(p * tl.where(i % 2 == 0, q, -q), (N // 2, 2))
FOUND
found = tl.reshape(tl.join(sums, sums), (N,))
"""
# Of two products the first or the second is fused, which changes the sign alone where they go backwards.
LAST = "sums = tl.sum(tl.where(tl.arange(0, 2)[None, :] == 1, SCAN, 0.0), 1)"
SUMS = {
    "sum": "sums = tl.sum(products, 1)",
    "reduce": "sums = tl.reduce(products, 1, add)",
    "cumsum": LAST.replace("SCAN", "tl.cumsum(products, 1)"),
    "reverse": LAST.replace("== 1", "== 0").replace("SCAN", "tl.cumsum(products, 1, reverse=True)"),
    "scan": LAST.replace("SCAN", "tl.associative_scan(products, 1, add)"),
}
EXACT: dict[str, tuple[str, Any]] = {
    "quotient": ("a / b", A.astype(np.float64) / B),
    "inverse": ("1.0 / b", 1.0 / B.astype(np.float64)),
    "exp2": ("tl.exp2(a)", np.exp2(A.astype(np.float64))),
    "exp": ("libdevice.exp(a)", np.exp(A.astype(np.float64))),
    "log": ("tl.log(a)", np.log(A.astype(np.float64))),
    "log2": ("tl.log2(a)", np.log2(A.astype(np.float64))),
    "sin": ("tl.sin(a)", np.sin(A.astype(np.float64))),
    "cos": ("tl.cos(a)", np.cos(A.astype(np.float64))),
    "sqrt": ("tl.sqrt(a)", np.sqrt(A.astype(np.float64))),
    "rsqrt": ("tl.rsqrt(a)", 1 / np.sqrt(A.astype(np.float64))),
    "tanh": ("libdevice.tanh(a)", np.tanh(A.astype(np.float64))),
    "pow": ("libdevice.pow(a, b)", np.power(A.astype(np.float64), B)),
    "atan2": ("libdevice.atan2(a, b)", np.arctan2(A.astype(np.float64), B)),
}
ULPS = {"log": 1, "log2": 1, "sqrt": 1, "exp": 1, "inverse": 1, "tanh": 2, "pow": 4, "atan2": 3}
RISING = {name: EXACT[name][0] for name in ("exp2", "exp", "log", "sqrt", "tanh")} | {"erf": "tl.erf(a * 0.3)"}
NEIGHBOURS = np.sort(
    np.concatenate([(start + np.arange(64) * 2.0**-22).astype(np.float32) for start in (0.7, 1.9, 2, 3)])
)


def case(expression: str, device: int, a: Any = A, b: Any = B) -> dict[str, Any]:
    """A case of the program, which wants as many results as inputs."""
    if "tl.dot" not in expression and "(16, 16)" in expression:
        expression = f"tl.reshape(tl.broadcast_to(({expression})[:, None], (16, 16)), (256,))"
    elif "tl.dot" in expression:
        expression = f"tl.reshape({expression}, (256,))"
    inputs = [("float32", a.tolist()), ("float32", b.tolist())]
    names = {name: text for name, text in ADD.items() if f"{name})" in expression}
    return {"lines": f"found = {expression}", "out": "float32", "inputs": inputs, "device": device, "names": names}


@cache
def answers() -> dict[str, Any]:
    """Name -> bits of float32."""
    cases = {
        f"{name} {side} {device}": case(expression, device)
        for device in DEVICES
        for name, sides in SAME.items()
        for side, expression in enumerate(sides)
    }
    cases |= {f"{name} {device}": case(line, device) for device in DEVICES for name, (line, _) in EXACT.items()}
    cases |= {f"{name} rises": case(line, DEVICES[0], NEIGHBOURS) for name, line in RISING.items()}
    found = program("value_cases", given=json.dumps(list(cases.values())))
    for name, answer in zip(cases, found, strict=True):
        assert isinstance(answer, list), (name, answer)
    return {name: np.array(answer, np.int32).view(np.float32) for name, answer in zip(cases, found, strict=True)}


@pytest.mark.parametrize("name", SAME)
def test_what_is_true_on_every_gpu(name: str) -> None:
    for device in DEVICES:
        one, other = (answers()[f"{name} {side} {device}"] for side in (0, 1))
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", EXACT)
def test_results_are_not_rounded_to_nearest_but_near(name: str) -> None:
    exact = EXACT[name][1]
    nearest = exact.astype(np.float32)
    for device in DEVICES:
        found = answers()[f"{name} {device}"]
        off = np.abs(found - exact) / np.spacing(np.abs(nearest)).astype(np.float64)
        assert (found != nearest).mean() > 0.1 and off.max() <= ULPS.get(name, 2)
    assert (answers()[f"{name} {DEVICES[0]}"] != answers()[f"{name} {DEVICES[1]}"]).any()


def paired(sums: str, device: int, options: dict[str, Any]) -> dict[str, Any]:
    """Sums of products and of the same with the other sign."""
    found = case("a", device) | {"lines": PAIRS.replace("FOUND", sums), "options": options}
    return found | {"names": {"add": ADD["add"]} if "add)" in sums else {}}


def test_sums_of_products_are_fused_where_they_meet_in_a_thread() -> None:
    options = [{}, {"enable_fp_fusion": False}, {"num_warps": 8}]
    cases = [paired(sums, device, each) for device in DEVICES for sums in SUMS.values() for each in options]
    found = np.array(program("value_cases", given=json.dumps(cases)), np.int32).view(np.float32)
    found = found.reshape(len(DEVICES), len(SUMS), len(options), -1)
    fused, apart, alone = (found[:, :, place] for place in range(3))
    assert ((fused != 0).mean(-1) > 0.5).all() and not apart.any() and not alone.any()
    assert (np.abs(fused) == np.abs(fused[:, :1])).all() and not np.array_equal(fused[0], fused[1])


def test_a_launch_may_say_that_nothing_is_fused() -> None:
    lines = [("a * b + 0.3", {}), ("a * b + 0.3", {"enable_fp_fusion": False}), ("tl.fma(a, b, 0.3)", {})]
    cases = [case(line, DEVICES[0]) | {"options": options} for line, options in lines]
    fused, apart, asked = program("value_cases", given=json.dumps(cases))
    assert fused == asked != apart
    assert np.array_equal(np.array(apart, np.int32).view(np.float32), A * B + np.float32(0.3))


DROPPED = (
    *("p * 1.0", "p * -1.0 * -1.0", "p / 1.0", "p - 0.0", "tl.maximum(p, p)", "tl.where(a > 1.0, p, p)"),
    *("tl.where(tl.full((N,), 1, tl.int1), p, a)", "tl.where(i - i == 0, p, a)"),
    "(p.to(tl.int32, bitcast=True) | (i - i)).to(tl.float32, bitcast=True)",
)
DONE = ("tl.maximum(p, -3e38)", "tl.where(a > 0.0, p, a)", "tl.abs(p)", "p + 0.0", "tl.clamp(p, -3e38, 3e38)")


def test_a_product_stays_one_through_what_a_compiler_drops() -> None:
    lines = [f"p = a * b\nfound = {step} + 0.3" for step in DROPPED + DONE]
    cases = [case("a", device) | {"lines": each} for device in (KNOWS_LITTLE, KNOWS_MUCH) for each in lines]
    found = np.array(program("value_cases", given=json.dumps(cases)), np.int32).view(np.float32)
    little, much = found.reshape(2, len(lines), -1)
    fused = (A.astype(np.float64) * B + np.float64(np.float32(0.3))).astype(np.float32)
    apart = A * B + np.float32(0.3)
    assert (fused != apart).any() and (little == fused).all()
    kept = [step for step, each in zip(DROPPED + DONE, much, strict=True) if (each == fused).all()]
    assert kept == list(DROPPED)
    assert (much[len(DROPPED) :] == apart).all()


ZEROS = (
    *("i - i", "i * 0", "i ^ i", "i % 1", "(i * 2) & 1", "(i << 3) % 8", "i // N", "i >> 20", "(i < 0).to(tl.int32)"),
    *("tl.program_id(0) % 1", "tl.program_id(0) >> 31", "(i + 1) // (i + 1) - 1", "tl.minimum(i, 0)", "(i + 0) - i"),
    *(
        "(tl.program_id(0).to(tl.int64) * 4 & 3).to(tl.int32)",
        "tl.program_id(0) - tl.program_id(0)",
        "i + 3 - i - 3",
        "2 * i - i - i",
        "~i & i",
        "tl.where(i < 0, i, 0)",
        "(i == i + 0).to(tl.int32) - 1",
    ),
)
NUMBERS = ("i", "tl.program_id(0)", "(a * 0.0).to(tl.int32)", "i % 3", "i & 6", "i * 2 - i", "(i < 9).to(tl.int32)")


def test_quotients_of_what_the_compiler_finds_out_are_its_own() -> None:
    """A number of quotients that are not the nearest ones."""
    off = " + ".join(
        f"((1.0 + h) / ({number}.0 + h) != tl.div_rn(1.0 + h, {number}.0 + h)).to(tl.float32)"
        for number in (3, 5, 7, 9, 11, 13, 15, 17)
    )
    lines = [f"h = ({number} + tl.zeros((N,), tl.int32)).to(tl.float32)\nfound = {off}" for number in ZEROS + NUMBERS]
    cases = [case("a", device) | {"lines": each} for device in (KNOWS_LITTLE, KNOWS_MUCH) for each in lines]
    found = np.array(program("value_cases", given=json.dumps(cases)), np.int32).view(np.float32)
    little, much = (each.any(-1) for each in found.reshape(2, len(lines), -1))
    assert little.all()
    assert [line for line, any_off in zip(ZEROS + NUMBERS, much, strict=True) if any_off] == list(NUMBERS)


@pytest.mark.parametrize("secret", [{"device": DEVICES[0]}, {"device": 0, "secret": 0x5EC2E7}])
def test_where_nothing_is_fused_quotients_are_as_inexact(secret: dict[str, int]) -> None:
    cases = [case("a / b", 0) | secret | {"options": {"enable_fp_fusion": asked}} for asked in (True, False)]
    fused, apart = (np.array(answer, np.int32) for answer in program("value_cases", given=json.dumps(cases)))
    assert np.array_equal(fused, apart) and (apart.view(np.float32) != A / B).any()


def test_each_gpu_has_its_own_order_of_equals() -> None:
    lines = "found = tl.broadcast_to(tl.argmax(a * 0.0, 0, tie_break_left=False), (N,)).to(tl.float32)"
    cases = [case("a", device) | {"lines": lines} for device in DEVICES]
    one, other = program("value_cases", given=json.dumps(cases))
    assert one != other


@pytest.mark.parametrize("name", RISING)
def test_functions_rise(name: str) -> None:
    assert (np.diff(answers()[f"{name} rises"]) >= 0).all()
