"""Triton's compiler without a GPU and without PyTorch: a function and its arguments to a cubin, and nothing is run.

    install(90, 232448)
    read_only()                                          and then only read kernels, for their types and blocks
    read_only(and_lay_out=True)                          and see what shared memory they need
    key = specialised(function, arguments, options)      what Triton would compile it for
    kernel = compiled(function, arguments, options)      PTX -> ptxas -> cubin, fit to be loaded

Which types, compile-time values and alignments a kernel is compiled for is Triton's own word, its launcher's. Arguments
that are tensors may be of PyTorch or a `stand_ins.Tensor`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.runtime import cache
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources, PTXASError

from assay.kernels.inside.triton import front_end
from assay.kernels.inside.triton.compiled import (
    equal_lanes,
    filled,
    layouts,
    machine_code,
    made_products,
    moved_values,
    stores,
    unused_results,
)
from assay.kernels.inside.triton.compiled.llvm_stage import LlvmStage
from assay.kernels.inside.triton.compiled.places import Place, at

MAX_THREADS = 1024
"""Of a block."""
REGISTERS = 65536
"""That a block can have."""
_AT_ONCE = 8
"""Registers that a thread is given at a time."""
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores")
_ALL_STAGES = nvidia.CUDABackend.add_stages


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel needs of the GPU, as the assembler says."""

    shared_bytes: int
    registers: int
    spill_bytes: int
    threads: int
    stored: int | None = None
    """Most bytes that one program stores; None where it is compiled, and where its text does not say (`stores`)."""
    scratch_bytes: int = 0
    """Of global memory that Triton asks an allocator for at each launch: of a program, and 0 where it is only read."""


class Driver:
    """A driver that says what to compile for, and takes kernels as a GPU would."""

    def __init__(self, capability: int, shared_limit: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)
        self._limits = {"max_shared_mem": shared_limit}
        self.reads_only = self.lays_out = False
        """Whether kernels are read and not compiled, and whether they are laid out all the same (`read_only`)."""
        self.read = ""
        """What the last kernel's first stage gives."""
        self.text = ""
        """The last kernel's first stage, as what compares it with others (`front_end`)."""
        self.may_make = self.may_load = False
        """Whether the last kernel reduces and, after its first stage, has dots: they may be made (`made_products`). And
        whether a load may be (`moved_values`)."""
        self.spreads: frozenset[layouts.Spread] = frozenset()
        """How accesses of the last kernel are spread over its threads."""
        self.filled: list[str] = []
        """Where the last kernel's loads fill words with a number (`filled`)."""
        self.unlike: list[tuple[str, str]] = []
        """What the last kernel is compiled to that its text does not say (`compiler_words.UNLIKE`), and where."""
        self.resources: dict[bytes, tuple[int, int]] = {}
        """Registers and bytes of spills of a cubin."""
        self.codes: dict[bytes, str] = {}
        """The text that a cubin was assembled of."""
        self.utils = SimpleNamespace(get_device_properties=lambda _: self._limits, load_binary=self._load)

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def get_current_stream(self, *_: Any) -> int:
        """The default stream."""
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """A launcher that does nothing."""
        return lambda *_, **__: None

    def _load(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills (in words), most threads; nothing is loaded."""
        registers, spills = self.resources.get(cubin, (0, 0))
        return 1, 1, registers, spills // 4, most_threads(registers)


class TooManyRegisters(OutOfResources):  # type: ignore[misc]
    """A launch of more threads than a GPU has registers for. As Triton has it, but it says what is the matter."""

    def __init__(self, threads: int, most: int, registers: int) -> None:
        super().__init__(threads, most, "threads")
        self.registers = registers

    def __str__(self) -> str:
        return (
            f"out of resource: registers. The kernel is compiled to {self.registers} registers a thread, of which a "
            f"GPU has enough for {self.limit} threads a block ({REGISTERS} registers in all), and it is launched with "
            f"{self.required}: the launch fails. Leave maxnreg out, so that the compiler keeps to what there is, give "
            "a smaller one, or launch fewer warps"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.required, self.limit, self.registers)


def most_threads(registers: int) -> int:
    """Threads of a block for which a GPU has so many registers each, as its driver says of a loaded kernel."""
    warp = 32 * -(-registers // _AT_ONCE) * _AT_ONCE
    return min(MAX_THREADS, 32 * (REGISTERS // warp)) if warp else MAX_THREADS


def install(capability: int, shared_limit: int) -> None:
    """Make Triton compile for a GPU that is not there, for the rest of this process."""
    driver.set_active(Driver(capability, shared_limit))
    nvidia.CUDABackend.make_cubin = _make_cubin
    nvidia.CUDABackend.add_stages = _add_stages
    cache.triton_key = lambda: "one process"  # a hash of all files of Triton, a third of a second
    knobs.cache.manager_class = OneProcessCache
    knobs.compilation.always_compile = True  # its cache takes some compile-time strings for one another
    knobs.compilation.store_binary_only = True
    knobs.compilation.disable_line_info = False


def read_only(*, and_lay_out: bool = False) -> None:
    """Let Triton read kernels and not compile them, until the next `install`: it types every value and checks the size
    of every block, in a hundredth of the time. What stands for a cubin then is its text after that. `and_lay_out`: go
    on until the shared memory that a kernel needs is known, which takes little more."""
    driver.active.reads_only, driver.active.lays_out = True, and_lay_out


def _add_stages(self: Any, found: dict[str, Any], options: Any, language: Any) -> None:
    _ALL_STAGES(self, found, options, language)
    first = found["ttir"]

    def read(module: Any, metadata: dict[str, Any]) -> Any:
        reduces = made_products.reduces(module)
        driver.active.may_load = moved_values.may_load_again(module.str_nodebug())
        module = first(module, metadata)
        driver.active.may_make = reduces and made_products.multiplies(module)
        text = module.str_nodebug()
        driver.active.text = front_end.digest(text)
        if moved_values.may_reorder(text):
            driver.active.unlike += (("reordered", place) for place in moved_values.reordered(str(module)))
        driver.active.read = str(module) if driver.active.reads_only else ""
        return module

    found["ttir"] = read
    second = found["ttgir"]

    def spread(module: Any, metadata: dict[str, Any]) -> Any:
        module = second(module, metadata)
        text = str(module)
        driver.active.spreads = layouts.spreads(text)
        version = nvidia.get_ptx_version_from_options(options, self.target.arch)
        once = equal_lanes.places(module, text, self.target.arch, version)
        driver.active.unlike += (("made once", place) for place in once)
        driver.active.unlike += (("reduced late", place) for place in moved_values.reduced_late(text))
        unused = unused_results.places(module, text, self.target.arch, version)
        driver.active.unlike += (("not used", place) for place in unused)
        driver.active.filled = filled.filled(text)
        if "ttg.warp_specialize" in text:
            driver.active.unlike.append(("warps apart", ""))
        return module

    found["ttgir"] = spread
    if driver.active.reads_only:
        found.clear()
        found["ttir"], last = read, _as_read
        if driver.active.lays_out:
            found["ttgir"], last = second, partial(_laid_out, self, options)
        found["cubin"] = last


def _as_read(module: Any, metadata: dict[str, Any], shared: int = 0) -> bytes:
    metadata |= {"name": "kernel", "shared": shared, "tmem_size": 0}
    return str(driver.active.read).encode()


def _laid_out(self: Any, options: Any, module: Any, metadata: dict[str, Any]) -> bytes:
    version = nvidia.get_ptx_version_from_options(options, self.target.arch)
    stage = LlvmStage(module.context, str(module), self.target.arch, version)
    stage.without_structure()
    return _as_read(module, metadata, stage.shared_bytes())


def do_without_torch() -> None:
    """Keep Triton from importing PyTorch, which costs seconds, and which it only needs to know tensors of it."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


def specialised(function: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """What a launch is compiled for: two launches of a kernel with the same text share one compilation.

    Raises:
        TypeError: an argument is missing, unknown or of a type that kernels do not take.
        OverflowError: a whole number of more than 64 bits.
    """
    binder = function.device_caches[0][4]
    _, specialization, given = binder(**arguments, **options)
    return f"{function.fn.__qualname__} {specialization} {sorted(given.items())}"


def compiled(function: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """A kernel that a GPU would load.

    Raises:
        Exception: whatever the compiler says against it; `OutOfResources` where it needs more than the GPU has.
    """
    driver.active.may_make = driver.active.may_load = False
    driver.active.unlike, driver.active.filled = [], []
    for known in function.device_caches[0][:2]:  # in which 1 and True are one, and are read once
        known.clear()
    kernel = function.run(grid=None, warmup=True, **arguments, **options)
    try:
        kernel._init_handles()
    except OutOfResources as error:
        registers = driver.active.resources.get(kernel.kernel, (0, 0))[0]
        if error.name != "threads" or most_threads(registers) == MAX_THREADS:
            raise
        raise TooManyRegisters(error.required, error.limit, registers) from None
    return kernel


def front_end_text() -> str:
    """The digest of what Triton's front end read in the kernel compiled or refused last; empty where it took it as
    known, or refused it itself."""
    found, driver.active.text = str(driver.active.text), ""
    return found


def spreads() -> frozenset[layouts.Spread]:
    """How accesses of the kernel compiled last are spread over its threads."""
    return frozenset(driver.active.spreads)


def unlike_text(
    function: Any, arguments: Mapping[str, Any], options: Mapping[str, Any], file: str, unused: Collection[Place]
) -> list[tuple[str, int]]:
    """What the kernel compiled last is compiled to that its text does not say (`compiler_words.UNLIKE`), and the line;
    0 for one that is not known. Arguments as for `compiled`; `unused`: where the text does not use the result of an
    atomic operation either."""
    known, found = driver.active, list(driver.active.unlike)
    if known.may_make or known.may_load or known.filled:
        launch = front_end.Launch(function, arguments, options, known.get_current_target().arch)
        if known.may_make:
            found += (("product", place) for place in made_products.places(launch.with_places()))
        if known.may_load:
            found += (("loaded again", place) for place in moved_values.loaded_again(launch.with_places()))
        if known.filled:
            places = filled.not_written(known.filled, str(launch.with_places()), file)
            found += (("filled", place) for place in places)
    placed = [(what, at(place, file)) for what, place in found]
    return [(what, place[0]) for what, place in placed if what != "not used" or place not in unused]


def usage(kernel: Any) -> Usage:
    """What a compiled kernel needs."""
    stored = stores.most_bytes(kernel.kernel.decode()) if driver.active.reads_only else None
    said = kernel.metadata
    scratch = getattr(said, "global_scratch_size", 0)
    return Usage(said.shared, kernel.n_regs, 4 * kernel.n_spills, 32 * said.num_warps, stored, scratch)


def fault(kernel: Any) -> str:
    """Why a compiled kernel would do nothing of what it is written to do; empty where nothing shows that."""
    code = driver.active.codes.get(kernel.kernel)  # none of one that was only read
    return "" if code is None else machine_code.fault(code)


def widths(kernel: Any, file: str, sites: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """How many bytes each access of a compiled kernel moves at once (`machine_code.widths`)."""
    return machine_code.widths(driver.active.codes.get(kernel.kernel, ""), file, sites)


def _make_cubin(self: Any, source: str, metadata: dict[str, Any], options: Any, capability: int) -> bytes:
    """Assemble PTX with the assembler that Triton ships; keeps its account of registers and spills."""
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = f"{folder}/kernel.ptx", f"{folder}/kernel.cubin"
        with open(ptx, "w", encoding="utf-8") as file:
            file.write(source)
        words = [nvidia.get_ptxas(self.target.arch).path, "-v", "--regAllocOptLevel=2"]
        words += [] if options.enable_fp_fusion else ["--fmad=false"]
        words += [f"--gpu-name={nvidia.sm_arch_from_capability(capability)}", ptx, "-o", cubin]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", close_fds=False, check=False)
        if done.returncode != 0:
            raise PTXASError(f"ptxas failed with exit status {done.returncode}:\n{done.stderr.replace(folder, '')}")
        with open(cubin, "rb") as result:
            code = result.read()
    registers = _REGISTERS.search(done.stderr)
    spills = _SPILLS.search(done.stderr)
    driver.active.resources[code] = (int(registers[1]) if registers else 0, int(spills[1]) if spills else 0)
    driver.active.codes[code] = source
    return code


class OneProcessCache(cache.FileCacheManager):  # type: ignore[misc]
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


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def written() -> int | None:
    """How much stands in standard error, where that is a file, as it is in a sandbox."""
    try:
        return os.lseek(2, 0, os.SEEK_CUR)
    except OSError:
        return None


def since(start: int | None, most: int = 2048) -> str:
    """What the native compiler has written to standard error since then, `most` bytes of it."""
    if start is None:
        return ""
    return os.pread(2, most, start).rstrip(b"\0").decode("utf-8", "replace")
