"""Error bounds held against GPUs that there could be (`random_gpu`): none is further off than its bound says."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from support.bound_kernels import DOMAINS, GPUS, LINES, OFTEN, SELDOM, UNROUNDED, case_of, made_up
from support.own_process import program

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="no torch or no triton here"
)
ALONE = {
    pattern.replace("\n", "; "): case_of(pattern.format(x="a", y="b", z="(a * 0.7)", c=1.3, v="found"))
    for pattern in (*OFTEN, *SELDOM, *LINES)
}
INEXACT = {f"of what is inexact: {name}": case_of(f"q = a / 0.7\n{line}") for name, line in (
    (pattern.replace("\n", "; "), pattern.format(x="q", y="b", z="(a * 0.7)", c=1.3, v="found"))
    for pattern in (*OFTEN, *SELDOM, *LINES)
) for line in (line if "found" in line else f"found = {line}",)}  # fmt: skip
MADE_UP = {f"made up {seed}": made_up(seed) for seed in range(48)}
PRODUCTS = {
    f"with its last product unrounded: {line}": case_of(line)
    for line in ("a / 0.7 - b", "tl.exp(a) + b", "tl.sin(a) - b", "libdevice.tanh(a) + b", "tl.rsqrt(a * a) - 1.0")
}
FUNCTIONS = {name: case_of(line) for name, (line, _) in DOMAINS.items()}


@cache
def found() -> dict[str, Any]:
    """Everything at once: a process takes seconds to import Triton."""
    cases = ALONE | INEXACT | MADE_UP | FUNCTIONS
    held = program("bound_cases", given=json.dumps({"cases": list(cases.values()), "gpus": GPUS}))
    others = program("bound_cases", given=json.dumps({"cases": list(PRODUCTS.values()), "gpus": UNROUNDED}))
    return dict(zip([*cases, *PRODUCTS], [*held, *others], strict=True))


@cache
def nearest() -> dict[str, Any]:
    """Functions on a GPU that rounds to nearest."""
    given = {"cases": list(FUNCTIONS.values()), "gpus": [{"seed": 9, "side": "nearest", "fuses": "never"}]}
    return dict(zip(FUNCTIONS, program("bound_cases", given=json.dumps(given)), strict=True))


@pytest.mark.parametrize("name", ALONE | INEXACT | MADE_UP | PRODUCTS)
def test_no_gpu_is_further_off_than_the_bound(name: str) -> None:
    answer = found()[name]
    assert isinstance(answer, dict) or answer.startswith("WrongValueError"), answer
    assert isinstance(answer, str) or not answer["beyond"], answer


def test_kernels_that_are_made_up_are_seldom_refused_and_have_bounds() -> None:
    answers = [found()[name] for name in MADE_UP]
    held = [answer for answer in answers if isinstance(answer, dict)]
    assert len(held) > 0.9 * len(answers)
    assert np.mean([answer["finite"] for answer in held]) > 0.9
    assert np.mean([answer["moved"] > 0.2 for answer in held]) > 0.5


CLOSE = {
    "{x} / {c}": 0.6,
    "{x} * {y} - {z}": 0.8,
    "({x} * {y}).to(tl.float64).to(tl.float32) + {z}": 0.8,
    "tl.where(i >= 0, {x} * {y}, 0.0) - {z}": 0.8,
    "tl.exp(tl.minimum({x}, 2.0))": 0.6,
    "tl.log(tl.abs({x}) + 0.3)": 0.4,
    "tl.sqrt(tl.abs({x}) + 0.1)": 0.4,
    "libdevice.erfc({x})": 0.7,
    "tl.sum({x} * {y}, 0) + {z}": 0.001,
    "FLAT(tl.dot(SQUARE({x}), SQUARE({y}))) * 0.1": 0.4,
}
"""Operations, and which share of a bound some GPU is off by at least: bounds are not much larger than they must be."""


@pytest.mark.parametrize("pattern", CLOSE)
def test_some_gpu_is_nearly_as_far_off(pattern: str) -> None:
    assert CLOSE[pattern] <= found()[pattern]["off"] <= 1.0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_off_by_as_many_last_bits_as_cuda_documents_and_one_more(name: str) -> None:
    ulps = DOMAINS[name][1]
    answer = found()[name]
    assert not answer["beyond"], answer
    assert ulps <= answer["least"] and answer["most"] <= 2.1 * (ulps + 1), answer


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_of_functions_are_rounded_to_nearest(name: str) -> None:
    """A processor's own approximations are off by up to four last bits, and each has others."""
    assert nearest()[name]["moved"] == 0, nearest()[name]
