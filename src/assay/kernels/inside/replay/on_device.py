"""Programs on a GPU: kernels of the kernel language compiled by Triton and launched as they were recorded.

What the compiler is given is text of ours (`language.text`), so no line of the submission runs here either. Beside the
interpreter this is lost: accesses are not followed, so that neither who wrote an output nor a race is told, programs
run in the order that the GPU chooses, and an access outside of a storage is found only where the GPU faults.
"""

from __future__ import annotations

import contextlib
import linecache
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

import torch
import triton
from triton import knobs
from triton.compiler.errors import CompilationError
from triton.runtime._allocation import NullAllocator

from assay.kernels import language
from assay.kernels.inside.replay.kernels import kernels_of
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.player import CompilerError, Manner, NoRoomError
from assay.kernels.inside.triton.compiler_words import PASSED_OVER
from assay.kernels.inside.triton.ledger import UnsupportedError
from assay.kernels.program.form import Launch, Program, Variant
from assay.kernels.source_text import lines_of
from assay.types import Json

FILE = "<kernels>"
_PASSES = "PassManager::run failed"
"""How Triton says that a stage of its compiler has failed."""


class Compiled:
    """The kernels of a program for Triton's compiler, in the order of the program."""

    def __init__(self, program: Program, device: str) -> None:
        """Defines them; nothing is compiled before a launch.

        Raises:
            NotInLanguageError: one of them is not in the kernel language.
        """
        found = language.text(kernels_of(program))
        module = ModuleType("kernels")
        # Triton asks `inspect` for the text of a function, which looks here first.
        linecache.cache[FILE] = (len(found.source), None, lines_of(found.source), FILE)
        exec(compile(found.source, FILE, "exec", dont_inherit=True), module.__dict__)
        keys = [str(number) for number in range(len(program.kernels))]
        self.functions = [getattr(module, found.names[key]) for key in keys]
        self._parameters = [found.parameters[key] for key in keys]
        self._origins = found.origins
        # Descriptors that a kernel makes, and some pipelines, need memory that Triton asks for at the launch.
        self._allocator = lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device)

    def launch(self, launch: Launch, variant: Variant, arguments: Mapping[str, Any]) -> None:
        """Compile a kernel for these arguments, unless that is done, and launch it.

        Raises:
            NoRoomError, CompilerError: it cannot be compiled, or has not the room to run.
        """
        names = self._parameters[launch.kernel]
        named = {names[name]: value for name, value in arguments.items()}
        triton.set_allocator(self._allocator if launch.allocator else NullAllocator())
        try:
            self.functions[launch.kernel][variant.grid](**named, **dict(variant.options))
        except PASSED_OVER as error:
            raise NoRoomError(str(error), launch.line) from error
        except CompilationError as error:
            raise CompilerError(str(error), self._line_of(error) or launch.line) from error
        except RuntimeError as error:
            if _PASSES not in str(error):
                raise
            raise CompilerError(f"Triton's compiler gave up on a kernel: {error}", launch.line) from error

    def _line_of(self, error: CompilationError) -> int:
        """The line of the submission that the compiler names; 0 where it names none."""
        at = getattr(error.node, "lineno", None)
        for function in self.functions:
            if at is not None and function.src == error.src:
                # The text that Triton reads begins with `def`, the function a line before, with its decorator.
                return self._origins[int(function.starting_line_number + at - 1)]
        return 0


class OnDevice:
    """The current GPU of this process. `settle` waits for it, and raises what went wrong on it."""

    follows = False

    def __init__(self, device: str = "cuda", settle: Callable[[], None] | None = None) -> None:
        self.device = device
        self._settle = settle or wait_for_gpu
        self._compiled: Compiled | None = None
        self._names: list[str] = []

    def build(self, program: Program) -> Sequence[Any]:
        """The kernels as functions of Triton's.

        Raises:
            NotInLanguageError: one of them is not in the kernel language.
        """
        knobs.compilation.always_compile = True  # Triton's files of earlier kernels stand for some that are others
        self._compiled = Compiled(program, self.device)
        self._names = [kernel.name for kernel in program.kernels]
        return self._compiled.functions

    @contextlib.contextmanager
    def running(self, memory: Memory, manner: Manner) -> Iterator[DeviceRun]:
        """Count the launches of some steps, and wait for them."""
        yield self.begin()
        self._settle()

    def begin(self) -> DeviceRun:
        """Count the launches of some steps, which the caller waits for."""
        assert self._compiled is not None, "a program is built first"
        return DeviceRun(self._compiled, self._names)

    def kind_of(self, error: Exception) -> Literal["error", "unsupported", "compile"]:
        """Whether a compiler refused a kernel, or something cannot be judged."""
        if isinstance(error, UnsupportedError):
            return "unsupported"
        return "compile" if isinstance(error, CompilerError) else "error"


class DeviceRun:
    """Launches of one run, counted."""

    def __init__(self, compiled: Compiled, names: Sequence[str]) -> None:
        self._compiled, self._names = compiled, names
        self._counts: Counter[str] = Counter()

    def launch(self, launch: Launch, variant: Variant, arguments: dict[str, Any]) -> None:
        """Launch a kernel in one of its variants."""
        self._counts[self._names[launch.kernel]] += 1
        self._compiled.launch(launch, variant, arguments)

    def try_out(self, launch: Launch, variant: Variant, arguments: dict[str, Any]) -> None:
        """Launch a kernel, uncounted."""
        self._compiled.launch(launch, variant, arguments)

    def told(self) -> dict[str, Json]:
        """Launches by the kernel's name. Races are not seen."""
        return {"launches": dict(self._counts), "races": []}


def wait_for_gpu() -> None:
    """Wait for every stream. A launch of our own first: PyTorch asks CUDA after each whether the one before it was
    refused (too many threads, say), which waiting alone does not tell."""
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
