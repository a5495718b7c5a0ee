"""Recorded programs compiled by the real compiler in the real sandbox: honest ones pass, illegal ones are named."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.common.submissions import read_submission
from triton.runtime.autotuner import Autotuner

from assay.errors import ConfigError
from assay.kernels.base import shared_limit
from assay.kernels.compile.stage import (
    CompileReport,
    compile_program,
    compiled_part,
    program_report,
    shortened,
)
from assay.kernels.compile.toolkit import triton_executables
from assay.kernels.inside import compile_program as compile_harness
from assay.kernels.inside.triton.compiler_words import PASSED_OVER
from assay.kernels.program.reading import Refusal, read
from assay.sandbox import JobResult, Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.kernel_graders import Bench
from support.kernelbench_data import HONEST
from support.recorded_programs import BODY_LINE, LAUNCH_LINE, drawn_text, module, recorded_text
from support.sandboxes import FEATURES, needs_walls
from support.trials import Trials

pytestmark = needs_walls
SAMPLE = (
    *("snake_autotuned", "snake_heuristics", "matmul_descriptors", "matmul_block_pointers", "causal_attention"),
    *("nested_kernel", "pre_norm_mlp_mixed", "gather_in_place_buffer"),
)
LIMITS = Limits(wall_s=60, cpu_s=20, memory_mb=4096)

Compile = Callable[..., CompileReport]


@pytest.fixture(scope="module")
def compiled(bench: Bench) -> Iterator[Compile]:
    sandbox = LocalSandbox(LocalConfig(workers=1, executables=triton_executables()), FEATURES)

    def compile_it(text: str, **options: Any) -> CompileReport:
        return bench.wait(compile_program(sandbox, text, **{"limits": LIMITS, **options}))

    yield compile_it
    bench.wait(sandbox.close())


@pytest.fixture(scope="module")
def plain(bench: Bench) -> str:
    """The program of the plainest submission."""
    return recorded_text(bench, module())


@pytest.mark.parametrize("name", SAMPLE)
def test_recorded_honest_programs_compile(bench: Bench, trials: Trials, compiled: Compile, name: str) -> None:
    submission = read_submission(HONEST / f"{name}.py")
    text = drawn_text(bench, submission.code, trials.draw(submission.problem))
    report = compiled(text, enough_s=0.5)
    assert (report.outcome, report.message) == ("ok", "") and report.kernels
    assert {kernel.name for kernel in report.kernels} == launched(text)


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


def launched(text: str) -> set[str]:
    program = json.loads(text)
    steps = [step for phase in ("module", "init", "forward") for step in program[phase]]
    return {program["kernels"][step["launch"]]["name"] for step in steps if "launch" in step}


def test_what_a_kernel_needs_is_reported(bench: Bench, compiled: Compile) -> None:
    report = compiled(recorded_text(bench, module("v = tl.sum(v, 0) + v")))
    (kernel,) = report.kernels
    assert (report.outcome, kernel.name, kernel.threads) == ("ok", "kernel", 128)
    assert kernel.registers and kernel.shared_bytes and kernel.spill_bytes == 0
    assert report.cpu_s > 0


PRODUCTS = (
    "k = tl.arange(0, 64)\np = k[:, None] * 64 + k[None, :]\ntotal = tl.zeros((64, 64), tl.float32)\n"
    "for step in range(n // 64):\n    at = x + step * 4096 + p\n"
    "    total = tl.dot(tl.load(at), tl.load(at + n), total)\ntl.store(out + p, total)"
)
ILLEGAL: dict[str, tuple[str, int, str]] = {
    "dot with K of 8": (
        module("a = tl.zeros((16, 8), tl.float32)\nb = tl.dot(a, tl.trans(a))\nv += tl.sum(tl.sum(b, 0), 0)"),
        BODY_LINE + 1,
        "K >= 16",
    ),
    "range that is no power of 2": (module("v += tl.sum(tl.arange(0, 48), 0)"), BODY_LINE, "power of 2"),
    "shapes that do not fit": (module("pass\nv = v + tl.zeros((128,), tl.float32)"), BODY_LINE + 1, "256"),
    "what is not a pointer": (module("w = tl.load(v)"), BODY_LINE, "Unsupported ptr type"),
    "in a helper": (
        module(
            "v = helper(v)", head="@triton.jit\ndef helper(a):\n    b = a + 1\n    return b + tl.zeros((128,), a.dtype)"
        ),
        21,
        "256",
    ),
    "a branch that is taken when compiled": (
        module("if BLOCK == 256:\n    v = v + tl.zeros((128,), tl.float32)"),
        BODY_LINE + 1,
        "256",
    ),
    "warps that are no power of 2": (
        module(launch="kernel[(1,)](x, out, n, BLOCK=256, num_warps=2)"),
        LAUNCH_LINE,
        "power of 2",
    ),
    "a loop in the function of a scan": (
        module(
            "w = tl.associative_scan(v, 0, later)\nv = w + 1.0",
            head="@triton.jit\ndef later(a, b):\n    while a < b:\n        a += 1.0\n    return a",
        ),
        BODY_LINE,
        "'tt.scan' op expects region",
    ),
    "shared memory": (
        module(PRODUCTS, launch="kernel[(1,)](x, out, n, BLOCK=256, num_stages=12)"),
        LAUNCH_LINE + PRODUCTS.count("\n"),
        "out of resource: shared memory",
    ),
}


def with_odd_warps(text: str) -> str:
    """A program with three warps in the place of two, as nothing but a forger writes it: Triton raises at such a
    launch, so that none is recorded."""
    return text.replace('"num_warps":2', '"num_warps":3')


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_no_gpu_would_take_is_rejected(bench: Bench, compiled: Compile, name: str) -> None:
    code, line, said = ILLEGAL[name]
    report = compiled(with_odd_warps(recorded_text(bench, code)))
    assert report.outcome == "rejected" and report.message.startswith(f"kernel kernel: line {line}: ")
    assert said in report.message and len(report.message) <= 800
    assert not any(word in report.message for word in ("v_", "k0_", "#blocked", "tt.load"))


IDLE = {
    "nothing is stored": (
        "@triton.jit\ndef idle(x, out, n, WORKS: tl.constexpr):\n    i = tl.arange(0, 64)\n    v = tl.load(x + i)\n"
        "    if WORKS:\n        tl.store(out + i, v)",
        "idle[(1,)](x, out, n, WORKS=False)",
        "removed every store",
    ),
    "what is assumed is false": (
        "@triton.jit\ndef idle(x, out, n):\n    i = tl.arange(0, 64)\n    tl.assume(n < 0)\n    if n > 5:\n"
        "        tl.store(out + i, tl.load(x + i))",
        "idle[(1,)](x, out, n)",
        "removed every store",
    ),
    "a branch on what has no value": (
        "@triton.jit\ndef idle(x, out, n):\n    i = tl.arange(0, 64)\n    if (tl.full((), 1, tl.int32) << 40) == 0:\n"
        "        tl.store(out + i, tl.load(x + i))\n    else:\n        tl.store(out + i, 1.0)",
        "idle[(1,)](x, out, n)",
        "a trap",
    ),
    "one of two configurations": (
        '@triton.autotune([triton.Config({"WORKS": works}) for works in (True, False)], key=[])\n'
        "@triton.jit\ndef idle(x, out, n, WORKS: tl.constexpr):\n    i = tl.arange(0, 64)\n    v = tl.load(x + i)\n"
        "    if WORKS:\n        tl.store(out + i, v)",
        "idle[(1,)](x, out, n)",
        "removed every store",
    ),
}


@pytest.mark.parametrize("name", IDLE)
def test_a_kernel_of_which_the_compiler_leaves_nothing_is_rejected(bench: Bench, compiled: Compile, name: str) -> None:
    head, launch, said = IDLE[name]
    report = compiled(recorded_text(bench, module(launch=launch, head=head)))
    assert report.outcome == "rejected", report
    assert report.message.startswith("kernel idle: line ") and said in report.message


WRITERS = {
    "atomic operations": "tl.atomic_add(out + i, v, mask=i < n)",
    "atomic operations of one": "tl.atomic_max(out, tl.max(v, 0))",
    "descriptors": "tl.make_tensor_descriptor(out, [n], [1], [256]).store([tl.program_id(0) * 256], v)",
    "halves": "tl.store(out.to(tl.pointer_type(tl.float16)) + i, v.to(tl.float16), mask=i < n)",
}


@pytest.mark.parametrize("name", WRITERS)
def test_whatever_writes_is_a_store(bench: Bench, compiled: Compile, name: str) -> None:
    head = (
        "@triton.jit\ndef writer(x, out, n):\n    i = tl.program_id(0) * 256 + tl.arange(0, 256)\n"
        f"    v = tl.load(x + i, mask=i < n)\n    {WRITERS[name]}"
    )
    host = 'triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))'
    code = module(host=host, launch="writer[(2,)](x, out, n)", head=head)
    report = compiled(recorded_text(bench, code))
    assert report.outcome == "ok", report
    # Without an allocator Triton raises at the launch of what needs memory of its own.
    report = compiled(recorded_text(bench, code.replace(host, "pass")))
    assert report.outcome == ("raises" if name == "descriptors" else "ok"), report
    assert ("no allocator was set" in report.message) == (name == "descriptors")


GIVEN = 'torch.empty(size, device="cuda", dtype=torch.int8)'
ALLOCATORS = {
    "one without a hash": (f"__hash__ = None\n    def __call__(self, size, alignment, stream): return {GIVEN}", "ok"),
    "equal to every other": (
        f"def __eq__(self, _): return True\n    def __call__(self, size, *_): return {GIVEN}",
        "ok",
    ),
    "one that raises": ("def __call__(self, *_): raise ValueError()", "raises"),
    "one of other arguments": (f"def __call__(self, size): return {GIVEN}", "raises"),
    "one on the host": ("def __call__(self, size, *_): return torch.empty(size, dtype=torch.int8)", "raises"),
    "too little": ("def __call__(self, *_): return torch.empty(1, device='cuda')", "raises"),
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_an_allocator_gives_memory(bench: Bench, compiled: Compile, name: str) -> None:
    body, outcome = ALLOCATORS[name]
    head = (
        f"class Allocator:\n    {body}\n"
        "@triton.jit\ndef writer(x, out, n, NEEDS: tl.constexpr):\n"
        "    i = tl.program_id(0) * 256 + tl.arange(0, 256)\n"
        "    v = tl.load(x + i, mask=i < n)\n    if NEEDS:\n        "
        "tl.make_tensor_descriptor(out, [n], [1], [256]).store([tl.program_id(0) * 256], v)\n"
        "    else:\n        tl.store(out + i, v, mask=i < n)"
    )
    for needs, expected in ((True, outcome), (False, "ok")):
        launch = f"writer[(2,)](x, out, n, NEEDS={needs})"
        code = module(host="triton.set_allocator(Allocator())", launch=launch, head=head)
        report = compiled(recorded_text(bench, code))
        assert report.outcome == expected, report


def test_a_branch_that_is_not_taken_when_compiled_is_not_compiled(bench: Bench, compiled: Compile) -> None:
    code = module("if BLOCK == 128:\n    v = v + tl.zeros((128,), tl.float32)")
    assert compiled(recorded_text(bench, code)).outcome == "ok"


TUNED = """
@triton.autotune([CONFIGURATIONS], key=[])
@triton.jit
def tuned(x, out, n, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.static_assert(WIDE <= 128)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)
"""


def tuned(*configurations: tuple[int, int], launches: int = 1) -> str:
    """A submission whose kernel is tuned over (WIDE, num_warps); those wider than 128 fail an assertion."""
    every = ", ".join(f"triton.Config({{'WIDE': {wide}}}, num_warps={warps})" for wide, warps in configurations)
    launch = "\n        ".join(["tuned[(triton.cdiv(n, 128),)](x, out, n, BLOCK=128)"] * launches)
    return module(head=TUNED.replace("CONFIGURATIONS", every), launch=launch)


def variants_of(text: str) -> int:
    program = read(text.encode())
    assert not isinstance(program, Refusal)
    return sum(len(getattr(step, "variants", ())) for step in program.steps)


def test_configurations_that_do_not_compile_are_passed_over_and_told(bench: Bench, compiled: Compile) -> None:
    text = recorded_text(bench, tuned((256, 4), (1, 4), (512, 4), (1, 8)))
    report = compiled(text)
    assert report.outcome == "ok" and len(report.kernels) == 2
    assert report.message.startswith("2 of 4 configurations do not compile for sm_90, as kernel tuned: line 22: ")
    left = compiled_part(text, report)
    assert (variants_of(text), variants_of(left)) == (4, 2)
    again = compiled(left)
    assert (again.outcome, again.message, compiled_part(left, again)) == ("ok", "", left)


def test_a_launch_of_which_no_configuration_compiles_is_rejected(bench: Bench, compiled: Compile) -> None:
    report = compiled(recorded_text(bench, tuned((256, 4), (512, 4))))
    assert report.outcome == "rejected" and report.message.startswith("kernel tuned: line 22: ")


def test_configurations_are_compiled_up_to_a_bound(bench: Bench, compiled: Compile) -> None:
    text = recorded_text(bench, tuned(*((number, 4) for number in range(20))))
    assert len(compiled(text).kernels) == 20
    report = compiled(text, enough_s=0.0)
    assert report.outcome == "ok" and len(report.kernels) == 16
    assert report.message == "4 of 20 configurations were not compiled, to save time"
    assert variants_of(compiled_part(text, report)) == 20, "a GPU may choose any that is not refused"


def test_what_launches_have_in_common_is_read_once(bench: Bench, compiled: Compile) -> None:
    text = recorded_text(bench, tuned(*((number, 4) for number in range(32)), launches=36))
    report = compiled(text, limits=replace(LIMITS, cpu_s=10))
    assert report.outcome == "ok" and len(report.kernels) == 32


def test_a_report_has_room_for_as_many_launches_as_a_program_may_have(bench: Bench, compiled: Compile) -> None:
    head = "@triton.autotune([triton.Config({'W': w}) for w in range(64)], key=[])\n@triton.jit\n"
    head += "def f(x, W: tl.constexpr):\n    tl.store(x, W + 0.0)"
    text = recorded_text(bench, module(head=head, launch="for _ in range(30):\n            f[(1,)](out)"))
    report = compiled(text)
    assert report.outcome == "ok" and variants_of(text) == 30 * 64
    assert len(report.texts) == 30 and len(set(report.texts)) == 1 and report.texts[0]


def test_what_is_passed_over_is_told_from_what_compiles(bench: Bench, compiled: Compile) -> None:
    texts = [
        compiled(recorded_text(bench, tuned((1, 4), (wide, warps)))).texts
        for wide, warps in ((256, 4), (512, 8), (2, 4), (256, 4))
    ]
    assert all(len(each) == 1 and each[0] for each in texts), texts
    assert texts[0] == texts[1] == texts[3] != texts[2]


def test_beyond_the_bound_one_that_compiles_is_looked_for(bench: Bench, compiled: Compile) -> None:
    text = recorded_text(bench, tuned(*((256 + number, 4) for number in range(20)), (1, 4)))
    report = compiled(text)
    assert (report.outcome, len(report.kernels)) == ("ok", 1) and "20 of 21" in report.message
    assert variants_of(compiled_part(text, report)) == 1


def raising(statement: str, configurations: str, key: str) -> str:
    """A submission whose kernel is tuned over `configurations`, launched for 128 and for 256, and makes a statement."""
    head = TUNED.replace("CONFIGURATIONS", configurations).replace("tl.static_assert(WIDE <= 128)", statement)
    head += "@triton.jit\ndef helper(WIDE: tl.constexpr):\n    tl.static_assert(WIDE <= 128)\n    return 0\n"
    launch = "tuned[(8,)](x, out, n, BLOCK=128)\n        tuned[(8,)](x, out, n, BLOCK=256)"
    return module(head=head.replace("key=[]", f"key={key}"), launch=launch)


PAIR = "triton.Config({'WIDE': 1}), triton.Config({'WIDE': 256})"
MANY = "*(triton.Config({'WIDE': each}) for each in range(32)), "
RAISING = {
    "warps that are no power of 2": ("pass", "triton.Config({'WIDE': 1}), triton.Config({'WIDE': 1}, num_warps=2)"),
    "a block that is no power of 2": ("i += tl.max(tl.arange(0, WIDE), 0)", PAIR.replace("256", "48")),
    "a block that is too large": ("i += tl.max(tl.arange(0, WIDE), 0)", PAIR.replace("256", "2097152")),
    "shapes that do not fit": ("if WIDE > 128:\n        i = tl.reshape(i, (BLOCK, 4))", PAIR),
    "an assertion of a helper": ("i += helper(WIDE)", PAIR),
    "what is beyond the bound": ("if WIDE > 128:\n        i = tl.reshape(i, (BLOCK, 4))", MANY + PAIR),
    "a launch that is not tuned again": ("tl.static_assert(BLOCK * WIDE <= 32768)", PAIR),
}


@pytest.mark.parametrize("name", RAISING)
def test_a_configuration_at_which_an_autotuner_raises_is_rejected(bench: Bench, compiled: Compile, name: str) -> None:
    key = '["n"]' if name == "a launch that is not tuned again" else '["BLOCK"]'
    report = compiled(with_odd_warps(recorded_text(bench, raising(*RAISING[name], key=key))))
    assert report.outcome == "rejected" and report.message.startswith("kernel tuned: line "), report
    said = r"WIDE=(256|48|2097152)[\s,.]" if "warps" not in name else "num_warps=3"
    assert re.search(rf"in the configuration [^\n]*{said}", report.message), report.message
    assert ("Add to `key`" in report.message) == ("tuned again" in name)


def test_what_an_autotuner_passes_over_is_what_triton_says() -> None:
    (handler,) = (
        node
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(Autotuner._bench))))
        if isinstance(node, ast.Try) and any(isinstance(part, ast.Return) for part in node.body)
    )
    (caught,) = (each.type for each in handler.handlers)
    assert isinstance(caught, ast.Tuple)
    assert {ast.unparse(each) for each in caught.elts} == {each.__name__ for each in PASSED_OVER}


def test_every_launch_is_compiled_whatever_the_bound(bench: Bench, compiled: Compile) -> None:
    launch = "\n        ".join(f"kernel[(1,)](x, out, n, BLOCK=256, num_stages={number})" for number in range(1, 19))
    report = compiled(recorded_text(bench, module(launch=launch)))
    assert (report.outcome, report.message, len(report.kernels)) == ("ok", "", 18)


SPECIAL = """
@triton.jit
def special(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + n)
"""


def specialised(launches: str) -> str:
    return module(head=SPECIAL, launch=launches.replace("\n", "\n        "))


def test_same_launches_share_a_compilation(bench: Bench, compiled: Compile) -> None:
    report = compiled(recorded_text(bench, specialised("for _ in range(3):\n    special[(1,)](x, out, 8, BLOCK=256)")))
    assert len(report.kernels) == 1


PAIRS = {
    "an offset that does not divide by 16": ("x, out, 8", "x.view(-1)[1:], out, 8", 2),
    "an offset that does": ("x, out, 8", "x.view(-1)[4:], out, 8", 1),
    "a whole number that divides by 16": ("x, out, 7", "x, out, 32", 2),
    "two that do not": ("x, out, 7", "x, out, 9", 1),
    "a number of 64 bits": ("x, out, 7", "x, out, 1 << 40 | 1", 2),
    "a dtype": ("x, out, 7", "x.half(), out, 7", 2),
    "a float": ("x, out, 7", "x, out, 7.0", 2),
    "two floats": ("x, out, 1.0", "x, out, 3.0", 1),
    "a truth value": ("x, out, 7", "x, out, True", 2),
    "warps": ("x, out, 7, num_warps=4", "x, out, 7, num_warps=8", 2),
    "fused operations": ("x, out, 7", "x, out, 7, enable_fp_fusion=False", 2),
    "another grid": ("x, out, 7", "x, out, 7", 1),
}


@pytest.mark.parametrize("name", PAIRS)
def test_launches_are_compiled_for_what_triton_specialises_on(bench: Bench, compiled: Compile, name: str) -> None:
    first, second, count = PAIRS[name]
    code = specialised(f"special[(1,)]({first}, BLOCK=64)\nspecial[(2,)]({second}, BLOCK=64)")
    report = compiled(recorded_text(bench, code))
    assert (report.outcome, report.message, len(report.kernels)) == ("ok", "", count)


def test_a_one_is_a_compile_time_value(bench: Bench, compiled: Compile) -> None:
    """With 1 the number of elements is known when compiled, with any other number it is not."""
    head = SPECIAL.replace("+ n)", "+ tl.zeros((n,), tl.float32))")
    code = module(head=head, launch="special[(1,)](x, out, NUMBER, BLOCK=256)")
    assert compiled(recorded_text(bench, code.replace("NUMBER", "1"))).outcome == "ok"
    assert compiled(recorded_text(bench, code.replace("NUMBER", "2"))).outcome == "rejected"


ARGUMENTS = {
    "a type": ("KIND: tl.constexpr", "tl.float16", "v.to(KIND).to(tl.float32)"),
    "nothing": ("bias", "None", "v if bias is None else v + tl.load(bias)"),
    "a tuple": ("pair", "(x, 3)", "v + tl.load(pair[0] + pair[1])"),
    "a string": ("ACT: tl.constexpr", "'relu'", "tl.maximum(v, 0.0) if ACT == 'relu' else v"),
    "a descriptor": ("d", "TensorDescriptor(x, [8, 64], [64, 1], [8, 32])", "v + tl.sum(tl.sum(d.load([0, 0]), 0), 0)"),
    "infinity": ("big", "float('inf')", "tl.minimum(v, big)"),
    "a default": ("s: tl.constexpr = 2.0", "s", "v * s"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_every_kind_reach_the_compiler(bench: Bench, compiled: Compile, name: str) -> None:
    parameter, given, value = ARGUMENTS[name]
    head = (
        f"@triton.jit\ndef takes(x, out, BLOCK: tl.constexpr, {parameter}):\n"
        f"    i = tl.arange(0, BLOCK)\n    v = tl.load(x + i)\n    v = {value}\n    tl.store(out + i, v)"
    )
    code = module(head=head, launch="takes[(1,)](x, out, 256" + ("" if given == "s" else f", {given}") + ")")
    report = compiled(recorded_text(bench, code))
    assert (report.outcome, report.message, len(report.kernels)) == ("ok", "", 1)


def test_a_descriptor_that_no_gpu_takes_is_rejected(bench: Bench, compiled: Compile, plain: str) -> None:
    program = json.loads(plain)
    window = program["inputs"][0]
    argument = {"descriptor": [window, [8, 64], [63, 1], [8, 32], "zero"]}
    program["forward"][-1]["variants"][0]["args"]["x"] = argument
    report = compiled(json.dumps(program))
    assert report.outcome == "rejected" and "16-byte aligned" in report.message


def bent(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    program = json.loads(text)
    change(program)
    return json.dumps(program)


def variant(program: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = program["forward"][-1]["variants"][0]
    return found


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "no program": (lambda p: p.clear(), "unsupported", "fields"),
    "a kernel with an import": (
        lambda p: p["kernels"][0].update(source="def kernel(x, out, n, BLOCK):\n    import os"),
        "rejected",
        "line",
    ),
    "a default that cannot be made": (
        lambda p: p["kernels"][0].update(source="def kernel(x, out, n, BLOCK, pad=-None):\n    pass"),
        "unsupported",
        "the default `-None`",
    ),
    "a module that is not Triton's": (
        lambda p: p["kernels"][0]["names"].update(tl={"module": "os"}),
        "rejected",
        "kernel kernel",
    ),
    "an argument for no parameter": (lambda p: variant(p)["args"].update(more=1), "rejected", "no parameter"),
    "an argument named like generated text": (lambda p: variant(p)["args"].update(v_x=1), "rejected", "no parameter"),
    "an argument too few": (lambda p: variant(p)["args"].pop("n"), "rejected", "missing"),
    "text for a number": (lambda p: variant(p)["args"].update(n="8"), "rejected", "str"),
    "text for a compile-time number": (lambda p: variant(p)["args"].update(BLOCK="8); import os"), "rejected", "line"),
    "a kernel for a number": (lambda p: variant(p)["args"].update(n={"kernel": 0}), "rejected", "kernel kernel"),
    "a complex tensor": (
        lambda p: variant(p)["args"].update(x={"window": [0, "complex64", [1], [1], 0]}),
        "rejected",
        "complex64",
    ),
    "a very long block": (lambda p: variant(p)["args"].update(BLOCK=1 << 40), "rejected", "out of range"),
    "a negative block": (lambda p: variant(p)["args"].update(BLOCK=-256), "rejected", "line"),
    "no launch": (lambda p: p.update(forward=[]), "ok", "no Triton kernel"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_forged_programs_are_answered(plain: str, compiled: Compile, name: str) -> None:
    change, outcome, said = HOSTILE[name]
    report = compiled(bent(plain, change))
    assert report.outcome == outcome and said in report.message, report


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '"\ud800"', "9" * 5000, "\0"])
def test_text_that_is_no_program_is_answered(compiled: Compile, text: str) -> None:
    assert compiled(text).outcome == "unsupported"


def test_compilation_that_never_ends_meets_its_limit(bench: Bench, compiled: Compile, plain: str) -> None:
    text = recorded_text(bench, module("for step in tl.static_range(100000):\n    v = v * 2.0 + step"))
    report = compiled(text, limits=Limits(wall_s=60, cpu_s=1, memory_mb=4096))
    assert report.outcome == "timeout" and "limit" in report.message
    assert compiled(plain).outcome == "ok"


@pytest.mark.parametrize(
    "report",
    [
        *(None, [], {}, 3, {"kernels": 3}, {"kernels": [], "refused": [], "lacking": []}),
        {"kernels": [3], "refused": [7], "lacking": [], "lost": True},
        {"kernels": [], "refused": [], "lacking": [], "lost": 1},
    ],
)
def test_a_damaged_report_is_a_failure(report: Any) -> None:
    assert program_report(JobResult("ok", "", report=report), LIMITS).outcome == "failed"


def test_numbers_of_a_report_are_bounded() -> None:
    huge = 10**400
    kernel = {"name": 5, "registers": huge, "threads": True, "shared_bytes": -1, "spill_bytes": 4}
    report: dict[str, Any] = {"kernels": [kernel] * 1000, "refused": [], "lost": False, "too_many": False}
    report |= {"lacking": [[0, huge], [huge, 1], [1], "x", [-1, 1], [2, True]], "refusals": huge, "left_out": huge}
    found = program_report(JobResult("ok", "", report=report), LIMITS)
    assert found.outcome == "ok" and len(found.kernels) == 64 and found.variants == {}
    (first, *_) = found.kernels
    assert (first.name, first.registers, first.threads, first.shared_bytes, first.spill_bytes) == ("", *[None] * 3, 4)


def test_how_a_job_ends_is_told_apart() -> None:
    assert program_report(JobResult("infra", "the worker died"), LIMITS).outcome == "failed"
    assert program_report(JobResult("memory", ""), LIMITS).outcome == "rejected"
    assert program_report(JobResult("timeout", ""), LIMITS).outcome == "timeout"
    assert program_report(JobResult("crash", "signal 6", signal=6), LIMITS).outcome == "rejected"
    assert program_report(JobResult("crash", "status 1"), LIMITS).outcome == "unsupported"


def test_what_the_harness_raises_is_of_the_program(monkeypatch: pytest.MonkeyPatch, plain: str) -> None:
    def failing(*_: object) -> None:
        raise TypeError("bad operand")

    monkeypatch.setattr(compile_harness, "_report_on", failing)
    report = compile_harness.execute(plain, {}, lambda: None, lambda outputs, short=False: None)
    assert report == {"unreadable": f"{compile_harness.UNREAD} (TypeError: bad operand)"}
    assert program_report(JobResult("ok", "", report=report), LIMITS).outcome == "unsupported"


def test_messages_keep_both_ends() -> None:
    long = "where " + "x" * 5000 + " what"
    assert len(shortened(long)) <= 800 and shortened(long).startswith("where") and shortened(long).endswith("what")
    assert shortened(" short ") == "short"


def test_an_unknown_architecture_is_refused() -> None:
    assert shared_limit("sm_90") == 232448
    with pytest.raises(ConfigError, match="sm_90"):
        shared_limit("sm_1")
