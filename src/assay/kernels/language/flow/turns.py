"""How often the loops of a kernel turn, and which of its whole numbers wrap around, by what a launch gives it.

    found = follow(kernels, "0", {"n": 8192, "BLOCK": 1024}, (64,))
    found.turns      {Place("", "0", 0): 8}
    found.wraps      {12}                      line 12 makes a number that 32 bits do not hold

Numbers are followed through assignments, branches, loops and helpers, and of blocks their first elements. A loop is run
at most `MOST` times, and once more as the last time: what it does in its first, second and third turn it does in all.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from assay.kernels.language.flow.numbers import (
    LARGEST,
    OPTIONS,
    PARTS,
    SAME,
    Known,
    Narrow,
    Number,
    Wide,
    breaks,
    cast,
    fits,
    given_to_a_launch,
    logic,
    of_function,
    of_one,
    of_two,
    spread,
    values_of,
    wrapped,
)
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


_STEPS = 40_000
"""Statements that are looked at for a launch; of what comes after them nothing is known."""


class Split(NamedTuple):
    """A part of a number that varies (`//`, `%`, `>>`, `&`): how one axis of a grid has tiles along several sizes."""

    path: str
    number: int
    """Among those of its function."""
    line: int
    """Of the submission."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What is known of a launch."""

    turns: dict[Place, int] = field(default_factory=dict)
    """Loop -> how often it turns at most; `UNKNOWN` where nothing says so. Of a loop with a condition `MOST` stands for
    more."""
    wraps: set[int] = field(default_factory=set)
    """Lines of the submission that are sure to make a number that its type does not have."""
    values: dict[Split, int] = field(default_factory=dict)
    """How many values each has, in all programs and turns."""
    broken: set[int] = field(default_factory=set)
    """Lines of promises that numbers are sure to break."""


def follow(kernels: Kernels, key: str, given: Mapping[str, Number], grid: Sequence[int]) -> Followed:
    """What the programs at the ends of a launch's axes and in the middle do."""
    found, function = Followed(), kernels.functions[key]
    kinds = {each.name: each.type for each in function.parameters if not each.constexpr}
    known = {name: given_to_a_launch(value, kinds[name]) if name in kinds else value for name, value in given.items()}
    ends = itertools.product(*(sorted({0, max(size - 1, 0)}) for size in grid))
    for place in {*ends, tuple(size // 2 for size in grid)}:
        _Run(kernels.functions, place, tuple(grid), found).call(function, dict(known))
    return found


def lines_of_loops(function: Function) -> list[int]:
    """The line of each loop of a function in the submission."""
    return [function.line + each.line - 1 for each in statements(function.body) if isinstance(each, For | While)]


@dataclass(frozen=True, slots=True)
class _Through:
    """What a loop goes through."""

    values: range
    kind: type[int]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, turn: int) -> int:
        return spread(self.kind(self.values[turn]), max(self.values[0], self.values[-1]))


@dataclass(slots=True)
class _Run:
    functions: Mapping[str, Function]
    place: tuple[int, ...]
    grid: tuple[int, ...]
    found: Followed
    steps: int = 0
    path: str = ""
    numbers: dict[int, int] = field(default_factory=dict)
    """Of loops, and of calls of helpers, in their functions, by `id`."""
    inside: str = ""
    """The key of the function that is run."""
    line: int = 0
    """Of the statement that is run, in the submission."""
    sure: bool = True
    """Whether it is sure to be run."""
    over: bool = False
    """Whether the function has returned."""

    def call(self, function: Function, known: dict[str, Known]) -> Known:
        """Run a function; returns what it returns."""
        every = list(statements(function.body))
        loops = (each for each in every if isinstance(each, For | While))
        parts = [part for each in every for value in own(each) for part in expressions(value)]
        calls = (part for part in parts if isinstance(part, Invoke))
        splits = (part for part in parts if isinstance(part, Binary) and part.operator in PARTS)
        self.numbers |= {id(each): number for found in (loops, calls, splits) for number, each in enumerate(found)}
        before, self.inside = (self.inside, self.line, self.over), function.key
        for parameter in function.parameters:
            if parameter.name not in known:
                known[parameter.name] = None if parameter.default is None else self.value(parameter.default, {})
        self.over = False
        found = self.body(function.body, known)
        self.inside, self.line, self.over = before
        return found

    def body(self, body: Sequence[Statement], known: dict[str, Known]) -> Known:
        """Run statements; returns what the first `return` gives that is sure to be reached."""
        begins = self.functions[self.inside].line
        for each in body:
            self.line = begins + each.line - 1
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
                    found = self.branch(each, known)
                    if self.over:
                        return found
                case For() | While():
                    found = self.loop(each, known)
                    if self.over:
                        return found
                case Return():
                    found = None if each.value is None else self.value(each.value, known)
                    self.over = True
                    return found
        return None

    def branch(self, each: If, known: dict[str, Known]) -> Known:
        """Run the branch that is taken, or both; returns what it returns."""
        condition = self.value(each.condition, known)
        if condition is not None:
            return self.body(each.yes if condition else each.no, known)
        other = dict(known)
        self.perhaps(each.yes, known)
        self.perhaps(each.no, other)
        for name in known.keys() | other.keys():
            one, two = known.get(name), other.get(name)
            known[name] = one if type(one) is type(two) and one == two else None
        return None

    def perhaps(self, body: Sequence[Statement], known: dict[str, Known]) -> None:
        """Run statements that may not be run."""
        before, self.sure = self.sure, False
        self.body(body, known)
        self.sure, self.over = before, False

    def loop(self, each: For | While, known: dict[str, Known]) -> Known:
        """Run a loop as often as it turns, up to `MOST` times, and its last turn; returns what it returns."""
        values = self.range(each, known) if isinstance(each, For) else None
        turns, returned = 0, None
        while turns < MOST and self.steps <= _STEPS and not self.over:
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
            returned = self.body(each.body, known)
        known_turns = UNKNOWN if turns == UNKNOWN or self.steps > _STEPS else turns if values is None else len(values)
        place = Place(self.path, self.inside, self.numbers[id(each)])
        self.found.turns[place] = max(known_turns, self.found.turns.get(place, UNKNOWN))
        if self.over:
            return returned
        if turns in (UNKNOWN, MOST):
            _forget(each, known)
        if turns == UNKNOWN:
            self.perhaps(each.body, known)
            _forget(each, known)
        elif isinstance(each, For) and values is not None and len(values) > MOST:
            known[each.name] = values[-1]
            returned = self.body(each.body, known)
            _forget(each, known)
        return returned if self.over else None

    def range(self, each: For, known: dict[str, Known]) -> _Through | None:
        """What a loop goes through; None where that is not known."""
        arguments = [self.value(value, known) for value in each.arguments.positional]
        named = {name: self.value(value, known) for name, value in each.arguments.named}
        first, second, third = ("arg1", "arg2", "step")
        places = [*arguments, *(named[name] for name in (first, second, third)[len(arguments) :] if name in named)]
        if not places or not all(_is_whole(place) for place in places[:3]):
            return None
        try:
            through = range(*map(int, places[:3]))  # type: ignore[arg-type]
        except ValueError:  # a step of 0
            return None
        static = each.function == "tl.static_range"
        kind = int if static else Wide if any(isinstance(place, Wide) for place in places) else Narrow
        return _Through(through, kind)

    def value(self, each: Expression | Whole, known: Mapping[str, Known]) -> Known:
        """The number of an expression; one that its type does not have wraps around."""
        found = self._value(each, known)
        if not fits(found):
            if self.sure:
                self.found.wraps.add(self.line)
            return wrapped(found)
        return found

    def _value(self, each: Expression | Whole, known: Mapping[str, Known]) -> Known:
        match each:
            case Literal(value) | Text(value):
                return value
            case Local(name):
                return known.get(name)
            case Items(items):
                return tuple(self.value(item, known) for item in items)
            case Unary(operator, operand):
                return of_one(operator, self.value(operand, known))
            case Binary(operator, left, right) | Compare(operator, left, right):
                one, other = self.value(left, known), self.value(right, known)
                self.note_values(each, values_of(operator, one, other))
                return of_two(operator, one, other)
            case Logic(operator, values):
                return logic(operator, [self.value(value, known) for value in values])
            case Choice(condition, yes, no):
                taken = self.value(condition, known)
                return None if taken is None else self.value(yes if taken else no, known)
            case Index(value, (place,)) if not isinstance(place, Whole):
                whole, at = self.value(value, known), self.value(place, known)
                inside = isinstance(whole, tuple) and _is_whole(at) and -len(whole) <= at < len(whole)  # type: ignore[operator]
                return whole[at] if inside else None  # type: ignore[index]
            case Index(value, _):
                return self.value(value, known)
            case Call("tl.full", arguments):
                _, filled, type_, *_ = (*arguments.values(), None, None, None)
                return cast(None if filled is None else self.value(filled, known), type_)
            case Call("tl.cast", arguments):
                value, kind, *_ = (*arguments.values(), None)
                return cast(self.value(value, known) if value is not None else None, kind)
            case Call(function, arguments):
                given = [value for name, value in arguments.named if name not in OPTIONS]
                return self.called(function, [self.value(value, known) for value in (*arguments.positional, *given)])
            case Method(value, "to", arguments):
                return cast(self.value(value, known), next(iter(arguments.values()), None))
            case Method(value, name, _) if f"tl.{name}" in SAME:
                return self.value(value, known)
            case Invoke(key, arguments):
                return self.invoked(each, self.functions[key], arguments, known)
            case _:
                return None

    def note_values(self, each: Expression | Whole, count: int | None) -> None:
        """Note how many values a part of a number has, where it is sure to be computed."""
        if count is not None and self.sure:
            place = Split(self.path, self.numbers[id(each)], self.line)
            self.found.values[place] = max(count, self.found.values.get(place, 0))

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
            if not 0 <= axis < len(counts):
                return Narrow(beyond)
            return spread(Narrow(counts[axis]), self.grid[axis] - 1 if function == "tl.program_id" else None)
        if self.sure and breaks(function, given):
            self.found.broken.add(self.line)
        return of_function(function, given)


def _is_whole(value: Known) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST


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
