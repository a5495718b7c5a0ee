"""What Triton's host code is made of, held from before a submission's import and compared at each launch.

Triton compiles and launches by its modules, classes, functions and settings, by the standard library that it uses,
and by the environment. A launch is recorded only while all that is as it was: otherwise a GPU would compile or launch
something else than was recorded.
"""

from __future__ import annotations

import copy
import copyreg
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
import triton.compiler.code_generator  # noqa: F401 - Triton imports it when it first compiles

from assay.kernels.inside.record.host import process
from assay.kernels.inside.record.reads import NotRecordableError

_ELSEWHERE = ("triton.experimental", "triton.backends.amd", "triton.language.extra.hip", "triton.testing")
"""Modules of Triton by which no kernel is compiled for a GPU of NVIDIA, or that only measure."""
_NEAR = ("triton.knobs", "triton.runtime.jit", "triton.runtime.autotuner", "torch.")
"""Where what a launch goes through once a kernel is compiled has its names."""
_CACHES = frozenset(
    {"triton.runtime.jit._triton_jit_function_registry", "triton.runtime._allocation._profile_allocator"}
)
"""What Triton itself fills while a submission is imported, and no launch reads."""
_OTHERS = frozenset({"sys", "torch", "numpy", "warnings", "time", "contextlib", "threading", "logging", "signal"})
"""Modules that Triton names, and that say nothing of what a kernel is, or that change by themselves."""
_REGISTRIES: dict[str, dict[Any, Any]] = {
    "copyreg.dispatch_table": copyreg.dispatch_table,
    "copy._deepcopy_dispatch": vars(copy)["_deepcopy_dispatch"],
    "copy._copy_dispatch": vars(copy)["_copy_dispatch"],
    **{
        f"torch.optim.optimizer.{name}": found
        for name, found in vars(sys.modules["torch.optim.optimizer"]).items()
        if name.startswith("_global_")
    },
}
"""By which a caller's copies, checkpoints and optimizers go, and no launch."""
_OF_CUDA = ("is_available", "current_device", "set_device", "get_device_capability", "current_stream")
_DRIVEN = ("_cuda_getCurrentRawStream", "_cuda_getDevice", "_cuda_setDevice")
"""What Triton's driver takes of `torch.cuda`, and what it and that ask PyTorch's C code."""
_FREE = ("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "OMP_", "MKL_", "NCCL_", "HF_", "TOKENIZERS_", "WANDB_")
_FREE_NAMES = frozenset({"CUDA_LAUNCH_BLOCKING", "MAX_JOBS", "TRITON_PRINT_AUTOTUNING"})
"""Variables of the environment, by their beginnings and whole, that change nothing of what Triton compiles."""
_VERSION, _CLASS, _SIZE, _ITEMS, _WORD = 24, 8, 16, 24, 8
"""Where a dict of CPython 3.11 and 3.12 keeps the number that each change makes another, an object its class, and a
list its length and the address of its elements."""
_OF_PYTHON = frozenset(
    {"__doc__", "__annotations__", "__warningregistry__", "__abstractmethods__", "_abc_impl", "__slotnames__"}
)
"""What Python itself keeps in the dict of a class or a module."""
_AT_ONCE = 2048
"""Words that are compared at once."""
_CHANGES = 1 << 9
"""The flag of a class whose attributes can be set."""
_MISSING = object()
_environ = ctypes.c_uint64.in_dll(ctypes.CDLL(None), "environ")
"""Where C code finds the environment: the address of the addresses of its entries, the last one 0."""
_memory = np.ctypeslib.as_array((ctypes.c_uint64 * (1 << 44)).from_address(_WORD))
"""This process's memory in words, from the second one on."""


def _words(addresses: Any) -> Any:
    """What is at some addresses. To look at the objects there would count a reference to each, and so copy its page in
    every child."""
    return _memory[_indices(addresses)]


def _indices(addresses: Any) -> Any:
    """Of words in `_memory`."""
    return np.asarray(addresses, np.int64) // _WORD - 1


def _are_others(places: Any, were: Any) -> bool:
    """Whether words are not what they were. Some at a time: all of them would take hundreds of fresh pages."""
    parts = (slice(start, start + _AT_ONCE) for start in range(0, len(places), _AT_ONCE))
    return any((_memory[places[part]] != were[part]).any() for part in parts)


def version(found: dict[Any, Any]) -> int:
    """The number that each change of a dict makes another."""
    return int(_memory[(id(found) + _VERSION) // _WORD - 1])


def _tells_changes() -> bool:
    sample: dict[str, int] = {"a": 1}
    before = version(sample)
    sample["a"] = 2
    old = sys.implementation.name == "cpython" and sys.version_info < (3, 13)
    return old and version(sample) != before


TELLS_CHANGES = _tells_changes()
"""Whether this Python's dicts keep such a number."""


def _places() -> list[int]:
    """Where in a function its code, its defaults and those by keyword are."""

    def sample(first: int = 1, *, second: int = 2) -> None: ...

    words = _words(id(sample) + np.arange(16) * _WORD).tolist()
    return [_WORD * words.index(id(part)) for part in (sample.__code__, sample.__defaults__, sample.__kwdefaults__)]


def _is_triton(name: Any) -> bool:
    return (
        isinstance(name, str) and (name == "triton" or name.startswith("triton.")) and not name.startswith(_ELSEWHERE)
    )


class HostState:
    """What there was when it was made. Reads numbers that lie beside dicts, not what is in them, while nothing changes:
    to look at each object would copy its page in every child."""

    def __init__(self) -> None:
        process.hold()
        process.begin()
        self._dicts: list[tuple[str, dict[Any, Any], dict[Any, Any], bool]] = []
        """Name, dict, what was in it, and whether it may get more."""
        self._lists: list[tuple[str, list[Any], list[Any]]] = []
        self._functions: list[tuple[str, Any]] = []
        self._objects: list[tuple[str, Any, type]] = []
        self._seen: set[int] = set()
        self._classes: set[int] = set()
        """Those of Python's library."""
        self._modules = {name: module for name, module in list(sys.modules.items()) if _is_triton(name)}
        for name, module in self._modules.items():
            self._take(name, module)
        for kind in (torch.Tensor, torch.nn.Parameter):  # of which Triton's launcher asks addresses and dtypes
            self._hold(f"torch.{kind.__name__}", _under(vars(kind)), False)
        self._take_driven()
        for name, registry in _REGISTRIES.items():
            self._hold(name, registry, name.startswith(("copy.", "copyreg.")))
        used = [v for module in self._modules.values() for v in vars(module).values()]
        homes = [v if isinstance(v, ModuleType) else sys.modules.get(str(getattr(v, "__module__", ""))) for v in used]
        for module in {id(home): home for home in homes if home is not None}.values():
            if self._is_library(module):
                self._take_library(module)
        self._entries, self._environ, self._of_python = _entries(), os.environ, dict(vars(os.environ)["_data"])
        codes = [id(function) + place for _, function in self._functions for place in _places()]
        self._codes = _indices(codes)
        self._were_codes = _memory[self._codes]
        self._note()

    def _note(self) -> None:
        """Note where what changes is told, and what is there now."""
        dicts, lists = ([held for _, held, *_ in kept] for kept in (self._dicts, self._lists))
        plain = [id(found) + _CLASS for _, found, _ in self._objects]
        plain += [id(held) + place for held in lists for place in (_SIZE, _ITEMS)]
        plain += [ctypes.addressof(_environ)]
        dicts = [vars(os.environ)["_data"], vars(os), *dicts]
        plain += [id(held) + _VERSION for held in dicts] if TELLS_CHANGES else []
        starts = _words([id(held) + _ITEMS for held in lists]).tolist()
        items = [start + place * _WORD for held, start in zip(lists, starts, strict=True) for place in range(len(held))]
        items += [_environ.value + place * _WORD for place in range(len(_entries()) + 1)]
        near = [id(held) + _VERSION for name, held, *_ in self._dicts if name.startswith(_NEAR)]
        self._near, self._plain, self._items = _indices(near), _indices(plain), _indices(items)
        self._were_near = _memory[self._near]
        self._were = _memory[self._plain], _memory[self._items]

    def _take_driven(self) -> None:
        """Hold what Triton's driver takes of PyTorch when it is first asked for, at the first launch on a GPU."""
        raw = {name: vars(torch._C).get(name, _MISSING) for name in _DRIVEN}
        self._dicts.append(("torch._C", vars(torch._C), raw, True))
        self._dicts.append(("torch.version", vars(torch.version), {"hip": torch.version.hip}, True))
        kept = {name: vars(torch.cuda)[name] for name in _OF_CUDA}
        self._dicts.append(("torch.cuda", vars(torch.cuda), kept, True))
        self._functions += [(f"torch.cuda.{k}", v) for k, v in kept.items() if isinstance(v, FunctionType)]

    @staticmethod
    def _is_library(module: ModuleType) -> bool:
        root = module.__name__.partition(".")[0]
        return root not in _OTHERS and root in sys.stdlib_module_names

    def _take_library(self, module: ModuleType) -> None:
        """Hold functions and classes of a module of Python's, with their methods. Other state changes by itself."""
        kept = {k: v for k, v in vars(module).items() if isinstance(v, FunctionType | BuiltinFunctionType | type)}
        self._dicts.append((module.__name__, vars(module), kept, True))
        self._functions += [(f"{module.__name__}.{k}", v) for k, v in kept.items() if isinstance(v, FunctionType)]
        for found in {id(base): base for v in kept.values() if isinstance(v, type) for base in v.__mro__}.values():
            if id(found) not in self._classes and found.__flags__ & _CHANGES:
                self._classes.add(id(found))
                methods = {k: v for k, v in vars(found).items() if callable(v) or hasattr(v, "__get__")}
                self._dicts.append((f"{found.__module__}.{found.__qualname__}", _under(vars(found)), methods, True))
                plain = [(f"{found.__qualname__}.{k}", v) for k, v in methods.items() if isinstance(v, FunctionType)]
                self._functions += plain

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
        self._objects.append((name, found, type(found)))
        self._hold(name, space, isinstance(found, ModuleType))
        yield from ((f"{name}.{key}", part) for key, part in list(space.items()) if not isinstance(part, ModuleType))

    def check(self, deep: bool) -> None:
        """Look at all that a launch depends on.

        Args:
            deep: At all of it: for a launch at which a kernel is compiled. Else where Python tells changes, at what
                later launches go through.

        Raises:
            NotRecordableError: something is not what it was.
        """
        if TELLS_CHANGES and not deep:
            if _are_others(self._near, self._were_near):
                self._compare()
            return
        plain, items = self._were
        # Where a list has moved, its elements are no longer where they were.
        if not TELLS_CHANGES or _are_others(self._plain, plain) or _are_others(self._items, items):
            self._compare()
        if deep:
            process.check(of_compiler=True)
            if _are_others(self._codes, self._were_codes):
                place = np.flatnonzero(_memory[self._codes] != self._were_codes)[0]
                raise _changed(f"the code of {self._functions[place // 3][0]}")
            for name, module in self._modules.items():
                if sys.modules.get(name) is not module:
                    raise _changed(f"sys.modules[{name!r}]")

    def _compare(self) -> None:
        for name, found, kind in self._objects:
            if type(found) is not kind:
                raise _changed(f"the class of {name}")
        for name, part, before in self._lists:
            if len(part) != len(before) or any(one is not other for one, other in zip(part, before, strict=True)):
                raise _changed(name)
        first = len(self._plain) - len(self._dicts)
        told = (
            np.flatnonzero(_memory[self._plain] != self._were[0]) - first if TELLS_CHANGES else range(len(self._dicts))
        )
        for name, held, kept, grows in (self._dicts[place] for place in told if place >= 0):
            for key, value in kept.items():
                if held.get(key, _MISSING) is not value and key not in _OF_PYTHON:
                    raise _changed(f"{name}.{key}")
            if not grows and (more := [key for key in held if key not in kept and key not in _OF_PYTHON]):
                raise _changed(f"{name}.{more[0]}")
        self._check_environment()
        self._note()

    def _check_environment(self) -> None:
        if os.environ is not self._environ:
            raise _changed("os.environ")
        entries, of_python = _entries(), vars(os.environ)["_data"]
        if entries == self._entries and of_python == self._of_python:
            return
        for before, now in ((_by_name(self._entries), _by_name(entries)), (self._of_python, of_python)):
            for name in sorted(now.keys() | before.keys()):
                text = os.fsdecode(name)
                if now.get(name) != before.get(name) and not text.startswith(_FREE) and text not in _FREE_NAMES:
                    raise NotRecordableError(
                        f"a launch after host code changed the environment variable {text}, by which Triton, its "
                        "compiler or the driver may do something else than was recorded. Leave the environment alone; "
                        "give the launch what it needs as an argument (num_warps=..., input_precision=... in tl.dot)"
                    )


def _under(space: MappingProxyType[str, Any]) -> Any:
    """The dict of a class."""
    return gc.get_referents(space)[0]


def _entries() -> list[bytes]:
    """The process's environment as C code reads it, which `os.putenv` changes too."""
    found: list[bytes] = []
    entries = ctypes.cast(_environ.value, ctypes.POINTER(ctypes.c_char_p))
    while entries and (entry := entries[len(found)]) is not None:
        found.append(entry)
    return found


def _by_name(entries: list[bytes]) -> dict[bytes, bytes]:
    return {name: value for name, _, value in (entry.partition(b"=") for entry in entries)}


def _changed(what: str) -> NotRecordableError:
    what = what.partition("__builtins__.")[2] or what
    if what.startswith(tuple(_REGISTRIES)):
        return NotRecordableError(
            f"a launch after host code changed {what}, by which its caller copies, saves or trains models: leave it "
            "as it is"
        )
    return NotRecordableError(
        f"a launch after host code changed {what}, by which Triton compiles and launches kernels: a GPU would run "
        "something else than was recorded. Leave Triton, the Python library and their settings as they are, and give "
        "the launch or the kernel's text what it needs (num_warps=..., enable_fp_fusion=..., input_precision=... in "
        "tl.dot)"
    )
