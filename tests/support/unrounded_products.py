"""What a GPU remembers of products: a sum may take them before they are rounded, also by way of casts, choices and
moves (`random_gpu`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from support.random_orders import numbers

_UNROUNDED = "the same without a rounding"
"""Attribute: what a product is before it is rounded, as float64, NaN where that is not known; and to which type."""
WAS = "narrow before"
"""Attribute of what was cast to a wider type: the narrow one."""
_MOVES = ("broadcast", "expand_dims", "reshape", "trans", "unsplat")


def kept_by(plain: Any) -> dict[str, Any]:
    """Methods of a builder that keep products, with what is remembered of them."""
    methods = {
        "create_select": _choice(plain.create_select),
        "create_bitcast": _recast(plain.create_bitcast),
        "cast_impl": _recast(plain.cast_impl),
        "create_join": _joined(plain.create_join),
        "create_split": _split(plain.create_split),
        "create_splat": _splat(plain.create_splat),
    }
    methods |= {f"create_{name}": _kept(getattr(plain, f"create_{name}")) for name in ("fabs", "maxnumf", "minnumf")}
    return methods | {f"create_{name}": _moved(getattr(plain, f"create_{name}")) for name in _MOVES}


def unrounded_of(handle: Any) -> Any:
    """What a product is before it is rounded, where a sum of its type may take it; None for all else."""
    return known(handle) if handle.attr.get(_UNROUNDED, (None, ""))[1] == handle.dtype.scalar.name else None


def known(handle: Any) -> Any:
    """The same, also of what was cast to another type since then."""
    return handle.attr.get(_UNROUNDED, (None,))[0]


def give(handle: Any, unrounded: Any, of: Any = None) -> Any:
    """Note it. `of`: the handle that it was known of, else it is of this one's type."""
    if unrounded is not None and not np.isnan(unrounded).all():
        kind = handle.dtype.scalar.name if of is None else of.attr[_UNROUNDED][1]
        handle.attr[_UNROUNDED] = np.broadcast_to(unrounded, handle.data.shape), kind
    return handle


def _choice(plain: Any) -> Any:
    def create_select(self: Any, condition: Any, lhs: Any, rhs: Any) -> Any:
        found = plain(self, condition, lhs, rhs)
        sides = [unrounded_of(lhs), unrounded_of(rhs)]
        if any(side is not None for side in sides):
            give(found, np.where(condition.data, *(np.nan if side is None else side for side in sides)))
        return found

    return create_select


def _kept(plain: Any) -> Any:
    """What leaves some numbers as they are."""

    def operation(self: Any, *args: Any) -> Any:
        found = plain(self, *args)
        for arg in args:
            if (before := unrounded_of(arg)) is not None:
                give(found, np.where(numbers(found) == numbers(arg), before, np.nan))
        return found

    return operation


def _recast(plain: Any) -> Any:
    """A cast that keeps all bits, or makes a product of narrow numbers narrow."""

    def cast(self: Any, src: Any, dtype: Any) -> Any:
        found, before, kinds = plain(self, src, dtype), known(src), (src.dtype.scalar, dtype.scalar)
        if all(kind.is_floating() for kind in kinds) and kinds[0].primitive_bitwidth < kinds[1].primitive_bitwidth:
            found.attr[WAS] = kinds[0].name
        if before is None:
            return found
        if kinds[0].is_floating() != kinds[1].is_floating():
            kept = kinds[0].primitive_bitwidth == kinds[1].primitive_bitwidth
            return give(found, before, src) if kept else found
        if src.attr.get(WAS) == kinds[1].name:  # operands of a product were as narrow
            return give(found, before)
        return give(found, np.where(numbers(found) == numbers(src), before, np.nan), src)

    return cast


def _moved(plain: Any) -> Any:
    def move(self: Any, arg: Any, *rest: Any, **named: Any) -> Any:
        found, before = plain(self, arg, *rest, **named), known(arg)
        if before is None:
            return found
        moved = plain(self, engine.TensorHandle(np.ascontiguousarray(before), tl.float64), *rest, **named).data
        return give(found, moved, arg)

    return move


def _splat(plain: Any) -> Any:
    def create_splat(self: Any, kind: Any, arg: Any) -> Any:
        found, before = plain(self, kind, arg), known(arg)
        return found if before is None else give(found, np.broadcast_to(before.reshape(()), found.data.shape), arg)

    return create_splat


def _joined(plain: Any) -> Any:
    def create_join(self: Any, lhs: Any, rhs: Any) -> Any:
        sides: Sequence[Any] = [unrounded_of(lhs), unrounded_of(rhs)]
        found = plain(self, lhs, rhs)
        if any(side is not None for side in sides):
            shape = lhs.data.shape
            give(found, np.stack([np.broadcast_to(np.nan if s is None else s, shape) for s in sides], -1))
        return found

    return create_join


def _split(plain: Any) -> Any:
    def create_split(self: Any, arg: Any) -> Any:
        parts, before = plain(self, arg), unrounded_of(arg)
        if before is not None:
            for place, part in enumerate(parts):
                give(part, before[..., place])
        return parts

    return create_split
