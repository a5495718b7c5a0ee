"""Accesses of kernels to memory, as a GPU takes them: under masks of truth values, within the tensors that were given.

Addresses are no numbers to a kernel: what they are differs from machine to machine, and a kernel that asks for them
could tell the interpreter from a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.arithmetic import MeaningError
from assay.kernels.inside.triton.bounds import Ranges, spread
from assay.kernels.inside.triton.commutation import commutes_as
from assay.kernels.inside.triton.ledger import (
    Access,
    OutOfBoundsError,
    Sync,
    UnsupportedError,
    WrongValueError,
    current,
    refuse,
)
from assay.kernels.inside.triton.values import doubts
from assay.kernels.inside.triton.values.constants import is_constant
from assay.kernels.inside.triton.values.handles import numpy_dtype

BROKEN = "broken"
"""Attribute of values: the shortest access that breaks each lane (`values.promises`)."""
ranges = Ranges()
"""What the launch under way may touch."""


def install(builder: Any) -> None:
    """Put them into the interpreter's builder (`InterpreterBuilder`)."""
    _guard_loads_and_stores(builder)
    _guard_sums(engine.interpreter_semantic)
    _guard_atomics(builder)
    _mark_descriptors(builder)
    _check_descriptors(builder)
    _check_offsets(builder)
    _check_casts(builder)
    builder.create_barrier = _barrier
    builder.create_int_to_ptr = _int_to_ptr
    builder.create_ptr_to_int = _ptr_to_int


def _check(
    pointers: Any,
    mask: Any,
    size: int,
    what: Literal["load", "store", "atomic operation"],
    values: Any = None,
    sync: Sync | None = None,
    ticket: bool = False,
    broken: Any = None,
    commutes: str = "",
) -> Any:
    """Whether an access may be made, which is told; raises a refusal if not. Gives back its mask, as an array."""
    mask, ledger = _check_range(pointers, mask, size, what), current()
    if ledger.widths is not None and pointers.size > 1 and not ledger.apart:
        ledger.widths.take(ledger.site, pointers, mask, size, broken)
    if ledger.turns is not None:
        ledger.turns.goes_on() if sync is None else ledger.turns.give_way()
    if ledger.observer is not None:
        asks: Any = "nothing" if sync is None or ledger.unused else "ticket" if ticket else "value"
        early, apart = ledger.early, ledger.apart
        ledger.observer.touched(Access(what, pointers, mask, size, values, sync, early, asks, apart, commutes))
    return mask


def _check_range(pointers: Any, mask: Any, size: int, what: str) -> Any:
    """The same of an access of which nobody is told."""
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype != np.bool_:
            refuse(MeaningError(f"the mask of a {what} holds {mask.dtype}; it must hold truth values (int1)"))
    fault = ranges.fault(pointers, mask, size, what)
    if fault:
        refuse(OutOfBoundsError(fault))
    return mask


def _check_type(ptr: Any, values: Any, what: str) -> None:
    """An access is as wide as what the pointer points to: the interpreter goes by the value."""
    there, given = numpy_dtype(ptr.get_element_ty()), values.data.dtype
    if there != given and (there.itemsize != given.itemsize or "f" in (there.kind, given.kind)):
        refuse(MeaningError(f"{what} of {given} at a pointer to {there}: cast the value"))


def _guard_loads_and_stores(builder: Any) -> None:
    load, store = builder.create_masked_load, builder.create_masked_store

    # Triton itself calls these with keywords where a tensor descriptor is read, and with a bare array as the mask.
    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        size = numpy_dtype(ptrs.get_element_ty()).itemsize
        _check(ptrs.data, mask.data, size, "load", broken=_broken(ptrs, mask))
        ledger, found = current(), load(self, ptrs, mask, *rest, **named)
        if ledger.in_doubt is not None:
            found, ledger.in_doubt = doubts.mark(found, ledger.in_doubt), None
        return found

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        mask = mask if mask is not None else engine.TensorHandle(np.ones_like(ptrs.data, dtype=bool), tl.int1)
        _check_type(ptrs, value, "store")
        size, broken = value.data.dtype.itemsize, _broken(ptrs, mask)
        chosen = _check(ptrs.data, mask.data, size, "store", value.data, broken=broken)
        _check_one_value(ptrs.data, value.data, chosen)
        return store(self, ptrs, value, mask, *rest, **named)

    builder.create_masked_load, builder.create_masked_store = create_masked_load, create_masked_store


def _broken(ptrs: Any, mask: Any) -> Any:
    """The shortest access that breaks each lane (`promises`); None where nobody broke one."""
    sides = [side.attr[BROKEN] for side in (ptrs, mask) if BROKEN in getattr(side, "attr", ())]
    return None if not sides else sides[0] if len(sides) == 1 else np.minimum(*sides)


def _check_one_value(pointers: Any, values: Any, mask: Any) -> None:
    """Refuse a store of two values to one address: a GPU keeps either."""
    mask = spread(mask, pointers.shape)
    at, values = pointers[mask], spread(values, pointers.shape)[mask]
    if at.size < 2 or (at[1:] > at[:-1]).all():
        return
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    if np.any((at[1:] == at[:-1]) & (values[1:] != values[:-1])):
        refuse(WrongValueError("a store writes several values to one address at once, and a GPU keeps any of them"))


_scalar: ContextVar[bool] = ContextVar("scalar", default=False)
"""Whether a sum under way is of one number, and not of a block of one."""


def _guard_sums(semantic: Any) -> None:
    add = semantic.atomic_add

    def atomic_add(ptr: Any, *rest: Any) -> Any:
        before = _scalar.set(not ptr.type.is_block())
        try:
            return add(ptr, *rest)
        finally:
            _scalar.reset(before)

    semantic.atomic_add = atomic_add


def _guard_atomics(builder: Any) -> None:
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        if val.dtype.scalar == tl.bfloat16:
            refuse(UnsupportedError("atomic operations on bfloat16: the interpreter would compute wrong sums."))
        _check_type(ptr, val, "atomic operation")
        ticket = op == engine._ir.ATOMIC_OP.ADD and val.data.dtype.kind in "iu" and bool(val.data.all())
        reads = _only_reads(op, val, *rest)
        if reads and not is_constant(val):
            _check_kept(ptr, mask, val)
        if reads and current().unused:
            return engine.TensorHandle(val.data, val.dtype)
        size, commutes = val.data.dtype.itemsize, _commutes_as(op, mask.data, val)
        _check(ptr.data, mask.data, size, "atomic operation", sync=_sync(*rest), ticket=ticket, commutes=commutes)
        if reads:
            there = engine._interpreter.load(ptr.data, mask.data, val.data, val.data.dtype)
            return _result(ptr, engine.TensorHandle(there, val.dtype))
        found = _in_no_order(lambda *lanes: rmw(self, op, *lanes, *rest, **named), ptr, val, mask)
        return _result(ptr, found)

    def create_atomic_cas(self: Any, ptr: Any, cmp: Any, val: Any, *rest: Any) -> Any:
        for side in (cmp, val):
            _check_type(ptr, side, "atomic operation")
        size, commutes = val.data.dtype.itemsize, _commutes_as(None, None, cmp, val)
        _check(ptr.data, None, size, "atomic operation", sync=_sync(*rest), commutes=commutes)
        cmp, val = (_as_wide(side, ptr.data.shape) for side in (cmp, val))
        bits = _BITS.get(val.data.dtype)
        if bits is None:
            return _result(ptr, _in_no_order(lambda *lanes: cas(self, *lanes, *rest), ptr, cmp, val))
        # A GPU compares bits: to it 0.0 and -0.0 differ.
        sides = (engine.TensorHandle(side.data.view(bits.name), bits) for side in (cmp, val))
        found = _in_no_order(lambda *lanes: cas(self, *lanes, *rest), ptr, *sides)
        return _result(ptr, engine.TensorHandle(found.data.view(val.data.dtype), val.dtype))

    builder.create_atomic_rmw, builder.create_atomic_cas = create_atomic_rmw, create_atomic_cas


def _only_reads(op: Any, val: Any, sem: Any, _scope: Any) -> bool:
    """Whether the compiler may make a load of an atomic operation, or nothing where nobody uses what it finds: of a
    single sum with zero that does not release. It knows more zeros than are written (n - n). A load leaves bits as they
    are."""
    kinds, sums = engine._ir.MEM_SEMANTIC, (engine._ir.ATOMIC_OP.ADD, engine._ir.ATOMIC_OP.FADD)
    reads = op in sums and sem in (kinds.RELAXED, kinds.ACQUIRE) and _scalar.get()
    return reads and not val.data.any()


def _check_kept(ptr: Any, mask: Any, val: Any) -> None:
    """Refuse a sum with zero that changes bits, where the compiler may or may not know the zero."""
    if val.data.dtype.kind != "f":
        return
    active = _check_range(ptr.data, mask.data, val.data.dtype.itemsize, "atomic operation")
    there = engine._interpreter.load(ptr.data, mask.data, val.data, val.data.dtype)
    lost = ((there == 0) & np.signbit(there)) | ((there != 0) & (np.abs(there) < np.finfo(there.dtype).tiny))
    if np.any(lost & active):
        refuse(
            WrongValueError(
                "an atomic sum of zero with -0.0 or a denormal number, which a load leaves as it is, and which the "
                "compiler may make of it"
            )
        )


def _commutes_as(op: Any, mask: Any, *sides: Any) -> str:
    """The name of an atomic operation for `commutation.commute`, where somebody follows it; `op` is None for one that
    compares, `mask` for all lanes."""
    if current().observer is None:
        return ""
    name, values = "CAS" if op is None else op.name, [side.data for side in sides]
    if mask is not None:
        chosen = spread(np.asarray(mask), np.broadcast_shapes(np.shape(mask), *(each.shape for each in values)))
        values = [spread(each, chosen.shape)[chosen] for each in values]
    return commutes_as(name, values)


def _in_no_order(compute: Callable[..., Any], ptr: Any, *sides: Any) -> Any:
    """The lanes of an atomic operation, one after the other as they come by chance."""
    order, shape = current().order, ptr.data.shape
    if order is None or ptr.data.size < 2:
        return compute(ptr, *sides)
    places = np.random.default_rng(order.getrandbits(32)).permutation(ptr.data.size)
    lanes = (
        engine.TensorHandle(np.broadcast_to(side.data, shape).reshape(-1)[places], side.dtype) for side in (ptr, *sides)
    )
    found = compute(*lanes)
    back = np.empty_like(found.data)
    back[places] = found.data
    return engine.TensorHandle(back.reshape(shape), found.dtype)


def _result(ptr: Any, found: Any) -> Any:
    ledger = current()
    given = found if ledger.observer is None else ledger.observer.result(found)
    if ledger.turns is not None:
        ledger.turns.found(ptr.data, found.data)
    return given


def _sync(sem: Any, scope: Any) -> Sync:
    """What an atomic operation orders: nothing between programs if it is relaxed, or for its own program alone."""
    wide, kinds = scope != engine._ir.MEM_SYNC_SCOPE.CTA, engine._ir.MEM_SEMANTIC
    hears = wide and sem in (kinds.ACQUIRE, kinds.ACQUIRE_RELEASE)
    tells = wide and sem in (kinds.RELEASE, kinds.ACQUIRE_RELEASE)
    return Sync(hears, tells)


def _barrier(_self: Any) -> None:
    """`tl.debug_barrier()`."""
    observer = current().observer
    if observer is not None:
        observer.barrier()


def _mark_descriptors(builder: Any) -> None:
    """Note which accesses a descriptor makes."""
    for name in ("create_descriptor_load", "create_descriptor_store"):
        setattr(builder, name, _apart(getattr(builder, name)))


def _apart(function: Any) -> Any:
    def access(*args: Any, **named: Any) -> Any:
        ledger = current()
        ledger.apart = True
        try:
            return function(*args, **named)
        finally:
            ledger.apart = False

    return access


def _check_descriptors(builder: Any) -> None:
    """A GPU reads extents and strides of a descriptor as numbers without a sign."""
    make = builder.create_make_tensor_descriptor

    def create_make_tensor_descriptor(self: Any, base: Any, shape: Any, strides: Any, *rest: Any, **named: Any) -> Any:
        if any(int(extent.data.item()) < 1 for extent in shape):
            refuse(WrongValueError("a tensor descriptor with an extent below 1, which a GPU reads without its sign"))
        size = numpy_dtype(base.get_element_ty()).itemsize
        if any(not 0 <= int(stride.data.item()) * size < _BYTES_OF_STRIDES for stride in strides):
            refuse(WrongValueError("a tensor descriptor with a stride below 0, or of 2^40 bytes or more"))
        return make(self, base, shape, strides, *rest, **named)

    builder.create_make_tensor_descriptor = create_make_tensor_descriptor


def _check_offsets(builder: Any) -> None:
    """A GPU reads offsets of block pointers and descriptors as 32 bits with a sign, and adds up those of a pointer that
    advances in 64."""

    def create_advance(_self: Any, ptr: Any, offsets: Any) -> Any:
        if len(ptr.offsets) != len(offsets):
            refuse(MeaningError("tl.advance takes one offset for each dimension"))
        moved = [
            engine.TensorHandle(one.data.astype(np.int64) + other.data.astype(np.int64), tl.int64)
            for one, other in zip(ptr.offsets, offsets, strict=True)
        ]
        return engine.BlockPointerHandle(ptr.base, ptr.shape, ptr.strides, moved, ptr.block_shape, ptr.order)

    builder.create_advance = create_advance
    of_block, of_descriptor = (
        kind.materialize_pointers for kind in (engine.BlockPointerHandle, engine.TensorDescHandle)
    )

    def materialize(self: Any, boundary_check: Any) -> Any:
        _refuse_far(self.offsets)
        return of_block(self, boundary_check)

    def materialize_described(self: Any, offsets: Any) -> Any:
        _refuse_far(offsets)
        return of_descriptor(self, offsets)

    engine.BlockPointerHandle.materialize_pointers = materialize
    engine.TensorDescHandle.materialize_pointers = materialize_described


def _refuse_far(offsets: Any) -> None:
    """Refuse offsets that 32 bits with a sign do not hold."""
    if any((each.data.astype(np.int64) != each.data.astype(np.int32)).any() for each in offsets):
        refuse(
            WrongValueError(
                "a block pointer or descriptor at an offset of 2^31 or more, which a GPU reads as a negative one"
            )
        )


_BYTES_OF_STRIDES = 1 << 40
"""A GPU takes fewer."""


def _check_casts(builder: Any) -> None:
    """Triton's compiler goes on to take the pointers of a block for neighbours once they point to other elements."""
    cast = builder.create_bitcast

    def create_bitcast(self: Any, src: Any, dst_type: Any) -> Any:
        kinds = src.dtype.scalar, dst_type.scalar
        if all(kind.is_ptr() for kind in kinds) and src.data.size > 1:
            widths = [max(kind.element_ty.primitive_bitwidth, 8) for kind in kinds]  # truth values are bytes
            if widths[0] != widths[1]:
                refuse(UnsupportedError(_OF_BLOCKS))
        return cast(self, src, dst_type)

    builder.create_bitcast = create_bitcast


_OF_BLOCKS = (
    "a block of pointers cast to elements of another width: Triton's compiler takes them for neighbours as they were, "
    "and a GPU comes to other elements. Cast the pointer before offsets are added to it"
)
_BITS = {np.dtype(np.float16): tl.int16, np.dtype(np.float32): tl.int32, np.dtype(np.float64): tl.int64}


def _as_wide(handle: Any, shape: tuple[int, ...]) -> Any:
    """A value for each of some addresses: the interpreter would read past the end of fewer."""
    if handle.data.shape == shape:
        return handle
    try:
        data = np.ascontiguousarray(np.broadcast_to(handle.data, shape))
    except ValueError:
        refuse(MeaningError(f"an atomic operation at {shape} addresses with values {handle.data.shape}"))
    return engine.TensorHandle(data, handle.dtype)


def _int_to_ptr(_self: Any, *_: Any) -> Any:
    refuse(UnsupportedError("a pointer made from an integer cannot be checked by the interpreter"))


def _ptr_to_int(_self: Any, *_: Any) -> Any:
    refuse(UnsupportedError("an address cast to an integer: it is another one on each machine, so keep to pointers"))
