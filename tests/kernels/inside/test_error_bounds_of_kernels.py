"""Error bounds of whole kernels: those of honest ones are small, and those that make much of last bits have large ones
or are refused."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from support.bound_kernels import GPUS, case_of
from support.bounded_kernels import (
    CANCELS,
    HONEST,
    MERELY_EQUAL,
    NO_NUMBER,
    NO_VALUE,
    OF_NO_NUMBER,
    REFUSED,
    TRAPS,
    UNDECIDED,
)
from support.own_process import printed, program

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="no torch or no triton here"
)
BOUNDED = {
    name: {**case_of(*found), "bounded": True}
    for name, found in (UNDECIDED | NO_VALUE | CANCELS | MERELY_EQUAL).items()
} | {name: {**case_of(lines), "bounded": True} for name, (lines, _) in REFUSED.items()}


@cache
def answers() -> dict[str, Any]:
    cases = {**BOUNDED, **{f"trap: {name}": {**case, "bounded": True} for name, (case, _) in TRAPS.items()}}
    return dict(zip(cases, program("value_cases", given=json.dumps(list(cases.values()))), strict=True))


@cache
def held() -> dict[str, Any]:
    cases = {**HONEST, **{name: case for name, (case, _) in TRAPS.items()}}
    given = {"cases": list(cases.values()), "gpus": GPUS}
    return dict(zip(cases, program("bound_cases", given=json.dumps(given)), strict=True))


@pytest.mark.parametrize("name", HONEST)
def test_bounds_of_honest_kernels_are_small(name: str) -> None:
    assert isinstance(held()[name], dict), held()[name]
    assert held()[name]["finite"] == 1 and held()[name]["size"] < 1e-3 and not held()[name]["beyond"], held()[name]


@pytest.mark.parametrize("name", UNDECIDED)
def test_a_program_that_would_go_another_way_is_refused(name: str) -> None:
    found = answers()[name]
    assert isinstance(found, str) and found.startswith("UndecidedError: an address, a mask or a branch depends"), found


@pytest.mark.parametrize("name", NO_VALUE)
def test_what_has_no_value_may_be_anything(name: str) -> None:
    assert isinstance(answers()[name], list) and np.isinf(answers()[name][1][0]), answers()[name]


@cache
def of_no_number() -> dict[str, Any]:
    cases = [{**case_of(NO_NUMBER + line), "bounded": True} for line in OF_NO_NUMBER]
    return dict(zip(OF_NO_NUMBER, program("value_cases", given=json.dumps(cases)), strict=True))


@pytest.mark.parametrize("line", OF_NO_NUMBER)
def test_what_is_made_of_what_may_be_no_number_may_be_anything(line: str) -> None:
    found = of_no_number()[line]
    assert isinstance(found, list) and np.isinf([float(limit) for limit in found[1]]).all(), found


@pytest.mark.parametrize("name", CANCELS)
def test_errors_cancel_of_what_is_taken_from_itself(name: str) -> None:
    found = answers()[name]
    assert isinstance(found, list) and max(found[1]) < 1e-5, found


@pytest.mark.parametrize("name", MERELY_EQUAL)
def test_errors_do_not_cancel_where_two_numbers_merely_are_equal(name: str) -> None:
    found = answers()[name]
    assert isinstance(found, list) and found[1][0] > 5e-5, found


@pytest.mark.parametrize("name", TRAPS)
def test_a_bound_is_as_large_as_what_a_gpu_may_have(name: str) -> None:
    found, least = answers()[f"trap: {name}"], TRAPS[name][1]
    assert isinstance(found, list) and found[1][0] >= least, found
    assert isinstance(held()[name], dict) and not held()[name]["beyond"], held()[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_gpu_takes_otherwise_is_refused(name: str) -> None:
    assert str(answers()[name]).startswith(REFUSED[name][1]), answers()[name]


def test_every_method_of_the_builder_has_a_rule() -> None:
    lines = (
        "from assay.kernels.inside.triton import interpreter\n"
        "from assay.kernels.inside.triton.error_bounds import builder\n"
        "interpreter.install()\nprint(json.dumps(builder.without_rule()))"
    )
    assert json.loads(printed(["-c", f"import json\n{lines}"])) == []


def test_whole_numbers_made_in_two_ways_are_the_same_or_anything() -> None:
    import triton.language as tl

    from assay.kernels.inside.triton.values.combining.functions import _of_both

    ways = np.array([2**60 + 1, 7]), np.array([2**60, 7])  # float64 holds the two large ones as one
    assert _of_both(tl.int64, *ways, np.zeros(2), np.zeros(2)).tolist() == [np.inf, 0.0]


BETTER = """def better(va, ia, vb, ib):
    first = (va > vb) | ((va == vb) & (ia < ib))
    return tl.where(first, va, vb), tl.where(first, ia, ib)"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_infinite_element_leaves_no_range(dtype: str) -> None:
    lines = (
        f"v = tl.where(i < 20, a, -float('inf')).to(tl.{dtype})\nm, k = tl.reduce((v, i), 0, better)\nfound = m + 0 * a"
    )
    given = {"lines": lines, "inputs": [["float32", [1.0, 5.0, 2.0, 3.0] * 8]], "out": "float32"}
    (found,) = program("value_cases", given=json.dumps([{**given, "names": {"better": BETTER}, "bounded": True}]))
    assert isinstance(found, list) and max(found[1]) < 1e-5, found
