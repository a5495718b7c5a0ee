"""Rebuilt kernels: bit for bit what the submission's own compute, the same machine code, and the compiler's meaning."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from typing import Any

import pytest

from assay.kernels.language.interpreter_text import MEANINGS
from support.kernel_sources import TL, body
from support.own_process import printed, program

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="no torch or no triton here"
)


def test_rebuilt_kernels_compute_the_same_bits() -> None:
    """Whole catalogue: `python tests/support/rebuilt_kernels.py all`."""
    names = ["snake_unrolled", "matmul_block_pointers", "matmul_descriptors", "nested_kernel", "causal_attention"]
    names += ["prefix_sum_associative", "snake_autotuned", "gated_recurrence", "softmax_two_pass", "device_asserted"]
    report = program("rebuilt_kernels", ",".join(f"honest/{name}" for name in names))
    assert report["launches"] >= len(names)
    assert {key: report[key] for key in ("differ", "refused", "failed", "idle")} == {
        "differ": [],
        "refused": [],
        "failed": {},
        "idle": [],
    }


def test_generated_text_compiles_to_the_same_machine_code() -> None:
    report = program("compiled_kernels", "honest/snake_unrolled,honest/matmul_block_pointers")
    assert report["compiled"] >= 2
    assert (report["differ"], report["refused"], report["failed"]) == ([], [], {})


FORGOTTEN = {
    "none": ("b = None\nif n > 3:\n    b = v\nif b is not None:\n    tl.store(out + i, v)", 5),
    "type": ("b = tl.float32\nif n > 3:\n    b = tl.float16\nif b == tl.float16:\n    tl.store(out + i, v)", 5),
    "one": ("if n + 2147483647 < 0:\n    tl.store(out + i, v)", 1),
    "falls_off": ("y = f(n - 4)\nif y is None:\n    tl.store(out + i, v)", 5),
}
"""Kernels that store as Python reads them, and do not once compiled."""


def test_the_compiler_leaves_out_what_python_would_do_and_so_does_the_language() -> None:
    """Why the language has its own operators: Triton's interpreter computes all four, and a GPU none."""
    kept = {"kept": ("if n + 2147483647 < 0:\n    tl.store(out + i, v)", 2)}
    asked = {name: [*case, "st.global"] for name, case in {**FORGOTTEN, **kept}.items()}
    found = program("compiler_claims", given=json.dumps(asked))
    assert found.pop("kept") > 0
    assert found == dict.fromkeys(FORGOTTEN, 0)
    assert outcomes()["one"] == [0.0] * 16
    assert all("compile-time value on one side" in outcomes()[name] for name in ("none", "type"))
    assert "ends without one in another" in outcomes()["falls_off"]


def case(
    lines: str, table: dict[str, Any] | None = None, dtype: str = "float32", annotation: str = "", **args: Any
) -> dict[str, Any]:
    own = body("i = tl.arange(0, BLOCK)\nv = tl.load(x + i)\n" + lines)
    own["kernel"]["source"] = own["kernel"]["source"].replace("out, n,", f"out, n{annotation},")
    if args.keys() - {"n", "BLOCK"}:
        extra = "".join(f", {name}: tl.constexpr" for name in sorted(args.keys() - {"n", "BLOCK"}))
        own["kernel"]["source"] = own["kernel"]["source"].replace("BLOCK: tl.constexpr", f"BLOCK: tl.constexpr{extra}")
    own["kernel"]["names"].update({name: {"function": name} for name in table or {}})
    return {
        "table": {**own, **(table or {})},
        "kernel": "kernel",
        "dtype": dtype,
        "args": {"n": 5, "BLOCK": 16, **args},
    }


def helper(source: str) -> dict[str, Any]:
    return {"f": {"source": source, "names": TL}}


STORE = "\ntl.store(out + i, y)"
SOME = [float(n < 9 and n > 2) for n in range(16)]
RUNS = {
    "and_of_blocks": (case("y = ((i > 2) and (i < 9)).to(tl.float32)" + STORE), SOME),
    "or_of_blocks": (case("y = ((i <= 2) or (i >= 9)).to(tl.float32)" + STORE), [1 - n for n in SOME]),
    "not_of_a_block": (case("y = (not (i > 2)).to(tl.float32)" + STORE), [float(n <= 2) for n in range(16)]),
    "and_decided_when_compiled": (case("y = v * 0\nif BLOCK > 99 and n > 0: y = v" + STORE), [0.0] * 16),
    "loop_variables_wrap": (
        case("y = i\nfor k in range(65536, 65537):\n    y = i + k * k" + STORE, dtype="int32"),
        list(range(16)),
    ),
    "loop_backwards": (case("y = v * 0\nfor k in range(3, 0, -1):\n    y = y * 10 + k" + STORE), [321.0] * 16),
    "static_loop": (case("y = v * 0\nfor k in tl.static_range(1, 4):\n    y = y * 10 + k" + STORE), [123.0] * 16),
    "tl_range": (case("y = v * 0\nfor k in tl.range(0, n, 2, num_stages=2):\n    y += k" + STORE), [6.0] * 16),
    "while": (case("k = 0\nwhile k * k < n:\n    k += 1\ny = v * 0 + k" + STORE), [3.0] * 16),
    "floats_are_float32": (case("y = v * 0 + (n * 1e-30 * 1e-30 == 0)" + STORE, n=0.1), [1.0] * 16),
    "one_is_a_compile_time_value": (case("y = v * 0 + (n + 2147483647 > 0)" + STORE, n=1), [1.0] * 16),
    "two_wraps": (case("y = v * 0 + (n + 2147483647 > 0)" + STORE, n=2), [0.0] * 16),
    "one_of_a_type": (
        case("y = v * 0 + (n + 2147483647 > 0)" + STORE, n=1, annotation=": tl.int32"),
        [0.0] * 16,
    ),
    "reduce_with_a_helper": (
        case("y = v * 0 + tl.reduce(v, 0, f)" + STORE, helper("def f(a, b): return tl.maximum(a, b)")),
        [15.0] * 16,
    ),
    "scan_with_a_helper": (
        case("y = tl.associative_scan(v, 0, f)" + STORE, helper("def f(a, b): return a + b")),
        [n * (n + 1) / 2 for n in range(16)],
    ),
    "compile_time_string": (
        case("y = v\nif ACT == 'twice': y = v + v" + STORE, ACT="twice"),
        [2.0 * n for n in range(16)],
    ),
    "compile_time_none": (
        case("y = v\nif EXTRA is not None: y = v * EXTRA" + STORE, EXTRA=None),
        [*map(float, range(16))],
    ),
    "two_values": (
        case("a, b = f(v, n)\ny = a * 0 + b" + STORE, helper("def f(a, b):\n    return a, b + 1")),
        [6.0] * 16,
    ),
    "choice": (case("y = v * 0 + (1.0 if n > 3 else 2.0)" + STORE), [1.0] * 16),
    "min_of_scalars": (case("y = v * 0 + min(n, 3) + max(BLOCK, 20)" + STORE), [23.0] * 16),
    "type_of_a_tensor": (case("kind = v.dtype\ny = (v + 0.5).to(tl.int32).to(kind)" + STORE), [*map(float, range(16))]),
    "branch_when_compiled": (
        case("if BLOCK == 16:\n    kind = tl.float32\nelse:\n    kind = tl.float16\ny = v.to(kind)" + STORE),
        [*map(float, range(16))],
    ),
}
ENDS = {
    "none_then_tensor": ("extra = None\nif n > 3:\n    extra = v\ny = v", "compile-time value on one side", 6),
    "type_in_a_loop": ("kind = tl.float32\nfor k in range(2):\n    kind = tl.float16\ny = v", "on one side", 6),
    "tuple_of_none": ("t = (None, v)\nif n > 3:\n    t = (v, v)\ny = v", "on one side", 6),
    "block_as_condition": ("y = v\nif v > 1: y = v + v", "a condition that is a block", 5),
    "float_as_condition": ("y = v\nif 0.5: y = v + v", "a condition that is 0.5", 5),
    "large_shift": ("y = v + (1 << 1000000000)", "the right side is at most 64", 4),
    "large_power": ("y = v + 10 ** 60", "compile-time number of 200 bits", 4),
    "large_product": ("y = v + 4611686018427387904 * 16", "67 bits", 4),
    "complex_power": ("y = v + (-2) ** 0.5", "became a complex", 4),
    "division_by_zero": ("y = v + 1 / 0", "division by zero", 4),
    "power_of_a_tensor": ("y = v ** 2", "write x * x", 4),
    "tuple_times": ("t = (v, v) * 3\ny = v", r"* of a tuple", 4),
    "tuples_in_tuples": ("t = (v, v)\nfor k in tl.static_range(40):\n    t = (t, t)\ny = v", "more than 4 deep", 6),
    "method_of_a_tuple": ("t = (v, v)\ny = t.sum(0)", "has no .sum()", 5),
    "attribute_of_a_number": ("y = v + BLOCK.dtype", "16 has no .dtype", 4),
    "number_into_a_tensor": ("y = v[0]", "a tensor indexed with a number", 4),
    "place_of_a_tuple": ("t = (v, v)\ny = t[2]", "place 2 of a tuple of 2", 5),
    "unsigned_loop": ("y = v\nfor k in range(n.to(tl.uint32)): y += k", "an unsigned bound", 5),
    "downwards_past_the_end": (
        "m = n + 2147483642\ny = v\nfor k in range(m, m - 2, -3): y += k",
        "counter would reach about 2^31",
        6,
    ),
    "ahead_past_the_end": ("y = v\nfor k in range(0, n - 4, 1073741824): y += k", "or 33 steps more", 5),
    "unrolled_and_empty": ("y = v\nfor k in tl.range(n, n - 5, loop_unroll_factor=2): y += k", "makes turns of it", 5),
    "unrolled_by_place": ("y = v\nfor k in tl.range(n, n - 5, 1, None, 2): y += k", "makes turns of it", 5),
    "unrolled_past_the_end": (
        "y = v\nfor k in tl.range(0, 2, 33554432, loop_unroll_factor=32): y += k",
        "or 1056 steps more",
        5,
    ),
    "flat_and_empty": (
        "y = v\nfor j in tl.range(0, 2, flatten=True):\n    for k in range(3, 1): y += k",
        "makes a turn",
        6,
    ),
    "flat_by_place": ("y = v\nfor k in tl.range(3, 1, 1, None, None, False, True): y += k", "makes a turn", 5),
    "flat_in_eight_bits": (
        "y = v\nb = n.to(tl.int8)\nfor j in tl.range(2, flatten=True):\n    for k in range(b - b, b, b // b): y += k",
        "it may not hold the turns",
        7,
    ),
    "ahead_of_no_turn": (
        "y = v\nfor k in tl.range(2147483647, 3, num_stages=3): y += tl.load(x + k)",
        "or 33 steps more",
        5,
    ),
    "ahead_below_the_least": ("m = n - 2147483647 - 6\ny = v\nfor k in range(m, m + 1): y += k", "or 33 steps more", 6),
    "far_apart": ("y = v\nfor k in range(n - 1610612736, n + 1610612735, 1610612736): y += k", "the distance", 5),
    "types_of_pointers": ("y = v\nif x.dtype == out.dtype: y += 1", "types of two pointers", 5),
    "endless_step": ("y = v\nfor k in range(0, n, n - n): y += k", "a loop with the step 0", 5),
    "compile_time_tensor": ("y: tl.constexpr = v", "must be known before", 4),
    "pointer_to_nothing": ("y = x.to(tl.pointer_type(3))", "a pointer to 3", 4),
    "bitcast_by_a_tensor": ("y = v.to(tl.int32, bitcast=n > 99).to(tl.float32)", "a tensor where a compile-time", 4),
    "bitcast_in_order": ("y = v.to(tl.int32, None, n > 99)", "a tensor where a compile-time", 4),
    "keep_dims_by_a_tensor": ("y = v + tl.sum(v, 0, n > 99)", "a tensor where a compile-time", 4),
    "shape_of_tensors": ("y = v + tl.full((n, ), 1.0, tl.float32)", "a tensor where a compile-time", 4),
    "int_of_a_tensor": ("y = v + int(v)", "int of a tensor", 4),
}


@cache
def outcomes() -> dict[str, Any]:
    """All cases in one process."""
    cases = {name: given for name, (given, _) in RUNS.items()}
    cases.update({name: case(lines + STORE) for name, (lines, *_) in ENDS.items()})
    cases["string_method"] = case("y = ACT.split()", ACT="a b")
    falls = helper("def f(a):\n    if a > 3:\n        return 1")
    cases.update({name: case(lines, falls if "f(" in lines else None, n=n) for name, (lines, n) in FORGOTTEN.items()})
    cases["mixed_up"] = case("y = v" + STORE, ACT="a[")
    cases["not_of_the_type"] = case("y = v" + STORE, n=0.5, annotation=": tl.int32")
    several = helper("def f(a):\n    if a > 3:\n        return 1\n    return 2")
    cases["several_returns"] = case("y = v + f(n)" + STORE, several)
    return dict(zip(cases, program("meaning_cases", given=json.dumps(list(cases.values()))), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_operators_mean_what_the_compiler_means(name: str) -> None:
    assert outcomes()[name] == RUNS[name][1]


@pytest.mark.parametrize("name", ENDS)
def test_what_the_compiler_would_not_do_ends_with_its_line(name: str) -> None:
    said = outcomes()[name]
    _, message, line = ENDS[name]
    assert isinstance(said, str) and message in said and said.startswith(f"MeaningError in line {line}:"), said


def test_strings_have_no_methods_and_branches_return_tensors() -> None:
    assert "a str has no .split()" in outcomes()["string_method"]
    assert "returns in several places" in outcomes()["several_returns"]


def test_an_argument_is_of_the_type_that_the_kernel_says() -> None:
    assert "could take for another one" in outcomes()["mixed_up"]
    assert "n is 0.5, but the kernel says that it is int32" in outcomes()["not_of_the_type"]


def test_every_operator_of_generated_text_has_a_meaning() -> None:
    code = "from assay.kernels.inside.triton.meaning import MEANING; import json; print(json.dumps(sorted(MEANING)))"
    assert set(json.loads(printed(["-c", code]))) == MEANINGS
