"""Public names of a room, imported when they are asked for, so that importing the room stays light.

    if TYPE_CHECKING:
        from assay.kernels.grader import Grader
    else:
        __getattr__, __dir__ = lazy_exports(__name__)

    __all__ = ["Grader"]

The imports are the one table: a type checker follows them, and Python reads them here when a name is asked for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from assay.syntax import parsed


def lazy_exports(room: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the package `room`, for the names that its `if TYPE_CHECKING:` imports."""

    def find(name: str) -> Any:
        home = None if name.startswith("__") else _homes(room).get(name)
        if home is None:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return find, lambda: sorted(_homes(room))


@cache
def _homes(room: str) -> Mapping[str, str]:
    """Public name -> the module that defines it."""
    loader: Any = getattr(find_spec(room), "loader", None)
    choices = (node for node in parsed(loader.get_source(room)).body if isinstance(node, ast.If))
    checked = next(node for node in choices if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
    imports = (node for node in checked.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}
