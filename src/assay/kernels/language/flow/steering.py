"""Whether values steer where a function comes to memory, so that no call shows what another one may do.

Where no address, mask, branch or loop hangs on what was loaded, a launch touches the same elements in every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from assay.kernels.language import vocabulary
from assay.kernels.language.flow.walking import WRITES, Slice, expressions, features_of, own, parts_of, statements
from assay.kernels.language.form import (
    Call,
    Choice,
    Expression,
    For,
    If,
    Invoke,
    Items,
    Method,
    Statement,
    While,
    Whole,
)

STEERED_WRITES, STEERED_LOADS = "steered writes", "steered loads"
STEERED = frozenset({STEERED_WRITES, STEERED_LOADS})
_VALUES = frozenset({"value", "val", "cmp", "other"})
"""Parameters of accesses that say what is written, not where."""


def steering(body: Sequence[Statement], has: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Which of `STEERED_WRITES` and `STEERED_LOADS` a body has; `has`: what its helpers do. Each branch or loop that
    hangs on what was loaded may write."""
    everything = list(statements(body))
    slices = {STEERED_WRITES: Slice(everything), STEERED_LOADS: Slice(everything)}
    found: set[str] = set()
    reading: set[int] = set()
    for each in everything:
        if isinstance(each, If | For | While):
            for value in own(each):
                slices[STEERED_WRITES].take(value)
        for one in (one for value in own(each) for one in expressions(value)):
            if isinstance(one, Choice) and _comes_to_memory(one, has):
                slices[STEERED_WRITES].take(one.condition)
                slices[STEERED_LOADS].take(one.condition)
            features = features_of(one, has)
            found |= features & slices.keys()
            for kind, takes in ((STEERED_WRITES, features & WRITES), (STEERED_LOADS, "load" in features)):
                for place in _places(one) if takes else ():
                    slices[kind].take(place)
            if features & {"load", "atomic"}:
                reading.add(id(one))
    return frozenset(found | {kind for kind, taken in slices.items() if reading & taken.taken})


def _comes_to_memory(one: Choice, has: Mapping[str, frozenset[str]]) -> bool:
    """Whether a side of a choice loads or writes, as a branch may."""
    sides = (part for side in (one.yes, one.no) for part in expressions(side))
    return any(features_of(part, has) & (WRITES | {"load"}) for part in sides)


def _places(one: Expression) -> Iterator[Expression | Whole]:
    """What says where an access, or a helper, comes to memory."""
    if isinstance(one, Call):
        slots = vocabulary.TL[one.function.removeprefix("tl.")].split()
        named = [*zip(slots, one.arguments.positional, strict=False), *one.arguments.named]
        yield from (value for name, value in named if name not in _VALUES)
    elif isinstance(one, Method):
        yield one.value
        yield from (value for name, value in one.arguments.named if name not in _VALUES)
        given = one.arguments.positional  # a descriptor's offsets and a value, or a value and a mask of a pointer
        yield from given[:1] if isinstance(next(iter(given), None), Items) else given
    elif isinstance(one, Invoke):
        yield from parts_of(one)
