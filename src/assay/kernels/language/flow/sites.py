"""The calls in kernels by which they come to memory, and those of helpers, by number: what interpreter and compiler say
of one and the same.

    of_form(functions)          the call in our form, by `id` -> its number
    of_text(source, helpers)    where the compiler says that a call of its text is -> the same number
    unused(functions, sites)    where it says that atomic operations are whose result nobody uses, by our form
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from assay.kernels.language.flow.lowering import lowered
from assay.kernels.language.form import Call, Function, Invoke, Method

_ACCESS = re.compile(r"load|store|atomic_\w+")
Place = tuple[int, int]
"""Line, from 1, and column, from 0."""


def of_form(functions: Iterable[Function]) -> dict[int, int]:
    """Numbers from 1, in the order in which the compiler's text has the calls."""
    calls = (each for function in functions for each in _calls(function))
    return {id(call): number for number, call in enumerate(calls, start=1)}


def of_text(source: str, helpers: Collection[str]) -> Mapping[Place, int]:
    """The same numbers by the place that Triton gives a call: where its last positional argument begins, which it reads
    last. `helpers`: the names of the functions in the text."""
    nodes = _nodes(ast.parse(source))
    calls = (node for node in nodes if isinstance(node, ast.Call) and _counts(node.func, helpers))
    return {_place(call): number for number, call in enumerate(calls, start=1)}


def unused(functions: Mapping[str, Function], sites: Mapping[Place, int]) -> frozenset[Place]:
    """The places of atomic operations whose results are not used, as the text has them; `sites`: of its calls."""
    numbers, found = of_form(functions.values()), lowered(functions).unused
    dropped = {number for call, number in numbers.items() if call in found}
    return frozenset(place for place, number in sites.items() if number in dropped)


def _calls(part: Any) -> Iterator[Call | Method | Invoke]:
    """Calls of a part of the form, in the order of its fields, which is that of Python's syntax."""
    if isinstance(part, tuple):
        for each in part:
            yield from _calls(each)
    elif is_dataclass(part):
        if isinstance(part, Call | Method | Invoke) and _is_site(part):
            yield part
        for field in fields(part):
            yield from _calls(getattr(part, field.name))


def _is_site(call: Call | Method | Invoke) -> bool:
    match call:
        case Call(name, _) | Method(_, name, _):
            return _ACCESS.fullmatch(name.rpartition(".")[2]) is not None
        case Invoke():
            return True


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child)


def _counts(function: ast.expr, helpers: Collection[str]) -> bool:
    if isinstance(function, ast.Attribute):
        return _ACCESS.fullmatch(function.attr) is not None
    return isinstance(function, ast.Name) and function.id in helpers


def _place(call: ast.Call) -> Place:
    parts: list[ast.expr | ast.keyword] = [call.func, *call.keywords, *call.args]
    last = parts[-1]
    return last.lineno, last.col_offset
