"""Compile-time numbers and tensors of the kernel language: arithmetic, comparisons, `min` and `max`.

What is known when compiled is a plain number here, bounded to what Triton's types hold. Nothing but numbers, tensors,
types and strings is ever operated on.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any

import triton.language as tl

from assay.kernels.language.limits import INT_BITS

NUMBER = (bool, int, float)
TUPLES = (tuple, tl.tuple)
_SHIFT = 64
"""The largest shift and exponent of compile-time numbers."""


class MeaningError(Exception):
    """A kernel does what Triton's compiler would refuse, or what has no meaning there."""


def raw(value: Any) -> Any:
    """A compile-time value without its wrapper; anything else as it is."""
    return value.value if isinstance(value, tl.constexpr) else value


def is_tensor(value: Any) -> bool:
    """Whether a value is only known when the kernel runs."""
    return isinstance(value, tl.tensor)


def shown(value: Any) -> str:
    """A value as a message names it."""
    if is_tensor(value):
        return "a tensor"
    return repr(value) if isinstance(value, NUMBER) else f"a {type(value).__name__}"


def checked(value: Any) -> Any:
    """A compile-time number within bounds."""
    if type(value) not in NUMBER:
        raise MeaningError(f"a compile-time number became {shown(value)}")
    if isinstance(value, int) and value.bit_length() > INT_BITS:
        raise MeaningError(f"a compile-time number of {value.bit_length()} bits; Triton's types have {INT_BITS}")
    return value


def _arithmetic(sign: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compute(left: Any, right: Any) -> Any:
        left, right = raw(left), raw(right)
        numbers = isinstance(left, NUMBER), isinstance(right, NUMBER)
        if all(numbers):
            # Only whole numbers grow without an end.
            whole = isinstance(left, int) and isinstance(right, int)
            if sign in ("<<", "**") and whole and not -_SHIFT <= right <= _SHIFT:
                raise MeaningError(f"{left} {sign} {right} of compile-time numbers; the right side is at most {_SHIFT}")
            try:
                return checked(function(left, right))
            except (ArithmeticError, TypeError, ValueError) as error:
                raise MeaningError(f"{left} {sign} {right}: {error}") from None
        if sign == "**" and (is_tensor(left) or is_tensor(right)):
            raise MeaningError("** of a tensor, which Triton does not have: write x * x, or tl.exp2(tl.log2(x) * p)")
        if (numbers[0] or is_tensor(left)) and (numbers[1] or is_tensor(right)):
            return function(left, right)
        raise MeaningError(f"{sign} of {shown(left)} and {shown(right)}")

    return compute


def _comparison(sign: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compare(left: Any, right: Any) -> Any:
        left, right = raw(left), raw(right)
        if is_tensor(left) or is_tensor(right):
            if all(isinstance(side, (*NUMBER, tl.tensor)) for side in (left, right)):
                return function(left, right)
        elif sign in ("==", "!="):
            if all(isinstance(side, tl.dtype) and side.scalar.is_ptr() for side in (left, right)):
                raise MeaningError(
                    f"{sign} of the types of two pointers: compare what they point to (dtype.element_ty)"
                )
            if all(side is None or isinstance(side, (*NUMBER, str, tl.dtype)) for side in (left, right)):
                return bool(function(left, right))
        elif isinstance(left, NUMBER) and isinstance(right, NUMBER):
            return function(left, right)
        raise MeaningError(f"{sign} of {shown(left)} and {shown(right)}")

    return compare


def negative(value: Any) -> Any:
    """`-x`."""
    value = raw(value)
    if is_tensor(value):
        return -value
    if isinstance(value, NUMBER):
        return checked(-value)
    raise MeaningError(f"- of {shown(value)}")


def positive(value: Any) -> Any:
    """`+x`, which tensors do not have."""
    value = raw(value)
    if isinstance(value, NUMBER):
        return checked(+value)
    raise MeaningError(f"+ of {shown(value)}")


def invert(value: Any) -> Any:
    """`~x`."""
    value = raw(value)
    if is_tensor(value):
        return ~value
    if isinstance(value, int):
        return checked(~int(value))
    raise MeaningError(f"~ of {shown(value)}")


def _extreme(name: str) -> Callable[..., Any]:
    """Python's `min` and `max`, as the compiler reads them."""

    def choose(*values: Any) -> Any:
        values = tuple(map(raw, values))
        if len(values) == 1 and isinstance(values[0], TUPLES):
            values = tuple(map(raw, values[0]))
        if values and all(isinstance(value, NUMBER) for value in values):
            return checked(getattr(builtins, name)(values))
        if len(values) < 2 or not all(isinstance(value, (*NUMBER, tl.tensor)) for value in values):
            raise MeaningError(f"{name} of {', '.join(map(shown, values))}")
        found, *rest = values
        for value in rest:
            found = getattr(tl, f"{name}imum")(found, value)
        return found

    return choose


def _number_of(name: str, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def converted(x: Any) -> Any:
        x = raw(x)
        if not isinstance(x, NUMBER):
            raise MeaningError(f"{name} of {shown(x)}: use .to(...) for tensors")
        try:
            return checked(convert(x))
        except (ArithmeticError, ValueError) as error:
            raise MeaningError(f"{name}({x}): {error}") from None

    return converted


def _whole(value: Any) -> int:
    value = raw(value)
    if type(value) is not int:
        raise MeaningError(f"{shown(value)} where a compile-time whole number is needed: use tl.cdiv for others")
    return value


def ceiling(x: Any, y: Any) -> int:
    """`triton.cdiv` of compile-time numbers."""
    x, y = _whole(x), _whole(y)
    if y == 0:
        raise MeaningError("triton.cdiv by zero")
    return int(checked((x + y - 1) // y))


def power_above(n: Any) -> int:
    """`triton.next_power_of_2` of a compile-time number."""
    n = _whole(n)
    return int(checked(1 << (n - 1).bit_length())) if n > 0 else 0


COMPUTE: dict[str, Any] = {
    "o_add": _arithmetic("+", operator.add),
    "o_sub": _arithmetic("-", operator.sub),
    "o_mul": _arithmetic("*", operator.mul),
    "o_div": _arithmetic("/", operator.truediv),
    "o_floordiv": _arithmetic("//", operator.floordiv),
    "o_mod": _arithmetic("%", operator.mod),
    "o_pow": _arithmetic("**", operator.pow),
    "o_lshift": _arithmetic("<<", operator.lshift),
    "o_rshift": _arithmetic(">>", operator.rshift),
    "o_bitand": _arithmetic("&", operator.and_),
    "o_bitor": _arithmetic("|", operator.or_),
    "o_bitxor": _arithmetic("^", operator.xor),
    "o_eq": _comparison("==", operator.eq),
    "o_ne": _comparison("!=", operator.ne),
    "o_lt": _comparison("<", operator.lt),
    "o_le": _comparison("<=", operator.le),
    "o_gt": _comparison(">", operator.gt),
    "o_ge": _comparison(">=", operator.ge),
    "o_neg": negative,
    "o_pos": positive,
    "o_invert": invert,
    "o_min": _extreme("min"),
    "o_max": _extreme("max"),
    "o_float": _number_of("float", float),
    "o_int": _number_of("int", int),
    "o_cdiv": ceiling,
    "o_next_power_of_2": power_above,
}
"""The operators of numbers, by their name in generated text."""
