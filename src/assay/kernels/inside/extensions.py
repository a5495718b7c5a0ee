"""Native extensions that a candidate builds with `load_inline`: calls of their functions are counted.

An extension launches its kernels where Python cannot see them. A count says that a function was called, not that it
launched anything, nor that what it did mattered. What it does through PyTorch, the trace of operators sees.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

NATIVE = "extension"
"""Under this name, besides their own, calls of native functions are counted."""
_WORDS = 1500
_counts: Counter[str] = Counter()


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
                "extensions with is_python_module=False are called through torch.ops, where their "
                "calls are not counted: bind functions instead"
            )
        try:
            return Extension(loader(*args, **kwargs))
        except (RuntimeError, OSError, ImportError, ValueError) as error:
            raise BuildError(told(str(error))) from error

    return load


class Extension:
    """An extension's module; calls of its functions are counted."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return counted(value, name) if callable(value) else value


def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A native function whose calls are counted."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _counts[NATIVE] += 1
        _counts[name] += 1
        return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def counting() -> Iterator[Counter[str]]:
    """The calls of native functions within this block, by name."""
    global _counts
    before, _counts = _counts, Counter()
    try:
        yield _counts
    finally:
        _counts = before


def told(text: str) -> str:
    """A build's failure without the command lines: the lines with errors, or its end where there are none."""
    lines = [line for line in text.splitlines() if "error" in line.lower() and " -c " not in line]
    return "\n".join(lines)[:_WORDS] or text[-_WORDS:]
