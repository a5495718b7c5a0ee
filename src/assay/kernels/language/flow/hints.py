"""Where a kernel promises something of its values: `tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy`.

The compiler keeps a promise with the operation that made the value, so it holds wherever the value is used: before the
promise too, and whether or not the branch in which it stands is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from assay.kernels.language import vocabulary
from assay.kernels.language.flow.walking import expressions, names_of, own, statements
from assay.kernels.language.form import (
    Arguments,
    Assign,
    Attribute,
    Call,
    Choice,
    Do,
    Expression,
    Fix,
    For,
    Function,
    If,
    Index,
    Invoke,
    Items,
    Local,
    Logic,
    Method,
    Return,
    Statement,
    Unary,
    While,
)

HINTS = frozenset({"tl.multiple_of", "tl.max_contiguous", "tl.max_constancy"})
_NEW = frozenset(
    {"tl.arange", "tl.program_id", "tl.num_programs", "tl.load", "tl.zeros", "tl.where", "tl.dot", "tl.clamp"}
    | {"tl.minimum", "tl.maximum", "min", "max", "tl.cdiv", "triton.cdiv", "tl.exp", "tl.exp2", "tl.log", "tl.sqrt"}
    | {"tl.rsqrt", "tl.max", "tl.min", "tl.sum", "tl.argmax", "tl.argmin", "len", "triton.next_power_of_2"}
)
"""Functions that make a value of their own. Any other may give back one that it was given, as a cast to the same type
does, and a broadcast to the same shape."""
_NEW_METHODS = frozenset({"max", "min", "sum", "argmax", "argmin", "exp", "log", "sqrt", "rsqrt"})
_CASTS = frozenset({"tl.cast", "tl.to_tensor"})
"""Functions that give back what they were given, or a new value."""
ANY = "*"
"""Stands for any variable among those about which something was promised."""


@dataclass(frozen=True, slots=True)
class Hints:
    """late: the promises about a value that was used before, by `id` of their `Call`.
    outside: the branches and loops that promise something about a value from outside of them, by `id`."""

    late: frozenset[int]
    outside: frozenset[int]


def hints_of(functions: Mapping[str, Function]) -> dict[str, Hints]:
    """What functions promise too late, or where it may not run; those that they call count as part of them."""
    promising: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    while True:
        read = {key: _read(function, key in late, promising) for key, function in functions.items()}
        telling = promising | {key for key, reader in read.items() if reader.of_parameters}
        used = late | {key for reader in read.values() for key in reader.late_calls}
        if telling == promising and used == late:
            return {key: Hints(frozenset(each.late), frozenset(each.outside)) for key, each in read.items()}
        promising, late = telling, used


def _read(function: Function, late: bool, promising: frozenset[str]) -> _Reader:
    """Read a function. `late`: what it is given was used before. `promising`: functions that promise something of what
    they are given."""
    reader = _Reader(promising)
    parameters = {each.name for each in function.parameters}
    numbers = {reader.value(name) for name in parameters}
    reader.used |= numbers if late else set()
    reader.of_parameters = bool(reader.block(function.body) & {*parameters, ANY}) or bool(reader.told & numbers)
    return reader


@dataclass(slots=True)
class _Reader:
    """Reads a function from top to bottom. What is not known to be a new value may be any that there was.

    values: for each variable the number of its value; variables that hold the same one share it.
    doubtful: variables that may hold the value of some others.
    used: values that were read.
    promised: variables about whose value something was promised, in the statement that is read; `ANY` for any.
    told: all values about which something was promised.
    late_calls: functions that promise something of what they are given, and are given what was used before.
    """

    promising: frozenset[str]
    late: set[int] = field(default_factory=set)
    late_calls: set[str] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    of_parameters: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)
    values: dict[str, int] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    used: set[int] = field(default_factory=set)
    promised: set[str] = field(default_factory=set)

    def block(self, body: Sequence[Statement], given: frozenset[str] = frozenset()) -> set[str]:
        """Read statements. Gives back the variables of others about which they promise something.

        given: variables whose values are the block's own from its beginning.
        """
        mine, foreign, before = set(given), set[str](), self.promised
        for place, each in enumerate(body):
            self.promised = set()
            self.statement(each)
            foreign |= self.promised - mine
            if isinstance(each, Assign):
                names = set(names_of(each.target))
                new = not names & self.doubtful and _same(each.value) <= mine
                mine = mine | names if new else mine - names
            returns = isinstance(each, If) and any(isinstance(one, Return) for one in statements([each]))
            if returns:  # what follows is another branch of it
                rest = self.block(body[place + 1 :])
                if rest:
                    self.outside.add(id(each))
                foreign |= rest - mine
                break
        self.promised = before
        return foreign

    def statement(self, each: Statement) -> None:
        """Read one statement."""
        match each:
            case Assign():
                self.expression(each.value)
                self.assign([*names_of(each.target)], each.value)
            case Fix() | Do():
                self.expression(each.value)
            case Return():
                if each.value is not None:
                    self.expression(each.value)
            case If():
                self.expression(each.condition)
                self.region(each, self.block(each.yes) | self.block(each.no))
                self.doubtful |= set(_assigned((*each.yes, *each.no)))
            case For() | While():
                self.expression(each.condition) if isinstance(each, While) else self.arguments(each.arguments)
                counter = frozenset({each.name} if isinstance(each, For) else ())
                for name in counter:
                    self.new(name)
                if isinstance(each, For) and each.function == "tl.static_range":
                    self.use(_read_in(each.body))  # what a turn uses, the next one finds used
                self.region(each, self.block(each.body, counter))
                self.doubtful |= set(_assigned(each.body))

    def new(self, name: str) -> None:
        """Give a variable a value of its own."""
        self.values[name] = next(self.numbers)
        self.doubtful.discard(name)

    def assign(self, targets: Sequence[str], given: Expression) -> None:
        """Give variables a value: one of their own, or that of other variables."""
        same = _same(given)
        held = {self.value(name) for name in same}
        doubtful = bool(same & self.doubtful) or not _known(given)
        number = min(held) if held else next(self.numbers)
        if len(held) > 1:  # one of several: from here on they are one
            self.values = {name: number if value in held else value for name, value in self.values.items()}
            self.used |= {number} if held & self.used else set()
        for name in targets:
            self.values[name] = number
        self.doubtful = self.doubtful | set(targets) if doubtful else self.doubtful - set(targets)

    def value(self, name: str) -> int:
        """The number of a variable's value."""
        if name not in self.values:
            self.values[name] = next(self.numbers)
        return self.values[name]

    def use(self, names: set[str]) -> None:
        """Take note that the values of variables are read."""
        self.used |= {self.value(name) for name in names}

    def region(self, each: If | For | While, foreign: set[str]) -> None:
        """Take note of a branch or loop that promises something of values from outside of it."""
        if foreign:
            self.outside.add(id(each))
            self.promised |= foreign

    def expression(self, each: Expression) -> None:
        """Read an expression in the order in which it is evaluated."""
        if isinstance(each, Local):
            return
        if isinstance(each, Call) and each.function in HINTS:
            for value in each.arguments.values():
                self.expression(value)
            if self.promise(each):
                self.late.add(id(each))
            return
        if isinstance(each, Choice):
            self.choice(each)
            return
        for part in _parts(each):
            self.expression(part)
        if isinstance(each, Invoke) and each.key in self.promising and self.promise(each):
            self.late_calls.add(each.key)
        for part in _parts(each):
            self.use(_same(part))

    def promise(self, each: Expression) -> bool:
        """Take note of a promise about what an expression may be. Gives back whether that may have been used."""
        same = _same(each)
        held = {self.value(name) for name in same}
        self.told |= held
        self.promised |= {name for name, value in self.values.items() if value in held}
        if same & self.doubtful or not _known(each):
            self.promised.add(ANY)
            return True
        return bool(held & self.used)

    def choice(self, each: Choice) -> None:
        """Read a choice, of which one side alone may be evaluated."""
        self.expression(each.condition)
        self.use(_same(each.condition))
        before, self.promised = self.promised, set()
        for side in (each.yes, each.no):
            self.expression(side)
        if self.promised:
            self.outside.add(id(each))
        self.promised |= before
        self.use(_same(each))

    def arguments(self, found: Arguments) -> None:
        """Read what a loop runs over."""
        for value in found.values():
            self.expression(value)
            self.use(_same(value))


def _same(each: Expression) -> set[str]:
    """The variables whose value an expression is known to be, or one of which."""
    match each:
        case Local(name):
            return {name}
        case Call(function, arguments) if function not in _NEW:
            return _same_of(_given(vocabulary.FUNCTIONS[function], arguments))
        case Method(value, _, _) | Unary("+", value) | Attribute(value, _) | Index(value, _):
            return _same(value)
        case Choice(_, yes, no):
            return _same(yes) | _same(no)
        case Items(items) | Logic(_, items):
            return _same_of(items)
        case Invoke(_, arguments):
            return _same_of([*arguments.values()])
    return set()


def _known(each: Expression) -> bool:
    """Whether an expression is a new value, or one of those in `_same`."""
    match each:
        case Call(function, arguments) if function in HINTS or function in _CASTS:
            return _known(_given(vocabulary.FUNCTIONS[function], arguments)[0])
        case Call(function, _):
            return function in _NEW
        case Method(value, name, _):
            return name in _NEW_METHODS or (name in ("to", "cast") and _known(value))
        case Unary("+", value) | Attribute(value, _) | Index(value, _):
            return _known(value)
        case Choice(_, yes, no):
            return _known(yes) and _known(no)
        case Items(items):
            return all(map(_known, items))
        case Invoke(_, arguments):
            return all(map(_known, arguments.values()))
    return not isinstance(each, Logic)


def _given(parameters: str, arguments: Arguments) -> list[Expression]:
    """The arguments of a function that are known when the kernel runs."""
    named: list[str | None] = [name for name, _ in arguments.named]
    slots = vocabulary.slots(parameters.split(), len(arguments.positional), named) or ()
    several = zip((*slots, *named), arguments.values(), strict=False)
    return [value for slot, value in several if slot not in vocabulary.STATIC and slot not in ("shape", "values")]


def _same_of(several: Sequence[Expression]) -> set[str]:
    return {name for each in several for name in _same(each)}


def _parts(each: Expression) -> Iterator[Expression]:
    """The expressions in an expression, from left to right."""
    for one in fields(each):
        found = getattr(each, one.name)
        several = found.values() if isinstance(found, Arguments) else found if isinstance(found, tuple) else (found,)
        yield from (part for part in several if isinstance(part, Expression))


def _read_in(body: Sequence[Statement]) -> set[str]:
    """The variables that statements read, but for those of which they promise something."""
    every = [one for each in statements(body) for value in own(each) for one in expressions(value)]
    promised = {
        id(value)
        for one in every
        if isinstance(one, Call) and one.function in HINTS
        for value in _given(vocabulary.FUNCTIONS[one.function], one.arguments)
    }
    return {one.name for one in every if isinstance(one, Local) and id(one) not in promised}


def _assigned(body: Sequence[Statement]) -> Iterator[str]:
    """All variables that statements assign."""
    for each in body:
        match each:
            case Assign():
                yield from names_of(each.target)
            case If():
                yield from _assigned((*each.yes, *each.no))
            case For():
                yield each.name
                yield from _assigned(each.body)
            case While():
                yield from _assigned(each.body)
