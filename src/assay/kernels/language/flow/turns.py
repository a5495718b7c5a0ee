"""How often the loops of a kernel turn, by what a launch gives it: whole numbers, and those made of them.

    found = turns_of(kernels, "0", {"n": 8192, "BLOCK": 1024}, (64,))      {Place("", "0", 0): 8}

Numbers are followed through assignments, branches, loops and helpers; blocks are not. A loop is run at most `MOST`
times: what it does in its first, second and third turn it does in all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from assay.kernels.language.flow.walking import expressions, names_of, own, statements
from assay.kernels.language.form import (
    Arguments,
    Assign,
    Binary,
    Call,
    Choice,
    Compare,
    Do,
    Expression,
    Fix,
    For,
    Function,
    If,
    Index,
    Invoke,
    Items,
    Kernels,
    Literal,
    Local,
    Logic,
    Method,
    Named,
    Return,
    Statement,
    Text,
    Unary,
    While,
    Whole,
)

MOST = 3
UNKNOWN = -1


class Place(NamedTuple):
    """A loop of a kernel."""

    path: str
    """Through which calls of helpers it is reached: the place of each among those of its function."""
    function: str
    """The key of the function that it is in."""
    number: int
    """Among the loops of that function."""


Number = bool | int | float | str | None
Known = Number | tuple["Known", ...]
"""None is what is not known."""
_STEPS = 20_000
"""Statements that are looked at for a launch; of what comes after them nothing is known."""
_LARGEST = 1 << 62
_SAME = frozenset({"tl.multiple_of", "tl.max_contiguous", "tl.max_constancy", "tl.constexpr"})
"""Functions that give their first argument."""
_ROUNDED = {"tl.ceil": math.ceil, "tl.floor": math.floor, "libdevice.ceil": math.ceil, "libdevice.floor": math.floor}


def turns_of(kernels: Kernels, key: str, given: Mapping[str, Number], grid: Sequence[int]) -> dict[Place, int]:
    """Loop -> how often it turns at most, in the programs at the ends of a launch's axes and in the middle; `UNKNOWN`
    where nothing says so in any of them. Of a loop with a condition `MOST` stands for more."""
    found: dict[Place, int] = {}
    ends = itertools.product(*(sorted({0, max(size - 1, 0)}) for size in grid))
    for place in {*ends, tuple(size // 2 for size in grid)}:
        _Run(kernels.functions, place, tuple(grid), found).call(kernels.functions[key], dict(given))
    return found


def lines_of_loops(function: Function) -> list[int]:
    """The line of each loop of a function in the submission."""
    return [function.line + each.line - 1 for each in statements(function.body) if isinstance(each, For | While)]


@dataclass(slots=True)
class _Run:
    functions: Mapping[str, Function]
    place: tuple[int, ...]
    grid: tuple[int, ...]
    found: dict[Place, int]
    steps: int = 0
    path: str = ""
    numbers: dict[int, int] = field(default_factory=dict)
    """Of loops, and of calls of helpers, in their functions, by `id`."""
    inside: str = ""
    """The key of the function that is run."""

    def call(self, function: Function, known: dict[str, Known]) -> Known:
        """Run a function; returns what it returns."""
        every = list(statements(function.body))
        loops = (each for each in every if isinstance(each, For | While))
        parts = (part for each in every for value in own(each) for part in expressions(value))
        calls = (part for part in parts if isinstance(part, Invoke))
        self.numbers |= {id(each): number for found in (loops, calls) for number, each in enumerate(found)}
        before, self.inside = self.inside, function.key
        for parameter in function.parameters:
            if parameter.name not in known:
                known[parameter.name] = None if parameter.default is None else self.value(parameter.default, {})
        found = self.body(function.body, known)
        self.inside = before
        return found

    def body(self, body: Sequence[Statement], known: dict[str, Known]) -> Known:
        """Run statements; returns what the first `return` gives that is sure to be reached."""
        for each in body:
            self.steps += 1
            if self.steps > _STEPS:
                return None
            match each:
                case Assign():
                    _assign(each.target, self.value(each.value, known), known)
                case Fix():
                    known[each.name] = self.value(each.value, known)
                case Do():
                    self.value(each.value, known)
                case If():
                    self.branch(each, known)
                case For() | While():
                    self.loop(each, known)
                case Return():
                    return None if each.value is None else self.value(each.value, known)
        return None

    def branch(self, each: If, known: dict[str, Known]) -> None:
        """Run the branch that is taken, or both."""
        condition = self.value(each.condition, known)
        if condition is not None:
            self.body(each.yes if condition else each.no, known)
            return
        other = dict(known)
        self.body(each.yes, known)
        self.body(each.no, other)
        for name in known.keys() | other.keys():
            one, two = known.get(name), other.get(name)
            known[name] = one if type(one) is type(two) and one == two else None

    def loop(self, each: For | While, known: dict[str, Known]) -> None:
        """Run a loop as often as it turns, up to `MOST` times."""
        values = self.range(each, known) if isinstance(each, For) else None
        turns = 0
        while turns < MOST and self.steps <= _STEPS:
            if isinstance(each, While):
                condition = self.value(each.condition, known)
                if condition is None:
                    turns = UNKNOWN
                    break
                more = bool(condition)
            elif values is None:
                turns = UNKNOWN
                break
            else:
                more = turns < len(values)
                known[each.name] = values[turns] if more else None
            if not more:
                break
            turns += 1
            self.body(each.body, known)
        known_turns = UNKNOWN if turns == UNKNOWN or self.steps > _STEPS else turns if values is None else len(values)
        place = Place(self.path, self.inside, self.numbers[id(each)])
        self.found[place] = max(known_turns, self.found.get(place, UNKNOWN))
        if turns in (UNKNOWN, MOST):
            _forget(each, known)
        if turns == UNKNOWN:
            self.body(each.body, known)
            _forget(each, known)

    def range(self, each: For, known: dict[str, Known]) -> range | None:
        """What a loop goes through; None where that is not known."""
        arguments = [self.value(value, known) for value in each.arguments.positional]
        named = {name: self.value(value, known) for name, value in each.arguments.named}
        first, second, third = ("arg1", "arg2", "step")
        places = [*arguments, *(named[name] for name in (first, second, third)[len(arguments) :] if name in named)]
        if not places or not all(type(place) is int and abs(place) < _LARGEST for place in places[:3]):
            return None
        try:
            return range(*places[:3])  # type: ignore[arg-type]
        except ValueError:  # a step of 0
            return None

    def value(self, each: Expression | Whole, known: Mapping[str, Known]) -> Known:
        """The number of an expression."""
        match each:
            case Literal(value) | Text(value):
                return value
            case Local(name):
                return known.get(name)
            case Items(items):
                return tuple(self.value(item, known) for item in items)
            case Unary(operator, operand):
                return _of_one(operator, self.value(operand, known))
            case Binary(operator, left, right) | Compare(operator, left, right):
                return _of_two(operator, self.value(left, known), self.value(right, known))
            case Logic(operator, values):
                return _logic(operator, [self.value(value, known) for value in values])
            case Choice(condition, yes, no):
                taken, one, two = (self.value(value, known) for value in (condition, yes, no))
                return None if taken is None else one if taken else two
            case Index(value, (place,)):
                whole, at = self.value(value, known), self.value(place, known)
                inside = isinstance(whole, tuple) and type(at) is int and -len(whole) <= at < len(whole)
                return whole[at] if inside else None  # type: ignore[index]
            case Call("tl.cast", arguments):
                value, kind, *_ = (*arguments.values(), None)
                return _cast(self.value(value, known) if value is not None else None, kind)
            case Call(function, arguments):
                return self.called(function, [self.value(value, known) for value in arguments.values()])
            case Method(value, "to", arguments):
                return _cast(self.value(value, known), next(iter(arguments.values()), None))
            case Invoke(key, arguments):
                return self.invoked(each, self.functions[key], arguments, known)
            case _:
                return None

    def invoked(self, each: Invoke, function: Function, arguments: Arguments, known: Mapping[str, Known]) -> Known:
        """What a helper gives."""
        names = [parameter.name for parameter in function.parameters]
        given = dict(zip(names, (self.value(value, known) for value in arguments.positional), strict=False))
        given |= {name: self.value(value, known) for name, value in arguments.named}
        before, self.path = self.path, f"{self.path}.{self.numbers[id(each)]}"
        found = self.call(function, given)
        self.path = before
        return found

    def called(self, function: str, given: Sequence[Known]) -> Known:
        """What a function of the language gives."""
        if function in ("tl.program_id", "tl.num_programs"):
            axis = given[0] if given else None
            counts, beyond = (self.place, 0) if function == "tl.program_id" else (self.grid, 1)
            if type(axis) is not int:
                return None
            return counts[axis] if 0 <= axis < len(counts) else beyond
        if function in _SAME:
            return given[0] if given else None
        numbers = [value for value in given if isinstance(value, bool | int | float) and abs(value) <= _LARGEST]
        if len(numbers) < len(given) or not numbers:
            return None
        if function in ("min", "tl.minimum", "max", "tl.maximum"):
            return min(numbers) if function in ("min", "tl.minimum") else max(numbers)
        if function == "tl.where" and len(numbers) == 3:
            return numbers[1] if numbers[0] else numbers[2]
        if function == "triton.next_power_of_2" and type(numbers[0]) is int:
            return 1 << max(numbers[0] - 1, 0).bit_length()
        if function in ("abs", "tl.abs"):
            return abs(numbers[0])
        if function == "int":
            return int(numbers[0])
        if function in _ROUNDED:
            return float(_ROUNDED[function](numbers[0]))
        if function in ("triton.cdiv", "tl.cdiv") and len(numbers) == 2:
            return _of_two("//", _of_two("+", numbers[0], _of_two("-", numbers[1], 1)), numbers[1])
        return None


def _cast(value: Known, kind: Expression | None) -> Known:
    """A number of another type: whole numbers leave out what fractions have behind the point."""
    whole = isinstance(kind, Named) and kind.name.removeprefix("tl.").startswith(("int", "uint"))
    return int(value) if whole and isinstance(value, float) and abs(value) < _LARGEST else value


def _assign(target: object, value: Known, known: dict[str, Known]) -> None:
    if isinstance(target, str):
        known[target] = value
        return
    items = target.items  # type: ignore[attr-defined]
    values = value if isinstance(value, tuple) and len(value) == len(items) else (None,) * len(items)
    for item, part in zip(items, values, strict=True):
        _assign(item, part, known)


def _forget(loop: For | While, known: dict[str, Known]) -> None:
    """What a loop assigns is no longer known."""
    for each in statements(loop.body):
        if isinstance(each, Assign):
            known |= dict.fromkeys(names_of(each.target))
        elif isinstance(each, Fix | For):
            known[each.name] = None


def _of_one(operator: str, value: Known) -> Known:
    if not isinstance(value, bool | int | float):
        return None
    if operator == "not":
        return not value
    return -value if operator == "-" else value if operator == "+" else None


def _logic(operator: str, values: Sequence[Known]) -> Known:
    if any(value is not None and bool(value) == (operator == "or") for value in values):
        return operator == "or"
    return None if any(value is None for value in values) else operator == "and"


def _of_two(operator: str, left: Known, right: Known) -> Known:
    if operator in ("==", "!=") and left is not None and right is not None:
        return (left == right) == (operator == "==")
    if not isinstance(left, bool | int | float) or not isinstance(right, bool | int | float):
        return None
    if not (abs(left) <= _LARGEST and abs(right) <= _LARGEST):  # nor is it a number
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
    if not 0 <= right < 63:
        return None
    if operator == "**":
        return left**right if left.bit_length() * right < 63 else None
    return left >> right if operator == ">>" else left << right


def _truncated(left: int, right: int) -> int:
    """A quotient of whole numbers as a GPU has it, rounded towards zero."""
    found = abs(left) // abs(right)
    return found if (left < 0) == (right < 0) else -found
