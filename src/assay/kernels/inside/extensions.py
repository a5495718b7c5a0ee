"""Native extensions that a candidate builds with `load_inline`: their calls counted, and undone where a call is to show
what they are worth.

An extension launches its kernels where Python cannot see them. So what is counted are calls of its functions, and a
call that is to be left out is made and undone: tensors that it was given get back what they held, tensors that it
made are filled with the value of fresh memory. What it does through PyTorch, the trace of operators sees.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from assay.kernels.inside.rounds import poison
from assay.kernels.inside.triton import launches

NATIVE = "extension"
"""Under this name, besides their own, calls of native functions are counted."""
_WORDS = 1500
_clone, _copy, _pointer = torch.Tensor.clone, torch.Tensor.copy_, torch.Tensor.data_ptr


class BuildError(Exception):
    """An extension could not be built or loaded."""


class ForeignError(Exception):
    """An extension of a form whose calls cannot be followed."""


def install() -> None:
    """Wrap PyTorch's loaders, and let them build in the private scratch folder. Only in a child: importing them may
    look for devices."""
    os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(tempfile.gettempdir(), "extensions")
    os.environ.setdefault("MAX_JOBS", "4")
    from torch.utils import cpp_extension

    cpp_extension.load_inline = followed(cpp_extension.load_inline)
    cpp_extension.load = followed(cpp_extension.load)


def followed(loader: Callable[..., Any]) -> Callable[..., Any]:
    """A loader whose extensions are followed."""

    def load(*args: Any, **kwargs: Any) -> Extension:
        if not kwargs.get("is_python_module", True):
            raise ForeignError(
                "extensions with is_python_module=False are called through torch.ops, where it cannot be seen whether "
                "they matter: bind functions instead"
            )
        try:
            return Extension(loader(*args, **kwargs))
        except (RuntimeError, OSError, ImportError, ValueError) as error:
            raise BuildError(told(str(error))) from error

    return load


class Extension:
    """An extension's module; its functions keep account of their calls."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return accounted(value, name) if callable(value) else value


def accounted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A native function that keeps account, and whose effects are undone where the account says so."""

    def call(*args: Any, **kwargs: Any) -> Any:
        account = launches.current()
        account.counts[NATIVE] += 1
        account.counts[name] += 1
        if not account.skip:
            return function(*args, **kwargs)
        given = list(_tensors((args, kwargs)))
        with _disable_current_modes():
            held = [_clone(tensor) for tensor in given]
        result = function(*args, **kwargs)
        with _disable_current_modes():
            for tensor, before in zip(given, held, strict=True):
                _copy(tensor, before)
            own = {_pointer(tensor) for tensor in given}
            for tensor in _tensors(result):
                if _pointer(tensor) not in own:
                    poison(tensor, account.poison)
        return result

    return call


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def told(text: str) -> str:
    """A build's failure without the command lines: the lines with errors, or its end where there are none."""
    lines = [line for line in text.splitlines() if "error" in line.lower() and " -c " not in line]
    return "\n".join(lines)[:_WORDS] or text[-_WORDS:]
