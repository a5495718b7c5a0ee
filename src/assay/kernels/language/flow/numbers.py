"""Numbers of a kernel as it has them: whole ones of 32 bits wrap around, those that the compiler knows do not.

    of_two("*", Narrow(65536), Narrow(65536))      Narrow(4294967296): it does not fit, and wraps around to 0
    of_two("*", Wide(65536), Narrow(65536))        Wide(4294967296)

Of a block the number is that of its first element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.kernels.language.form import Expression, Named

Number = bool | int | float | str | None
Known = Number | tuple["Known", ...]
"""None is what is not known."""
LARGEST = 1 << 62
_BITS = 63
PARTS = frozenset({"//", "%", ">>", "&"})
"""Operators that leave a part of a number, as of an id in whose axis there are tiles along several sizes."""
_ROUNDED = {"tl.ceil": math.ceil, "tl.floor": math.floor, "libdevice.ceil": math.ceil, "libdevice.floor": math.floor}
SAME = frozenset(
    {
        *("tl.multiple_of", "tl.max_contiguous", "tl.max_constancy", "tl.constexpr"),
        *("tl.expand_dims", "tl.broadcast_to", "tl.reshape", "tl.view", "tl.ravel", "tl.trans"),
    }
)
"""Functions that give their first argument, or a block with its first element."""
OPTIONS = frozenset({"propagate_nan", "can_reorder", "sanitize_overflow"})
"""Arguments by name that are no numbers to compute with."""


class Held(int):
    """A whole number that a kernel has while it runs. The compiler knows others."""

    most: int | None = None
    """How large it is at most, in all programs of the launch, elements of a block and turns of a loop; None where it is
    the same in all."""


class Narrow(Held):
    """A whole number of 32 bits with a sign."""


class Wide(Held):
    """One of more bits, or without a sign."""


def fits(value: Known) -> bool:
    """Whether a number is one that its type has."""
    return not isinstance(value, Narrow) or -(1 << 31) <= value < 1 << 31


def wrapped(value: Known) -> Known:
    """What a number is that its type does not have."""
    if fits(value):
        return value
    return Narrow((int(value) + (1 << 31)) % (1 << 32) - (1 << 31))  # type: ignore[arg-type]


def given_to_a_launch(value: Known, kind: str = "") -> Known:
    """An argument of a launch that is no compile-time one. `kind`: what the parameter's annotation asks for."""
    if type(value) is not int:
        return value
    return Wide(value) if kind.startswith(("u", "int64", "i64")) else _least(value)


def _least(value: int) -> int:
    return Narrow(value) if fits(Narrow(value)) else Wide(value)


def alike(value: Known, *operands: Known) -> Known:
    """A number of the type that one made of these operands has: of those that the compiler knows, none."""
    if type(value) is not int and not isinstance(value, Held):
        return value
    wide = any(isinstance(each, Wide) or (type(each) is int and not fits(Narrow(each))) for each in operands)
    held = any(isinstance(each, Held) for each in operands)
    return int(value) if not held else Wide(value) if wide else Narrow(value)


def spread(value: int, most: int | None) -> int:
    """The same number, of which others are as large as `most`."""
    if isinstance(value, Held) and most is not None and 0 <= most < LARGEST:
        value.most = most
    return value


def values_of(operator: str, left: Known, right: Known) -> int | None:
    """How many values a part of a number has in a launch; None where it is the same in all, or where that is not
    known."""
    if operator == "&" and (not isinstance(left, Held) or left.most is None):
        left, right = right, left
    if not isinstance(left, Held) or left.most is None or not isinstance(right, int) or not 0 <= right < LARGEST:
        return None
    match operator:
        case "//" if right:
            return left.most // right + 1
        case ">>" if right < _BITS:
            return (left.most >> right) + 1
        case "%" if right:
            return min(left.most, right - 1) + 1
        case "&" if right & (right + 1) == 0:
            return min(left.most, right) + 1
        case _:
            return None


def _most(operator: str, left: Known, right: Known) -> int | None:
    """How large a number of two is at most."""
    if not isinstance(left, int) or not isinstance(right, int):
        return None
    ends = [each.most if isinstance(each, Held) else None for each in (left, right)]
    if ends == [None, None] or left < 0 or right < 0:
        return None
    one, other = (int(each) if end is None else end for each, end in zip((left, right), ends, strict=True))
    match operator:
        case "+":
            return one + other
        case "-":
            return one - (other if ends[1] is None else 0)
        case "*":
            return one * other
        case "//" | "%" | ">>" | "&" if (found := values_of(operator, left, right)) is not None:
            return found - 1
        case _:
            return None


def cast(value: Known, kind: Expression | None) -> Known:
    """A number of another type: whole numbers leave out what fractions have behind the point."""
    name = kind.name.removeprefix("tl.") if isinstance(kind, Named) else ""
    if not name.startswith(("int", "uint")):
        return None if name and isinstance(value, Held) else value
    if not isinstance(value, bool | int | float) or not abs(value) < LARGEST:
        return value
    found = Narrow(value) if name in ("int32", "int16", "int8") else Wide(value)
    return spread(found, value.most if isinstance(value, Held) else None)


def of_one(operator: str, value: Known) -> Known:
    """What an operator makes of one number."""
    if not isinstance(value, bool | int | float):
        return None
    if operator == "not":
        return not value
    return alike(-value, value) if operator == "-" else value if operator == "+" else None


def logic(operator: str, values: Sequence[Known]) -> Known:
    """What `and` or `or` makes of some."""
    if any(value is not None and bool(value) == (operator == "or") for value in values):
        return operator == "or"
    return None if any(value is None for value in values) else operator == "and"


def of_two(operator: str, left: Known, right: Known) -> Known:
    """What an operator makes of two numbers, perhaps one that its type does not have."""
    found = alike(_of_two(operator, left, right), left, right)
    return spread(found, _most(operator, left, right)) if isinstance(found, Held) else found


def _of_two(operator: str, left: Known, right: Known) -> Known:
    if operator in ("==", "!=") and left is not None and right is not None:
        return (left == right) == (operator == "==")
    if not isinstance(left, bool | int | float) or not isinstance(right, bool | int | float):
        return None
    if not (abs(left) <= LARGEST and abs(right) <= LARGEST):  # nor is it a number
        return None
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//" if right:
            return _truncated(left, right) if isinstance(left, int) and isinstance(right, int) else None
        case "/" if right:
            return left / right
        case "%" if right and isinstance(left, int) and isinstance(right, int):
            return left - _truncated(left, right) * right
        case "<<" | ">>" | "&" | "|" | "^" | "**" if isinstance(left, int) and isinstance(right, int):
            return _of_bits(operator, int(left), int(right))
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case _:
            return None


def _of_bits(operator: str, left: int, right: int) -> Known:
    if operator in ("&", "|", "^"):
        return left & right if operator == "&" else left | right if operator == "|" else left ^ right
    if not 0 <= right < _BITS:
        return None
    if operator == "**":
        return left**right if left.bit_length() * right < 63 else None
    return left >> right if operator == ">>" else left << right


def _truncated(left: int, right: int) -> int:
    """A quotient of whole numbers as a GPU has it, rounded towards zero."""
    found = abs(left) // abs(right)
    return found if (left < 0) == (right < 0) else -found


def _end(value: bool | int | float) -> int:
    return value.most if isinstance(value, Held) and value.most is not None else int(value)


def breaks(function: str, given: Sequence[Known]) -> bool:
    """Whether numbers are not what a function promises of them."""
    if function == "tl.assume":
        return bool(given) and given[0] is not None and not given[0]
    value, divisor = (*given, None, None)[:2]
    whole = isinstance(value, int) and isinstance(divisor, int) and divisor > 0
    return function == "tl.multiple_of" and whole and value % divisor != 0  # type: ignore[operator]


def of_function(function: str, given: Sequence[Known]) -> Known:
    """What a function of numbers gives."""
    if function == "tl.arange":
        if not given or not isinstance(given[0], int):
            return None
        ends = [value for value in given[:2] if isinstance(value, int)]
        return spread(Narrow(ends[0]), ends[-1] - 1)
    if function in SAME:
        return given[0] if given else None
    numbers = [value for value in given if isinstance(value, bool | int | float) and abs(value) <= LARGEST]
    if len(numbers) < len(given) or not numbers:
        return None
    if function in ("min", "tl.minimum", "max", "tl.maximum"):
        choose = min if function in ("min", "tl.minimum") else max
        found, ends = alike(choose(numbers), *numbers), [_end(value) for value in numbers]
        varies = any(isinstance(value, Held) and value.most is not None for value in numbers)
        return spread(found, choose(ends)) if varies and isinstance(found, Held) else found
    if function == "tl.where" and len(numbers) == 3:
        return alike(numbers[1] if numbers[0] else numbers[2], *numbers[1:])
    if function == "triton.next_power_of_2" and isinstance(numbers[0], int):
        return 1 << max(numbers[0] - 1, 0).bit_length()
    if function in ("abs", "tl.abs"):
        return alike(abs(numbers[0]), numbers[0])
    if function == "int":
        return int(numbers[0])
    if function in _ROUNDED:
        return float(_ROUNDED[function](numbers[0]))
    if function in ("triton.cdiv", "tl.cdiv") and len(numbers) == 2:
        return of_two("//", of_two("+", numbers[0], of_two("-", numbers[1], 1)), numbers[1])
    return None
