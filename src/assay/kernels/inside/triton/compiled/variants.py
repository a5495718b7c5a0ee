"""Variants of launches: which are compiled, and what tells one from the others of its launch."""

from __future__ import annotations

from collections.abc import Sequence

from assay.kernels.program.form import Variant

DIFFERENCES_TOLD = 8
"""Values by which a configuration is named."""
LINE_CHARACTERS = 120


def chosen(keys: Sequence[Sequence[str]], most: int) -> list[tuple[int, int]]:
    """Launch and variant of what is compiled: the first variant of every launch, then the second, and so on, up to
    `most` that differ."""
    found: dict[str, tuple[int, int]] = {}
    for number in range(max(map(len, keys), default=0)):
        for place, variants in enumerate(keys):
            if number < len(variants) and len(found) < most:
                found.setdefault(variants[number], (place, number))
    return list(found.values())


def difference(variants: Sequence[Variant], number: int) -> str:
    """What tells one variant from the others of its launch, in words; empty where nothing does."""
    every = [dict((*each.args, *each.options)) for each in variants]
    found = {
        name: value
        for name, value in every[number].items()
        if any(name not in each or each[name] != value for each in every)
        if value is None or isinstance(value, bool | int | float | str)
    }
    return ", ".join(f"{name}={value!r}"[:LINE_CHARACTERS] for name, value in list(found.items())[:DIFFERENCES_TOLD])
