"""What Triton's front end reads in a kernel for one launch, as text by which two kernels can be compared.

    Launch(function, arguments, options, 90).text()

It names nothing: functions are numbered in the order in which they stand, values are by Triton, and places in files are
left out. So the text of a kernel is that of another one if, and only if, the compiler cannot tell the two apart.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

DIGEST_CHARACTERS = 32
PASSED_OVER = "passed over"
"""Stands for the digest of a configuration that fails a `tl.static_assert` of the kernel's own: a tuner goes on."""
_NAMES = re.compile(r"@(?:\"[^\"]+\"|[\w$.]+)")
"""Of functions."""


@functools.cache
def backend(capability: int) -> Any:
    """The compiler for a GPU."""
    return make_backend(GPUTarget("cuda", capability, 32))


class Launch:
    """A kernel as Triton specialises it for a launch.

    Args:
        function: A `JITFunction`.
        arguments: By parameter; tensors may be `stand_ins`.
        options: Of the launch.
        capability: Of the GPU that it is compiled for.

    Raises:
        Exception: whatever Triton says against them.
    """

    def __init__(
        self, function: Any, arguments: Mapping[str, Any], options: Mapping[str, Any], capability: int
    ) -> None:
        self._backend = backend(capability)
        binder = create_function_from_signature(function.signature, function.params, self._backend)
        # A parameter may have the name of an option, and then takes it as well.
        bound, specialization, given = binder(**{**options, **arguments})
        packed = function._pack_args(self._backend, dict(options), bound, specialization, given)
        self._options, signature, constexprs, attributes = packed
        self._source = ASTSource(function, signature, constexprs, attributes)
        self.key = tuple(specialization), str(self._options)
        """By which Triton looks a kernel up in memory: equal keys are one kernel to it."""

    @property
    def hash(self) -> str:
        """By which Triton looks a kernel up on disk."""
        return f"{self._source.hash()} {self._options}"

    def text(self) -> str:
        """The kernel's first stage, without names and places of the source: lines are no part of it."""
        stages: dict[str, Any] = {}
        module = self._module()
        self._backend.add_stages(stages, self._compiled_with(), self._source.language)
        return str(stages["ttir"](module, {}).str_nodebug())

    def with_places(self) -> Any:
        """The kernel as it is read, before the first stage, with the places of the source."""
        return self._module()

    def _compiled_with(self) -> Any:
        return self._backend.parse_options({**vars(self._options), **self._source.parse_options()})

    def _module(self) -> Any:
        compiler, options = self._backend, self._compiled_with()
        context = ir.context()
        ir.load_dialects(context)
        compiler.load_dialects(context)
        generate, modules = compiler.get_codegen_implementation(options), compiler.get_module_map()
        module = self._source.make_ir(compiler.target, options, generate, modules, context)
        module.context = context  # which a module does not hold
        return module


def digest(text: str) -> str:
    """What stands for the text of a module, which has no places, whatever its names."""
    return hashlib.sha256(plain(text).encode()).hexdigest()[:DIGEST_CHARACTERS]


def joined(digests: Sequence[str]) -> str:
    """One digest for the variants of a launch; empty where one of theirs is not known."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:DIGEST_CHARACTERS] if all(digests) else ""


def plain(text: str) -> str:
    """The text of a module without names."""
    numbers: dict[str, str] = {}
    return _NAMES.sub(lambda found: numbers.setdefault(found[0], f"@n{len(numbers)}"), text)
