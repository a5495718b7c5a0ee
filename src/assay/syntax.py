"""Syntax trees of Python text, from any thread.

CPython 3.11 counts the depth of a tree for all threads together, and for whatever a collection of garbage runs while
one is made (a log record with a traceback parses too): where two are made at once, one may end in SystemError.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
import threading
from collections.abc import Callable
from typing import TypeVar

_Made = TypeVar("_Made")
_PARSING = threading.RLock()
_ATTEMPTS = 5


def parsed(code: str | bytes) -> ast.Module:
    """The syntax tree of a module.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
    """
    return _alone(lambda: ast.parse(code))


def parsed_class(cls: type) -> ast.ClassDef:
    """The syntax tree of a class.

    Raises:
        OSError: the class has no source, as one that was typed into an interpreter.
    """
    tree = parsed(textwrap.dedent(_alone(lambda: inspect.getsource(cls))))  # which parses the whole module
    node = tree.body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def _alone(make: Callable[[], _Made]) -> _Made:
    """One at a time, and again where something else of this process came between."""
    with _PARSING:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(SystemError):
                return make()
        return make()
