"""What arithmetic means to a GPU where NumPy means something else: divisions, shifts, extremes, NaN.

What has no value there is `unspecified`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.arithmetic import MeaningError
from assay.kernels.inside.triton.ledger import UnsupportedError, WrongValueError, current, refuse
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.constants import is_constant
from assay.kernels.inside.triton.values.functions import canonical, flushed, fused
from assay.kernels.inside.triton.values.handles import is_held_as_bits

_BOOL = np.dtype(np.bool_)
_COUNT = 0xFFFFFFFF
"""Of the count of a shift, the bits that a GPU looks at."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    _install_integers(builder)
    # Triton names the operation by the left operand's own type, before both have a common one.
    _install_shift(builder, "create_lshr", partial(_shifted_as, "u"))
    _install_shift(builder, "create_ashr", partial(_shifted_as, "i"))
    _install_shift(builder, "create_shl", np.left_shift)
    for name, function in _EXTREMES.items():
        _install_extreme(builder, f"create_{name}", function)
    builder.create_clampf = _clamp
    builder.create_frem = _remainder
    builder.create_umulhi = _high_product
    _install_structure(builder)
    _install_padding(builder)
    _install_atomics(builder)


def unspecified(values: Any, lanes: Any) -> Any:
    """Values of which those in some lanes are none: nothing is known of them where values have error bounds."""
    bounds = current().bounds
    if bounds is not None and np.any(lanes):
        bounds.unspecified = np.broadcast_to(lanes, values.shape)
    return values


def _install_integers(builder: Any) -> None:
    divide, add, subtract = builder.create_idiv, builder.create_add, builder.create_sub

    def create_idiv(self: Any, lhs: Any, rhs: Any) -> Any:
        _check_division(lhs.data, rhs.data)
        return divide(self, lhs, rhs)

    def create_rem(self: Any, lhs: Any, rhs: Any) -> Any:
        _check_division(lhs.data, rhs.data)
        return self.binary_op(lhs, rhs, np.fmod)

    def create_add(self: Any, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.logical_xor) if lhs.data.dtype == _BOOL else add(self, lhs, rhs)

    def create_sub(self: Any, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.logical_xor) if lhs.data.dtype == _BOOL else subtract(self, lhs, rhs)

    builder.create_idiv, builder.create_srem, builder.create_urem = create_idiv, create_rem, create_rem
    builder.create_add, builder.create_sub = create_add, create_sub
    builder.get_all_ones_value = _all_ones


def _all_ones(_self: Any, kind: Any) -> Any:
    """What `~` is made of, which NumPy does not give for numbers without a sign."""
    return engine.TensorHandle(~np.zeros(1, engine._get_np_dtype(kind)), kind.scalar)


def _check_division(left: Any, right: Any) -> None:
    """Refuse what has no value. A compiler takes it for granted that it never happens, and drops a test for zero."""
    if left.dtype == _BOOL:
        refuse(MeaningError("a division of truth values: cast them to int32"))
    if not right.all():
        refuse(
            WrongValueError(
                "a whole number divided by zero: the compiler takes it that this never happens, and drops a test of "
                "the divisor around it. Divide by tl.where(d == 0, 1, d)"
            )
        )
    if left.dtype.kind == "i" and np.any((left == np.iinfo(left.dtype).min) & (right == -1)):
        refuse(MeaningError("the least whole number divided by -1, which exceeds its type"))


def _install_shift(builder: Any, name: str, function: Callable[[Any, Any], Any]) -> None:
    def shifted(self: Any, lhs: Any, rhs: Any) -> Any:
        values, count = lhs.data, rhs.data
        if values.dtype == _BOOL:
            refuse(MeaningError("a shift of truth values: cast them to int32"))
        width = 8 * values.dtype.itemsize
        beyond = (count < 0) | (count >= width)
        if not beyond.any():
            return self.binary_op(lhs, rhs, function)
        if is_constant(rhs):
            refuse(WrongValueError(f"a shift by a constant that is no count of the {width} bits there are, which the "
                                   "compiler takes for anything"))  # fmt: skip
        seen = (count.astype(np.int64) & _COUNT).clip(0, width).astype(count.dtype)
        found = self.binary_op(lhs, engine.TensorHandle(seen, rhs.dtype), function)
        found.data = unspecified(found.data, np.broadcast_to(beyond, found.data.shape))
        return found

    setattr(builder, name, shifted)


def _shifted_as(kind: str, values: Any, count: Any) -> Any:
    """To the right, as whole numbers with a sign (`i`) or without one (`u`)."""
    as_kind = np.dtype(f"{kind}{values.dtype.itemsize}")
    return np.right_shift(values.view(as_kind), count.astype(as_kind)).view(values.dtype)


def larger(left: Any, right: Any, choose: Any = np.fmax) -> Any:
    """The larger number of two, and +0.0 of two zeros of which one is; `np.maximum` keeps NaN."""
    return np.where((left == 0) & (right == 0), left + right, choose(left, right))


def smaller(left: Any, right: Any, choose: Any = np.fmin) -> Any:
    """The smaller number of two, and -0.0 of two zeros of which one is; `np.minimum` keeps NaN."""
    return np.where((left == 0) & (right == 0), -(-left - right), choose(left, right))


_EXTREMES: dict[str, Callable[[Any, Any], Any]] = {
    "maxnumf": larger,
    "minnumf": smaller,
    "maximumf": partial(larger, choose=np.maximum),
    "minimumf": partial(smaller, choose=np.minimum),
}


def _install_extreme(builder: Any, name: str, function: Callable[[Any, Any], Any]) -> None:
    def extreme(self: Any, lhs: Any, rhs: Any) -> Any:
        found = self.binary_op(lhs, rhs, function)
        found.data = canonical(found.data)
        return found

    setattr(builder, name, extreme)


def _clamp(self: Any, arg: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
    if np.any(low.data > high.data):
        refuse(WrongValueError("tl.clamp with a lower bound above the upper one, which has no value"))
    if propagate_nan == engine._ir.PROPAGATE_NAN.ALL:
        found, doubtful = self.create_minimumf(self.create_maximumf(arg, low), high), False
    else:
        found = self.create_minnumf(self.create_maxnumf(arg, low), high)
        doubtful = np.isnan(arg.data) | np.isnan(low.data) | np.isnan(high.data)
    # Where the compiler sees that one bound is the negative of the other, it writes min.xorsign.abs: the smaller of the
    # absolute values of argument and upper bound, with both signs. NaN, and signs of zero, are others there.
    signs = np.signbit(arg.data) ^ np.signbit(high.data)
    zeros = (low.data == 0) & (high.data == 0) & (np.signbit(found.data) != signs)
    found.data = unspecified(found.data, doubtful | zeros)
    return found


def _remainder(_self: Any, lhs: Any, rhs: Any) -> Any:
    """`x % y` of floats: x - trunc(x / y) * y, with a quotient that is rounded before it is cut."""
    dtype = lhs.dtype.scalar
    if dtype == tl.bfloat16:
        found = _cut_remainder(bfloat16.wide(lhs.data), bfloat16.wide(rhs.data))
        return engine.TensorHandle(bfloat16.narrow(found), dtype)
    found = _cut_remainder(*(side.data.astype(np.float32) if dtype == tl.float16 else side.data for side in (lhs, rhs)))
    return engine.TensorHandle(canonical(found.astype(lhs.data.dtype)), dtype)


def _cut_remainder(left: Any, right: Any) -> Any:
    quotient = np.trunc(left / right)
    found = fused(-quotient, right, left).astype(left.dtype)
    return np.where(np.isinf(right), left, found)


def _high_product(_self: Any, lhs: Any, rhs: Any) -> Any:
    """The upper half of a product of numbers without a sign."""
    size = lhs.data.dtype.itemsize
    left, right = (side.data.astype(f"u{size}") for side in (lhs, rhs))
    if size < 8:
        found = ((left.astype(np.uint64) * right.astype(np.uint64)) >> np.uint64(8 * size)).astype(f"u{size}")
    else:
        found = np.asarray(engine.np_umulhi_u64(left, right))
    return engine.TensorHandle(found.view(lhs.data.dtype), lhs.dtype.scalar)


def _install_padding(builder: Any) -> None:
    """Refuse NaN as padding of what is held as bits, of which the interpreter makes a number."""
    of_block, of_descriptor = builder.create_tensor_pointer_load, builder.create_descriptor_load

    def create_tensor_pointer_load(self: Any, pointer: Any, boundary: Any, padding: Any, *options: Any) -> Any:
        _check_padding(pointer.base, padding)
        return of_block(self, pointer, boundary, padding, *options)

    def create_descriptor_load(self: Any, descriptor: Any, *arguments: Any) -> Any:
        _check_padding(descriptor.base, descriptor.padding)
        return of_descriptor(self, descriptor, *arguments)

    builder.create_tensor_pointer_load = create_tensor_pointer_load
    builder.create_descriptor_load = create_descriptor_load


def _check_padding(base: Any, padding: Any) -> None:
    kind = base.get_element_ty()
    if padding == engine._ir.PADDING_OPTION.PAD_NAN and is_held_as_bits(kind):
        refuse(UnsupportedError(f"the interpreter has no NaN of {kind} for padding: pad with zeros, or use tl.where"))


def _install_structure(builder: Any) -> None:
    gather, histogram, reshape = builder.create_gather, builder.create_histogram, builder.create_reshape

    def create_gather(self: Any, src: Any, indices: Any, axis: int) -> Any:
        if np.any((indices.data < 0) | (indices.data >= src.data.shape[axis])):
            refuse(MeaningError(f"tl.gather with an index outside of 0 to {src.data.shape[axis] - 1}"))
        return gather(self, src, indices, axis)

    def create_histogram(self: Any, data: Any, bins: int, mask: Any) -> Any:
        if data.data.dtype.itemsize != 4:  # of which the compiler makes none, and NumPy counts in their type
            refuse(UnsupportedError(f"tl.histogram of {data.dtype.scalar}: cast to int32"))
        outside = (data.data < 0) | (data.data >= bins)
        if np.any(outside if mask is None else outside & mask.data):
            refuse(MeaningError(f"tl.histogram of a number outside of 0 to {bins - 1}: mask it"))
        return histogram(self, data, bins, mask)

    def create_reshape(self: Any, arg: Any, shape: Any, allow_reorder: bool) -> Any:
        if allow_reorder:
            refuse(UnsupportedError(_REORDERS.format("tl.view, and tl.reshape with can_reorder=True, let")))
        return reshape(self, arg, shape, allow_reorder)

    def create_cat(self: Any, *_: Any) -> Any:
        refuse(UnsupportedError(_REORDERS.format("tl.cat with can_reorder=True lets")))

    builder.create_gather, builder.create_histogram = create_gather, create_histogram
    builder.create_reshape, builder.create_cat = create_reshape, create_cat


_REORDERS = "{} the compiler change the order of elements, and nobody knows it without a GPU: leave it out"


def _flush(places: Any, mask: Any) -> None:
    """Take denormal numbers in memory for zero, as a sum of float32 by an atomic operation does before and after."""
    single = np.dtype(np.float32)
    there = engine._interpreter.load(places, mask, np.zeros(places.shape, single), single)
    denormal = (np.abs(there) < _LEAST_NORMAL) & (there != 0) & mask
    if denormal.any():
        engine._interpreter.store(places, flushed(there), denormal)


_LEAST_NORMAL = np.float32(2.0**-126)


def _install_atomics(builder: Any) -> None:
    rmw = builder.create_atomic_rmw

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        flushes = op == engine._ir.ATOMIC_OP.FADD and val.data.dtype == np.float32
        if flushes:
            val = engine.TensorHandle(flushed(val.data), val.dtype)
            _flush(ptr.data, mask.data)
        found = rmw(self, op, ptr, val, mask, *rest)
        if flushes:
            _flush(ptr.data, mask.data)
        off = ~np.broadcast_to(mask.data, found.data.shape)
        # The interpreter leaves there what was in memory.
        found.data = np.where(off, found.data.dtype.type(0), found.data)
        return found

    builder.create_atomic_rmw = create_atomic_rmw
