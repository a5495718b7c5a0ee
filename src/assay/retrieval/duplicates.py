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
from collections.abc import Sequence
from dataclasses import dataclass

from assay.retrieval.code_text import Token, model_part, tokens
from assay.retrieval.operations import imported_names, is_foreign, operations

SHINGLE = 4
"""Tokens in a shingle."""
CALLS_ALIKE = 0.85
"""Jaccard similarity of the operations, as multisets, from which two problems may be one: of up to five operations, one
more or another one makes another problem."""
TEXT_ALIKE = 0.3
"""Jaccard similarity of the shingles, from which they are. Low, since rewriting modules as functions halves it."""
TEXT_ALIKE_IN_ORDER = 0.15
"""The same for problems with equal operations in equal order: statements and one expression share little more."""
TEXT_ALIKE_WITHOUT_CALLS = 0.8
"""The same for problems without operations, of which the text is all there is."""

_KEPT = frozenset((*keyword.kwlist, *dir(builtins), "self", "torch", "nn", "F", "forward", "__init__"))


@dataclass(frozen=True, slots=True)
class Signature:
    """What a problem computes, as far as its text tells."""

    calls: Counter[str]
    """Its operations, with how often each is applied."""
    order: tuple[str, ...]
    """Its operations as they follow each other."""
    shingles: frozenset[tuple[str, ...]]


def signature(code: str) -> Signature:
    """The signature of a problem's source; takes any text."""
    found = tokens(code)
    imported = imported_names(found)
    model = _without_annotations(model_part(found))
    placed = [_placeholder(model, place, imported) for place in range(len(model))]
    done = tuple(operations(found))
    return Signature(
        Counter(done),
        done,
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
    enough = TEXT_ALIKE_IN_ORDER if one.order == other.order else TEXT_ALIKE
    if not one.order:
        enough = TEXT_ALIKE_WITHOUT_CALLS
    return text_likeness(one.shingles, other.shingles) >= enough


def _without_annotations(found: Sequence[Token]) -> list[Token]:
    """Tokens without types such as `: torch.Tensor`; calls have none."""
    kept: list[Token] = []
    place = 0
    while place < len(found):
        if found[place].text in (":", "->"):
            end = place + 1
            while end < len(found) and (found[end].kind == "name" or found[end].text == "."):
                end += 1
            if end > place + 1 and end < len(found) and found[end].text in (",", ")", "=", ":"):
                place = end
                continue
        kept.append(found[place])
        place += 1
    return kept


def _placeholder(found: Sequence[Token], place: int, imported: frozenset[str]) -> str:
    token = found[place]
    if token.kind == "number" or token.text in ("True", "False", "None"):
        return "0"
    if token.kind == "string":
        return '"'
    if token.kind == "operator" or token.text in _KEPT or is_foreign(found, place, imported):
        return token.text
    return "v"
