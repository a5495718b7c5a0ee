"""How much a program of a kernel can store, as its text in Triton's first form (TTIR) says.

most_bytes(text)      None where it has loops or calls: then no number of the text says how often it stores
"""

from __future__ import annotations

import math
import re

_REPEATS = re.compile(r"\b(?:scf\.(?:for|while|parallel)|tt\.call|func\.call)\b")
_STORE = re.compile(r"\btt\.\w*(?:store|atomic|scatter|descriptor_reduce)\w*\b.*")
_BLOCK = re.compile(r"tensor<((?:\d+x)+)")
_WIDTH = re.compile(r"ptr<[a-z]+(\d+)")
_WIDEST = 8
"""Bytes of the widest element."""


def most_bytes(text: str) -> int | None:
    """Bytes that all stores and atomic operations of a kernel write at most, each made once."""
    if _REPEATS.search(text):
        return None
    return sum(_bytes_of(found[0]) for found in _STORE.finditer(text))


def _bytes_of(line: str) -> int:
    """Of one store: elements of its largest block, each as wide as what its pointers point to."""
    blocks = [math.prod(map(int, sizes[:-1].split("x"))) for sizes in _BLOCK.findall(line)]
    widths = [max(1, int(bits) // 8) for bits in _WIDTH.findall(line)]
    return max(blocks, default=1) * max(widths, default=_WIDEST)
