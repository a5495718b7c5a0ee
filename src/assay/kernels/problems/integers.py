"""The integers of a problem's module that say how large it is, and where they stand in its text."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_FUNCTIONS = ("get_inputs", "get_init_inputs")
_MAX_FOLDED = 2**62
_BOUNDS = ("low", "high")
"""Arguments of `randint`."""


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer in the text: where it stands (byte offsets within its lines) and what it is called."""

    place: str
    name: str
    value: int
    line: int
    start: int
    end_line: int
    end: int
    among: tuple[int, int] = (0, 0)
    """Line and byte at which the list begins that it is in: the arguments of a call, a tuple."""
    bounds: bool = False
    """Whether nothing but the range of random whole numbers hangs on it (`randint`)."""

    @property
    def start_of(self) -> tuple[int, int]:
        """Its place in the text."""
        return self.line, self.start

    @property
    def of_batch(self) -> bool:
        """Whether its name says that it counts independent samples."""
        return "batch" in self.name.lower()


Group = tuple[str, str, int, int] | tuple[int, int]


def alike(integers: Iterable[Integer]) -> dict[Integer, Group]:
    """What tells the integers that change alike from others: those inside a function that have one name, or none, and
    one value, each in a list of its own. Of two equal ones in one list the second may be another size."""
    found: dict[Integer, Group] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for each in integers:
        if each.place == "module" or each.among == (0, 0):
            found[each] = each.start_of
            continue
        key = (each.place, each.name, each.value)
        found[each] = (*key, counts[*key, each.among])
        counts[*key, each.among] += 1
    return found


def integers_of(tree: ast.Module) -> Iterator[Integer]:
    """Those assigned at module level, in classes that only hold numbers, and those inside `get_inputs` and
    `get_init_inputs`, in their order. A product or power of integers counts as one."""
    bounds = _bounds(tree)
    for each in _found(tree):
        yield replace(each, bounds=each.start_of in bounds)


def _bounds(tree: ast.Module) -> set[tuple[int, int]]:
    """Where integers begin on which nothing hangs but a range: they are given to `randint`, or are assigned to a name
    that is read nowhere else."""
    nodes = list(ast.walk(tree))
    given = [
        each for node in nodes if isinstance(node, ast.Call) and _called(node) == "randint" for each in _ends(node)
    ]
    read = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    names = Counter(each.id for each in given if isinstance(each, ast.Name))
    alone = {name for name, count in names.items() if read[name] == count}
    assigned = [(_name(target), value) for node in nodes for target, value in _assigned(node)]
    places = [*given, *(value for name, value in assigned if name in alone)]
    return {(each.lineno, each.col_offset) for each in places}


def _called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else _name(call.func)


def _ends(call: ast.Call) -> list[ast.expr]:
    """Both ends of the range of `randint`; the second may be a size, which is no integer."""
    return [*call.args[:2], *(each.value for each in call.keywords if each.arg in _BOUNDS)]


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to what."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _found(tree: ast.Module) -> Iterator[Integer]:
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in _FUNCTIONS:
            for inner in statement.body:
                yield from _of_statement(inner, statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from _of_statement(statement, "module")
        elif isinstance(statement, ast.ClassDef) and not _computes(statement):
            for inner in statement.body:
                if isinstance(inner, ast.Assign | ast.AnnAssign):
                    yield from _of_statement(inner, "module")


def _computes(kind: ast.ClassDef) -> bool:
    """Whether a class may be a model or a part of one, and not the numbers of a configuration."""
    named = [base.attr if isinstance(base, ast.Attribute) else _name(base) for base in kind.bases]
    methods = {each.name for each in kind.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return not set(named) <= {"object", "NamedTuple"} or bool(methods - {"__init__", "__post_init__"})


def _of_statement(statement: ast.stmt, place: str) -> Iterator[Integer]:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            for name, value in zip(target.elts, statement.value.elts, strict=False):
                yield from _of_expression(value, place, _name(name))
            return
        yield from _of_expression(statement.value, place, _name(target))
    elif isinstance(statement, ast.Assign):
        names = [_name(target) for target in statement.targets]
        batch = next((name for name in names if "batch" in name.lower()), names[0])
        yield from _of_expression(statement.value, place, batch)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield from _of_expression(statement.value, place, _name(statement.target))
    else:
        yield from _of_expression(statement, place, "")


def _name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else ""


def _of_expression(node: ast.AST, place: str, name: str, among: tuple[int, int] = (0, 0)) -> Iterator[Integer]:
    value = _folded(node)
    if value is not None and isinstance(node, ast.expr):
        if node.end_lineno is not None and node.end_col_offset is not None:
            end = node.end_lineno, node.end_col_offset
            yield Integer(place, name, value, node.lineno, node.col_offset, *end, among)
        return
    if isinstance(node, ast.keyword):
        name = node.arg or name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        yield from _of_statement(node, place)
        return
    elif isinstance(node, ast.Call | ast.Tuple | ast.List):
        among = node.lineno, node.col_offset
    for child in ast.iter_child_nodes(node):
        yield from _of_expression(child, place, name, among)


def _folded(node: ast.AST) -> int | None:
    """The value of an integer, or of a product, sum, power or shift of integers; None for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _folded(node.left), _folded(node.right)
    if left is None or right is None or left < 0 or right < 0:
        return None
    value: int | None = None
    match node.op:
        case ast.Mult():
            value = left * right
        case ast.Add():
            value = left + right
        case ast.Sub():
            value = left - right
        case ast.FloorDiv() if right:
            value = left // right
        case ast.Pow() if left <= 1024 and right <= 40:
            value = int(left**right)
        case ast.LShift() if right <= 40:
            value = left << right
        case _:
            value = None
    return value if value is not None and 0 <= value <= _MAX_FOLDED else None
