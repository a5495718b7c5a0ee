"""Python source as tokens: for a hash that layout does not change, for the words in names.

A lexer and no parser: text from a data set may be of another Python version, or no Python at all, and every text has
tokens. Comments, docstrings, layout and line continuations are no tokens.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

Kind = Literal["name", "number", "string", "operator"]

# Only repeats of one set of characters are possessive: before 3.11.5 Python matches those of groups wrongly.
_LEXER = re.compile(
    r"""(?P<skip>\#[^\n]*+|\\\r?\n|[^\S\n]++)
    |(?P<newline>\n)
    |(?P<string>(?:[rRbBuUfF]{0,2})(?:
        \"\"\"[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*(?:\"\"\"|\Z)
        |'''[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*(?:'''|\Z)
        |"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*'?))
    |(?P<number>(?:0[xXbBoO][\da-fA-F_]+|(?:\d[\d_]*+\.?[\d_]*+|\.\d[\d_]*+)(?:[eE][+-]?\d+)?)[jJ]?)
    |(?P<name>[^\W\d]\w*+)
    |(?P<operator>\*\*|//|->|:=|<<|>>|[=!<>]=|[-+*/%@&|^]=|.)""",
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_DATA = frozenset(("get_inputs", "get_init_inputs"))
"""Functions of a problem that say what it is called with, and not what it computes."""

_PIECES = re.compile(r"(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+)(?:\d+(?:[dD](?![a-z]))?)?|\d+")
_BOILERPLATE = frozenset(
    [
        *keyword.kwlist,
        *["none", "true", "false", "self", "super", "init", "args", "kwargs", "optional", "int", "float", "bool"],
        *["str", "list", "tuple", "torch", "nn", "functional", "module", "model", "forward", "tensor", "f", "x"],
    ]
)
"""Words that nearly every module has, and that say nothing about it."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    kind: Kind
    text: str
    first: bool = False
    """Whether it begins a statement: a line, outside any bracket."""
    outer: bool = False
    """Whether it begins one without indentation."""


def tokens(code: str) -> list[Token]:
    """The tokens of a source; takes any text."""
    found: list[Token] = []
    depth, fresh = 0, True
    for match in _LEXER.finditer(code):
        kind = match.lastgroup
        if kind == "skip":
            continue
        if kind == "newline":
            fresh = fresh or depth == 0
            continue
        text = match[0]
        if kind == "string" and fresh and depth == 0 and _ends_its_line(code, match.end()):
            continue  # a docstring, or a string for nobody
        if text in _OPENING:
            depth += 1
        elif text in _CLOSING:
            depth = max(0, depth - 1)
        start = match.start()
        outer = fresh and (start == 0 or code[start - 1] == "\n")
        found.append(Token(kind, text, fresh, outer))  # type: ignore[arg-type]
        fresh = False
    return found


def _ends_its_line(code: str, place: int) -> bool:
    end = code.find("\n", place)
    rest = code[place : len(code) if end < 0 else end].strip()
    return not rest or rest.startswith("#")


def code_hash(code: str) -> str:
    """SHA-256 (hex) of a source's tokens.

    Comments, docstrings, blank lines, indentation and the breaking of lines do not change it; names, numbers and the
    order of statements do.
    """
    text = "\n".join(token.text for token in tokens(code))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def model_part(found: Sequence[Token]) -> list[Token]:
    """The tokens of a problem that say what it computes: of its outer classes and functions, without the two that make
    inputs, imports and constants. All of them where there is neither class nor function."""
    chosen: list[Token] = []
    block: list[Token] = []
    for token in [*found, Token("operator", "", first=True, outer=True)]:
        if token.outer and block:
            chosen += block if _computes(block) else []
            block = []
        block.append(token)
    return chosen or list(found)


def _computes(block: list[Token]) -> bool:
    named = next((after.text for word, after in pairwise(block) if word.text in ("class", "def")), None)
    return block[0].text in ("class", "def", "async") and named not in _DATA


@lru_cache(maxsize=1 << 16)
def name_words(name: str) -> tuple[str, ...]:
    """A name's parts, split at underscores and capitals, with all of it as one word; without boilerplate."""
    pieces = [piece.lower() for part in name.split("_") for piece in _PIECES.findall(part)]
    joined = "".join(pieces)
    words = [joined, *pieces] if len(pieces) > 1 else [joined]
    return tuple(word for word in words if len(word) > 1 and word not in _BOILERPLATE and not word.isdigit())
