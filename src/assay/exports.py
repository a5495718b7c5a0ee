"""Public names of a room, imported when they are asked for, so that importing the room stays light.

    if TYPE_CHECKING:
        from assay.kernels.grader import Grader
    else:
        __getattr__ = lazy_exports(__name__, {"assay.kernels.grader": ("Grader",)})

    __all__ = ["Grader"]

A type checker reads the imports, Python the table; a test holds the two to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(room: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of the package `room`, for the public names of each module."""
    homes = {name: module for module, public in names.items() for name in public}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find
