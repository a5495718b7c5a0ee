"""Error bounds of whole numbers, held against other numbers within the bounds of operands."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import pytest

from support.own_process import program

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="no torch or no triton here"
)
WIDTHS = (8, 16, 32, 64)
KINDS = [f"{sign}int{width}" for sign in ("", "u") for width in WIDTHS]
OF_TWO = (
    "add",
    "sub",
    "mul",
    "idiv",
    "rem",
    "shl",
    "shr",
    "and",
    "or",
    "xor",
    "min",
    "max",
    "LT",
    "LE",
    "GT",
    "GE",
    "EQ",
)
HAVE_BOUNDS = ("add", "sub", "shr", "min", "max", "where")
"""Operations that seldom leave a result without one."""


@cache
def answers() -> dict[str, Any]:
    found: dict[str, Any] = program("whole_cases", given="7")
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*OF_TWO, "abs", "where", "sum"])
def test_no_number_within_the_bounds_is_further_off(name: str, kind: str) -> None:
    cases = {case: found for case, found in answers().items() if case.startswith(f"{name} of {kind}")}
    assert cases and not any(found["beyond"] for found in cases.values()), cases


@pytest.mark.parametrize("kind", KINDS)
def test_no_number_of_another_type_is_further_off(kind: str) -> None:
    cases = {case: found for case, found in answers().items() if case.startswith(f"{kind} as ")}
    assert len(cases) == len(KINDS) - 1 and not any(found["beyond"] for found in cases.values()), cases


@pytest.mark.parametrize("name", HAVE_BOUNDS)
def test_most_results_have_bounds(name: str) -> None:
    shares = [found["finite"] for case, found in answers().items() if case.startswith(f"{name} of int32")]
    assert shares and min(shares) > 0.4, shares
