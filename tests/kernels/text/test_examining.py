"""The examination of a submission's text: what it says, what it lets pass, that no text makes it fail or wait."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from assay.kernels.base import Language
from assay.kernels.text import examined as bounds
from assay.kernels.text.examined import Examined, Extension, Finding
from assay.kernels.text.examining import examine
from assay.kernels.text.job import HARNESS, LIMITS, examined, of_text, unread
from assay.sandbox import JobResult, Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.cpu_limit import at_most_cpu
from support.cuda_sources import ELEMENTWISE
from support.sandboxes import FEATURES, needs_walls

HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def k(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)
"""


def source(
    forward: str = "y = torch.empty_like(x)\n        k[(1,)](x, y, 4, BLOCK=4)\n        return y",
    base: str = "nn.Module",
    top: str = KERNEL,
) -> str:
    return f"{HEAD}{top}\n\nclass ModelNew({base}):\n    def forward(self, x):\n        {forward}\n"


def found(code: str, backend: Language = "triton") -> list[tuple[str, str]]:
    report = examine(code, backend)
    assert report.fault is None, report
    return [(finding.kind, finding.severity) for finding in report.findings]


GUARDED = "try:\n            return self.run(x)\n        except Exception:\n            {handler}"


@pytest.mark.parametrize(
    ("code", "kind", "severity"),
    [
        (source(top=""), "no_kernel", "cheat"),
        (source(top="@torch.jit.script\ndef k(x):\n    return x\n"), "no_kernel", "cheat"),
        (source(base="Model"), "inherits_reference", "cheat"),
        (
            source().replace("    def forward", "    def run").replace("nn.Module", "nn.Linear"),
            "library_layer",
            "cheat",
        ),
        (source(top=KERNEL + "m = torch.utils.cpp_extension.load_inline('m', '')\n"), "native_code", "cheat"),
        (
            source(top=f"from torch.utils.cpp_extension import load as l\n{KERNEL}m = l('m', [])\n"),
            "native_code",
            "cheat",
        ),
        (source("return torch.compile(self.run)(x)"), "compiler", "hint"),
        (source(top=KERNEL + "from torch import compile as c\n@c\ndef f(x): ...\n"), "compiler", "hint"),
        (source(GUARDED.format(handler="return x.relu()")), "fallback", "hint"),
        (source(GUARDED.format(handler="x = x + 1")), "fallback", "hint"),
    ],
)
def test_what_would_fail_later_and_less_clearly_is_found(code: str, kind: str, severity: str) -> None:
    assert found(code) == [(kind, severity)]
    compile(code, "submission", "exec")


@pytest.mark.parametrize(
    "code",
    [
        source(),
        source(base="Model", top=f"{KERNEL}\nclass Model(nn.Module): ...\n"),
        source(base="nn.Linear"),
        source(top=KERNEL.replace("triton.jit", "jit") + "from triton import jit\n"),
        source(top=KERNEL.replace("@triton.jit\n", "") + "k = triton.jit(k)\n"),
        source(top=f'{KERNEL}"""load_inline(torch.compile)"""\n# class ModelNew\n'),
        source(GUARDED.format(handler="raise")),
        source(GUARDED.format(handler="return None")),
        source(top=f"try:\n    import a\nexcept ImportError:\n    a = f()\n{KERNEL}"),
        source("w = torch.load\n        torch.compiler.disable(k)\n        return x @ x"),
    ],
)
def test_what_the_recorded_program_decides_is_let_pass(code: str) -> None:
    assert found(code) == []


def test_hints_are_told_beside_a_verdict() -> None:
    report = examine(source(GUARDED.format(handler="return x.relu()")))
    assert report.told("wrong").startswith("wrong (see also line 16: an exception is caught here")
    assert examine(source()).told("wrong") == "wrong"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(:\n", "line 1: "),
        (f"```python\n{source()}```\n", "line 1 is a Markdown fence"),
        ("class ModelNew(:\n", "line 1: "),
        ("def f():\n    class ModelNew: ...\n", "no class ModelNew"),
        (source() + source(), "more than once"),
        ("if True:\n    class ModelNew: ...\nelse:\n    class ModelNew: ...\n", "more than once"),
        ("x = 1\0", "null bytes"),
        ("# -*- coding: utf-7 -*-\n" + source(), "the encoding utf-7"),
        ("#!python\n\t# vim: fileencoding=latin-1\n# \u00e9\n" + source(), "the encoding latin-1"),
        ("# Rotary position encoding: fused\n" + source(), "the encoding fused"),
        ("\ufeff# coding=" + "x" * 900 + "\n" + source(), "the encoding xxx"),
        ("# 1\r# coding: cp500\r" + source(), "a carriage return that is no part of a line's end (line 1)"),
        ("x = 1\n# a\r# b\n" + source(), "a carriage return that is no part of a line's end (line 2)"),
        ("\ufeff# coding: latin-1\n" + source(), "the encoding latin-1"),
        ("\ufeff# coding: utf8\n" + source(), "the encoding utf8"),
        ("(" * 10_000, ""),
        ("a" + "+a" * 49_000, ""),
        ("-" * 90_000 + "1", ""),
        ("x" * 10_000_000, "10000000 characters"),
        ("\ud800", ""),
        ("", "no class ModelNew"),
    ],
)
def test_what_is_no_submission_is_a_fault_and_no_exception(code: str, said: str) -> None:
    report = examine(code)
    assert report.fault is not None and said in report.fault and len(report.fault) <= bounds.FAULT_CHARACTERS


HEADS = (
    "# coding: utf-8",
    "# -*- coding: utf-8-unix -*-",
    "x = 1\r\n# coding: utf-8",
    "# -*- coding: UTF_8 -*-",
    "1\n# coding: cp500",
    "\n\n# coding: x",
    "# coding=ascii",
)


@pytest.mark.parametrize("head", HEADS)
def test_a_text_that_a_file_would_be_is_taken(head: str) -> None:
    assert examine(f"{head}\n{source()}").fault is None


def test_a_class_under_a_condition_is_one() -> None:
    assert examine("try:\n    pass\nexcept ImportError:\n    if a:\n        class ModelNew: ...\n").fault is None


@pytest.mark.parametrize(
    ("call", "possible"),
    [
        ("tl.dot(a, b)", True),
        ("tl.dot(a, b, input_precision='tf32')", True),
        ("tl.dot(a, b, input_precision='ieee')", False),
        ("tl.dot(a, b, allow_tf32=False)", False),
        ("dot(a, b)", True),
        ("a.dot(b)", False),
        ("tl.sum(a[:, :, None] * b[None, :, :], 1)", True),
        ("tl.sum(b[None, :, :] * a[:, :, None], 1)", False),
    ],
)
def test_products_in_tf32_are_seen(call: str, possible: bool) -> None:
    code = source(top=f"from triton.language import dot\n{KERNEL}    c = {call}\n")
    assert examine(code).tf32_dot_possible is possible


def test_a_module_of_the_longest_kind_takes_linear_time() -> None:
    """Each shape made the former checks, or a plain walk, take quadratic or exponential time."""
    calls = "".join(f"def f{n}(x):\n    {f'f{n + 1}(x); ' * 6}\n" for n in range(14))
    names = "".join(f"a{n} = a{n + 1} + a{n + 1}\n" for n in range(60)) + "a60 = 'x' * 9\n"
    shapes = [
        calls,
        names,
        "a" + ".b" * 900 + "\n",
        "".join(f"x{n} = torch.a.b.c\n" for n in range(3000)),
        "def f():\n" + "".join(" " * n + "try:\n" for n in range(1, 90)) + " " * 90 + "pass\n",
        "f(" * 90 + ")" * 90 + "\n",
    ]
    with at_most_cpu(20):
        for shape in shapes:
            examine(source(top=KERNEL + shape * (40_000 // len(shape) + 1)))
            examine(source(top=KERNEL + shape * (40_000 // len(shape) + 1)), "cuda")


# CUDA


def cuda(text: str, before: str = "", call: str = "cuda_sources=TEXT") -> str:
    head = "from torch.utils.cpp_extension import load_inline\n"
    return f"{head}{before}\nTEXT = {text!r}\nm = load_inline('m', '', {call})\nclass ModelNew: ...\n"


def read(code: str) -> Extension:
    (extension,) = examine(code, "cuda").extensions
    return extension


def test_an_honest_cuda_submission_has_no_finding() -> None:
    report = examine(ELEMENTWISE.module, "cuda")
    assert report.fault is None and report.findings == ()
    (extension,) = report.extensions
    assert "scale_kernel" in extension.cuda and extension.functions == ("run",) and not extension.unread


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("auto y = at::relu(x);", "library_call"),
        ("cublasSgemm(handle, 0);", "library_call"),
        ("x.matmul(y);", "library_call"),
        ("std::thread t(f);", "threads"),
        ("cudaStreamCreate(&s);", "side_stream"),
        ('system("ls");', "native_code"),
        ("cudaDeviceSetLimit(a, b);", "timing"),
    ],
)
def test_host_code_that_does_the_work_is_a_cheat(host: str, kind: str) -> None:
    honest = "__global__ void k() {}\n// at::relu(x); cublasSgemm(\n/* at::relu(x)"
    assert found(cuda(honest), "cuda") == []
    (finding,) = examine(cuda(f"__global__ void k() {{}}\n\n{host}"), "cuda").cheats
    assert finding.kind == kind and "cuda_sources(3): " in finding.evidence and finding.line == 4


def test_a_source_without_a_native_kernel_is_a_cheat() -> None:
    assert found(cuda("int f();"), "cuda") == [("no_kernel", "cheat")]
    (finding,) = examine(source(), "cuda").cheats
    assert finding.kind == "no_kernel" and "backend=triton" in finding.evidence


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("cuda_sources=[TEXT, 'b']", "a\nb"),
        ("cuda_sources=TEXT + 'b' + f'{TEXT}c'", "abac"),
        ("cuda_sources=(' x ' + TEXT).strip() + '  y'.lstrip()", "x ay"),
        ("cuda_sources=PARTS", "p\nq\na"),
        ("cuda_sources=[" + "('d' + " * 40 + "TEXT" + ")" * 40 + "]", "d" * 40 + "a"),
    ],
)
def test_texts_are_followed_through_names_and_joins(call: str, text: str) -> None:
    extension = read(cuda("a", "PARTS = ['p', ('q', TEXT)]", call))
    assert extension.cuda == text and not extension.unread


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("", "cuda_sources=TEXT.replace('a', 'b')"),
        ("TEXT = 'twice'", "cuda_sources=TEXT"),
        ("A = A + A", "cuda_sources=A"),
        ("A = [A, A]", "cuda_sources=A"),
        ("".join(f"A{n} = A{n + 1} + A{n + 1}\n" for n in range(40)) + "A40 = TEXT", "cuda_sources=A0"),
        ("".join(f"A{n} = [A{n + 1}, A{n + 1}]\n" for n in range(40)) + "A40 = TEXT", "cuda_sources=A0"),
        ("A = TEXT" + ".strip()" * 300, "cuda_sources=[A, A, A, A]"),
        ("", "cuda_sources=f'{TEXT!r}'"),
        ("", "cuda_sources=f'{TEXT:>9}'"),
        ("", "sources=['a.cu']"),
    ],
)
def test_what_only_running_would_tell_is_unread(before: str, call: str) -> None:
    with at_most_cpu(20):
        code = cuda("x" * 5000, before, call)
        assert read(code).unread and len(read(code).cuda) <= bounds.MOST_NATIVE_CHARACTERS
        assert ("obfuscation", "hint") in found(code, "cuda")


def test_no_extension_is_lost_in_silence() -> None:
    many = "".join(f"m{n} = load_inline('m', '', TEXT)\n" for n in range(40))
    extensions = examine(cuda("__global__", call="TEXT)\n" + many + "f("), "cuda").extensions
    assert len(extensions) == bounds.MOST_EXTENSIONS and "more than 16 extensions" in extensions[-1].unread[0]
    long = examine(
        cuda("x" * 60_000, call="[TEXT] * 1, [TEXT, TEXT]").replace("[TEXT] * 1", "[TEXT, TEXT, TEXT, TEXT]"), "cuda"
    )
    assert long.extensions[0].cuda == "" and "200000 characters" in long.extensions[0].unread[0]


def test_native_text_takes_linear_time() -> None:
    parts = (
        "/*",
        '"\\"',
        "at::conv",
        "at::native_",
        "cublas",
        "fopen ",
        "#include ",
        ".mm ",
        "system(",
        "at::relu(\n",
        "\n",
    )
    with at_most_cpu(20):
        for part in parts:
            examine(cuda(part * (90_000 // len(part) // 2)), "cuda")


# Across processes


def test_what_was_found_survives_its_way_as_json() -> None:
    codes: list[tuple[str, Language]] = [
        (source(top=""), "triton"),
        (source("return torch.compile(f)(x)"), "triton"),
        ("x = (", "triton"),
        (ELEMENTWISE.module, "cuda"),
        (cuda("x", call="TEXT, [TEXT.upper()], extra_cuda_cflags=['-O3']"), "cuda"),
    ]
    for code, backend in codes:
        report = examine(code, backend)
        assert Examined.from_json(json.loads(json.dumps(report.to_json()))) == report


HOSTILE: list[Any] = [None, 1, "x", [], [[]], {"fault": 3, "findings": 7, "extensions": "x"}, {"tf32_dot_possible": 1}]


@pytest.mark.parametrize("data", HOSTILE)
def test_data_that_says_nothing_is_taken_for_nothing(data: Any) -> None:
    assert Examined.from_json(data) == Examined()


def test_hostile_data_is_bounded_and_never_raises() -> None:
    big, draw = "\x1b\ud800" * 200_000, random.Random(3)
    values = [None, True, -1, 10**400, 1e308, float("nan"), big, [], {}, [big] * 100, {"a": big}, [[[[]]]]]
    finding = {"kind": "no_kernel", "line": 10**400, "evidence": big, "severity": "cheat"}
    extension = {"line": -1, "cpp": big, "cuda": big, "functions": [big] * 99, "flags": {}, "unread": [1, None]}
    whole = {"fault": big, "findings": [finding] * 99, "tf32_dot_possible": True, "extensions": [extension] * 99}
    reports = [Examined.from_json(whole)]
    for _ in range(60):
        bent = {name: draw.choice([value, draw.choice(values)]) for name, value in extension.items()}
        told = {name: draw.choice([value, draw.choice(values)]) for name, value in finding.items()}
        reports.append(Examined.from_json({**whole, "findings": [told, 3], "extensions": [bent, "x"]}))
    for report in reports:
        assert len(report.findings) <= bounds.MOST_FINDINGS and len(report.extensions) <= bounds.MOST_EXTENSIONS
        assert all(type(finding) is Finding and 0 <= finding.line < 1 << 24 for finding in report.findings)
        texts = [text for extension in report.extensions for text in (extension.cpp, extension.cuda)]
        assert sum(map(len, texts)) <= bounds.MOST_NATIVE_CHARACTERS
        text = json.dumps(report.to_json(), ensure_ascii=False)
        assert "\x1b" not in text.replace("\\u001b", "") and len(text.encode()) < 2_000_000


# In a process that can be killed


@pytest.fixture(scope="module")
def read_apart() -> Iterator[Callable[..., Examined | JobResult]]:
    with asyncio.Runner() as runner:
        sandbox = LocalSandbox(LocalConfig(workers=1), FEATURES)
        yield lambda *args: runner.run(examined(sandbox, *args))
        runner.run(sandbox.close())


@needs_walls
def test_a_text_is_examined_behind_walls(read_apart: Callable[..., Examined | JobResult]) -> None:
    longest = cuda("\U0001f600" * 24_000 + "\ud800", call="[TEXT, TEXT, TEXT, TEXT]")
    for code, backend in ((source(), "triton"), ("x = (", "triton"), (ELEMENTWISE.module, "cuda")):
        assert read_apart(code, backend) == examine(code, backend)  # type: ignore[arg-type]
    report = read_apart(longest, "cuda")
    assert isinstance(report, Examined) and len(report.extensions[0].cuda) == 4 * 24_001 + 3


@needs_walls
def test_a_text_that_takes_too_long_ends_at_its_deadline(read_apart: Callable[..., Examined | JobResult]) -> None:
    slow = "x = f'" + "{a:{b}}" * 14_000 + "'\n"
    result = read_apart(slow, "triton", Limits(wall_s=0.05, memory_mb=1024))
    assert isinstance(result, JobResult) and result.end == "timeout"
    verdict = unread(result, Limits(wall_s=0.05))
    assert (verdict.kind, verdict.stage) == ("timeout", "parse") and "0.05 s" in verdict.message
    hungry = read_apart(slow, "triton", Limits(memory_mb=1))
    assert isinstance(hungry, JobResult | Examined)
    assert isinstance(read_apart(source(), "triton"), Examined)


def test_how_a_job_ended_says_whose_fault_it_is() -> None:
    ends = {"timeout": "timeout", "memory": "crash", "crash": "crash", "infra": "infra_error", "ok": "infra_error"}
    for end, kind in ends.items():
        assert unread(JobResult(end, "words"), LIMITS).kind == kind  # type: ignore[arg-type]


def test_the_harness_needs_neither_pytorch_nor_triton() -> None:
    code = f"import sys, {HARNESS} as h; h.preload(); print(sorted({{'torch', 'triton'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_the_text_decides_is_told_with_its_line() -> None:
    assert of_text(examine(source("return torch.compile(f)(x)"))) is None
    for text, kind, message in (
        ("x = (", "compile_error", "line 1: "),
        (source(top=""), "cheat", "line 7: no function"),
    ):
        verdict = of_text(examine(text))
        assert verdict is not None and (verdict.kind, verdict.stage) == (kind, "parse")
        assert verdict.message.startswith(message) and bool(verdict.cheat) == (kind == "cheat")
