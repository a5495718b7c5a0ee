"""Whole numbers that the compiler finds out, though they are not written in the kernel: `i - i`, `i * 0`, `pid % 1`.

What it finds out it computes with as with what is written (`values.constants`). How much it finds out is its own
affair, so some of the calls that act as one GPU know what bounds and common factors tell, and the others nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.unsettled import device
from assay.kernels.inside.triton.values.constants import is_constant, set_constant

_KNOWN, _NUMBER = "known", "number"
"""Attributes: bounds of a whole number; its number as a value, which values have in common that are computed alike."""
_fresh = itertools.count()
_PROGRAMS = (2**31 - 2, 65534, 65534)
"""The last place of a program on each axis of a grid."""
_MOST_FACTOR = 1 << 62


class Known(NamedTuple):
    """What is known of whole numbers."""

    least: int
    most: int
    factor: int = 1
    """A power of two that divides them all."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`), around what computes whole numbers."""
    ranges, program, programs = (
        builder.create_make_range,
        builder.create_get_program_id,
        builder.create_get_num_programs,
    )
    binary, select = builder.binary_op, builder.create_select

    def create_make_range(self: Any, kind: Any, start: int, stop: int) -> Any:
        found = _say(ranges(self, kind, start, stop), Known(int(start), int(stop) - 1))
        return _numbered(found, ("range", int(start), int(stop)))

    def create_get_program_id(self: Any, axis: int) -> Any:
        return _numbered(_say(program(self, axis), Known(0, _PROGRAMS[int(axis)])), ("program", int(axis)))

    def create_get_num_programs(self: Any, axis: int) -> Any:
        return _say(programs(self, axis), Known(1, _PROGRAMS[int(axis)] + 1))

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        return _conclude(binary(self, lhs, rhs, op), getattr(op, "__name__", ""), lhs, rhs)

    def create_select(self: Any, condition: Any, lhs: Any, rhs: Any) -> Any:
        return _conclude(select(self, condition, lhs, rhs), "select", lhs, rhs, condition)

    builder.create_make_range, builder.create_get_program_id = create_make_range, create_get_program_id
    builder.create_get_num_programs, builder.binary_op = create_get_num_programs, binary_op
    builder.create_select = create_select
    for name in ("create_idiv", "create_srem", "create_urem"):
        _divided(builder, name)
    for name in (
        "cast_impl",
        "create_splat",
        "create_broadcast",
        "create_expand_dims",
        "create_reshape",
        "create_trans",
    ):
        _kept(builder, name)


def _divided(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        return _conclude(compute(self, lhs, rhs), name, lhs, rhs)

    setattr(builder, name, operation)


def _kept(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, *args: Any) -> Any:
        found = compute(self, *args)
        source = next(arg for arg in args if isinstance(arg, engine.TensorHandle))
        if not _finds_out() or source.data.dtype.kind not in "iub":
            return found
        _numbered(found, (found.dtype.scalar.name, found.data.shape, _number(source)))
        return _say(found, source.attr[_KNOWN]) if _KNOWN in source.attr else found

    setattr(builder, name, operation)


def _finds_out() -> bool:
    """Whether this call's compiler finds out anything."""
    return bool(current().device & device.FINDS_OUT)


def _say(found: Any, known: Known) -> Any:
    """Note what is known of a value, where that is more than its type says."""
    if not _finds_out() or found.data.dtype.kind not in "iub":
        return found
    of_type = _of_type(found)
    if known.least < of_type.least or known.most > of_type.most:
        return found  # it wraps
    if known.least == known.most and (found.data == known.least).all():
        return set_constant(found)
    found.attr[_KNOWN] = known
    return found


def _of_type(handle: Any) -> Known:
    if handle.data.dtype.kind == "b":
        return Known(0, 1)
    limits = np.iinfo(handle.data.dtype)
    return Known(int(limits.min), int(limits.max))


def _known(handle: Any) -> Known:
    if _KNOWN in handle.attr:
        found: Known = handle.attr[_KNOWN]
        return found
    if is_constant(handle) and handle.data.size and handle.data.dtype.kind in "iub":
        least, most = int(handle.data.min()), int(handle.data.max())
        return Known(least, most, _factor(least) if least == most else 1)
    return _of_type(handle)


def _factor(number: int) -> int:
    return number & -number if number else _MOST_FACTOR


def _numbered(found: Any, how: Any) -> Any:
    """Give a value the number of all that are computed like it."""
    if _finds_out():
        found.attr[_NUMBER] = how if isinstance(how, int) else hash(how)
    return found


def _number(handle: Any) -> int:
    if _NUMBER not in handle.attr:
        data = handle.data
        uniform = is_constant(handle) and data.size and (data == data.flat[0]).all()
        handle.attr[_NUMBER] = hash((handle.dtype.scalar.name, int(data.flat[0]))) if uniform else next(_fresh)
    found: int = handle.attr[_NUMBER]
    return found


def _conclude(found: Any, name: str, lhs: Any, rhs: Any, *more: Any) -> Any:
    """Say what is known of a result of two whole numbers. `more`: what it comes of besides."""
    rule = _RULES.get(name)
    if rule is None or not _finds_out() or {lhs.data.dtype.kind, rhs.data.dtype.kind} - set("iub"):
        return found
    if is_constant(found):
        return found
    left, right, numbers = _known(lhs), _known(rhs), (_number(lhs), _number(rhs))
    _numbered(found, (name, *(sorted(numbers) if name in _EITHER_WAY else numbers), *map(_number, more)))
    if numbers[0] == numbers[1] and name in _OF_EQUALS:
        value = _OF_EQUALS[name]
        return _say(found, left if value is None else Known(value, value))
    for number, other, place in ((numbers[0], right, 1), (numbers[1], left, 0)):
        if other.least == other.most and other.least == _NEUTRAL.get((name, place)):
            _numbered(found, number)
    known = rule(left, right)
    return found if known is None else _say(found, known)


def _corners(left: Known, right: Known, function: Callable[[int, int], int], factor: int) -> Known:
    ends = [function(one, other) for one in left[:2] for other in right[:2]]
    return Known(min(ends), max(ends), max(1, min(factor, _MOST_FACTOR)))


def _quotient(left: Known, right: Known) -> Known | None:
    if right.least <= 0:
        return None
    return _corners(left, right, lambda one, other: int(abs(one) // other * (1 if one >= 0 else -1)), 1)


def _remainder(left: Known, right: Known) -> Known | None:
    if right.least <= 0:
        return None
    divisor = right.least
    if right.most == divisor and divisor & (divisor - 1) == 0 and left.factor >= divisor:
        return Known(0, 0, _MOST_FACTOR)
    most = right.most - 1
    return Known(max(left.least, -most) if left.least < 0 else 0, max(0, min(left.most, most)))


def _common_bits(left: Known, right: Known) -> Known | None:
    for one, mask in ((left, right), (right, left)):
        if mask.least == mask.most >= 0 and mask.most < one.factor:
            return Known(0, 0, _MOST_FACTOR)
    ends = [side.most for side in (left, right) if side.least >= 0]
    return Known(0, min(ends), max(left.factor, right.factor)) if ends else None


def _all_bits(left: Known, right: Known) -> Known | None:
    if min(left.least, right.least) < 0:
        return None
    return Known(0, (1 << max(left.most, right.most).bit_length()) - 1, min(left.factor, right.factor))


def _shifted_left(left: Known, right: Known) -> Known | None:
    if not 0 <= right.least <= right.most < 64:
        return None
    return _corners(left, right, lambda one, other: one << other, left.factor << right.least)


def _shifted_right(left: Known, right: Known) -> Known | None:
    if not 0 <= right.least <= right.most < 64 or left.least < 0:
        return None
    return _corners(left, right, lambda one, other: one >> other, left.factor >> right.most)


def _truth(always: bool, never: bool) -> Known:
    return Known(1, 1) if always else Known(0, 0) if never else Known(0, 1)


_RULES: dict[str, Callable[[Known, Known], Known | None]] = {
    "add": lambda a, b: Known(a.least + b.least, a.most + b.most, min(a.factor, b.factor)),
    "subtract": lambda a, b: Known(a.least - b.most, a.most - b.least, min(a.factor, b.factor)),
    "multiply": lambda a, b: _corners(a, b, lambda one, other: one * other, a.factor * b.factor),
    "maximum": lambda a, b: Known(max(a.least, b.least), max(a.most, b.most), min(a.factor, b.factor)),
    "minimum": lambda a, b: Known(min(a.least, b.least), min(a.most, b.most), min(a.factor, b.factor)),
    "select": lambda a, b: Known(min(a.least, b.least), max(a.most, b.most), min(a.factor, b.factor)),
    "bitwise_and": _common_bits,
    "bitwise_or": _all_bits,
    "bitwise_xor": _all_bits,
    "left_shift": _shifted_left,
    "right_shift": _shifted_right,
    "create_idiv": _quotient,
    "create_srem": _remainder,
    "create_urem": _remainder,
    "less": lambda a, b: _truth(a.most < b.least, a.least >= b.most),
    "less_equal": lambda a, b: _truth(a.most <= b.least, a.least > b.most),
    "greater": lambda a, b: _truth(a.least > b.most, a.most <= b.least),
    "greater_equal": lambda a, b: _truth(a.least >= b.most, a.most < b.least),
    "equal": lambda a, b: _truth(False, a.most < b.least or a.least > b.most),
    "not_equal": lambda a, b: _truth(a.most < b.least or a.least > b.most, False),
}
"""What follows from what is known of both operands, by NumPy's names and the builder's."""
_EITHER_WAY = frozenset({"add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"})
_OF_EQUALS: dict[str, int | None] = {
    **dict.fromkeys(("subtract", "bitwise_xor", "create_srem", "create_urem", "less", "greater", "not_equal"), 0),
    **dict.fromkeys(("create_idiv", "less_equal", "greater_equal", "equal"), 1),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "maximum", "minimum", "select"), None),
}
"""What comes of two names of one value; None: the value."""
_NEUTRAL: dict[tuple[str, int], int] = {
    **{(name, place): 0 for name in ("add", "bitwise_or", "bitwise_xor") for place in (0, 1)},
    **{(name, 1): 0 for name in ("subtract", "left_shift", "right_shift")},
    **{("multiply", 0): 1, ("multiply", 1): 1, ("create_idiv", 1): 1},
    **{("bitwise_and", 0): -1, ("bitwise_and", 1): -1},
}
"""The second operand (1) or the first (0) that makes a result another name of the other one."""
