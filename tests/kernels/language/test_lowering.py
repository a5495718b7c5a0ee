"""What the compiler makes of loops: which loads it starts early, and that Triton's does so."""

from __future__ import annotations

import importlib.util
import json
import textwrap
from typing import Any

import pytest
from test_rebuilt_kernels import program

from assay.kernels.language.flow import steering as flow
from assay.kernels.language.flow.hints import hints_of
from assay.kernels.language.flow.lowering import Lowering, lowered
from assay.kernels.language.flow.walking import expressions, statements
from assay.kernels.language.form import Call, For, Kernels, Local
from assay.kernels.language.parsing import parse
from support.kernel_sources import TL, body

HELPERS = {
    "loads": {"source": "def loads(p):\n    return tl.load(p)\n", "names": TL},
    "multiplies": {"source": "def multiplies(a, b):\n    return tl.dot(a, b)\n", "names": TL},
    "copies": {"source": "def copies(p, q):\n    tl.store(q, tl.load(p))\n", "names": TL},
    "scatters": {"source": "def scatters(p, q):\n    tl.store(q, 1.0, mask=tl.load(p) > 1)\n", "names": TL},
    "promises": {"source": "def promises(p):\n    return tl.max_contiguous(p, 64)\n", "names": TL},
    "chooses": {
        "source": "def chooses(p):\n    to = p\n    if tl.program_id(0) > 0:\n        to = p + 1\n"
        "    return tl.max_contiguous(to, 64)\n",
        "names": TL,
    },
    "passes": {
        "source": "def passes(p):\n    return promises(p)\n",
        "names": TL | {"promises": {"function": "promises"}},
    },
    "adds": {"source": "def adds(p):\n    return tl.atomic_add(p, 1)\n", "names": TL},
}


PROMISED = {
    "of its own": ("promises(x)", 0, 0),
    "in a branch": ("if n > 1:\n    promises(x)", 1, 0),
    "behind a return": ("if n > 1:\n    return\npromises(x)", 1, 0),
    "in a choice": ("v = promises(x) if n > 1 else x", 1, 0),
    "of what was used": ("v = tl.load(x)\npromises(x)", 0, 1),
    "by way of another helper": ("if n > 1:\n    passes(x)", 1, 0),
    "of what it may be": ("if n > 1:\n    chooses(x)\n    promises(x + n)", 1, 0),
    "of what was made there": ("if n > 1:\n    promises(x + n)", 0, 0),
}


@pytest.mark.parametrize("name", PROMISED)
def test_what_a_helper_promises_is_promised_where_it_is_called(name: str) -> None:
    lines, outside, late = PROMISED[name]
    hints = hints_of(dict(parsed(lines).functions))
    assert len(hints["kernel"].outside) == outside and len(hints["promises"].late) == late


def test_loops_in_loops_are_read_once() -> None:
    depth = 10
    lines = "".join(f"{'    ' * level}for k{level} in tl.static_range(2):\n" for level in range(depth))
    hints = hints_of(dict(parsed(f"{lines}{'    ' * depth}tl.multiple_of(x + n, 8)").functions))  # in time for a test
    assert hints["kernel"].late == frozenset()


UNUSED = {
    "a statement": ("adds(x)\ntl.atomic_add(x, 1)", 1),
    "a variable that nobody reads": ("v = tl.atomic_add(x, 1)", 1),
    "one of which others are made that nobody reads": ("v = tl.atomic_add(x, 1)\nw = v + 1\nz = w * 2", 1),
    "a branch that does nothing": ("v = tl.atomic_add(x, 1)\nif v > 3:\n    w = 1", 1),
    "one that is stored": ("v = tl.atomic_add(x, 1)\nw = v + 1\ntl.store(out, w)", 0),
    "one that says how often": ("v = tl.atomic_add(x, 1)\nfor k in range(v):\n    tl.store(out + k, 1.0)", 0),
    "one that waits": ("v = tl.atomic_add(x, 1)\nwhile v < 3:\n    v = tl.atomic_add(x, 0)", 0),
    "one that is given to another": ("v = tl.atomic_add(x, 1)\nw = tl.atomic_add(out + v, 1)", 1),
}


@pytest.mark.parametrize("name", UNUSED)
def test_whose_results_nothing_depends_on(name: str) -> None:
    lines, count = UNUSED[name]
    kernels = parsed(lines)
    everything = [one for each in statements(kernels.functions["kernel"].body) for one in values_of(each)]
    unused = lowered(dict(kernels.functions)).unused
    assert sum(id(one) in unused for one in everything) == count


def values_of(each: Any) -> list[Any]:
    return [one for name in ("value", "condition") for one in expressions(getattr(each, name, None))]


def parsed(lines: str) -> Kernels:
    table: dict[str, Any] = body(lines)
    table["kernel"]["names"] |= {name: {"function": name} for name in HELPERS if f"{name}(" in lines}
    wanted = {name for name in HELPERS if f"{name}(" in lines} | ({"promises"} if "passes(" in lines else set())
    found = parse(table | {name: HELPERS[name] for name in HELPERS if name in wanted})
    assert isinstance(found, Kernels), found
    return found


def early(lines: str) -> tuple[list[str], int]:
    """The pointers of loads that may start early, and how many loops are pipelined."""
    kernels = parsed(lines)
    found, kernel = lowered(dict(kernels.functions)), kernels.functions["kernel"]
    names, loops = [], 0
    for each in statements(kernel.body):
        loops += isinstance(each, For) and id(each) in found.pipelined
        values = [getattr(each, "value", None), getattr(each, "condition", None)]
        for one in (one for value in values for one in expressions(value)):
            if id(one) in found.early:
                names += [part.name for part in expressions(one) if isinstance(part, Local) and part.name in "x out"]
    return sorted(names), loops


FLAT = "for k in tl.range(0, n, flatten=True):\n"
IN_STAGES = "    for j in tl.range(0, k, num_stages=2):\n        v = tl.load(out + j)"
STAGED = "for k in tl.range(0, n, num_stages=3):\n    "
LOOP = "for k in range(n):\n    "
EARLY = {
    "stages": (STAGED + "v = tl.load(x + k)\n    tl.store(out + k, v)", ["x"], 1),
    "stages by place": ("for k in tl.range(0, n, 1, 3):\n    tl.store(out + k, tl.load(x + k))", ["x"], 1),
    "warps apart": ("for k in tl.range(0, n, warp_specialize=True):\n    tl.store(out + k, tl.load(x + k))", ["x"], 1),
    "no stages": (LOOP + "v = tl.load(x + k)\n    tl.store(out + k, v)", [], 0),
    "a barrier": (STAGED + "v = tl.load(x + k)\n    tl.store(out + k, v)\n    tl.debug_barrier()", [], 0),
    "a barrier under a condition": (
        STAGED + "v = tl.load(x + k)\n    tl.store(out + k, v)\n    if BLOCK == 1:\n        tl.debug_barrier()",
        ["x"],
        1,
    ),
    "a load under a condition": (STAGED + "if k > 3:\n        tl.store(out + k, tl.load(x + k))", ["x"], 1),
    "an unrolled loop": (STAGED + "for j in tl.static_range(2):\n        tl.store(out + j, tl.load(x + j))", ["x"], 1),
    "a loop in the loop": (STAGED + "v = tl.load(x)\n    for j in range(k):\n        v += tl.load(out + j)", ["x"], 1),
    "a flattened loop": (
        "for k in tl.range(0, n, num_stages=2, flatten=True):\n    for j in range(k):\n        v = tl.load(out + j)",
        ["out"],
        1,
    ),
    "a flattened loop around one with stages": (FLAT + IN_STAGES, ["out"], 1),
    "a flattened loop with a barrier": (f"{FLAT}    tl.debug_barrier()\n{IN_STAGES}", ["out"], 1),
    "a flattened loop that loads nothing": (FLAT + "    for j in range(k):\n        v = 1", [], 0),
    "a helper that loads": (STAGED + "tl.store(out + k, loads(x + k))", ["x"], 1),
    "what feeds a product": (
        LOOP + "a = tl.load(x)\n    b = tl.load(out)\n    c = a.to(tl.float16) * 2\n    d = tl.dot(c, c) + b", ["x"], 1,
    ),
    "both sides of a product": (LOOP + "d = tl.dot(tl.load(x), other=tl.trans(tl.load(out)))", ["out", "x"], 1),
    "what a product is added to": (LOOP + "d = tl.dot(tl.load(x), tl.load(x), tl.load(out))", ["x", "x"], 1),
    "a product in a helper": (LOOP + "a = tl.load(x)\n    b = tl.load(out)\n    d = multiplies(a, a)", ["x"], 1),
    "a product elsewhere": ("d = tl.dot(tl.load(x), tl.load(x))\n" + LOOP + "v = tl.load(out)", [], 0),
    "a while loop": ("k = 0\nwhile k < n:\n    d = tl.dot(tl.load(x), tl.load(x))\n    k += 1", [], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", EARLY)
def test_loads_that_may_start_early(name: str) -> None:
    lines, pointers, loops = EARLY[name]
    assert early(lines) == (pointers, loops)


def found(lines: str) -> Lowering:
    return lowered(dict(parsed(lines).functions))


LOAD, STORE = "v = tl.load(x)", "tl.store(out, 1.0)"
MEETS = {
    "load, then store": (f"{LOAD}\n{STORE}", False),
    "in one statement": ("tl.store(out, tl.load(x))", False),
    "store, then load": (f"{STORE}\n{LOAD}", True),
    "addition, then load": (f"tl.atomic_add(out, 1.0)\n{LOAD}", True),
    "in a loop": (f"for k in range(n):\n    {LOAD}\n    {STORE}", True),
    "in a while loop": (f"while tl.atomic_add(out, 0) == 0:\n    {LOAD}", True),
    "after a loop": (f"for k in range(n):\n    {STORE}\n{LOAD}", True),
    "in either branch": (f"if n > 1:\n    {STORE}\nelse:\n    {LOAD}", False),
    "after a branch": (f"if n > 1:\n    {STORE}\n{LOAD}", True),
    "in a branch": (f"if n > 1:\n    {STORE}\n    {LOAD}", True),
    "in a helper": ("copies(x, out)", True),
    "by a helper": (f"{STORE}\nv = loads(x)", True),
    "nothing stored": (LOAD, False),
}


@pytest.mark.parametrize("name", MEETS)
def test_whether_a_load_may_follow_a_store(name: str) -> None:
    lines, meets = MEETS[name]
    assert ("kernel" in found(lines).meets) is meets


CELL = "out + tl.load(x).to(tl.int32)"
STEERED = {
    "places that are known": ("tl.store(out + n, tl.load(x), mask=n > 1)", ""),
    "a value that is added": ("tl.atomic_add(out, tl.load(x))", ""),
    "a value that is compared": ("tl.atomic_cas(out, tl.load(x), val=tl.load(x))", ""),
    "where it stores": (f"tl.store({CELL}, 1.0)", "writes"),
    "by way of names": ("v = tl.load(x)\nw = v > 1\ntl.store(out, 1.0, mask=w)", "writes"),
    "by a mask in its place": ("tl.store(out, 1.0, tl.load(x) > 1)", "writes"),
    "where it adds": (f"tl.atomic_add({CELL}, 1.0)", "writes"),
    "by a method": ("(out + tl.load(x).to(tl.int32)).store(1.0)", "writes"),
    "by a method's mask": ("out.store(1.0, tl.load(x) > 1)", "writes"),
    "a branch": ("if tl.load(x) > 1:\n    n += 1\ntl.store(out + n, 1.0)", "writes"),
    "a loop": ("for k in range(tl.load(x).to(tl.int32)):\n    tl.store(out + k, 1.0)", "writes"),
    "a while loop": ("while tl.atomic_add(x, 1.0) < 3:\n    n += 1", "writes"),
    "a choice between loads": ("v = tl.load(x) if tl.load(out) > 1 else tl.load(x + 1)", "writes loads"),
    "a choice with a helper": ("v = 0.0 if tl.load(out) > 1 else loads(x)", "writes loads"),
    "a choice between numbers": ("v = 0.0 if tl.load(out) > 1 else 1.0", ""),
    "where it loads": ("v = tl.load(x + tl.load(out).to(tl.int32))", "loads"),
    "a helper that loads there": ("v = loads(x + tl.load(out).to(tl.int32))", "loads"),
    "a helper that stores there": ("copies(x, out + loads(x).to(tl.int32))", "writes loads"),
    "a helper that does so itself": ("scatters(x, out)", "writes"),
    "offsets of a descriptor": (
        "d = tl.make_tensor_descriptor(out, [n], [1], [8])\nv = tl.load(x)\nd.store([n], v)",
        "",
    ),
    "offsets that are loaded": (
        "d = tl.make_tensor_descriptor(out, [n], [1], [8])\nv = tl.load(x)\nd.store([v.to(tl.int32)], v)",
        "writes",
    ),
}


@pytest.mark.parametrize("name", STEERED)
def test_whether_values_steer_where_a_kernel_comes_to_memory(name: str) -> None:
    lines, kinds = STEERED[name]
    assert found(lines).features["kernel"] & flow.STEERED == {f"steered {kind}" for kind in kinds.split()}


TOUCHED = {
    "each its own": ("x", "out", LOOP + "v = tl.load(x + k)\n    tl.store(out + k, v)"),
    "by way of names": (
        "BLOCK x",
        "BLOCK out",
        "p = x\nq = out + BLOCK\n" + LOOP + "v = tl.load(p + BLOCK)\n    tl.store(q, v)",
    ),
    "by name": ("x", "out", LOOP + "v = tl.load(mask=n > 1, pointer=x)\n    tl.store(value=v, pointer=out)"),
    "in place": ("out", "out", LOOP + "tl.store(out, tl.load(out) + 1)"),
    "added to": ("out x", "out", LOOP + "tl.atomic_add(out, tl.load(x))"),
    "by a place that is loaded": ("x", "out x", LOOP + "tl.store(out + tl.load(x).to(tl.int32), 1.0)"),
    "by a helper": ("out x", "out x", "copies(x, out)"),
    "by a block pointer": (
        "n x",
        "out",
        LOOP + "p = tl.make_block_ptr(x, (n,), (1,), (0,), (8,), (0,))\n    tl.store(out, tl.max(tl.load(p), 0))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOUCHED)
def test_by_which_parameters_a_kernel_comes_to_memory(name: str) -> None:
    read, written, lines = TOUCHED[name]
    touched = found(lines).meets["kernel"]
    assert (touched.read, touched.written) == (set(read.split()), set(written.split()))


def test_atomic_operations_of_helpers_count() -> None:
    assert found("v = adds(x)").atomic == {"adds", "kernel"}
    assert found("v = (x + 0).atomic_add(1.0)").atomic == {"kernel"}
    assert found("v = loads(x)").atomic == set()


def test_expressions_are_walked_whole() -> None:
    kernels = parsed("v = tl.where(n > 1, tl.load(x)[None, :] + (-n), tl.max(tl.load(out).to(tl.float32), axis=0))")
    (statement,) = kernels.functions["kernel"].body
    calls = {one.function for one in expressions(statement.value) if isinstance(one, Call)}  # type: ignore[union-attr]
    assert calls == {"tl.where", "tl.load", "tl.max"}


def test_long_chains_of_names_take_linear_time() -> None:
    chain = [f"    a{place + 1} = a{place}\n" for place in range(1000)]
    assert early(f"{LOOP}a0 = tl.load(x)\n{''.join(reversed(chain))}    d = tl.dot(a1000, a1000)") == (["x"], 1)


COPY = "    u = tl.load(x + k * 32 + i)\n    tl.store(x + k * 32 + 32 + i, u)"
SUMS = "tl.store(out + i, v)\n{}\nw = tl.load(out + (i ^ 1){})\ntl.store(x + i, w)"
CLAIMS = {
    "stages": ("for k in tl.range(0, n, num_stages=3):\n" + COPY, "cp.async", True),
    "stages and a barrier": (
        f"for k in tl.range(0, n, num_stages=3):\n{COPY}\n    tl.debug_barrier()",
        "cp.async",
        False,
    ),
    "stages and a dead barrier": (
        f"for k in tl.range(0, n, num_stages=3):\n{COPY}\n    if BLOCK == 1:\n        tl.debug_barrier()",
        "cp.async",
        True,
    ),
    "a loop": ("for k in range(n):\n" + COPY, "cp.async", False),
    "products": (
        "j = tl.arange(0, 32)\np = x + j[:, None] * 32 + j[None, :]\nb = tl.load(p)\nfor k in range(n):\n"
        "    b = tl.dot(tl.load(p + k * 1024), b)\n    tl.store(p + (k + 1) * 1024, b)",
        "cp.async",
        True,
    ),
    "no barrier": (SUMS.format("", ""), "bar.sync", False),
    "a barrier": (SUMS.format("tl.debug_barrier()", ""), "bar.sync", True),
    "a result": (SUMS.format("t = tl.atomic_add(x + 99, 1.0).to(tl.int32)", " + t"), "bar.sync", True),
    "a result times zero": (SUMS.format("t = tl.atomic_add(x + 99, 1.0).to(tl.int32) * 0", " + t"), "bar.sync", False),
    "no result": (SUMS.format("tl.atomic_add(x + 99, 1.0)", ""), "bar.sync", False),
}  # fmt: skip
"""Kernels, an instruction, and whether it stands in what Triton makes of them."""


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="no torch or no triton here"
)
def test_triton_starts_loads_early_and_needs_results_for_barriers() -> None:
    head = "i = tl.arange(0, BLOCK)\nv = tl.load(x + i)\n"
    given = {name: [textwrap.dedent(head + lines), 5, word] for name, (lines, word, _) in CLAIMS.items()}
    counts = program("compiler_claims", given=json.dumps(given))
    assert {name: count > 0 for name, count in counts.items()} == {name: claim for name, (*_, claim) in CLAIMS.items()}
