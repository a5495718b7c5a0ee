"""What the compiler makes of right kernels: products of matrices that nobody asked for, and too many registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from assay.kernels.compile.stage import CompileReport, compile_program, compiled_part, program_report
from assay.kernels.compile.toolkit import triton_executables
from assay.kernels.inside.triton.ahead_of_time import most_threads
from assay.sandbox import JobResult, Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.kernel_graders import Bench
from support.recorded_programs import BODY_LINE, LAUNCH_LINE, module, recorded_text
from support.sandboxes import FEATURES, needs_walls

pytestmark = needs_walls
LIMITS = Limits(wall_s=60, cpu_s=20, memory_mb=4096)

Compile = Callable[[str], CompileReport]


@pytest.fixture(scope="module")
def compiled(bench: Bench) -> Iterator[Compile]:
    sandbox = LocalSandbox(LocalConfig(workers=1, executables=triton_executables()), FEATURES)
    yield lambda code: bench.wait(compile_program(sandbox, recorded_text(bench, code), limits=LIMITS))
    bench.wait(sandbox.close())


def summing(terms: str, then: str = "", head: str = "") -> str:
    """A kernel that sums the terms made of two matrices."""
    body = (
        "k = tl.arange(0, 16)\nat = k[:, None] * 16 + k[None, :]\na = tl.load(x + at)\nb = tl.load(x + 256 + at)\n"
        f"{then or 'pass'}\nfound = {terms}\nv += tl.sum(tl.sum(found, 1), 0)"
    )
    return module(body, head=head)


SUM_LINE = BODY_LINE + 5
HELPER = "@triton.jit\ndef helper(a, b):\n    return tl.sum(a[:, :, None] * b[None, :, :], 1)"
MADE = {
    "plain": (summing("tl.sum(a[:, :, None] * b[None, :, :], 1)"), SUM_LINE),
    "less zero": (summing("tl.sum(a[:, :, None] * b[None, :, :] - 0.0, 1)"), SUM_LINE),
    "by one": (summing("tl.sum(a[:, :, None] * b[None, :, :] / 1.0, 1)"), SUM_LINE),
    "to and fro": (summing("tl.sum(tl.trans(tl.trans(a[:, :, None] * b[None], 0, 2, 1), 0, 2, 1), 1)"), SUM_LINE),
    "added to": (summing("a + tl.sum(a[:, :, None] * b[None, :, :], 1)"), SUM_LINE),
    "beside its equal": (summing("tl.dot(a, b) + tl.sum(a[:, :, None] * b[None, :, :] - 0.0, 1)"), SUM_LINE),
    "equal with a total": (summing("a + tl.sum(a[:, :, None] * b[None], 1)", "c = a + tl.dot(a, b)"), SUM_LINE),
    "of a dot": (summing("tl.sum(tl.dot(a, b)[:, :, None] * b[None, :, :], 1)"), SUM_LINE),
    "in a helper": (summing("helper(a, b)", head=HELPER), 0),
}


@pytest.mark.parametrize("name", MADE)
def test_a_product_that_the_compiler_makes_of_a_sum_is_told(bench: Bench, compiled: Compile, name: str) -> None:
    code, line = MADE[name]
    line = line or code.split("\n").index("    return tl.sum(a[:, :, None] * b[None, :, :], 1)") + 1
    report = compiled(code)
    assert report.outcome == "unsupported", report
    assert "makes a product of matrices" in report.message and f": line {line}: " in report.message
    assert len(report.message) < 800 and report.message.endswith(code.split("\n")[line - 1].strip())


PAIR = "@triton.jit\ndef larger(a, i, b, j):\n    far = a < b\n    return tl.where(far, b, a), tl.where(far, j, i)"
BOTH = "@triton.jit\ndef both(a, i, b, j):\n    return a + b, tl.maximum(i, j)"
TIMES = "@triton.jit\ndef times(a, b):\n    return a * b"
TILE = "k = tl.arange(0, 16)\nat = k[:, None] + 16 * k[None, :]\na = tl.load(x + at)\n"
GATE = "some = n > 0\n"
LOADED = GATE + "w = tl.load(x + i, mask=some)\nz = v * 0.0\n"
RESHAPED = "b, c = tl.reduce((tl.reshape(a, (256,)), tl.reshape(at, (256,))), 0, larger)\nv += c"
ONES = "tl.full((16, 16), 1.0, tl.float32)"
WIDE = "at = tl.arange(0, 4)[:, None] * 128 + tl.arange(0, 128)[None, :]\nu = tl.full((4,), 1.0, tl.float32)\n"
TURNS = "for turn in range(0, n):\n    a = tl.load(x + turn * 512 + at)\n    u = "
LATER = "for turn in range(0, n):\n"
CHOSEN = "@triton.jit\ndef chosen(w, z, some):\n    if some:\n        return w\n    return z"
BRANCHES = (
    "if n > 3:\n    q = tl.reshape(a, (256,))\n    tl.store(x, tl.max(q, 0))\n"
    "else:\n    q = tl.load(x + tl.arange(0, 256))\n    tl.store(x, tl.argmax(q, 0).to(tl.float32))"
)
MOVED = {
    "places beside a reshape": (TILE + "v += tl.argmax(tl.reshape(a, (256,)), 0)", "", "in any order"),
    "two reshapes": (TILE + RESHAPED, PAIR, "in any order"),
    "over all axes": (TILE + "b, c = tl.reduce((a, at), None, larger)\nv += c", PAIR, "in any order"),
    "a mask": (
        TILE + "m = tl.arange(0, 256) % 16 < 8\nv += tl.max(tl.histogram(tl.reshape(at, (256,)), 256, mask=m), 0)",
        "",
        "in any order",
    ),
    "a choice": (LOADED + "tl.store(x + i, z)\nv += w if some else z", "", "moves a load"),
    "a branch": (LOADED + "tl.store(x + i, z)\nif some:\n    z = w\nv += z", "", "moves a load"),
    "a reshaped mask": (
        TILE + "m = tl.reshape(at % 16 < 8, (256,))\nv += tl.max(tl.histogram(tl.arange(0, 256), 256, mask=m), 0)",
        "",
        "in any order",
    ),
    "a choice in a loop": (LOADED + LATER + "    v += w if some else z\n    tl.store(x + i, v)", "", "moves a load"),
    "an early return": (LOADED + "tl.store(x + i, z)\nv += chosen(w, z, some)", CHOSEN, "moves a load"),
    "a product": (WIDE + TURNS + "u * tl.reduce(a, 1, times)\nv += tl.max(u, 0)", TIMES, "takes this reduction"),
    "a sum of maxima": (WIDE + TURNS + "u + tl.max(a, 1)\nv += tl.max(u, 0)", "", "takes this reduction"),
    "a maximum of sums": (WIDE + TURNS + "tl.maximum(u, tl.sum(a, 1))\nv += tl.max(u, 0)", "", "takes this reduction"),
}
NUMBERS = "tl.full((16, 16), n * 1.0, tl.float32)"
STAYING = {
    "one name in two branches": (TILE + BRANCHES, ""),
    "one number beside it": (TILE + f"b, c = tl.reduce((a, {NUMBERS}), None, both)\nv += c", BOTH),
    "nothing stored in between": (LOADED + "v += w if some else z", ""),
    "one reshape": (TILE + "v += tl.max(tl.reshape(a, (256,)), 0)", ""),
    "one block twice": (TILE + "b, c = tl.reduce((a, a), None, both)\nv += c", BOTH),
    "a constant beside it": (TILE + f"b, c = tl.reduce((a, {ONES}), None, both)\nv += c", BOTH),
    "places of the tile": (TILE + "v += tl.max(tl.argmax(a, 0), 0)", ""),
    "all of a histogram": (TILE + "v += tl.max(tl.histogram(tl.reshape(at, (256,)), 256), 0)", ""),
    "another condition": (LOADED + "tl.store(x + i, z)\nv += w if n > 1 else z", ""),
    "tl.where": (LOADED + "tl.store(x + i, z)\nv += tl.where(some, w, z)", ""),
    "a mask of places": (GATE + "w = tl.load(x + i, mask=i < n)\nv += tl.where(some, w, v)", ""),
    "a sum": (WIDE + TURNS + "u + tl.sum(a, 1)\nv += tl.max(u, 0)", ""),
    "a largest one": (WIDE + TURNS + "tl.maximum(u, tl.max(a, 1))\nv += tl.max(u, 0)", ""),
}


@pytest.mark.parametrize("name", MOVED)
def test_values_that_the_compiler_takes_from_another_place_are_told(compiled: Compile, name: str) -> None:
    lines, head, said = MOVED[name]
    report = compiled(module(lines, head=head))
    assert report.outcome == "unsupported" and said in report.message, report


@pytest.mark.parametrize("name", STAYING)
def test_values_that_stay_where_they_are_compile(compiled: Compile, name: str) -> None:
    lines, head = STAYING[name]
    report = compiled(module(lines, head=head))
    assert (report.outcome, report.message) == ("ok", "")


ASKED = "@triton.jit\ndef asked(w):\n    return tl.atomic_add(w, 0, sem='relaxed')"
AT = "w = x.to(tl.pointer_type(tl.int32), bitcast=True)\n"
FOLDED = {
    "used": ("seen = tl.atomic_add(w, 1)\nv += seen", True),
    "by nobody": ("seen = tl.atomic_add(w, 1)\ntl.atomic_add(w, 0, sem='acquire')", True),
    "times zero": ("seen = tl.atomic_add(w, 1)\nv += seen * 0", False),
    "exchanged, times zero": ("v += tl.atomic_xchg(w, 1) * 0", False),
    "a load": ("v += tl.atomic_add(w, 0, sem='acquire')", True),
    "a load, times zero": ("v += tl.atomic_add(w, 0, sem='acquire') * 0", False),
    "in a loop": ("seen = 0\nfor _ in range(n):\n    seen = seen ^ asked(w)\nv += seen * 0", False),
    "in a loop, used": ("seen = 0\nfor _ in range(n):\n    seen = seen ^ asked(w)\nv += seen", True),
    "in one turn of two": ("for q in tl.static_range(2):\n    v += asked(w) * q", False),
    "of one call of two": ("v += asked(w) + asked(w) * 0", False),
    "of two calls, used": ("v += asked(w) + asked(w)", True),
    "to wait for": ("while asked(w) == 0:\n    pass", True),
    "to wait for, times zero": ("while asked(w) * 0 != 0:\n    pass", False),
}


@pytest.mark.parametrize("name", FOLDED)
def test_a_result_that_only_the_compiler_finds_unused_is_told(compiled: Compile, name: str) -> None:
    lines, is_used = FOLDED[name]
    report = compiled(module(AT + lines, head=ASKED))
    assert report.outcome == ("ok" if is_used else "unsupported"), report
    assert is_used or "this atomic operation is of no use" in report.message


FILLS = {
    "written": ("-5", True),
    "a constant": ("tl.full((), -5, tl.int8)", True),
    "all bits": ("(-1 + (n - n)).to(tl.int8)", True),
    "folded to another": ("(5 + (n - n)).to(tl.int8)", True),
    "not known": ("(-5 + n).to(tl.int8)", True),
    "folded": ("(-5 + (n - n)).to(tl.int8)", False),
    "folded to a block": ("(-5 + (i - i)).to(tl.int8)", False),
}


@pytest.mark.parametrize("name", FILLS)
def test_a_load_that_is_filled_with_a_number_that_only_the_compiler_knows_is_told(compiled: Compile, name: str) -> None:
    other, is_written = FILLS[name]
    report = compiled(module(f"w = x.to(tl.pointer_type(tl.int8), bitcast=True)\nv += tl.load(w + i, i < 7, {other})"))
    assert report.outcome == ("ok" if is_written else "unsupported"), report
    assert is_written or "fills whole words" in report.message


def test_a_load_that_is_written_in_one_turn_of_two_is_told(compiled: Compile) -> None:
    other = "-5 if q == 0 else (-5 + (n - n)).to(tl.int8)"
    turns = f"for q in tl.static_range(2):\n    v += tl.load(w + i, i < 7, {other})"
    report = compiled(module(f"w = x.to(tl.pointer_type(tl.int8), bitcast=True)\n{turns}"))
    assert report.outcome == "unsupported" and "fills whole words" in report.message, report


OWN = {
    "a dot": "tl.dot(a, b)",
    "a dot and a total": "tl.dot(a, b) + a",
    "a total and a dot": "a + tl.dot(a, b, input_precision='ieee')",
    "its equal": "tl.dot(a, b) + tl.dot(a, b)",
    "a dot of a dot": "tl.dot(tl.dot(a, b), b, acc=a)",
    "the other way round": "tl.sum(b[None, :, :] * a[:, :, None], 1)",
    "another sum beside a dot": "tl.dot(a, b) + tl.sum(b[None, :, :] * a[:, :, None], 1)",
    "unlike products": "tl.dot(a, b) + tl.sum(a[:, :, None] * b[None, :, :] + 1.0, 1)",
}


@pytest.mark.parametrize("name", OWN)
def test_products_that_a_kernel_asks_for_are_its_own(bench: Bench, compiled: Compile, name: str) -> None:
    report = compiled(summing(OWN[name]))
    assert (report.outcome, report.message) == ("ok", "")


def test_products_in_loops_that_are_unrolled_are_a_kernels_own(bench: Bench, compiled: Compile) -> None:
    loop = "for turn in tl.range(0, 4, loop_unroll_factor=2):\n    a = tl.dot(a, b) + a"
    report = compiled(summing("tl.dot(a, b) + b", loop))
    assert (report.outcome, report.message) == ("ok", "")


def test_a_forged_report_of_a_product_is_told_in_plain_text() -> None:
    report = {"kernels": [], "refused": [], "lacking": [], "lost": False, "too_many": False}
    forged = {**report, "unknown": [{"kernel": "k\x1b", "line": True, "text": 5}]}
    found = program_report(JobResult("ok", "", report=forged), LIMITS)
    assert found.outcome == "unsupported" and "\x1b" not in found.message


MANY = "@triton.jit\ndef many(x, out, BLOCK: tl.constexpr):\n    i = tl.arange(0, BLOCK)\n    a = tl.load(x + i)\n"
MANY += "    b, c, d = a * 2.0, a * a, a + 5.0\n    e = d * d\n    tl.debug_barrier()\n"
MANY += (
    "    f = tl.max(b * c, 0) + tl.max(c * d, 0) + tl.max(d * e, 0) + tl.max(b * e, 0)\n    tl.store(out + i, a * f)"
)


def with_registers(elements: int, options: str, tuned: str = "") -> str:
    return module(head=tuned + MANY, launch=f"many[(1,)](x, out, BLOCK={elements}{options})")


def test_a_launch_of_more_registers_than_a_gpu_has_is_rejected(bench: Bench, compiled: Compile) -> None:
    report = compiled(with_registers(32768, ", num_warps=32, maxnreg=255"))
    assert report.outcome == "rejected"
    assert f": line {LAUNCH_LINE + MANY.count(chr(10)) + 3}: " in report.message
    assert "out of resource: registers" in report.message and "launched with 1024" in report.message


@pytest.mark.parametrize("options", [", num_warps=32", ", num_warps=32, maxnreg=64", ", num_warps=8, maxnreg=255"])
def test_as_many_registers_as_a_gpu_has_are_taken(bench: Bench, compiled: Compile, options: str) -> None:
    assert compiled(with_registers(16384, options)).outcome == "ok"


def test_a_configuration_of_too_many_registers_is_passed_over(bench: Bench, compiled: Compile) -> None:
    warps = ", ".join(f"triton.Config({{}}, num_warps=32, maxnreg={most})" for most in (255, 64))
    code = with_registers(32768, "", f"@triton.autotune([{warps}], key=[])\n")
    report = compiled(code)
    assert report.outcome == "ok" and "1 of 2 configurations do not compile" in report.message
    text = recorded_text(bench, code)
    assert '"maxnreg":255' in text and '"maxnreg":255' not in compiled_part(text, report)


@pytest.mark.parametrize(
    ("registers", "threads"), [(0, 1024), (32, 1024), (64, 1024), (65, 896), (128, 512), (129, 480), (255, 256)]
)
def test_threads_that_registers_leave_room_for(registers: int, threads: int) -> None:
    assert most_threads(registers) == threads
