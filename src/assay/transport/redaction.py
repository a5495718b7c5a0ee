"""Removes an API key from what a server says: some servers echo it in errors, and replies are kept on disk.

Text is cleaned after JSON was decoded, since JSON can write any character as an escape, and before it is cut to length,
since half a key would not be recognised.
"""

from __future__ import annotations

import re

MARK = "[API key]"
SHORTEST_SECRET = 16
"""Shorter keys (`EMPTY`, `none`) are placeholders, and words that a reply may well contain."""
MOST_BACKSLASHES = 8
"""In front of one escape: JSON inside JSON inside JSON. The bound keeps the search linear."""

_SIGNS_OF_ESCAPES = ("\\", "%", "&")


class Redaction:
    """Removes one key."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._is_secret = len(key) >= SHORTEST_SECRET
        self._escaped = re.compile("".join(map(_any_spelling, key)), re.IGNORECASE)

    def text(self, text: str) -> str:
        """A text without the key, plain or with any of its characters escaped as JSON, Python, URLs or HTML do it."""
        if not self._is_secret:
            return text
        text = text.replace(self._key, MARK)
        if any(sign in text for sign in _SIGNS_OF_ESCAPES):
            text = self._escaped.sub(MARK, text)
        return text

    def message(self, text: str) -> str:
        """An error message without the key, however short that is."""
        text = self.text(text)
        return text.replace(self._key, MARK) if self._key else text


def _any_spelling(character: str) -> str:
    """A pattern for a character of a key (printable ASCII) as it is or escaped once."""
    code = ord(character)
    backslashes = rf"\\{{1,{MOST_BACKSLASHES}}}"
    spellings = (
        rf"(?-i:{re.escape(character)})",
        rf"{backslashes}(?:u00|u\{{0{{0,4}}|x){code:02x}\}}?",
        rf"{backslashes}{code:03o}",
        rf"{backslashes}{re.escape(character)}",
        rf"%(?:25)?{code:02x}",
        rf"&#(?:0{{0,5}}{code}|x0{{0,5}}{code:x});",
    )
    return f"(?:{'|'.join(spellings)})"
