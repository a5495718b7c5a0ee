"""Variants of launches: which are compiled."""

from __future__ import annotations

from collections.abc import Sequence


def chosen(keys: Sequence[Sequence[str]], most: int) -> list[tuple[int, int]]:
    """Launch and variant of what is compiled: the first variant of every launch, then the second, and so on, up to
    `most` that differ."""
    found: dict[str, tuple[int, int]] = {}
    for number in range(max(map(len, keys), default=0)):
        for place, variants in enumerate(keys):
            if number < len(variants) and len(found) < most:
                found.setdefault(variants[number], (place, number))
    return list(found.values())
