"""Text from outside, made safe to print: what a model, a judge or a compiler wrote must not steer a terminal.

Escape sequences can move the cursor, rename the window, write to the clipboard or hide lines that were printed before;
characters that turn the direction of writing can make a line read as another one. They are shown instead.
"""

from __future__ import annotations

import re
import unicodedata

_SHOWN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of Unicode that are shown as a symbol or as their number: control, format, surrogates, separators."""
_SUSPECT = re.compile(r"[^\n\t\x20-\x7e\xa1-\xac\xae-\u02ff]")
"""Characters that may be of such a category."""


def inert(text: str, *, lines: bool = True) -> str:
    """The text with every control and format character visible and without effect.

    Line ends and tabs stay; with `lines=False` they are shown too, so that the result is one line.
    """
    shown = _SUSPECT.sub(lambda match: _shown(match[0]), text)
    return shown if lines else shown.replace("\n", "\u240a").replace("\t", "\u2409")


def _shown(character: str) -> str:
    code = ord(character)
    if unicodedata.category(character) not in _SHOWN:
        return character
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters: ␛ for the one that begins escape sequences
    if code == 0x7F:
        return "\u2421"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted(text: str, most: int) -> str:
    """A text as Python writes it, of at most `most` characters of its own; dots stand for what was cut off."""
    return repr(text if len(text) <= most else f"{text[:most]}...")


def shown(value: object, most: int) -> str:
    """A value as Python writes it, on one line of at most `most` characters; dots stand for what was cut off."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def clipped(text: str, width: int) -> str:
    """One line that is at most `width` characters long; an ellipsis stands for what was cut off."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}\u2026"
