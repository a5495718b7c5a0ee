"""What a search may not show: solutions of the problems that a model is trained or tested on.

Three nets, each for what slips through the others: the hash of a problem's code finds copies, its name finds other
versions of the same published problem, and likeness of text finds problems under other names and constants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from assay.retrieval.code_text import code_hash
from assay.retrieval.duplicates import Signature, near_duplicates, signature
from assay.retrieval.entries import Entry

Reason = Literal["hash", "name", "near_duplicate"]
MAX_QUERY_CHARACTERS = 50_000
"""Of one text that search reads; what follows is ignored."""
_MOST_REMEMBERED = 200_000

_LEVEL = re.compile(r"(?:level_?)?(\d+)")
_NUMBERED = re.compile(r"(\d+)(?:_(.*))?")


@dataclass(frozen=True)
class Exclusion:
    """Problems whose solutions are not to be shown."""

    hashes: frozenset[str] = frozenset()
    """`code_hash` of their code."""
    names: frozenset[str] = frozenset()
    """Their names, with or without level: `19_ReLU`, `level_1/19_ReLU.py`, `1/19`."""
    texts: tuple[str, ...] = ()
    """Their code; near-duplicates of it are not shown either."""

    @classmethod
    def of(cls, problems: dict[str, str]) -> Exclusion:
        """All three nets for problems: code by name."""
        codes = tuple(problems.values())
        return cls(frozenset(map(code_hash, codes)), frozenset(problems), codes)


def name_keys(name: str) -> frozenset[str]:
    """What two names of one problem share: its name without number, capitals and punctuation; its `level/number`.

    The number before a name is not compared where there is a name: published problems have changed their numbers.
    """
    *folders, last = name.strip().removesuffix(".py").rsplit("/", 1)
    level = _LEVEL.fullmatch(folders[-1].rsplit("/", 1)[-1].lower()) if folders else None
    numbered = _NUMBERED.fullmatch(last)
    words = (numbered[2] or "") if numbered else last
    bare = "".join(character for character in words.lower() if character.isalnum())
    keys = {bare} if bare else set()
    if level and numbered:
        keys.add(f"{int(level[1])}/{int(numbered[1])}")
    return frozenset(keys)


def _asked_keys(name: str) -> Iterator[str]:
    """The keys by which a name excludes. A `level/number` does so only where there is no name, since a number alone may
    be another problem's in another version."""
    keys = name_keys(name)
    named = {key for key in keys if "/" not in key}
    yield from named or keys


class Screen:
    """An exclusion, prepared for many entries."""

    def __init__(self, exclusion: Exclusion) -> None:
        self._hashes = exclusion.hashes
        self._keys = frozenset(key for name in exclusion.names for key in _asked_keys(name))
        texts = dict.fromkeys(text[:MAX_QUERY_CHARACTERS] for text in exclusion.texts)
        self._signatures: list[Signature] = [signature(text) for text in texts]
        self._alike: dict[str, bool] = {}

    def reason(self, entry: Entry) -> Reason | None:
        """Why an entry may not be shown; None where it may."""
        if entry.code_hash in self._hashes:
            return "hash"
        if not self._keys.isdisjoint(name_keys(entry.name)):
            return "name"
        return "near_duplicate" if self._is_alike(entry) else None

    def _is_alike(self, entry: Entry) -> bool:
        if not self._signatures:
            return False
        known = self._alike.get(entry.code_hash)
        if known is None:
            if len(self._alike) >= _MOST_REMEMBERED:
                self._alike.clear()
            own = signature(entry.torch_code)
            known = self._alike[entry.code_hash] = any(near_duplicates(own, other) for other in self._signatures)
        return known


@lru_cache(maxsize=8)
def screen(exclusion: Exclusion) -> Screen:
    """The screen of an exclusion, kept for the next search with it."""
    return Screen(exclusion)
