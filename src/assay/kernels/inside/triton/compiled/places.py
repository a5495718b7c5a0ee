"""Where the operations of a module stand, as its text says: places have numbers there, and name each other."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACE = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.M)
_NAMED = re.compile(r"#loc\d*")
_DEEPEST = 16
Place = tuple[int, int]
"""Line, from 1, and column, from 0; zeros for none."""


def numbered(text: str) -> dict[str, str]:
    """The places that a text gives numbers, by number."""
    return dict(_PLACE.findall(text))


def whole(places: Mapping[str, str], place: str, depth: int = _DEEPEST) -> str:
    """A place with all places in it written out."""
    said = places.get(place, place)
    return said if not depth else _NAMED.sub(lambda one: whole(places, one[0], depth - 1), said)


def at(place: str, file: str) -> Place:
    """The line of a file and the column, from 0, that a place written out is in; zeros for none. Of a place in a helper
    that of the helper."""
    found = re.search(re.escape(f'"{file}":') + r"(\d+):(\d+)", place)
    return (int(found[1]), int(found[2])) if found is not None else (0, 0)
