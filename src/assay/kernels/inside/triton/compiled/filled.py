"""Loads under a mask with a negative number of one or two bytes for what the mask leaves out.

Triton fills the word that elements are loaded into with such a number, and its sign with it, where it knows the number:
the elements beside it are then -1. The interpreter knows what is written (`error_bounds.accesses`); the compiler knows
what it folds as well (-5 + (n - n)).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from assay.kernels.inside.triton.compiled.places import at, numbered, whole

_VALUE = r"%[\w.$-]+(?:#\d+)?"
_LOAD = re.compile(
    rf"= tt\.load {_VALUE}, {_VALUE}, ({_VALUE}) .*: (?:tensor<[\dx]*)?!tt\.ptr<i(?:8|16)\b.* loc\((#loc\d*)\)$"
)
_MADE = re.compile(rf"^\s*({_VALUE}) = (.*)$")
_NUMBER = re.compile(r"arith\.constant (?:dense<)?(-?\d+)")
_STEP = re.compile(
    rf"(?:arith\.(?:trunci|extsi|extui)|tt\.(?:splat|broadcast|expand_dims|reshape)|ttg\.convert_layout) ({_VALUE})"
)
_DEEPEST = 16


def filled(text: str) -> list[str]:
    """The places of such loads; `text`: TTGIR, with places."""
    known = numbered(text)
    return [whole(known, place) for number, place in _loads(text) if number is not None and number < -1]


def not_written(places: Sequence[str], text: str, file: str) -> list[str]:
    """Those of some places at which a number is not written for what the mask leaves out.

    Args:
        places: Of loads.
        text: TTIR as Triton's front end reads the kernel, with places.
        file: Of the kernel.
    """
    known = numbered(text)
    loads = [(number, at(whole(known, place), file)) for number, place in _loads(text)]
    written = {place for number, place in loads if number is not None}
    computed = {place for number, place in loads if number is None}
    return [place for place in places if at(place, file) not in written - computed]


def _loads(text: str) -> Iterator[tuple[int | None, str]]:
    """The number, None for one that is not known, and the place of each load. A name stands for what was last given it:
    functions beside each other may have the same names."""
    made: dict[str, str] = {}
    for line in text.splitlines():
        if (load := _LOAD.search(line)) is not None:
            yield _number(load[1], made), load[2]
        if (given := _MADE.match(line)) is not None:
            made[given[1]] = given[2]
        elif line.lstrip().startswith(("^", "tt.func")):
            made = {} if "tt.func" in line else made


def _number(name: str, made: dict[str, str]) -> int | None:
    for _ in range(_DEEPEST):
        step = made.get(name, "")
        if (number := _NUMBER.match(step)) is not None:
            return int(number[1])
        if (following := _STEP.match(step)) is None:
            return None
        name = following[1]
    return None
