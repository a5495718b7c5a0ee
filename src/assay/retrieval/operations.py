"""What a module computes: the functions of PyTorch that it applies, about in the order in which they are evaluated.

`nn.ReLU`, `F.relu`, `torch.relu` and `.relu()` are one operation, as are `@` and `torch.matmul`. A layer made in the
constructor counts where it is applied. Read from tokens: of `f(g(x))` the call that is closed first comes first; an
operator comes where it stands.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence

from assay.retrieval.code_text import Token, model_part

ARITHMETIC: Mapping[str, str] = {
    "@": "matmul",
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "**": "pow",
    "+=": "add",
    "-=": "sub",
    "*=": "mul",
    "/=": "div",
    "@=": "matmul",
}
"""Operators, as the functions of PyTorch that do the same are called."""

_SAME: Mapping[str, str] = {
    "truedivide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "mm": "matmul",
    "bmm": "matmul",
    "clip": "clamp",
    "swish": "silu",
}
"""Functions with several names."""
_NO_WORK = frozenset(
    [
        *["init", "forward", "tensor", "size", "dim", "shape", "to", "float", "contiguous", "item", "numel"],
        *["parameter", "module", "registerbuffer", "registerparameter", "extrarepr", "rand", "randn", "randint"],
        *["zeros", "ones", "empty", "device", "modulelist", "sequential", "append", "items", "keys", "values"],
    ]
)
"""Calls that compute nothing, or make weights."""


def operations(found: Sequence[Token]) -> list[str]:
    """The operations in a source's tokens, in lower case without underscores."""
    imported = imported_names(found)
    statements = list(_statements(model_part(found)))
    targets = [_attribute(statement) for statement in statements]
    made: dict[str, list[str]] = {}
    for target, statement in zip(targets, statements, strict=True):
        if target is not None:
            made.setdefault(target, []).extend(_evaluated(statement[3:], imported, {}))
    rest = [s for target, s in zip(targets, statements, strict=True) if target is None]
    used = {name for statement in rest for name in _mentioned(statement)}
    done: list[str] = []
    for target, statement in zip(targets, statements, strict=True):
        # A layer is counted where it is applied; what is kept and never read again is counted where it is made.
        if target is None or target not in used:
            done += _evaluated(statement, imported, made if target is None else {})
    return done


def imported_names(found: Iterable[Token]) -> frozenset[str]:
    """Names that a source imports out of modules: `from torch.nn import Linear`."""
    names: set[str] = set()
    importing = False
    for token in found:
        if token.first:
            importing = token.text == "from"
        if importing and token.kind == "name":
            names.add(token.text)
    return frozenset(names)


def is_foreign(found: Sequence[Token], place: int, imported: frozenset[str]) -> bool:
    """Whether the name at a place is somebody else's: an attribute of anything but `self`, or imported."""
    if place and found[place - 1].text == ".":
        return place < 2 or found[place - 2].text != "self"
    return found[place].text in imported


def _statements(found: Sequence[Token]) -> Iterator[Sequence[Token]]:
    starts = [place for place, token in enumerate(found) if token.first] or [0]
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        yield found[start:end]


def _attribute(statement: Sequence[Token]) -> str | None:
    """The attribute that a statement sets: `name` of `self.name = ...`."""
    words = [token.text for token in statement[:4]]
    return words[2] if len(words) == 4 and words[:2] == ["self", "."] and words[3] == "=" else None


def _mentioned(statement: Sequence[Token]) -> Iterator[str]:
    for place in range(len(statement) - 2):
        if statement[place].text == "self" and statement[place + 1].text == ".":
            yield statement[place + 2].text


def _evaluated(statement: Sequence[Token], imported: frozenset[str], made: Mapping[str, list[str]]) -> Iterator[str]:
    """The operations of a statement; `made` has those of its layers by attribute."""
    open_calls: list[list[str]] = []
    for place, token in enumerate(statement):
        if token.text in ARITHMETIC and _has_left_side(statement, place):
            yield ARITHMETIC[token.text]
        elif token.text == "(":
            before = place - 1
            called = before >= 0 and statement[before].kind == "name"
            open_calls.append(_operation(statement, before, imported, made) if called else [])
        elif token.text == ")":
            yield from open_calls.pop() if open_calls else ()
        elif token.kind == "name" and _is_layer(statement, place) and not _is_called(statement, place):
            yield from made.get(token.text, ())


def _operation(
    statement: Sequence[Token], place: int, imported: frozenset[str], made: Mapping[str, list[str]]
) -> list[str]:
    """What calling the name at a place does."""
    if _is_layer(statement, place):
        return made.get(statement[place].text, [])
    name = statement[place].text.replace("_", "").lower()
    if not is_foreign(statement, place, imported) or name in _NO_WORK:
        return []
    return [_SAME.get(name, name)]


def _has_left_side(statement: Sequence[Token], place: int) -> bool:
    """Whether the operator at a place has two sides: no sign, and no unpacking."""
    if not place:
        return False
    before = statement[place - 1]
    return before.text in (")", "]") if before.kind == "operator" else not keyword.iskeyword(before.text)


def _is_layer(statement: Sequence[Token], place: int) -> bool:
    return place >= 2 and statement[place - 1].text == "." and statement[place - 2].text == "self"


def _is_called(statement: Sequence[Token], place: int) -> bool:
    return place + 1 < len(statement) and statement[place + 1].text == "("
