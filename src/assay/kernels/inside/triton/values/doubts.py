"""Values that only one thread of a program has for certain: what it stored, loaded again with no barrier between.

The others may have loaded what was there before. As long as all that is computed from it is as small, the one thread
goes on with its own; once it becomes part of a larger block, or decides where the program goes, the others count. Only
launches in which there is such a value pay for it: from then on the builder follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from triton.runtime import interpreter as engine

Spreads = Callable[[], None]
"""Called once a value in doubt is used by other threads. May raise."""

_following: dict[type, type] = {}
"""For each class of builders the one that follows doubts, too."""


def install() -> None:
    """Put it into the interpreter, after all else that changes its reductions."""
    for owner in (engine.ReduceOps, engine.ScanOps):
        owner.apply_impl = _reduced(owner.apply_impl)


def mark(handle: Any, spreads: Spreads) -> Any:
    """Take a value for one in doubt, and follow it to the end of the launch."""
    handle.spreads = spreads
    builder = engine.interpreter_builder
    if type(builder) not in _following.values():
        builder.__class__ = _follower(type(builder))
    return handle


def _follower(plain: type) -> type:
    if plain not in _following:
        names = [name for name in dir(plain) if name.startswith("create_")]
        _following[plain] = type("Following", (plain,), {name: _followed(plain, name) for name in names})
    return _following[plain]


def forget() -> None:
    """A launch is over."""
    builder = engine.interpreter_builder
    if type(builder) in _following.values():
        builder.__class__ = type(builder).__base__


def decide(handle: Any) -> None:
    """A value decides where the program goes."""
    spreads = getattr(handle, "spreads", None)
    if spreads is not None:
        spreads()


def _handles(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, engine.TensorHandle):
            yield value
        elif isinstance(value, tuple | list):
            yield from _handles(value)


def _follow(found: Any, operands: Any) -> Any:
    doubted = [each for each in _handles(operands) if getattr(each, "spreads", None) is not None]
    if doubted:
        most = max(each.data.size for each in doubted)
        for result in _handles((found,)):
            if result.data.size > most:
                doubted[0].spreads()
            result.spreads = doubted[0].spreads
    return found


def _followed(plain: type, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(plain, name)
    if name.startswith("create_atomic"):  # the one thread makes it, and hands the result to all
        return function

    def call(self: Any, *args: Any, **named: Any) -> Any:
        return _follow(function(self, *args, **named), (*args, *named.values()))

    return call


def _reduced(apply: Callable[..., Any]) -> Callable[..., Any]:
    def apply_impl(self: Any, values: Any) -> Any:
        found = apply(self, values)
        if type(engine.interpreter_builder) in _following.values():
            results = found if isinstance(found, tuple | list) else (found,)
            _follow([each.handle for each in results], [each.handle for each in values])
        return found

    return apply_impl
