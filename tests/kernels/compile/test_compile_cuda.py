"""CUDA candidates compiled by the real nvcc in the real sandbox: sound sources pass, faults are named, walls hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from assay.errors import MissingDependencyError
from assay.kernels.compile.cuda_sources import Tools, steps
from assay.kernels.compile.messages import fault_of, plain_name, usages
from assay.kernels.compile.stage import CompileReport, compile_cuda, cuda_report
from assay.kernels.compile.toolkit import CudaToolkit, find_toolkit
from assay.kernels.inside.light_torch.forwarding import FORWARDED, HEADERS, write_forwarding_headers
from assay.kernels.text.examined import Extension
from assay.kernels.text.examining import examine
from assay.sandbox import JobResult, Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.cpu_limit import at_most_cpu
from support.cuda_sources import ELEMENTWISE, HEAD, SOUND, Cuda
from support.sandboxes import FEATURES, needs_walls

BRIEF = Limits(wall_s=60, cpu_s=2, memory_mb=4096)

Compile = Callable[..., CompileReport]


def toolkit() -> CudaToolkit | None:
    try:
        return find_toolkit()
    except MissingDependencyError:
        return None


TOOLKIT = toolkit()
needs_nvcc = pytest.mark.skipif(TOOLKIT is None, reason="no CUDA toolkit here: nvcc and g++ are needed")


@pytest.fixture(scope="module")
def compiled() -> Iterator[Compile]:
    if TOOLKIT is None:
        pytest.skip("no CUDA toolkit")
    config = LocalConfig(workers=1, readable=TOOLKIT.readable, executables=TOOLKIT.executables)
    with asyncio.Runner() as runner:
        sandbox = LocalSandbox(config, FEATURES)
        yield lambda source, **options: runner.run(compile_cuda(sandbox, extensions(source.module), **options))
        runner.run(sandbox.close())


def extensions(code: str) -> tuple[Extension, ...]:
    return examine(code, "cuda").extensions


def changed(old: str, new: str) -> Cuda:
    assert old in ELEMENTWISE.cuda
    return Cuda(ELEMENTWISE.cuda.replace(old, new))


@needs_walls
@needs_nvcc
@pytest.mark.parametrize("name", SOUND)
def test_sound_sources_compile(compiled: Compile, name: str) -> None:
    report = compiled(SOUND[name])
    assert (report.outcome, report.message) == ("ok", "")
    assert report.kernels and all(kernel.registers for kernel in report.kernels)
    if name == "tiled matmul":  # what a kernel needs is reported
        (matmul,) = report.kernels
        assert matmul.name == "matmul_kernel" and matmul.shared_bytes == 4 * (32 * 32 + 32 * 33)
        assert matmul.spill_bytes == 0


def test_every_forwarded_header_leads_to_a_light_one(tmp_path: Path) -> None:
    write_forwarding_headers(str(tmp_path))
    written = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*.*h")}
    assert written.keys() == FORWARDED.keys()
    for name, path in written.items():
        assert f'#include "{FORWARDED[name]}"' in path.read_text() and Path(HEADERS, FORWARDED[name]).is_file()


@needs_walls
@needs_nvcc
@pytest.mark.parametrize("compiler", ["g++", "nvcc"])
def test_every_forwarded_header_can_be_included(compiled: Compile, compiler: str) -> None:
    includes = "".join(f"#include <{name}>\n" for name in FORWARDED)
    body = "torch::Tensor run(torch::Tensor x) { return x; }"
    source = Cuda("", includes + body) if compiler == "g++" else Cuda(includes + ELEMENTWISE.cuda)
    assert compiled(source).outcome == "ok"


FAULTS: dict[str, tuple[Cuda, str]] = {
    "missing semicolon": (changed("int n = x.numel();", "int n = x.numel()"), 'expected a ";"'),
    "a wrong pointer": (changed("y.data_ptr<float>()", "y.data_ptr<double>()"), "incompatible"),
    "no launch configuration": (changed("<<<(n + 255) / 256, 256>>>", ""), "must be configured"),
    "a host function on the device": (changed("x[i] * 2.0f", "x[i] * getenv(0)[0]"), "__host__ function"),
    "static shared memory": (
        changed("int i =", "__shared__ volatile float s[20000]; s[n] = 1; int i ="),
        "shared data",
    ),
    "another signature": (Cuda(ELEMENTWISE.cuda, "torch::Tensor run(torch::Tensor x, int n);"), "differs"),
    "an unknown function to bind": (Cuda(ELEMENTWISE.cuda, functions=("walk",)), "walk"),
    "bad assembly": (changed("int i =", 'asm volatile("bogus.u32 %r1;"); int i ='), "bogus"),
    "half operators that PyTorch switches off": (
        Cuda("#include <cuda_fp16.h>\n" + ELEMENTWISE.cuda.replace("2.0f", "__half2float(__half() * __half())")),
        "no operator",
    ),
}


@needs_walls
@needs_nvcc
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_rejected_in_the_compilers_words(compiled: Compile, name: str) -> None:
    source, said = FAULTS[name]
    report = compiled(source)
    assert report.outcome == "rejected" and said in report.message
    assert len(report.message) <= 800 and "/tmp" not in report.message


UNKNOWN: dict[str, Cuda] = {
    "a function of PyTorch": changed("torch::empty_like(x)", "torch::special::bessel_j0(x)"),
    "a method of tensors": changed("x.numel()", "x.unsafe_chunk(2)[0].numel()"),
    "a macro of PyTorch": changed("int n =", 'AT_DISPATCH_V2(x.scalar_type(), "f", AT_WRAP([&] {}), kFloat); int n ='),
    "a header of PyTorch": Cuda("#include <ATen/native/cuda/block_reduce.cuh>\n" + ELEMENTWISE.cuda),
    "a library of kernels": Cuda("#include <cutlass/gemm/device/gemm.h>\n" + ELEMENTWISE.cuda),
    "an overload of PyTorch": changed("torch::empty_like(x)", "torch::full(x, 1.0, x, x)"),
    "cpp of its own": Cuda(ELEMENTWISE.cuda, "torch::Tensor run(torch::Tensor x) { return torch::stft(x); }"),
}


@needs_walls
@needs_nvcc
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_light_headers_lack_is_unsupported(compiled: Compile, name: str) -> None:
    report = compiled(UNKNOWN[name])
    assert report.outcome == "unsupported" and "cannot be checked here" in report.message


HOSTILE: dict[str, tuple[Cuda, tuple[str, ...]]] = {
    "a file of the machine": (Cuda('#include "/etc/passwd"\n' + ELEMENTWISE.cuda), ("rejected",)),
    "a file of processes": (Cuda('#include "/proc/self/environ"\n' + ELEMENTWISE.cuda), ("rejected",)),
    "a file in the assembler": (Cuda(ELEMENTWISE.cuda + 'asm(".include \\"/etc/passwd\\"");'), ("rejected", "ok")),
    "bytes of a file": (
        Cuda(HEAD + 'asm(".incbin \\"/etc/passwd\\"");\ntorch::Tensor run(torch::Tensor x) { return x; }'),
        ("rejected", "ok"),
    ),
    "endless templates": (
        Cuda(HEAD + "template <int N> struct S { enum { v = S<N + 1>::v }; };\nint g = S<0>::v;" + ELEMENTWISE.cuda),
        ("rejected",),
    ),
    "a file that includes itself": (
        Cuda('#include "cuda.cu"\n#include "cuda.cu"\n' + ELEMENTWISE.cuda),
        ("rejected", "timeout"),
    ),
    "a huge number of errors": (Cuda(HEAD + "\n".join(f"int a{i} = q{i};" for i in range(3000))), ("rejected",)),
}


@needs_walls
@needs_nvcc
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sources_are_contained(compiled: Compile, name: str) -> None:
    source, outcomes = HOSTILE[name]
    report = compiled(source, limits=BRIEF)
    assert report.outcome in outcomes
    secrets = [
        *Path("/etc/passwd").read_text(encoding="utf-8").splitlines()[:1],
        *os.environ.get("PATH", "").split(":"),
    ]
    assert not any(secret in report.message for secret in secrets if len(secret) > 12)
    assert len(report.message) <= 800


@needs_walls
@needs_nvcc
def test_a_compile_bomb_meets_its_limit(compiled: Compile) -> None:
    powers = "#define L0 +1\n" + "".join(f"#define L{i + 1} " + f"L{i} " * 10 + "\n" for i in range(9))
    bomb = Cuda(f"{powers}int sum = 0 L9;\n{ELEMENTWISE.cuda}")
    report = compiled(bomb, limits=replace(BRIEF, cpu_s=1))
    assert report.outcome == "timeout" and "limit" in report.message
    assert compiled(ELEMENTWISE).outcome == "ok"


def run_without_sandbox(code: str, **options: object) -> CompileReport:
    """For what is settled before any job is made."""
    return asyncio.run(compile_cuda(None, extensions(code), **options))  # type: ignore[arg-type]


def test_sources_that_are_not_literal_are_unsupported() -> None:
    code = ELEMENTWISE.module.replace("cuda_sources=cuda_source", "cuda_sources=cuda_source.replace('a', 'b')")
    given = CudaToolkit("nvcc", "/nowhere", "g++")
    report = run_without_sandbox(code, toolkit=given)
    assert report.outcome == "unsupported" and "cuda_sources (line" in report.message
    files = 'from torch.utils.cpp_extension import load\nm = load(name="m", sources=["a.cu"])\nclass ModelNew: ...\n'
    assert run_without_sandbox(files, toolkit=given).outcome == "unsupported"
    assert run_without_sandbox("class ModelNew: ...\n", toolkit=given).outcome == "rejected"


def test_a_machine_without_nvcc_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError, match="nvidia-cuda-nvcc"):
        find_toolkit(str(tmp_path))
    monkeypatch.setattr("assay.kernels.compile.stage.find_toolkit", lambda: find_toolkit(str(tmp_path)))
    report = run_without_sandbox(ELEMENTWISE.module)
    assert report.outcome == "failed" and "CUDA_HOME" in report.message


def test_a_broken_nvcc_is_not_taken_for_one(tmp_path: Path) -> None:
    script = tmp_path / "nvcc"
    script.write_text("#!/bin/sh\necho something else >&2\n", encoding="utf-8")
    script.chmod(0o755)
    with pytest.raises(MissingDependencyError, match="something else"):
        find_toolkit(str(tmp_path))


@needs_nvcc
def test_a_script_that_stands_for_nvcc_is_seen_through(tmp_path: Path) -> None:
    assert TOOLKIT is not None
    script = tmp_path / "nvcc"
    script.write_text(f'#!/bin/sh\nexec {TOOLKIT.nvcc} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    found = find_toolkit(f"{tmp_path}:{os.environ['PATH']}")
    assert found == TOOLKIT and Path(found.include, "cuda_runtime.h").exists()


def test_messages_of_compilers_are_told_apart() -> None:
    assert fault_of("nvcc error   : 'cicc' died due to signal 24", "", ())[0] == "time"
    assert fault_of("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", "", ())[0] == "crash"
    assert fault_of("nvcc fatal   : Cannot find compiler 'gcc' in PATH", "", ())[0] == "tool"
    assert fault_of("main.cpp:3:9: error: 'foo' is not a member of 'torch'", "", ())[0] == "unknown_api"
    assert fault_of("main.cpp:3:9: error: 'foo' was not declared in this scope", "", ())[0] == "candidate"
    plain = 'cuda_sources(3): error: identifier "q" is undefined'
    foreign = 'cuda_sources(5): error: namespace "torch" has no member "x"'
    assert fault_of(f"{plain}\n{foreign}", "", ())[0] == "candidate"
    assert fault_of(f"{foreign}\n{plain}", "", ())[0] == "unknown_api"


def test_accounts_of_the_assembler_are_read() -> None:
    said = (
        "ptxas info    : Compiling entry function '_ZN3abc6kernelEPf' for 'sm_90'\n"
        "    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem\n"
    )
    (usage,) = usages(said)
    assert (usage.name, usage.shared_bytes, usage.registers, usage.spill_bytes) == ("kernel", 1024, 40, 8)
    assert plain_name("_Z13matmul_kernelPKfS0_Pfiii") == "matmul_kernel" and plain_name("plain") == "plain"


def test_words_of_compilers_may_be_anything() -> None:
    """A pragma lets a source say what it likes in them."""
    entry = "Compiling entry function 'a' 1 bytes spill stores "
    with at_most_cpu(20):
        for part in (
            entry,
            "1 bytes spill stores ",
            "\n" + entry,
            "no operator ",
            "1a",
            "9",
            'a(1): error: "',
            "#define ",
        ):
            said = part * (24_000 // len(part))
            usages(said)
            plain_name(said)
            fault_of(f"a.cpp:1:1: error: {said}\n{said}", said, ())
            steps(Extension(1, said, said), Tools("nvcc", "g++", "", "sm_90"))
        steps(Extension(1, "", "template<" * 20_000), Tools("nvcc", "g++", "", "sm_90"))


@pytest.mark.parametrize("report", [None, [], {}, {"steps": [3]}, {"steps": [{"status": "0", "said": None}]}])
def test_a_report_that_is_none_is_a_failure_of_the_tool(report: object) -> None:
    assert cuda_report(JobResult("ok", "", report=report), (), BRIEF).outcome == "failed"
