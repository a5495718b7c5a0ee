"""How the compiler spreads accesses over threads, and kernels that lean on one thread having an element twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from assay.kernels.compile.stage import BLOCKS_TOLD, Block, CompileReport, compile_program, program_report
from assay.kernels.compile.toolkit import triton_executables
from assay.kernels.inside.triton.compiled.layouts import Spread, spreads, uneven
from assay.kernels.program.judging.compiled import spread_alike
from assay.kernels.verdicts import Verdict
from assay.sandbox import JobResult, Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.kernel_graders import Bench
from support.recorded_programs import module, recorded_text
from support.sandboxes import FEATURES, needs_walls

pytestmark = needs_walls
LIMITS = Limits(wall_s=60, cpu_s=20, memory_mb=4096)

Uneven = Callable[[str], "frozenset[Block] | None"]


@pytest.fixture(scope="module")
def found(bench: Bench) -> Iterator[Uneven]:
    sandbox = LocalSandbox(LocalConfig(workers=1, executables=triton_executables()), FEATURES)

    def compiled(code: str) -> frozenset[Block] | None:
        report = bench.wait(compile_program(sandbox, recorded_text(bench, code, (64, 64)), limits=LIMITS))
        assert report.outcome == "ok", report
        return report.uneven

    yield compiled
    bench.wait(sandbox.close())


def copying(lines: str, arguments: str = "x, half, work, out", options: str = "") -> str:
    """A kernel of one program that copies a block and does something more."""
    body = lines.replace("\n", "\n    ")
    head = (
        "@triton.jit\ndef own(x, half, work, out, BLOCK: tl.constexpr):\n    i = tl.arange(0, BLOCK)\n"
        f"    m = tl.arange(0, 64)\n    at = m[:, None] * 64 + m[None, :]\n    v = tl.load(x + i)\n    {body}\n"
        "    tl.store(out + i, v)"
    )
    made = "half, work = torch.zeros_like(x, dtype=torch.float16), torch.empty_like(x)"
    return module(head=head, launch=f"{made}\n        own[(1,)]({arguments}, BLOCK=1024{options})")


AGAIN = "tl.store(work + i, v)\nv = tl.load(work + i)\n"
PRODUCT = "c = tl.dot(tl.load(half + at), tl.load(half + at))\n"
EVEN = {
    "all accesses alike": AGAIN,
    "another form of block": AGAIN + "v += tl.sum(tl.load(half + m).to(tl.float32), 0)",
    "a narrower load of few elements": AGAIN + "v += tl.sum(tl.load(half + at).to(tl.float32))",
    "another parameter is the product's": PRODUCT + "tl.store(work + at, c)\n",
}
UNEVEN = {
    "a narrower load beside": (AGAIN + "v += tl.load(half + i).to(tl.float32)", 4, (1024,)),
    "an address that is loaded": (
        "j = tl.load(half + i).to(tl.int32)\ntl.store(work + i * 0 + j, v)\nv = tl.load(work + i)",
        4,
        (1024,),
    ),
    "a row of a product": (
        PRODUCT + "tl.store(work + m, tl.sum(c, 0))\nv += tl.sum(c + tl.load(work + m)[None, :])",
        4,
        (64,),
    ),
    "a pointer that a loop moves on": (
        "p = work + i\nfor _ in range(0, 3):\n    tl.store(p, v)\n    v = tl.load(p)\n    p += 1024\n"
        "v += tl.load(half + i).to(tl.float32)",
        4,
        (1024,),
    ),
}


@pytest.mark.parametrize("name", EVEN)
def test_accesses_of_one_form_are_spread_alike(found: Uneven, name: str) -> None:
    assert found(copying(EVEN[name])) == frozenset()


@pytest.mark.parametrize("name", UNEVEN)
def test_accesses_that_are_spread_in_several_ways_are_told(found: Uneven, name: str) -> None:
    lines, size, shape = UNEVEN[name]
    told = found(copying(lines))
    assert told and ("own", shape, size) in {each[:3] for each in told}, told


def test_two_parameters_of_one_storage_are_held_together(found: Uneven) -> None:
    two = "v += tl.load(half + i).to(tl.float32)\ntl.store(work + i, v)"
    (block,) = found(copying(two, "x, half, x, out")) or ()
    assert block.shape == (1024,), "x is loaded in one way and stored in another one"
    assert found(copying(two)) == frozenset()


TEXT = """#blocked = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#blocked1 = #ttg.blocked<{sizePerThread = [8], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
  tt.func public @k(%a: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("a"), %b: !tt.ptr<f32> loc("b")) {
    %0 = tt.splat %a : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>, #blocked> loc(#loc)
    %1 = tt.addptr %0, %r : tensor<1024x!tt.ptr<f32>, #blocked>, tensor<1024xi32, #blocked> loc(#loc)
    tt.store %1, %v : tensor<1024x!tt.ptr<f32>, #blocked> loc(#loc)
"""
BLOCK = ((1024,), 4)
LAYOUT = "#blocked"


def test_an_access_is_of_the_parameter_that_its_pointer_is_made_of() -> None:
    assert spreads(TEXT) == {Spread(BLOCK, frozenset({"a"}), LAYOUT)}
    assert spreads(TEXT.replace("tt.addptr %0", "arith.select %c, %0")) == {Spread(BLOCK, None, LAYOUT)}
    assert spreads(TEXT.replace("%1 = tt.addptr %0", "%1 = tt.addptr %1")) == {Spread(BLOCK, None, LAYOUT)}


@pytest.mark.parametrize("more", ["  tt.func private @f(%a: !tt.ptr<f32>) {\n", "    ttg.warp_specialize(%a)\n"])
def test_pointers_of_several_functions_are_not_told_apart(more: str) -> None:
    assert {each.parameters for each in spreads(TEXT + more)} == {None}


@pytest.mark.parametrize(
    "layout",
    [
        "#ttg.slice<{dim = 0, parent = #mma}>",
        "#linear",
        "#blocked1",
    ],
)
def test_a_layout_shows_that_each_element_has_one_thread(layout: str) -> None:
    text = TEXT.replace("1024x", "512x").replace(f"{LAYOUT}> loc", f"{layout}> loc")
    assert {each.layout for each in spreads(text)} == {""}
    few = text.replace("512x", "64x")
    assert {each.layout for each in spreads(few)} == ({layout} if layout == "#blocked1" else {""})


def test_what_is_uneven_goes_by_storages() -> None:
    one, other = Spread(BLOCK, frozenset({"a"}), LAYOUT), Spread(BLOCK, frozenset({"b"}), "#blocked1")
    assert not set(uneven([one, other], {"a": {3}, "b": {4}}))
    assert set(uneven([one, other], {"a": {3}, "b": {3, 4}})) == {(BLOCK, 3)}
    anywhere = other._replace(parameters=None)
    assert set(uneven([one, anywhere], {"a": {3}, "b": {4}})) == {(BLOCK, 3)}
    unnamed = one._replace(parameters=frozenset({"c"}))
    assert set(uneven([unnamed, other], {"a": {3}, "b": {4}})) == {(BLOCK, 4)}
    assert set(uneven([one._replace(layout="")], {"a": {3}})) == {(BLOCK, 3)}


REPORT = {"kernels": [{"name": "k"}], "refused": [], "lacking": [], "lost": False, "too_many": False}
FORGED: dict[str, Any] = {
    "nothing": None,
    "no list": {"k": 1},
    "a text": ["k"],
    "too short": [["k", [4], 4]],
    "no shape": [["k", 4, 4, 0]],
    "a fraction": [["k", [4.0], 4, 0]],
    "a truth value": [["k", [4], True, 0]],
    "a huge number": [["k", [1 << 60], 4, 0]],
    "no name": [[None, [4], 4, 0]],
    "more than are told": [["k", [place], 4, 0] for place in range(BLOCKS_TOLD + 1)],
}


@pytest.mark.parametrize("name", FORGED)
def test_of_a_forged_report_nothing_is_known(name: str) -> None:
    report = program_report(JobResult("ok", "", report={**REPORT, "uneven": FORGED[name]}), LIMITS)
    assert report.outcome == "ok" and report.uneven is None


def test_a_report_names_blocks() -> None:
    report = program_report(JobResult("ok", "", report={**REPORT, "uneven": [["k", [64, 8], 2, 5]]}), LIMITS)
    assert report.uneven == {Block("k", (64, 8), 2, 5)}


LEANS = {"kernel": "k", "line": 7, "shape": [64, 8], "bytes": 2, "storage": 5}
RIGHT = Verdict("ok", "numerics", "", "", {"same_lanes": [LEANS]})


def test_a_kernel_that_leans_on_lanes_is_wrong_where_they_are_other_threads() -> None:
    there = CompileReport("ok", "", uneven=frozenset({Block("k", (64, 8), 2, 5)}))
    verdict = spread_alike(RIGHT, there)
    assert (verdict.kind, verdict.stage) == ("wrong", "compile")
    assert verdict.message.startswith("line 7: a race: k() touches a block of shape [64, 8]")
    assert spread_alike(RIGHT, CompileReport("ok", "", uneven=None)).kind == "wrong"


@pytest.mark.parametrize(
    "other", [("j", (64, 8), 2, 5), ("k", (64,), 2, 5), ("k", (64, 8), 4, 5), ("k", (64, 8), 2, 4)]
)
def test_other_blocks_are_of_no_account(other: Any) -> None:
    assert spread_alike(RIGHT, CompileReport("ok", "", uneven=frozenset({Block(*other)}))) is RIGHT
    plain = Verdict("ok", "numerics", "", "", {})
    assert spread_alike(plain, CompileReport("ok", "", uneven=None)) is plain
