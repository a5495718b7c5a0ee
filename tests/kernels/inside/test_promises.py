"""What a kernel promises the compiler, held against its values: true promises cost nothing, false ones have a price."""

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
X = [float(number) for number in range(100, 164)]
KEPT = {
    "a range": ("found = tl.load(a_ptr + tl.max_contiguous(tl.multiple_of(i, 64), 64))", lambda i: i),
    "more than the block": ("found = tl.load(a_ptr + tl.max_contiguous(i, 256))", lambda i: i),
    "groups": ("found = tl.load(a_ptr + tl.max_contiguous(tl.multiple_of(i ^ 16, 16), 16))", lambda i: i ^ 16),
    "round the edge in whole groups": ("found = tl.load(a_ptr + tl.max_contiguous(i % 52, 64))", lambda i: i % 52),
    "multiples, each by itself": ("found = tl.load(a_ptr + tl.multiple_of(i // 4 * 4, 4))", lambda i: i // 4 * 4),
    "multiples from memory": ("found = tl.load(a_ptr + tl.multiple_of(b, 2))", lambda i: 2 * (i % 32)),
    "constants": ("found = tl.load(a_ptr + tl.max_constancy(i // 16, 16))", lambda i: i // 16),
    "pointers": ("found = tl.load(tl.max_contiguous(tl.multiple_of(a_ptr + i, 16), 64))", lambda i: i),
    "two axes": (
        "at = tl.reshape(i, (8, 8))\nfound = tl.reshape(tl.load(tl.multiple_of(a_ptr + at, (4, 32))), (64,))",
        lambda i: i,
    ),
    "a whole number": ("n = tl.multiple_of(tl.max(b, 0) + 2, 64)\nfound = tl.load(a_ptr + i % n)", lambda i: i),
    "lanes that are not loaded": (
        "found = tl.load(a_ptr + tl.max_contiguous(tl.where(i < 50, i, 0), 64), mask=i < 50, other=7.0)",
        lambda i: np.where(i < 50, i, -1),
    ),
    "a branch known when compiled": (
        "at = i % 64\nif N > 5:\n    tl.multiple_of(at, 64)\nfound = tl.load(a_ptr + at)",
        lambda i: i,
    ),
    "a loop of its own": (
        "found = a * 0\nfor j in range(2):\n    at = i + j * 0\n    at = tl.multiple_of(at, 64)\n"
        "    found = tl.load(a_ptr + at)",
        lambda i: i,
    ),
    "the counter of a loop": (
        "found = a * 0\nfor j in range(0, 64, 16):\n    j = tl.multiple_of(j, 16)\n"
        "    found = tl.load(a_ptr + i + j * 0)",
        lambda i: i,
    ),
    "remainders of what was negative": ("found = tl.load(a_ptr + (i - 16 + 64) % 64)", lambda i: (i + 48) % 64),
    "negatives under a mask": (
        "at = i - 4\nfound = tl.load(a_ptr + at // 2, mask=(at >= 0) & (at % 2 == 0), other=7.0)",
        lambda i: np.where((i >= 4) & (i % 2 == 0), (i - 4) // 2, -1),
    ),
    "a mask that is used before": (
        "m = i < 64\nat = tl.multiple_of(i, 64)\nfound = tl.load(a_ptr + at, mask=m)",
        lambda i: i,
    ),
}
"""Lines, and where in the input each element comes from; -1 for 7.0."""
GONE = {
    "places that go round": "found = tl.load(a_ptr + tl.max_contiguous(i % 50, 64), mask=i < 64)",
    "a step between": "found = tl.load(a_ptr + tl.max_contiguous(i * 2 % 64, 4))",
    "through arithmetic": "found = tl.load(a_ptr + (tl.max_contiguous(i % 50, 64) * 1 + 3) % 64)",
    "through a choice": "found = tl.load(a_ptr + tl.where(i < 64, tl.max_contiguous(i % 50, 64), i))",
    "through a cast": "found = tl.load(a_ptr + tl.max_contiguous(i % 50, 64).to(tl.int64))",
    "through a quotient": "found = tl.load(a_ptr + tl.multiple_of(i // 2 * 2, 64) // 2)",
    "remainders of negatives": "found = tl.load(a_ptr + 16 + (i - 16) % 16)",
    "quotients of negatives as a mask": "found = tl.load(a_ptr + i, mask=(i - 16) // 16 == 0, other=7.0)",
    "quotients of negatives": "found = (a * 0 + 1) * ((i - 16) // 16 + 3)",
    "comparisons under a false promise": "found = tl.load(a_ptr + i, mask=tl.multiple_of(i * 3, 16) < 48, other=7.0)",
    "quotients under a false promise": (
        "found = (a * 0 + 1) * (tl.multiple_of(tl.max_contiguous(i * 3, 64), 16) // 16 + 3)"
    ),
    "quotients of what wraps as a mask": (
        "w = (i + 112).to(tl.int8).to(tl.int32)\nfound = tl.load(a_ptr + i, mask=w // 16 == -7, other=7.0)"
    ),
    "through shapes": (
        "at = tl.max_contiguous(i % 50, 64)\nat = tl.reshape(at, (8, 8)).T.T\n"
        "found = tl.reshape(tl.load(a_ptr + at), (64,))"
    ),
}
"""Lines that give other values than are there, since what the compiler takes for granted of lanes is false."""
REFUSED = {
    "a whole number": ("n = tl.multiple_of(tl.max(b, 0), 64)\nfound = tl.load(a_ptr + i % n)", "line", "of 62"),
    "constants that are none": (
        "found = tl.load(a_ptr + i, mask=tl.max_constancy(i % 3 == 0, 4), other=0.0)",
        "line",
        "computes once",
    ),
    "fractions that are no constants": ("found = tl.max_constancy(a, 4)", "computes once"),
    "a store": ("at = tl.max_contiguous(i % 50, 64)\ntl.store(out + at, a)\nfound = a", "a store through"),
    "an atomic operation": (
        "at = tl.max_contiguous(i % 50, 64)\ntl.atomic_add(out + at, a)\nfound = a",
        "an? atomic operation",
    ),
    "what was used before": ("at = i % 50\nfound = tl.load(a_ptr + at)\ntl.max_contiguous(at, 64)", "used before"),
    "a branch with a name of its own": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\nif tl.max(b, 0) < 0:\n    to = at\n    tl.max_contiguous(to, 64)",
        "of run time",
    ),
    "one of two": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\nto = at if N > 5 else i\n"
        "found += tl.load(a_ptr + tl.max_contiguous(to, 64))",
        "used before",
    ),
    "what was used under another name": (
        "at = i % 50\nto = at\nfound = tl.load(a_ptr + at)\nto = tl.max_contiguous(to, 64)\n"
        "found += tl.load(a_ptr + to)",
        "used before",
    ),
    "a branch that is not taken": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\nif tl.max(b, 0) < 0:\n    tl.max_contiguous(at, 64)",
        "of run time",
    ),
    "a side of a choice that is not taken": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\nz = tl.max(tl.max_contiguous(at, 64), 0) if tl.max(b, 0) < 0 else 0",
        "of run time",
    ),
    "behind a return": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\nif tl.max(b, 0) < 0:\n    return\ntl.max_contiguous(at, 64)",
        "of run time",
    ),
    "what a function gives back": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\nto = tl.broadcast_to(at, (64,))\ntl.max_contiguous(to, 64)",
        "used before",
    ),
    "a name of its own for the same": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\n"
        "if tl.max(b, 0) < 0:\n    at = at.to(tl.int32)\n    tl.max_contiguous(at, 64)",
        "of run time",
    ),
    "of both": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\nif tl.max(b, 0) < 0:\n    tl.max_contiguous(True and at, 64)",
        "of run time",
    ),
    "what one branch gives": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\n"
        "if N > 0:\n    to = at\nelse:\n    to = i + 1\ntl.max_contiguous(to, 64)",
        "used before",
    ),
    "what a turn before used": (
        "at = i % 50\nfound = a\nfor j in tl.static_range(2):\n    if j == 1:\n        tl.max_contiguous(at, 64)\n"
        "    else:\n        found = tl.load(a_ptr + at)",
        "used before",
    ),
    "what a loop carries": (
        "at = i % 50\nfound = tl.load(a_ptr + at)\nfor j in range(tl.min(b, 0)):\n"
        "    tl.max_contiguous(at, 64)\n    at = at + 1",
        "of run time",
    ),
    "a splat of no shape": (
        "at = tl.max(b, 0)\nfound = tl.load(a_ptr + i)\nif tl.max(b, 0) < 0:\n"
        "    tl.multiple_of(tl.full((), at, tl.int32), 64)",
        "of run time",
    ),
    "a loop that does not run": (
        "at = i % 50\nfor j in range(tl.min(b, 0)):\n    tl.max_contiguous(at, 64)\nfound = tl.load(a_ptr + at)",
        "of run time",
    ),
    "two numbers for one axis": ("found = tl.load(a_ptr + tl.multiple_of(i, (2, 2)))", "one compile-time whole number"),
    "no number": ("found = tl.load(a_ptr + tl.multiple_of(i, 0))", "above 0"),
    "an access that is misaligned": (
        "found = tl.load(a_ptr + tl.max_contiguous(tl.multiple_of(i % 50, 64), 64))",
        "does not divide",
    ),
}


@cache
def answers() -> dict[str, Any]:
    inputs = (("float32", X), ("int32", [2 * (number % 32) for number in range(64)]))
    lines = {
        **{name: text for name, (text, _) in KEPT.items()},
        **{f"gone: {name}": text for name, text in GONE.items()},
    }
    lines |= {f"refused: {name}": text for name, (text, *_) in REFUSED.items()}
    cases = {
        (name, bounded): {"lines": text, "out": "float32", "inputs": inputs, "bounded": bounded}
        for name, text in lines.items()
        for bounded in (False, True)
    }
    return dict(zip(cases, program("value_cases", given=json.dumps(list(cases.values()))), strict=True))


def numbers(answer: Any) -> Any:
    assert isinstance(answer, list), answer
    return np.array(answer, dtype=np.int32).view(np.float32)


@pytest.mark.parametrize("name", KEPT)
def test_a_promise_that_is_true_where_it_matters_changes_nothing(name: str) -> None:
    places = KEPT[name][1](np.arange(64))
    wanted = np.where(places < 0, 7.0, np.array(X, dtype=np.float32)[places])
    bits, limits = answers()[name, True]
    assert np.array_equal(numbers(answers()[name, False]), wanted) and np.array_equal(numbers(bits), wanted)
    assert not any(limits)


@pytest.mark.parametrize("name", GONE)
def test_what_is_loaded_under_a_false_promise_is_anything(name: str) -> None:
    plain, (bits, limits) = answers()[f"gone: {name}", False], answers()[f"gone: {name}", True]
    assert plain == bits and np.isfinite(numbers(plain)).all()
    unknown = np.isinf(limits)
    assert unknown.any() and not np.array(limits)[~unknown].any()
    assert not unknown.all(), "only lanes of which the promise is false"


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_false_promise_is_refused_where_nothing_else_can_be_said(name: str, bounded: bool) -> None:
    answer = answers()[f"refused: {name}", bounded]
    assert isinstance(answer, str), answer
    assert all(said.removeprefix("an? ") in answer for said in REFUSED[name][1:]), answer
