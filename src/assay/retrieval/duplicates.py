"""Whether two problems are one and the same under other names, constants and spellings.

A problem's signature is what it computes: the functions that it calls (`nn.ReLU`, `F.relu` and `.relu()` are one), with
their numbers of calls, and its text in shingles of tokens in which names of the author's own, numbers and strings are
placeholders. Two problems are near-duplicates when both are alike. Calls alone would take different wirings of equal
parts for one; text alone would take `relu` for `tanh`, since nearly all of a short module is the same everywhere.
"""

from __future__ import annotations

import builtins
import keyword
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.retrieval.code_text import Token, model_tokens, tokens

SHINGLE = 4
"""Tokens in a shingle."""
CALLS_ALIKE = 0.8
"""Jaccard similarity of the calls, as multisets, from which two problems may be one."""
TEXT_ALIKE = 0.3
"""Jaccard similarity of the shingles, from which they are. Low, since rewriting modules as functions halves it."""
TEXT_ALIKE_WITHOUT_CALLS = 0.8
"""The same for problems that call nothing, of which the text is all there is."""

_ARITHMETIC = {"@": "matmul", "+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow"}
_SAME = {
    "truedivide": "div",
    "truediv": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "mm": "matmul",
    "bmm": "matmul",
    "amax": "max",
    "amin": "min",
    "clip": "clamp",
    "swish": "silu",
}
"""Functions with several names."""
_NO_WORK = frozenset(
    [
        *["init", "forward", "tensor", "size", "dim", "shape", "to", "float", "contiguous", "item", "numel"],
        *["parameter", "module", "registerbuffer", "registerparameter", "extrarepr"],
    ]
)
"""Calls that compute nothing."""
_KEPT = frozenset((*keyword.kwlist, *dir(builtins), "self", "torch", "nn", "F", "forward", "__init__"))


@dataclass(frozen=True, slots=True)
class Signature:
    """What a problem computes, as far as its text tells."""

    calls: Counter[str]
    shingles: frozenset[tuple[str, ...]]


def signature(code: str) -> Signature:
    """The signature of a problem's source; takes any text."""
    found = model_tokens(code)
    imported = _imported(tokens(code))
    placed = [_placeholder(found, place, imported) for place in range(len(found))]
    return Signature(
        Counter(_calls(found, imported)),
        frozenset(tuple(placed[start : start + SHINGLE]) for start in range(max(1, len(placed) - SHINGLE + 1))),
    )


def calls_likeness(one: Counter[str], other: Counter[str]) -> float:
    """Jaccard similarity of two multisets of calls, 0 to 1; two that are empty are alike."""
    shared, total = (one & other).total(), (one | other).total()
    return shared / total if total else 1.0


def text_likeness(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
    """Jaccard similarity of two sets of shingles, 0 to 1."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared) if one or other else 1.0


def near_duplicates(one: Signature, other: Signature) -> bool:
    """Whether two problems are one and the same, as far as their texts tell."""
    if calls_likeness(one.calls, other.calls) < CALLS_ALIKE:
        return False
    enough = TEXT_ALIKE if one.calls else TEXT_ALIKE_WITHOUT_CALLS
    return text_likeness(one.shingles, other.shingles) >= enough


def _imported(found: Sequence[Token]) -> frozenset[str]:
    """Names that a source imports, other than modules: `from torch.nn import Linear`."""
    names: set[str] = set()
    importing = False
    for token in found:
        if token.outer:
            importing = token.text == "from"
        if importing and token.kind == "name":
            names.add(token.text)
    return frozenset(names)


def _is_foreign(found: Sequence[Token], place: int, imported: frozenset[str]) -> bool:
    """Whether the name at a place is somebody else's: an attribute of anything but `self`, or imported."""
    if place and found[place - 1].text == ".":
        return place < 2 or found[place - 2].text != "self"
    return found[place].text in imported


def _placeholder(found: Sequence[Token], place: int, imported: frozenset[str]) -> str:
    token = found[place]
    if token.kind == "number" or token.text in ("True", "False", "None"):
        return "0"
    if token.kind == "string":
        return '"'
    if token.kind == "operator" or token.text in _KEPT or _is_foreign(found, place, imported):
        return token.text
    return "v"


def _calls(found: Sequence[Token], imported: frozenset[str]) -> Iterator[str]:
    for place, token in enumerate(found):
        if token.kind == "operator" and token.text in _ARITHMETIC:
            yield _ARITHMETIC[token.text]
        called = place + 1 < len(found) and found[place + 1].text == "("
        if token.kind == "name" and called and _is_foreign(found, place, imported):
            name = token.text.replace("_", "").lower()
            if name not in _NO_WORK:
                yield _SAME.get(name, name)
