"""What statements and expressions of a kernel are made of, and what each does to memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from assay.kernels.language.form import (
    Assign,
    Attribute,
    Binary,
    Call,
    Choice,
    Compare,
    Do,
    Expression,
    Fix,
    For,
    If,
    Index,
    Invoke,
    Items,
    Literal,
    Local,
    Logic,
    Method,
    Return,
    Statement,
    Target,
    Text,
    Unary,
    While,
    Whole,
)

_LOADS = frozenset({"tl.load", "tl.load_tensor_descriptor"})
_STORES = frozenset({"tl.store", "tl.store_tensor_descriptor"})
WRITES = frozenset({"store", "atomic"})


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """All statements of a body, those in branches and loops included."""
    for each in body:
        yield each
        if isinstance(each, If):
            yield from statements(each.yes)
            yield from statements(each.no)
        elif isinstance(each, For | While):
            yield from statements(each.body)


def is_barrier(each: Statement) -> bool:
    """Whether a statement is `tl.debug_barrier()`."""
    return isinstance(each, Do) and isinstance(each.value, Call) and each.value.function == "tl.debug_barrier"


def names_of(found: Target) -> Iterator[str]:
    """The variables that an assignment gives a value."""
    if isinstance(found, str):
        yield found
    else:
        for item in found.items:
            yield from names_of(item)


def is_atomic(each: Expression) -> bool:
    """Whether it is an atomic operation."""
    if isinstance(each, Call):
        return each.function.startswith("tl.atomic_")
    return isinstance(each, Method) and each.name.startswith("atomic_")


def parts_of(each: Expression) -> Sequence[Expression | Whole]:
    """What an expression is made of, one level down."""
    match each:
        case Items(items) | Logic(_, items):
            return items
        case Unary(_, part) | Attribute(part, _):
            return (part,)
        case Binary(_, left, right) | Compare(_, left, right):
            return (left, right)
        case Choice(condition, yes, no):
            return (condition, yes, no)
        case Index(value, places):
            return (value, *places)
        case Call(_, arguments) | Invoke(_, arguments):
            return tuple(arguments.values())
        case Method(value, _, arguments):
            return (value, *arguments.values())
        case _:
            return ()


def expressions(each: Expression | Whole | None) -> Iterator[Expression]:
    """An expression and all that it is made of."""
    waiting: list[Expression | Whole | None] = [each]
    while waiting:
        one = waiting.pop()
        if one is None or isinstance(one, Whole):
            continue
        yield one
        if not isinstance(one, Local | Literal | Text):
            waiting += parts_of(one)


def own(each: Statement) -> Sequence[Expression | None]:
    """The expressions of a statement itself, without those of the statements in it."""
    match each:
        case Assign() | Fix() | Do() | Return():
            return (each.value,)
        case If() | While():
            return (each.condition,)
        case For():
            return tuple(each.arguments.values())
        case _:
            return ()


def features_of_all(values: Sequence[Expression | None], has: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """What some expressions do, and all that they are made of."""
    return frozenset(found for value in values for one in expressions(value) for found in features_of(one, has))


def features_of(one: Expression, has: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """What an expression itself does: `atomic`, `dot`, `load`, `store`; of a helper what `has` says of it."""
    if isinstance(one, Invoke):
        return has.get(one.key, frozenset()) - {"staged", "dot loop"}
    if is_atomic(one):
        return frozenset({"atomic"})
    if isinstance(one, Call) and one.function == "tl.dot":
        return frozenset({"dot"})
    if is_load(one):
        return frozenset({"load"})
    stores = one.function in _STORES if isinstance(one, Call) else isinstance(one, Method) and one.name == "store"
    return frozenset({"store"}) if stores else frozenset()


def is_load(one: Expression) -> bool:
    """Whether it loads."""
    return (isinstance(one, Call) and one.function in _LOADS) or (isinstance(one, Method) and one.name == "load")


class Slice:
    """Expressions, and those that the variables in them were assigned, anywhere in a body."""

    def __init__(self, body: Sequence[Statement]) -> None:
        self.taken: set[int] = set()
        self.names: set[str] = set()
        self._values: dict[str, list[Expression]] = {}
        for each in body:
            if isinstance(each, Assign | Fix):
                for name in names_of(each.target if isinstance(each, Assign) else each.name):
                    self._values.setdefault(name, []).append(each.value)

    def take(self, value: Expression | Whole | None) -> None:
        """Add an expression and what it is computed from."""
        waiting = [value]
        while waiting:
            for one in expressions(waiting.pop()):
                self.taken.add(id(one))
                if isinstance(one, Local):
                    self.names.add(one.name)
                    waiting += self._values.pop(one.name, ())
