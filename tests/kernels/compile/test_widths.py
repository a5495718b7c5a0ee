"""What a thread moves at once: what accesses allow, what the compiler says, and the verdict where that is more."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from assay.kernels import language
from assay.kernels.compile.stage import CompileReport, Moved, compile_program, program_report
from assay.kernels.compile.toolkit import triton_executables
from assay.kernels.inside.triton.compiled.machine_code import widths
from assay.kernels.inside.triton.running.widths import WIDEST, Widths, allowed
from assay.kernels.language.flow.sites import of_form, of_text
from assay.kernels.program.judging.compiled import as_compiled, without_narrow
from assay.kernels.verdicts import Verdict
from assay.sandbox import JobResult, Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.kernel_graders import Bench
from support.recorded_programs import BODY_LINE, module, recorded_text
from support.sandboxes import FEATURES, needs_walls

LIMITS = Limits(wall_s=60, cpu_s=20, memory_mb=4096)
START = 1 << 20


def block(places: Any) -> Any:
    """Addresses of elements of four bytes."""
    return np.uint64(START) + np.asarray(places, np.uint64) * np.uint64(4)


ROW = np.arange(16)
EVEN = ROW % 2 == 0
TOEPLITZ = ROW[:, None] + ROW[None, :]
ALLOWED: dict[str, tuple[Any, Any, int]] = {
    "neighbours": (ROW, None, 16),
    "neighbours from an odd place": (ROW + 1, None, 4),
    "neighbours from an even place": (ROW + 2, None, 8),
    "every second": (ROW * 2, None, 4),
    "one for all": (ROW * 0, None, 4),
    "two pairs": (ROW // 2 * 8 + ROW % 2, None, 8),
    "a mask of whole groups": (ROW, ROW < 12, 16),
    "a mask that ends in a group": (ROW, ROW < 10, 8),
    "a mask of every second": (ROW, EVEN, 4),
    "masked lanes elsewhere": (np.where(ROW < 8, ROW, 5), ROW < 8, 16),
    "none at all": (ROW * 3, ROW < 0, 16),
    "rows": (ROW[:, None] * 64 + ROW[None, :], None, 16),
    "columns": (ROW[:, None] + ROW[None, :] * 64, None, 16),
    "rows of an odd length": (ROW[:, None] * 65 + ROW[None, :], None, 4),
    "rows that overlap": (TOEPLITZ, None, 4),
    "rows of two": (np.arange(8)[:, None] * 2 + np.arange(2)[None, :], None, 8),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_an_access_allows(name: str) -> None:
    places, active, most = ALLOWED[name]
    assert allowed(block(places), active, 4, None, WIDEST) == most


def test_what_is_broken_of_an_access_allows_anything() -> None:
    places, broken = ROW.copy(), np.full(16, 1 << 40)
    places[9] = 100
    assert allowed(block(places), None, 4, broken, WIDEST) == 4
    broken[9] = 2
    assert allowed(block(places), None, 4, broken, WIDEST) == 16
    broken[9] = 4
    assert allowed(block(places), None, 4, broken, WIDEST) == 16
    assert allowed(block(np.where(places == 100, 100, places + 1)), None, 4, broken, WIDEST) == 4


def test_the_narrowest_of_all_accesses_counts() -> None:
    found = Widths()
    for variant, places in ((0, ROW), (1, ROW + 2), (0, ROW), (1, ROW), (2, ROW + 1)):
        found.launch(3, variant)
        found.take((7, 0), block(places), None, 4, None)
    assert found.told() == [[3, 1, 7, 0, 8], [3, 2, 7, 0, 4]]


TEXT = """
	.loc	1 5 0                           // <kernels>:5:0
	ld.param.b64 	%rd1, [kernel_param_0];
	.loc	1 7 21                          // <kernels>:7:21
	// begin inline asm
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	// end inline asm
	@%p1 ld.global.b32 { %r1 }, [ %rd1 + 0 ];
	ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r9];
	.loc	2 170 27                        // standard.py:170:27 @[ standard.py:191:40 @[ <kernels>:8:42 ] ]
	@%p4 cp.async.ca.shared.global [ %r5 + 0 ], [ %rd6 + 0 ], 0x8, %r6;
	.loc	1 9 4                           // <kernels>:9:4 @[ <kernels>:12:8 @[ <kernels>:20:1 ] ]
	@%p1 st.global.v2.b64 [ %rd2 + 0 ], { %rd3, %rd4 };
	.loc	1 0 0                           // <kernels>:0:0
	@%p1 atom.global.gpu.acq_rel.add.noftz.f16x2 %r14, [ %rd2 + 0 ], %r15;
	.loc	1 10 4                          // <kernels>:10:4
	@%p1 st.global.b8 [ %rd2 + 0 ], { %r15 };
	ld.global.nc.v4.b32 	{%r1, %r2, %r3, %r4}, [%rd4];
	.loc	1 12 8                          // <kernels>:12:8
	st.async.weak.shared.b32 [%r1], %r2;
	{ .reg .pred p; setp.ne.u32 p, %r1, 0; @p ld.global.b32 %r2, [ %rd2 + 0 ]; }
"""
PLACES = {(7, 21): 1, (8, 42): 2, (9, 4): 3, (12, 8): 4, (20, 1): 5, (10, 4): 6}


def test_what_the_compiler_s_text_says() -> None:
    assert widths(TEXT, "<kernels>", PLACES) == {
        (1, 0): 16,
        (2, 0): 8,
        (3, 4): 16,
        (0, 0): 4,
        (6, 0): 1,
        (4, 0): WIDEST,
    }


SOURCE = """def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if tl.load(x) > 0:
        v = tl.load(x + tl.load(y + i), mask=tl.load(y + i) > 0, other=tl.load(x)) if n else helper(x, helper(y, i))
    else:
        v = helper(x, i=i)
    for k in tl.range(0, tl.load(y), num_stages=2):
        v += (v, tl.atomic_add(x + i, 1.0))[1]
    while tl.atomic_cas(y, 0, 1) == 1:
        pass
    tl.store(x + i, v.sum(0) + tl.load(y + i), mask=i < n)
"""
HELPER = """def helper(x, i):
    return tl.load(x + i)
"""


def test_form_and_text_number_the_same_calls() -> None:
    names: dict[str, Any] = {"tl": {"module": "triton.language"}}
    table = {
        "0": {"source": SOURCE, "names": names | {"helper": {"function": "1"}}},
        "1": {"source": HELPER, "names": names},
    }
    kernels = language.parse(table)
    assert isinstance(kernels, language.Kernels), kernels
    text = language.text(kernels)
    functions = dict(kernels.functions).values()
    numbers, places = of_form(functions), of_text(text.source, text.names.values())
    assert sorted(numbers.values()) == sorted(places.values()) == list(range(1, len(numbers) + 1))
    interpreted = language.interpreted(kernels).source
    theirs = [node for node in ast.walk(ast.parse(interpreted)) if isinstance(node, ast.Call)]
    wrapped = {node.args[1].value: node for node in theirs if getattr(node.func, "id", "") == "o_site"}  # type: ignore[attr-defined]
    ours = {_place(node): node for node in ast.walk(ast.parse(text.source)) if isinstance(node, ast.Call)}
    assert len(wrapped) == len(numbers) == 14
    for place, number in places.items():
        said = ast.unparse(ours[place].func).removeprefix("tl.")
        assert ast.unparse(wrapped[number].args[0]).removeprefix("t_") == said


def _place(call: ast.Call) -> tuple[int, int]:
    last = ([call.func, *call.keywords, *call.args])[-1]
    return last.lineno, last.col_offset


Compile = Callable[[str], CompileReport]


@pytest.fixture(scope="module")
def compiled(bench: Bench) -> Iterator[Compile]:
    sandbox = LocalSandbox(LocalConfig(workers=1, executables=triton_executables()), FEATURES)
    yield lambda code: bench.wait(compile_program(sandbox, recorded_text(bench, code), limits=LIMITS))
    bench.wait(sandbox.close())


@needs_walls
def test_a_report_says_what_is_moved_in_each_line(bench: Bench, compiled: Compile) -> None:
    body = "j = tl.arange(0, 128)\nv += tl.sum(tl.load(x + j) + tl.load(x + j * 2) + row(x, j), 0)"
    head = "@triton.jit\ndef row(x, j):\n    return tl.load(x + 128 + j)"
    report = compiled(module(body, head=head))
    assert report.widths is not None and report.outcome == "ok"
    [table] = report.widths.values()
    found = sorted((moved.line, moved.bytes, caller > 0) for (_, caller), moved in table.items())
    helper = module(body, head=head).split("\n").index("    return tl.load(x + 128 + j)") + 1
    assert [each for each in found if each[0] == BODY_LINE + 1] == [(BODY_LINE + 1, 4, False)] * 2
    assert (helper, 4, True) in found and (BODY_LINE - 1, 8, False) in found


NARROW = [[4, 0, 7, 0, 4]]
RIGHT = Verdict("ok", "numerics", evidence={"narrow": NARROW, "worst": 0.5})


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ({(7, 0): Moved(8, 21)}, "wrong"),
        ({(7, 0): Moved(4, 21)}, "ok"),
        ({(8, 0): Moved(8, 21)}, "ok"),
        ({(7, 2): Moved(8, 21), (7, 3): Moved(4, 21)}, "wrong"),
        ({(8, 0): Moved(4, 21), (0, 0): Moved(16, 0)}, "wrong"),
        ({(7, 0): Moved(4, 21), (0, 0): Moved(16, 0)}, "wrong"),
        ({(7, 0): Moved(4, 21), (0, 3): Moved(16, 0)}, "wrong"),
        ({(7, 0): Moved(4, 21), (0, 0): Moved(4, 0)}, "ok"),
    ],
)
def test_more_than_an_access_allows_is_wrong(table: Any, kind: str) -> None:
    verdict = as_compiled(RIGHT, CompileReport("ok", "", widths={(4, 0): table}))
    assert verdict.kind == kind
    if kind == "wrong":
        assert verdict.stage == "compile" and "bytes at once, of which only 4 follow each other" in verdict.message
        assert verdict.message.startswith("line 21: ") == all(number for number, _ in table)


def test_variants_that_were_left_out_have_their_numbers() -> None:
    wide = CompileReport("ok", "", widths={(4, 0): {(7, 0): Moved(8, 21)}, (4, 2): {(7, 0): Moved(4, 21)}})
    assert as_compiled(RIGHT, wide, {4: 0b101}).kind == "wrong"
    assert as_compiled(RIGHT, wide, {4: 0b100}).kind == "ok"
    assert as_compiled(RIGHT, wide, {5: 0b100}).kind == "wrong"


@pytest.mark.parametrize(
    ("tables", "kind"),
    [
        ({}, "unsupported"),
        ({(4, 1): {}}, "unsupported"),
        ({(4, 1): {(8, 0): Moved(4, 21)}}, "unsupported"),
        ({(4, 1): {(7, 2): Moved(4, 21)}}, "ok"),
        ({(4, 1): {(7, 0): Moved(4, 21)}, (4, 2): {(7, 0): Moved(8, 21)}}, "unsupported"),
        ({(5, 1): {(7, 0): Moved(4, 21)}}, "unsupported"),
    ],
)
def test_what_was_not_compiled_moves_as_much_as_what_was(tables: Any, kind: str) -> None:
    verdict = as_compiled(RIGHT, CompileReport("ok", "", widths=tables))
    assert verdict.kind == kind and ("could be compiled in the time" in verdict.message) == (kind != "ok")


def test_what_is_not_known_is_not_right() -> None:
    assert as_compiled(RIGHT, CompileReport("ok", "", widths=None)).kind == "unsupported"
    lost = Verdict("ok", "numerics", evidence={"narrow": None})
    assert as_compiled(lost, CompileReport("ok", "")).kind == "unsupported"
    none = Verdict("ok", "numerics", evidence={"narrow": []})
    assert as_compiled(none, CompileReport("ok", "", widths=None)).kind == "ok"
    assert without_narrow(RIGHT).evidence == {"worst": 0.5}


REPORT: dict[str, Any] = {"kernels": [], "refused": [], "lacking": [], "lost": False, "too_many": False}
REPORT |= {"compiled": 1, "kernels": [{"name": "k", "shared_bytes": 0, "registers": 8, "spill_bytes": 0}]}
FORGED: dict[str, Any] = {
    "nothing": None,
    "no tables": {"launches": []},
    "no launches": {"tables": []},
    "a table that is not there": {"launches": [[0, [1]]], "tables": [[]]},
    "a word": {"launches": [[0, [0]]], "tables": [[["x", 0, 4, 1]]]},
    "a fraction": {"launches": [[0, [0]]], "tables": [[[1, 0, 4.5, 1]]]},
    "a list": {"launches": [[0, [0]]], "tables": [[[[1], 0, 4, 1]]]},
    "too few": {"launches": [[0, [0]]], "tables": [[[1, 0, 4]]]},
    "a large number": {"launches": [[0, [0]]], "tables": [[[1, 0, 1 << 40, 1]]]},
}


@pytest.mark.parametrize("name", FORGED)
def test_a_report_that_is_none_is_not_known(name: str) -> None:
    assert program_report(JobResult("ok", "", report=REPORT | {"widths": FORGED[name]}), LIMITS).widths is None


def test_a_report_is_read() -> None:
    told = {"launches": [[4, [0, -1, 0]]], "tables": [[[7, 0, 8, 21]]]}
    table = {(7, 0): Moved(8, 21)}
    found = program_report(JobResult("ok", "", report=REPORT | {"widths": told}), LIMITS).widths
    assert found == {(4, 0): table, (4, 2): table}
