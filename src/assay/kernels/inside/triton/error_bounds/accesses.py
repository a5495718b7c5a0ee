"""Error bounds of accesses to memory: what is loaded is as far off as what was stored there, and what depends on an
order (sums of float32 by atomic operations) is off by what another order may make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import choices, sharing, threads
from assay.kernels.inside.triton.error_bounds.bounds import (
    LARGEST,
    MOST,
    NORMAL,
    Lean,
    bound,
    carries,
    epsilon,
    give,
    held,
    named,
    none_shared,
    or_zero,
    wide,
)
from assay.kernels.inside.triton.error_bounds.memory import BITS, UNKNOWN, Bounds, Found, Kind, Range, line_of_kernel
from assay.kernels.inside.triton.ledger import UndecidedError, current, refuse
from assay.kernels.inside.triton.values.constants import is_constant
from assay.kernels.inside.triton.values.handles import numpy_dtype

_plain: Any = engine.InterpreterBuilder
_UNDECIDED = (
    "an address, a mask or a branch depends on the last bits of an inexact result (of a division, a function, a sum)"
    "{0}, and each GPU has others: compare with a margin, or compute it of whole numbers"
)


def bounds() -> Bounds:
    """Those of the call under way."""
    found = current().bounds
    assert found is not None, "only the builder with bounds asks for them"
    return found


def refuse_undecided() -> NoReturn:
    """A program would go another way on another GPU."""
    line = line_of_kernel()
    refuse(UndecidedError(_UNDECIDED.format(f" in line {line}" if line else "")))


def certain(*parts: Any) -> None:
    """Refuse addresses and masks that are not certain, also in lists."""
    if any(bound(handle) is not None for handle in _handles(parts)):
        refuse_undecided()


def _handles(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, engine.TensorHandle):
            yield value
        elif isinstance(value, list | tuple):
            yield from _handles(value)


def of_certain(name: str, *, value: int | None = None) -> Any:
    """A method whose operands must be certain, but for the one that it stores."""

    def operation(self: Any, *args: Any, **options: Any) -> Any:
        certain(*(arg for place, arg in enumerate(args) if place != value), *options.values())
        return getattr(_plain, name)(self, *args, **options)

    return operation


_OTHER_FORMATS = ("bf16", "fp8e4nv", "fp8e5")


def _kind(handle: Any) -> Kind:
    """What kind of elements a pointer points to."""
    return _kind_of(handle.get_element_ty())


def _kind_of(element: Any) -> Kind:
    if element.is_floating():
        return Kind(numpy_dtype(element).itemsize, element.name if element.name in _OTHER_FORMATS else "fraction")
    return Kind(numpy_dtype(element).itemsize, "unsigned" if numpy_dtype(element).kind == "u" else "whole")


def _array(mask: Any) -> Any:
    return np.asarray(mask.data if isinstance(mask, engine.TensorHandle) else mask)


def load(self: Any, ptrs: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    """`masked_load`: a choice between what is loaded and what stands for the rest, which the compiler makes the second
    one where it sees that a mask has no lane."""
    found = _plain.create_masked_load(self, ptrs, mask, *rest, **options)
    threads.spread(found)
    other = rest[0] if rest else options.get("other")
    loaded = _loaded(found, ptrs, mask, other)
    if isinstance(other, engine.TensorHandle):
        sharing.note_twins(loaded, (other,))
        if carries(other):
            sharing.keep_origin(loaded, other)
            sharing.keep_loss(loaded, other)
    return loaded


def _loaded(found: Any, ptrs: Any, mask: Any, other: Any) -> Any:
    noted = bounds()
    fills = other is not None and _spreads(other)
    exact = not fills and all(
        part is None or not isinstance(part, engine.TensorHandle) or bound(part) is None for part in (ptrs, mask, other)
    )
    if exact and not noted.noted and noted.unspecified is None:
        return found
    active = np.broadcast_to(_array(mask), found.data.shape)
    seen = noted.load(ptrs.data, active, _kind(ptrs))
    limits, shared = (0.0, None) if seen is None else _as_read(found, seen)
    left = None if other is None else named(other, MOST)
    if shared is not None or left is not None:
        sides = (each or none_shared(found.data.shape) for each in (shared, left))
        shared = Lean(*(np.where(active, *each) for each in zip(*sides, strict=True)))
    limits = np.where(active, limits, UNKNOWN if fills else or_zero(None if other is None else bound(other)))
    elsewhere = np.asarray(or_zero(bound(ptrs))) > 0
    masked = np.asarray(or_zero(bound(mask) if isinstance(mask, engine.TensorHandle) else None)) > 0
    limits = np.where(masked | (elsewhere & active), UNKNOWN, limits)
    lanes, noted.unspecified = noted.unspecified, None
    return give(found, limits if lanes is None else np.where(lanes, UNKNOWN, limits), shared)


def _spreads(other: Any) -> bool:
    """Whether a constant that stands for what a mask leaves out fills the word that it is put into with its sign."""
    data = other.data
    if not is_constant(other) or data.dtype.kind not in "iu" or data.itemsize > 2 or other.dtype.scalar.is_floating():
        return False
    signed = data.view(f"i{data.itemsize}")
    return bool(((signed < 0) & (signed != -1)).any())


def _as_read(found: Any, seen: Found) -> tuple[Any, Lean | None]:
    """What is known of what is read, some of it as another kind than it was written as."""
    limits = np.maximum(seen.limits, 0.0)
    if seen.resigned.any():
        limits = np.where(seen.resigned, held(found, limits), limits)
    if not seen.other.any():
        return limits, Lean(seen.origins, seen.leans, seen.copies)
    written = _as_written(found)
    if written is None:
        return np.where(seen.other, UNKNOWN, limits), None
    give(written, np.where(seen.other, limits, 0.0))
    read = np.where(seen.other, choices.read_as(found, written)[0], limits)
    number, spread = (found, read) if found.dtype.scalar.is_floating() else (written, limits)
    sign = np.where(np.abs(wide(number)) > spread, np.sign(wide(number)), 0.0)  # as in sharing.of_bits
    whole = (np.abs(seen.leans) == seen.limits) & (sign != 0.0)
    origins = np.where(seen.other & ~whole, 0, seen.origins)
    leans = np.where(whole, np.sign(seen.leans) * sign * read, 0.0)
    return read, Lean(origins, np.where(seen.other, leans, seen.leans), seen.copies)


_OTHER_KINDS = {2: (tl.int16, tl.float16), 4: (tl.int32, tl.float32), 8: (tl.int64, tl.float64)}


def _as_written(found: Any) -> Any:
    """A fraction that is read as a whole number, or the other way round; None where that is not known."""
    kind = found.dtype.scalar
    if kind == tl.bfloat16 or found.data.dtype.itemsize not in _OTHER_KINDS:
        return None
    other = _OTHER_KINDS[found.data.dtype.itemsize][0 if kind.is_floating() else 1]
    return engine.TensorHandle(np.ascontiguousarray(found.data).view(numpy_dtype(other)), other)


def _left(value: Any) -> Any:
    """The bounds that a stored value leaves in memory."""
    limits, kind = bound(value), value.data.dtype.kind
    if kind != "f" and value.dtype.scalar != tl.bfloat16:
        return limits
    nan = np.isnan(value.data if kind == "f" else wide(value))
    if not nan.any():
        return limits
    return np.where(nan & (or_zero(limits) == 0), BITS, or_zero(limits))


def store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    """`masked_store`."""
    certain(ptrs, mask)
    found = _plain.create_masked_store(self, ptrs, value, mask, *rest, **options)
    bounds().store(ptrs.data, None if mask is None else _array(mask), _left(value), _kind(ptrs), named(value, MOST))
    return found


def rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    """`atomic_rmw`. What another program finds is another sum; the sum of all is off by what rounding loses."""
    certain(ptr, mask)
    noted, kinds, kind = bounds(), engine._ir.ATOMIC_OP, _kind(ptr)
    active = np.broadcast_to(mask.data, ptr.data.shape)
    before = noted.load(ptr.data, active, kind)
    found = _plain.create_atomic_rmw(self, op, ptr, val, mask, *rest, **options)
    brought = bound(val)
    if op == kinds.FADD:
        if brought is not None:
            noted.add(ptr.data, active, brought, kind)
        noted.summed(ptr.data, active, wide(val), wide(found), kind, _range(val.dtype.scalar))
        if brought is not None or noted.load(ptr.data, active, kind) is not None:
            give(found, np.full(found.data.shape, UNKNOWN))
    elif op == kinds.XCHG:
        noted.store(ptr.data, active, _left(val), kind, named(val))
        give(found, *((None,) if before is None else _as_read(found, before)))
        _of_other_lanes(found, ptr, active, brought)
    elif brought is not None or before is not None:
        widest = np.maximum(or_zero(brought), 0.0 if before is None else _as_read(found, before)[0])
        if op == kinds.ADD:
            noted.add(ptr.data, active, or_zero(brought), kind)
            _keep_held(ptr, mask, kind)
        else:
            extreme = op in (kinds.MAX, kinds.MIN, kinds.UMAX, kinds.UMIN)
            noted.widen(ptr.data, active, widest if extreme else np.where(widest > 0, UNKNOWN, 0.0), kind)
        give(found, np.where(np.broadcast_to(widest, found.data.shape) > 0, UNKNOWN, 0.0))
    if not active.all():
        give(found, np.where(active.reshape(found.data.shape), or_zero(bound(found)), UNKNOWN))
    return found


def _keep_held(ptr: Any, mask: Any, kind: Kind) -> None:
    """Sums of whole numbers in memory that may have passed the end of their type are anything."""
    active, element = np.broadcast_to(mask.data, ptr.data.shape), ptr.get_element_ty()
    if (seen := bounds().load(ptr.data, active, kind)) is not None:
        dtype = numpy_dtype(element)
        there = engine._interpreter.load(ptr.data, np.ascontiguousarray(active), np.zeros(active.shape, dtype), dtype)
        bounds().widen(ptr.data, active, held(engine.TensorHandle(there, element), seen.limits), kind)


def _range(dtype: Any) -> Range:
    flushed = NORMAL["fp32"] if dtype == tl.float32 else 0.0  # atomic sums of other types keep denormal numbers
    return Range(2.0 / epsilon(dtype), epsilon(dtype), LARGEST[dtype.name], flushed)


def _of_other_lanes(found: Any, ptr: Any, active: Any, brought: Any) -> None:
    """Lanes of one operation that come to one address find what others of them brought, which may be inexact."""
    if brought is None:
        return
    places, inverse, counts = np.unique(ptr.data[active], return_inverse=True, return_counts=True)
    if len(places) < active.sum():
        twice = np.zeros(active.shape, bool)
        twice[active] = counts[inverse] > 1
        give(found, np.where(twice.reshape(found.data.shape), UNKNOWN, or_zero(bound(found))))


def cas(self: Any, ptr: Any, cmp: Any, val: Any, *rest: Any, **options: Any) -> Any:
    """`atomic_cas`, which compares bits: zeros of two signs differ, and NaNs are equal that have the same."""
    certain(ptr)
    # Neither number is cast to what the pointer points to.
    noted, kind, shape = bounds(), _kind_of(val.dtype.scalar), ptr.data.shape
    before = noted.load(ptr.data, None, kind)
    found = _plain.create_atomic_cas(self, ptr, cmp, val, *rest, **options)
    if before is not None:
        give(found, *_as_read(found, before))
    _of_other_lanes(found, ptr, np.ones(shape, bool), bound(val))
    inexact = before is not None or bound(cmp) is not None
    undecided = choices.compared(found, found, cmp) if inexact else np.zeros(shape)
    if found.data.dtype.kind == "f":  # each GPU has bits of its own for a NaN
        undecided = np.where(np.isnan(found.data) & np.isnan(cmp.data), UNKNOWN, undecided)
    if before is not None or bound(val) is not None or undecided.any():
        swapped = np.broadcast_to(_bits(found) == _bits(cmp), shape) | (undecided > 0)
        limits = np.where(undecided > 0, UNKNOWN, np.broadcast_to(or_zero(_left(val)), shape))
        noted.store(ptr.data, swapped, limits, kind, named(val))
    return found


def _bits(handle: Any) -> Any:
    """Numbers as they lie in memory."""
    return handle.data.view(f"u{handle.data.dtype.itemsize}")
