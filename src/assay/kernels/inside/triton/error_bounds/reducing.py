"""Reductions and scans of Triton's own with error bounds; those with functions of a kernel's own have theirs from
`values.combining`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import sums, threads
from assay.kernels.inside.triton.error_bounds.bounds import (
    BITS,
    JOINS,
    MOST,
    NARROW,
    WAS,
    Joins,
    Lean,
    apart,
    bound,
    give,
    give_loss,
    loss,
    loss_of_any,
    named,
    or_zero,
    wide,
)
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.error_bounds.sharing import PAIR
from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.values.contractions import AS_MATRICES


def install() -> None:
    """Put it into the interpreter."""
    engine.ReduceOps.apply_impl = _reduced(engine.ReduceOps.apply_impl)
    engine.ScanOps.apply_impl = _scanned(engine.ScanOps.apply_impl)


def _reduced(apply: Callable[..., Any]) -> Callable[..., Any]:
    def apply_impl(self: Any, values: Any) -> Any:
        found = apply(self, values)
        if current().bounds is None:
            return found
        name, source = sums.REDUCED.get(self.combine_fn), values[0].handle
        parts = found if isinstance(found, tuple | list) else (found,)
        for part in parts:
            threads.reduced(part.handle, source)
            _keep_bits(part.handle, source, self.axis)
        if name is None or name == "prod":
            return found
        for part, limits in zip(parts, sums.of_reduction(name, source, self.axis, parts[0].handle), strict=False):
            limits = np.reshape(limits, part.handle.data.shape)
            if name == "sum" and AS_MATRICES in part.handle.attr:
                limits = limits + _contracted(part.handle, source, self.axis)
            give(part.handle, limits, _shared(name, source, self.axis, limits) if part is parts[0] else None)
            if name == "sum":
                named(part.handle)
                _join(part.handle, source, self.axis)
            if part is parts[0]:
                _keep_what_comes_through(name, source, part.handle, self.axis)
        if name == "xor" and self.axis is not None and source.data.shape[self.axis] == 2 and (shared := named(source)):
            parts[0].handle.attr[PAIR] = tuple(
                np.ascontiguousarray(each.take(place, self.axis)).reshape(parts[0].handle.data.shape)
                for each in (shared.copies, bound(source))
                for place in (0, 1)
            )
        return found

    return apply_impl


def _keep_what_comes_through(name: str, source: Any, found: Any, axis: int | None) -> None:
    """What is lost of elements that come through a reduction as they are: the only one along an axis, or an extreme."""
    shape, extreme = found.data.shape, name.partition(" ")[0].removeprefix("arg") in ("max", "min")
    if source.data.size != found.data.size and not extreme:
        return

    def most(lost: Any) -> Any:
        whole = np.broadcast_to(lost, source.data.shape)
        return (whole if source.data.size == found.data.size else whole.max(axis)).reshape(shape)

    if (lost := loss(source)) is not None:
        give_loss(found, most(lost))
    if WAS in source.attr:
        found.attr[WAS] = source.attr[WAS]
    if NARROW in source.attr:
        lost, kind = source.attr[NARROW]
        found.attr[NARROW] = most(lost), kind


def _keep_bits(found: Any, source: Any, axis: int | None) -> None:
    """Bits of a product, beside bits that change none, may come through as they are."""
    if BITS in source.attr and (lost := loss_of_any(source)) is not None:
        most = np.broadcast_to(lost, source.data.shape).max(axis, keepdims=axis is not None)
        whole = found.data.size == source.data.size
        most = np.broadcast_to(most, source.data.shape) if whole else most
        give_loss(found, most.reshape(found.data.shape), source)
        found.attr[BITS] = True


def _join(found: Any, source: Any, axis: int | None) -> None:
    """Threads may keep their parts of a sum, and add them up once a loop that adds such sums is over."""
    if source.dtype.scalar.is_floating():
        values, shape = wide(source), found.data.shape
        size, whole = np.abs(values).sum(axis).reshape(shape), (np.rint(values) == values).all(axis).reshape(shape)
        before = found.attr.get(JOINS)
        found.attr[JOINS] = Joins(size, size, whole, 1.0 if before is None else before.roundings, True)


def _contracted(found: Any, source: Any, axis: int | None) -> Any:
    """What a sum of products loses where the compiler makes a product of matrices of it."""
    values, shape = wide(source), found.data.shape
    return found.attr[AS_MATRICES].reshape(shape) + apart(wide(found), values.sum(axis).reshape(shape))


def _shared(name: str, source: Any, axis: int | None, limits: Any) -> Lean | None:
    """An extreme is one of the elements, where no error can make it another."""
    kind = name.partition(" ")[0].removeprefix("arg")
    shared = named(source, MOST)
    if kind not in ("max", "min") or shared is None or not np.any(limits):
        return None
    data, known = wide(source), bound(source)
    if axis is None:
        data, known, axis = data.reshape(-1), known.reshape(-1), 0
        shared = Lean(*(each.reshape(-1) for each in shared))
    values = np.where(np.isnan(data), np.inf, data if kind == "min" else -data)
    places = np.expand_dims(values.argmin(axis), axis)
    settled = sums.place_of_largest(-values, axis, known, negated=False, any_place=True) == 0
    origins, parts, copies = (np.take_along_axis(each, places, axis) for each in shared)
    origins, copies = (np.where(settled, each, 0) for each in (origins, copies))
    return Lean(*(each.reshape(limits.shape) for each in (origins, parts, copies)))


def _turned_round(operation: Any, values: Any, apply: Callable[..., Any]) -> Any:
    """A scan from behind, as one of what was turned round."""
    axis = operation.axis % values[0].handle.data.ndim

    def turned(handle: Any) -> Any:
        kept = bound(handle), loss(handle)
        made = engine.TensorHandle(np.ascontiguousarray(np.flip(handle.data, axis)), handle.dtype)
        limits, lost = (
            None if each is None else np.flip(np.broadcast_to(each, made.data.shape), axis) for each in kept
        )
        give(made, limits)
        return made if lost is None else give_loss(made, lost)

    operation.reverse = False
    found = apply(operation, tuple(type(each)(turned(each.handle), each.type) for each in values))
    operation.reverse = True
    for each in found:
        each.handle = turned(each.handle)
    return found


def _keep_factors(found: Any, source: Any, axis: int, *, reverse: bool) -> None:
    """What is lost of factors that come through a running product as they are: the first one, and any beside ones."""
    if current().fuses and (lost := loss(source)) is not None:
        whole = np.broadcast_to(lost, source.data.shape)
        turned = np.flip(whole, axis) if reverse else whole
        most = np.maximum.accumulate(turned, axis)
        give_loss(found, np.flip(most, axis) if reverse else most)


def _scanned(apply: Callable[..., Any]) -> Callable[..., Any]:
    def apply_impl(self: Any, values: Any) -> Any:
        reverse, name = self.reverse, sums.REDUCED.get(self.combine_fn)
        if reverse and current().bounds is not None and name not in ("sum", "prod"):
            return _turned_round(self, values, apply)
        found = apply(self, values)
        if current().bounds is None or name not in ("sum", "prod"):
            return found
        source, made = values[0].handle, found[0].handle
        threads.combined(made, (source,))
        _keep_bits(made, source, self.axis)
        axis, limits = self.axis % source.data.ndim, bound(source)
        if name == "sum" and current().fuses and (lost := loss(source)) is not None:
            limits = or_zero(limits) + lost
        if not source.dtype.scalar.is_floating():
            give(made, None if limits is None else np.full(made.data.shape, UNKNOWN))
            return found
        data, limits, results = (
            each if each is None or not reverse else np.flip(each, axis) for each in (wide(source), limits, wide(made))
        )
        if name == "sum":
            spread = sums.scanned(data, axis, source.dtype, limits, results, threads.most_roundings(source))
        else:
            spread = sums.multiplied(results, data, axis, source.dtype, limits)
            _keep_factors(made, source, axis, reverse=reverse)
        give(made, np.flip(spread, axis) if reverse else spread)
        return found

    return apply_impl
