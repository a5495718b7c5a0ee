"""What Triton's host code is made of, held from before a submission's import and compared at each launch.

Triton compiles and launches by its modules, classes, functions and settings, by the standard library that it uses,
and by the environment. A launch is recorded only while all that is as it was: otherwise a GPU would compile or launch
something else than was recorded.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import triton.compiler.code_generator  # noqa: F401 - Triton imports it when it first compiles

from assay.kernels.inside.record.reads import NotRecordableError

_ELSEWHERE = ("triton.experimental", "triton.backends.amd", "triton.language.extra.hip", "triton.testing")
"""Modules of Triton by which no kernel is compiled for a GPU of NVIDIA, or that only measure."""
_CACHES = frozenset(
    {"triton.runtime.jit._triton_jit_function_registry", "triton.runtime._allocation._profile_allocator"}
)
"""What Triton itself fills while a submission is imported, and no launch reads."""
_OTHERS = frozenset({"sys", "torch", "numpy", "warnings", "time", "contextlib"})
"""Modules that Triton names, and that say nothing of what a kernel is."""
_FREE = ("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "OMP_", "MKL_", "NCCL_", "HF_", "TOKENIZERS_", "WANDB_")
_FREE_NAMES = frozenset({"CUDA_LAUNCH_BLOCKING", "MAX_JOBS", "TRITON_PRINT_AUTOTUNING"})
"""Variables of the environment, by their beginnings and whole, that change nothing of what Triton compiles."""
_VERSION, _CLASS, _WORD = 24, 8, 8
"""Where a dict of CPython 3.11 and 3.12 keeps the number that each change makes another, and an object its class."""
_OF_PYTHON = frozenset(
    {"__doc__", "__annotations__", "__warningregistry__", "__abstractmethods__", "_abc_impl", "__slotnames__"}
)
"""What Python itself keeps in the dict of a class or a module."""
_MISSING = object()


def _at(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(address)


def _tells_changes() -> bool:
    """Whether this Python's dicts keep such a number."""
    sample: dict[str, int] = {"a": 1}
    before = _at(id(sample) + _VERSION).value
    sample["a"] = 2
    return (
        sys.implementation.name == "cpython"
        and sys.version_info < (3, 13)
        and _at(id(sample) + _VERSION).value != before
    )


def _places() -> list[int]:
    """Where in a function its code, its defaults and those by keyword are."""

    def sample(first: int = 1, *, second: int = 2) -> None: ...

    words = list((ctypes.c_uint64 * 16).from_address(id(sample)))
    return [_WORD * words.index(id(part)) for part in (sample.__code__, sample.__defaults__, sample.__kwdefaults__)]


def _is_triton(name: Any) -> bool:
    return (
        isinstance(name, str) and (name == "triton" or name.startswith("triton.")) and not name.startswith(_ELSEWHERE)
    )


class HostState:
    """What there was when it was made. Reads numbers that lie beside dicts, not what is in them, while nothing changes:
    to look at each object would copy its page in every child."""

    def __init__(self) -> None:
        self._dicts: list[tuple[str, dict[Any, Any], dict[Any, Any], bool]] = []
        """Name, dict, what was in it, and whether it may get more."""
        self._lists: list[tuple[str, list[Any], list[Any]]] = []
        self._functions: list[tuple[str, Any]] = []
        self._objects: list[tuple[str, Any]] = []
        self._seen: set[int] = set()
        self._modules = {name: module for name, module in list(sys.modules.items()) if _is_triton(name)}
        for name, module in self._modules.items():
            self._take(name, module)
        used = {id(v): v for m in self._modules.values() for v in vars(m).values() if isinstance(v, ModuleType)}
        for module in used.values():
            if self._is_library(module):
                self._take_library(module)
        self._environment = _environment()
        self._python_environment = dict(os.environ)
        places = _places()
        self._codes = [_at(id(function) + place) for _, function in self._functions for place in places]
        self._code_words = [word.value for word in self._codes]
        self._objects_words = [(_at(id(found) + _CLASS), id(type(found))) for _, found in self._objects]
        self._fast = _tells_changes()
        self._versions = [_at(id(held) + _VERSION) for _, held, _, _ in self._dicts] if self._fast else []
        self._numbers = [word.value for word in self._versions]

    @staticmethod
    def _is_library(module: ModuleType) -> bool:
        root = module.__name__.partition(".")[0]
        return root not in _OTHERS and root in sys.stdlib_module_names

    def _take_library(self, module: ModuleType) -> None:
        """Hold the functions and classes of a module of Python's. Its other state changes by itself."""
        kept = {k: v for k, v in vars(module).items() if isinstance(v, FunctionType | BuiltinFunctionType | type)}
        self._dicts.append((module.__name__, vars(module), kept, True))
        self._functions += [(f"{module.__name__}.{k}", v) for k, v in kept.items() if isinstance(v, FunctionType)]

    def _hold(self, name: str, found: dict[Any, Any], grows: bool) -> None:
        self._dicts.append((name, found, dict(found), grows))

    def _take(self, name: str, found: Any) -> None:
        """Hold an object of Triton's, and what it is made of."""
        waiting = [(name, found)]
        while waiting:
            name, found = waiting.pop()
            if id(found) in self._seen or name in _CACHES:
                continue
            self._seen.add(id(found))
            waiting += self._parts(name, found)

    def _parts(self, name: str, found: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(found, FunctionType):
            if not _is_triton(found.__module__) and not str(found.__module__).startswith("assay."):
                return
            self._functions.append((name, found))
            yield from ((name, cell.cell_contents) for cell in found.__closure__ or () if cell != type(cell)())
            yield from [(name, vars(found)["__wrapped__"])] if "__wrapped__" in vars(found) else []
            return
        if isinstance(found, property):
            yield from ((name, part) for part in (found.fget, found.fset, found.fdel) if part is not None)
            return
        if isinstance(found, staticmethod | classmethod):
            yield name, found.__func__
            return
        if isinstance(found, list):
            self._lists.append((name, found, list(found)))
            yield from ((name, part) for part in found)
            return
        if isinstance(found, dict):
            if found is not sys.modules:
                self._hold(name, found, True)
            return
        home = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None)
        space = getattr(found, "__dict__", None)
        if isinstance(space, MappingProxyType):
            space = _under(space)
        if not isinstance(space, dict) or not _is_triton(home):
            return
        self._objects.append((name, found))
        self._hold(name, space, isinstance(found, ModuleType))
        yield from ((f"{name}.{key}", part) for key, part in list(space.items()) if not isinstance(part, ModuleType))

    def check(self, deep: bool) -> None:
        """Look at all that a launch depends on.

        Args:
            deep: Also at the code of each function: for a launch at which a kernel is compiled.

        Raises:
            NotRecordableError: something is not what it was.
        """
        if not self._fast or [word.value for word in self._versions] != self._numbers:
            self._compare()
        for (word, wanted), (name, _) in zip(self._objects_words, self._objects, strict=True):
            if word.value != wanted:
                raise _changed(f"the class of {name}")
        for name, held, before in self._lists:
            if len(held) != len(before) or any(a is not b for a, b in zip(held, before, strict=True)):
                raise _changed(name)
        if deep:
            now = [word.value for word in self._codes]
            if now != self._code_words:
                place = next(place for place, word in enumerate(now) if word != self._code_words[place])
                raise _changed(f"the code of {self._functions[place // 3][0]}")
            for name, module in self._modules.items():
                if sys.modules.get(name) is not module:
                    raise _changed(f"sys.modules[{name!r}]")
        self._check_environment()

    def _compare(self) -> None:
        for place, (name, held, before, grows) in enumerate(self._dicts):
            if self._fast and self._versions[place].value == self._numbers[place]:
                continue
            for key, value in before.items():
                if held.get(key, _MISSING) is not value and key not in _OF_PYTHON:
                    raise _changed(f"{name}.{key}")
            if not grows and (more := [key for key in held if key not in before and key not in _OF_PYTHON]):
                raise _changed(f"{name}.{more[0]}")
            if self._fast:
                self._numbers[place] = self._versions[place].value

    def _check_environment(self) -> None:
        for before, now in ((self._environment, _environment()), (self._python_environment, dict(os.environ))):
            if now == before:
                continue
            for name in sorted(now.keys() | before.keys()):
                if now.get(name) != before.get(name) and not name.startswith(_FREE) and name not in _FREE_NAMES:
                    raise NotRecordableError(
                        f"a launch after host code changed the environment variable {name}, by which Triton, its "
                        "compiler or the driver may do something else than was recorded. Leave the environment alone; "
                        "give the launch what it needs as an argument (num_warps=..., input_precision=... in tl.dot)"
                    )


def _under(space: MappingProxyType[str, Any]) -> Any:
    """The dict of a class."""
    return gc.get_referents(space)[0]


def _environment() -> dict[str, str]:
    """The process's environment as C code reads it, which `os.putenv` changes too."""
    found: dict[str, str] = {}
    array = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    place = 0
    while array and (entry := array[place]) is not None:
        name, _, value = entry.decode(errors="surrogateescape").partition("=")
        found[name] = value
        place += 1
    return found


def _changed(what: str) -> NotRecordableError:
    return NotRecordableError(
        f"a launch after host code changed {what}, by which Triton compiles and launches kernels: a GPU would run "
        "something else than was recorded. Leave Triton, the Python library and their settings as they are, and give "
        "the launch or the kernel's text what it needs (num_warps=..., enable_fp_fusion=..., input_precision=... in "
        "tl.dot)"
    )
