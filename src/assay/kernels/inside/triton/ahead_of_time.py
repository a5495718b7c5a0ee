"""Triton's compiler without a GPU: every launch becomes a compilation to a cubin, and nothing is run.

    driver that only names its target  +  JITFunction.run forced to warm up  ->  PTX -> ptxas -> cubin

Autotuned kernels are compiled in their first few configurations; one that is out of resources is passed over, as on a
GPU. What the driver would check at load time (shared memory, threads) and at launch (the grid) is checked here.
"""

from __future__ import annotations

import operator
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import FileCacheManager
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from assay.kernels.inside.pretend_cuda import driver_properties
from assay.types import Json

MAX_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
CONFIGURATIONS = 4
"""Of an autotuned kernel, per key, how many are compiled."""
DIAGNOSTIC_BYTES = 2048
_PASSED_OVER = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""What the autotuner forgives a configuration."""
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(slots=True)
class Session:
    """What was compiled so far, and the first launch that could not be."""

    capability: int
    shared_limit: int
    kernels: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Reports by the hash of the compilation."""
    launches: int = 0
    failed: str = ""
    """Name of the kernel that could not be compiled or launched; empty while all could."""
    error: BaseException | None = None
    diagnostics: str = ""
    """What the compiler wrote to standard error meanwhile."""
    tried: int = 0
    """Configurations of the autotuned kernel that is being tuned."""
    resources: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Registers and bytes of spills of a cubin."""


session = Session(90, 0)
"""Of this process; `begin` starts a new one."""
_original_run = JITFunction.run
_original_tune = Autotuner.run


def begin(capability: int, shared_limit: int) -> Session:
    """Start a session."""
    global session
    session = Session(capability, shared_limit)
    return session


class Utilities:
    """What Triton asks of a driver's C part."""

    def get_device_properties(self, _: int) -> dict[str, int]:
        """Limits of the device that is compiled for."""
        return driver_properties(shared_limit=session.shared_limit)

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills (in words), most threads; nothing is loaded."""
        registers, spills = session.resources.get(cubin, (0, 0))
        return 1, 1, registers, spills // 4, MAX_THREADS


class Driver:
    """A driver that only says what to compile for."""

    utils = Utilities()

    def get_current_target(self) -> GPUTarget:
        """The target of this session."""
        return GPUTarget("cuda", session.capability, 32)

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def set_current_device(self, _: int) -> None:
        """There is only one."""

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        """Of the target."""
        return divmod(session.capability, 10)

    def get_current_stream(self, *_: Any) -> int:
        """The default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where tensors are."""
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """PyTorch's module for the device."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """What an autotuner times configurations with."""
        return compile_configuration

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """A launcher that does nothing."""
        return lambda *_, **__: None

    def map_python_to_cpp_type(self, _: str) -> str:
        """No launcher is generated, so no type is needed."""
        return "void*"

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Nothing is timed, so no cache is emptied."""
        return torch.empty(0)

    def clear_cache(self, cache: Any) -> None:
        """Nothing is timed, so no cache is emptied."""


def compile_configuration(call: Any, *_: Any, quantiles: Any = None, **__: Any) -> Any:
    """Stands for a benchmark: compiles the first few configurations; the first that compiles is the best."""
    session.tried += 1
    if session.tried <= CONFIGURATIONS or session.failed:
        try:
            call()
        except _PASSED_OVER:
            session.failed = ""
            raise
    time_ms = 1.0 + session.tried / 1000
    return time_ms if quantiles is None else [time_ms] * len(quantiles)


def _tune(self: Any, *args: Any, **kwargs: Any) -> Any:
    session.tried = 0
    return _original_tune(self, *args, **kwargs)


def _launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """Compile a kernel in place of running it; note what kept it from being compiled or launched."""
    start = _written()
    try:
        kernel = _original_run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel is not None:
            kernel._init_handles()
            _note(kernel)
        if grid is not None:
            _check_grid(grid(_bound(self, args, kwargs)) if callable(grid) else grid)
    except Exception as error:
        if not session.failed:
            session.failed, session.error = self.fn.__name__, error
            session.diagnostics = _since(start)
        raise
    session.launches += 1
    return kernel


def _written() -> int | None:
    """How much stands in standard error, where that is a file, as it is in a sandbox."""
    try:
        return os.lseek(2, 0, os.SEEK_CUR)
    except OSError:
        return None


def _since(start: int | None) -> str:
    """What the native compiler has written to standard error since then."""
    if start is None:
        return ""
    return os.pread(2, DIAGNOSTIC_BYTES, start).rstrip(b"\0").decode("utf-8", "replace")


def _note(kernel: Any) -> None:
    metadata = kernel.metadata
    session.kernels[kernel.hash] = {
        "name": metadata.name,
        "shared_bytes": metadata.shared,
        "threads": 32 * metadata.num_warps,
        "registers": kernel.n_regs,
        "spill_bytes": 4 * kernel.n_spills,
    }


def _bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    binder = function.device_caches[0][4]
    return binder(*args, **{"debug": function.debug or False, "instrumentation_mode": "", **kwargs})[0]


def _check_grid(grid: Any) -> None:
    sizes = tuple(size if isinstance(size, float) else operator.index(size) for size in grid)
    if not 1 <= len(sizes) <= len(MAX_GRID):
        raise ValueError(f"a grid has 1 to 3 dimensions, this one is {sizes}")
    for axis, (size, most) in enumerate(zip(sizes, MAX_GRID, strict=False)):
        if not isinstance(size, int) or not 0 <= size <= most:
            raise ValueError(f"the grid {sizes} has {size!r} programs along axis {axis}: give an int from 0 to {most}")


def _make_cubin(self: Any, source: str, metadata: dict[str, Any], options: Any, capability: int) -> bytes:
    """Assemble PTX with the assembler that Triton ships; keeps its account of registers and spills."""
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = f"{folder}/kernel.ptx", f"{folder}/kernel.cubin"
        with open(ptx, "w", encoding="utf-8") as file:
            file.write(source)
        words = [nvidia.get_ptxas(self.target.arch).path, "-v", "--regAllocOptLevel=2"]
        words += [] if options.enable_fp_fusion else ["--fmad=false"]
        words += options.ptx_options.split() if options.ptx_options else []
        words += [f"--gpu-name={nvidia.sm_arch_from_capability(capability)}", ptx, "-o", cubin]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", close_fds=False, check=False)
        if done.returncode != 0:
            raise PTXASError(f"ptxas failed with exit status {done.returncode}:\n{done.stderr.replace(folder, '')}")
        with open(cubin, "rb") as result:
            code = result.read()
    registers = _REGISTERS.search(done.stderr)
    spills = _SPILLS.search(done.stderr)
    session.resources[code] = (int(registers[1]) if registers else 0, int(spills[1]) if spills else 0)
    return code


class OneProcessCache(FileCacheManager):  # type: ignore[misc]
    """The compiler's files, written straight to their places: nothing else reads them.

    The usual detour over a folder and a rename costs more, and Landlock forbids renaming across folders.
    """

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file and return its path; the text of the first stage, which nothing needs, is left empty."""
        path = str(self._make_path(filename))
        if filename.endswith(".source"):
            data = b""
        with open(path, "wb") as file:
            file.write(data if isinstance(data, bytes) else str(data).encode())
        return path


def install() -> None:
    """Make Triton compile and never launch, for the rest of this process."""
    driver.set_active(Driver())
    JITFunction.run = _launch
    Autotuner.run = _tune
    nvidia.CUDABackend.make_cubin = _make_cubin
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = compile_configuration
    knobs.cache.manager_class = OneProcessCache
    knobs.compilation.store_binary_only = True
    knobs.compilation.disable_line_info = True
