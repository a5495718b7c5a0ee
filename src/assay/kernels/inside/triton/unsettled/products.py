"""Products on their way to a sum that a GPU may fuse them with.

A product that has yet to be summed is known without its rounding. It stays so through all that leaves its bits alone,
lane by lane: a compiler may know as much, and drop the step (`* 1.0`, `tl.maximum(p, p)`, `tl.where` of what is always
true, a bitcast to whole numbers and back). Casts of floats keep it whatever they do: a compiler may multiply in the
narrow type. What leaves the bits of some values alone and not of all (`tl.maximum(p, -1e30)`) a GPU does: in half of
the calls that act as one GPU a product stays one through what every compiler drops (`by_form`), and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.unsettled import device
from assay.kernels.inside.triton.unsettled.found_out import is_known
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.constants import is_constant

_PRODUCT, _ALONE, _WIDTH = "product", "alone", "width of the product"
"""Attributes: what a value is without rounding; of one that is no product; the bits of the narrowest type that it went
through, in which alone it is fused."""
_DOUBLE = np.dtype(np.float64)
_OF_EQUALS = frozenset({"larger", "smaller", "bitwise_and", "bitwise_or"})
"""Functions that give back what both operands are."""
_RELAID = ("create_reshape", "create_trans")
"""Moves after which values may lie in other threads, and have been stored on the way."""
_NEUTRAL = (
    *((op, 0, 0) for op in (np.add, np.bitwise_or, np.bitwise_xor)),
    *((op, 0, 1) for op in (np.subtract, np.left_shift, np.right_shift)),
    *((np.multiply, 1, 0), (np.bitwise_and, -1, 0)),
)
"""Of whole numbers: a function, what leaves the other operand as it is, and its first place."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    for name in ("broadcast", "expand_dims", "splat", "reshape", "trans", "unsplat"):
        _move(builder, f"create_{name}")
    for name in ("binary_op", "unary_op", "ternary_op", "create_fabs"):
        _keep(builder, name)
    for name in ("cast_impl", "create_bitcast", "create_fp_to_fp"):
        _cast(builder, name)
    _join(builder)


def unrounded(handle: Any) -> Any:
    """What a value is to a sum without rounding, as float64; None where that is not known."""
    if _PRODUCT not in handle.attr or handle.attr[_WIDTH] < _bits(handle):
        return None
    return _known(handle)


def summed(handle: Any) -> Any:
    """Products as a sum of many takes them; None for all else."""
    return None if _ALONE in handle.attr else unrounded(handle)


def may_fuse(handle: Any) -> bool:
    """Whether a value is one of those that are known without rounding."""
    return _PRODUCT in handle.attr


def mark(handle: Any, values: Any, *, product: bool = True) -> Any:
    """Say what a value is without rounding, or what tells it once it is asked for. `product`: `summed` gives it."""
    handle.attr[_PRODUCT], handle.attr[_WIDTH] = values, _bits(handle)
    if not product:
        handle.attr[_ALONE] = True
    return handle


def _bits(handle: Any) -> int:
    return int(handle.dtype.scalar.primitive_bitwidth)


def _known(handle: Any) -> Any:
    found = handle.attr[_PRODUCT]
    if callable(found):
        found = handle.attr[_PRODUCT] = found()
    return found


def _hand_on(source: Any, found: Any, values: Any) -> None:
    """Let a result be what its source is, in another shape or with other signs."""
    found.attr[_PRODUCT], found.attr[_WIDTH] = values, min(source.attr[_WIDTH], _bits(found))
    if _ALONE in source.attr:
        found.attr[_ALONE] = True


def widened(handle: Any) -> Any:
    """Values in a type in which their products are exact, or nearly so."""
    if handle.dtype.scalar == tl.bfloat16:
        return bfloat16.wide(handle.data).astype(np.float64)
    return handle.data.astype(np.longdouble if handle.data.dtype == _DOUBLE else np.float64)


def keep(found: Any, operands: Any, op: Any = None) -> Any:
    """Let a result that has the bits of a product, or of one with the other sign, be that product.

    op: NumPy's function of the operands.
    """
    if not current().fuses:
        return found
    if current().device & device.BY_FORM:
        operands = by_form(op, operands)
    data = found.data
    for operand in operands:
        if _PRODUCT not in operand.attr or operand.data.shape != data.shape or operand.data.dtype != data.dtype:
            continue
        number = data.dtype.kind == "f"
        alike = np.abs(operand.data) == np.abs(data) if number else operand.data == data
        if not alike.any():
            continue
        product = _known(operand)
        if number:
            product = np.where(operand.data == data, product, -product)
        if alike.all():
            _hand_on(operand, found, product)
        elif number and unrounded(operand) is not None:
            rest = unrounded(found)
            mark(found, np.where(alike, product, widened(found) if rest is None else rest))
    return found


def by_form(op: Any, operands: Any) -> Any:
    """The operand that a compiler takes in place of a result, whatever the values are: in a list, or none."""
    if op is np.where:
        condition, left, right = operands
        if left is right:
            return [left]
        return [left if condition.data.all() else right] if is_known(condition) else []
    if len(operands) != 2:
        return []
    left, right = operands
    if left is right:
        return [left] if getattr(op, "func", op).__name__ in _OF_EQUALS else []
    ways = ((left, right, 1), (right, left, 0))
    return [
        one
        for one, other, place in ways
        if (is_constant(other) or is_known(other)) and _is_neutral(op, other.data, place)
    ]


def _is_neutral(op: Any, number: Any, place: int) -> bool:
    """Whether an operand, the second (1) or the first (0), leaves the other one as it is, or changes its sign alone."""
    if number.dtype.kind != "f":
        return any(op is which and place >= least and (number == value).all() for which, value, least in _NEUTRAL)
    if op is np.multiply:
        return bool((np.abs(number) == 1).all())
    if op is np.divide:
        return place == 1 and bool((number == 1).all())
    zero, minus = bool((number == 0).all()), bool(np.signbit(number).all())
    if op is np.subtract and place == 0:  # Triton writes -p as 0.0 - p, which a compiler may take for the same
        return zero and (minus or bool(current().device & device.NEGATES))
    return zero and ((op is np.add and minus) or (op is np.subtract and not np.signbit(number).any()))


def _keep(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, *args: Any) -> Any:
        found = compute(self, *args)
        for arg in args:
            if type(arg) is engine.TensorHandle and _PRODUCT in arg.attr:
                return keep(found, [each for each in args if type(each) is engine.TensorHandle], args[-1])
        return found

    setattr(builder, name, operation)


def _cast(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, src: Any, dst_type: Any, *rest: Any) -> Any:
        found = compute(self, src, dst_type, *rest)
        if _PRODUCT in src.attr and found.data.shape == src.data.shape:
            alike = src.dtype.scalar.is_floating() == dst_type.scalar.is_floating()
            if alike or (name == "create_bitcast" and src.data.itemsize == found.data.itemsize):
                _hand_on(src, found, _known(src))
        return found

    setattr(builder, name, operation)


def _move(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, *args: Any) -> Any:
        found = compute(self, *args)
        still = name not in _RELAID or not current().device & device.BY_FORM or current().device & device.RELAYS
        for place, arg in enumerate(args if current().fuses and still else ()):
            if not isinstance(arg, engine.TensorHandle) or _PRODUCT not in arg.attr:
                continue
            product = _known(arg)
            if product.dtype == _DOUBLE:
                wide = engine.TensorHandle(product, tl.float64)
                _hand_on(arg, found, compute(self, *args[:place], wide, *args[place + 1 :]).data)
        return found

    setattr(builder, name, operation)


def _join(builder: Any) -> None:
    join, split = builder.create_join, builder.create_split

    def create_join(self: Any, lhs: Any, rhs: Any) -> Any:
        found = join(self, lhs, rhs)
        sides = [unrounded(side) for side in (lhs, rhs)]
        if any(side is not None for side in sides):
            pairs = zip(sides, (lhs, rhs), strict=True)
            mark(found, np.stack([widened(each) if side is None else side for side, each in pairs], axis=-1))
        return found

    def create_split(self: Any, val: Any) -> Any:
        parts = split(self, val)
        if _PRODUCT in val.attr:
            for place, part in enumerate(parts):
                _hand_on(val, part, _known(val)[..., place])
        return parts

    builder.create_join, builder.create_split = create_join, create_split


def of_one(found: Any, handle: Any, axis: int | None) -> Any:
    """What a reduction of one tensor gives: along an axis with one place it is what was there."""
    if _PRODUCT not in handle.attr or (handle.data.size if axis is None else handle.data.shape[axis]) != 1:
        return found
    for part in found if isinstance(found, tuple | list) else (found,):
        _hand_on(handle, part.handle, np.reshape(_known(handle), part.handle.data.shape))
    return found


def watch(apply: Callable[..., Any]) -> Callable[..., Any]:
    """`ReduceOps.apply_impl` that lets products through axes with one place."""

    def apply_impl(self: Any, values: Any) -> Any:
        found = apply(self, values)
        return of_one(found, values[0].handle, self.axis) if len(values) == 1 and current().fuses else found

    return apply_impl
