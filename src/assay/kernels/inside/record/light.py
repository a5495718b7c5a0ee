"""Keeps PyTorch from importing its compiler and a computer algebra system, a second's work, to ask whether a number
that is plain is one. Changes nothing of what operators do to tensors; recording asks them for shapes only.
"""

from __future__ import annotations

import gc
import importlib
import operator
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch

_SHAPES = "torch.fx.experimental.symbolic_shapes"
_PLAIN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("expect_true", "guard_or_true", "guard_or_false", "guard_size_oblivious"), bool),
    "statically_known_true": bool,
    "guarding_hint_or_throw": lambda value: value,
    "has_guarding_hint": lambda _: True,
    "is_nested_int": lambda _: False,
    "sym_and": lambda *values: all(values),
    "sym_or": lambda *values: any(values),
    "sym_eq": operator.eq,
}
"""What that module's functions answer for plain numbers and truth values."""


def _is_plain(value: Any) -> bool:
    return type(value) in (bool, int) or (type(value) is tuple and all(type(part) is int for part in value))


class _Absent:
    """Stands for a class of which there are no objects yet."""


class _StandIn(ModuleType):
    """Stands for a module until something is asked of it that only the module itself has."""

    def _real(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of the import system, which asks whether this is a package
            raise AttributeError(name)
        return getattr(self._real(), name)

    def answer(self, name: str, plain: Callable[..., Any]) -> None:
        """Let a function of the module be answered here for what is plain."""

        def asked(*values: Any, **named: Any) -> Any:
            if not named and all(map(_is_plain, values)):
                return plain(*values)
            return getattr(self._real(), name)(*values, **named)

        setattr(self, name, asked)


def _stand_ins() -> tuple[_StandIn, _StandIn]:
    shapes, algebra = _StandIn(_SHAPES), _StandIn("sympy")
    for name, plain in _PLAIN.items():
        shapes.answer(name, plain)
    algebra.Symbol = algebra.Basic = _Absent  # type: ignore[attr-defined]
    return shapes, algebra


def install() -> None:
    """Once per process, before anything is recorded."""
    importlib.import_module("torch._refs")  # whose functions are among those below
    for stand_in in _stand_ins():
        sys.modules.setdefault(stand_in.__name__, stand_in)
    wrapped = torch._compile._disable_dynamo(_nothing).__code__
    for found in gc.get_objects():
        if type(found) is FunctionType and found.__code__ is wrapped:
            _as_is(found)
    for module in (torch, torch._compile):  # for what is defined later
        module._disable_dynamo = _never_compiled  # type: ignore[attr-defined]


def _nothing() -> None:
    """Something to wrap."""


def _as_is(function: Any) -> None:
    """Let a function that the compiler is kept from run without the compiler being asked."""
    inner = function.__closure__[function.__code__.co_freevars.index("fn")].cell_contents
    inner.__dynamo_disable = inner


def _never_compiled(function: Any = None, recursive: bool = True) -> Any:
    return function if function is not None else _never_compiled
