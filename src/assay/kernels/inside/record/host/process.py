"""State of the process on which the compiler and other models depend: a submission must leave it as it was."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from assay.kernels.inside.record.reads import NotRecordableError

_UNSET = object()
_ALLOCATORS = ("triton.runtime._allocation",)
"""Modules whose context variables are looked at elsewhere: an allocator may be the submission's own."""
_variables: list[ContextVar[Any]] = []
"""Triton's, but for these."""
_before: dict[str, Any] = {}
"""What it is called -> what it was before a submission was imported."""


def hold() -> None:
    """Take note of the context variables of Triton's, before anything is recorded."""
    _variables.clear()
    for home, module in list(sys.modules.items()):
        if home.partition(".")[0] == "triton" and home not in _ALLOCATORS:
            _variables.extend(value for value in vars(module).values() if type(value) is ContextVar)


def begin() -> None:
    """Take note of everything, before a submission is imported."""
    tempfile.gettempdir()  # sets what is asked for below
    _before.clear()
    _before.update({what: ask() for what, ask in _ASKED.items()})


def check(*, of_compiler: bool = False) -> None:
    """Raises NotRecordableError where something is not as it was. `of_compiler`: as far as a compiler goes by it."""
    for what, ask in _ASKED.items():
        if (not of_compiler or what in _OF_COMPILER) and ask() != _before.get(what):
            raise NotRecordableError(
                f"host code changes {what}, on which the compiler, or other models in the process, depend: a GPU may "
                "do something else than was recorded. Leave that out"
            )


def _of_context() -> list[int]:
    return [id(variable.get(_UNSET)) for variable in _variables]


def _limits() -> list[Any]:
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return [resource.getrlimit(getattr(resource, name)) for name in names]


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


def _hooks() -> dict[str, Any]:
    found = {name: value for name, value in vars(torch.nn.modules.module).items() if name.startswith("_global_")}
    return {name: [*map(id, value.values())] if isinstance(value, dict) else id(value) for name, value in found.items()}


_OF_COMPILER: dict[str, Callable[[], Any]] = {
    "a mode of Triton's (triton.AsyncCompileMode)": _of_context,
    "the folder or the names of temporary files": lambda: (tempfile.tempdir, tempfile.template),
    "the limits of the process (resource.setrlimit)": _limits,
    "the mode of new files (os.umask)": _umask,
}
_ASKED: dict[str, Callable[[], Any]] = {
    **_OF_COMPILER,
    "whether PyTorch's algorithms are deterministic": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    "hooks of all modules (torch.nn.modules.module)": _hooks,
    "what torch.save and torch.load go by": lambda: [*map(id, vars(torch.serialization)["_package_registry"])],
}
"""What it is called -> what it is now, as something that can be compared."""
