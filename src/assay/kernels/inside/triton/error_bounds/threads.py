"""How many elements of a block one thread may hold: so many roundings its part of a sum goes through.

A block that was loaded, or a product of matrices, is spread over the threads of a warp at least, and so is what is
combined with one, lane by lane. Nothing is known of others: what a reduction leaves lies with all threads that shared
in it, and a small block that was made larger lies as the small one did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from triton.runtime import interpreter as engine

_SPREAD, _REDUCED = "spread over threads", "size of the block that was reduced"
"""Attributes. Of what a reduction left, and what was made of it: it may lie as that block did."""
_WARP, _LEVELS = 32, 16
"""Beside those of its own elements a number goes through the roundings of the tree in which threads add theirs."""
_ANY_SIZE = np.inf
_SAME_SHARES = frozenset(("reshape", "trans"))
"""Moves that leave each thread as many elements as before."""


def roundings(terms: Any, most: float) -> Any:
    """How many roundings a sum of so many terms other than zero is off by, if a number goes through `most`."""
    return np.minimum(np.maximum(terms - 1, 0), most)


def most_roundings(block: Any) -> float:
    """How many roundings a number goes through in a sum of a block; infinity where that is not known."""
    if _SPREAD not in block.attr:
        return np.inf
    size: float = max(block.data.size, block.attr.get(_REDUCED, 0.0))
    return size / _WARP + _LEVELS


def spread(block: Any) -> None:
    """A block was loaded, or is a product of matrices."""
    block.attr[_SPREAD] = True


def combined(found: Any, operands: Sequence[Any]) -> None:
    """A block was made of others, lane by lane: it may lie as any of them."""
    for operand in operands:
        if type(operand) is engine.TensorHandle and operand.data.shape == found.data.shape:
            if _SPREAD in operand.attr:
                found.attr[_SPREAD] = True
            if (before := operand.attr.get(_REDUCED, 0.0)) > found.attr.get(_REDUCED, 0.0):
                found.attr[_REDUCED] = before


def reduced(found: Any, source: Any) -> None:
    """A block was reduced. Of one that is reduced twice it is not known how it lies."""
    if np.ndim(found.data):
        found.attr[_REDUCED] = _ANY_SIZE if _REDUCED in source.attr else float(source.data.size)


def moved(name: str, found: Any, source: Any) -> None:
    """Lanes were moved by a method of the builder. What had been reduced before may then lie in any way."""
    if not np.ndim(found.data):
        return
    if _REDUCED in source.attr:
        found.attr[_REDUCED] = source.attr[_REDUCED] if name in ("expand_dims", "broadcast") else _ANY_SIZE
    elif name in _SAME_SHARES and _SPREAD in source.attr:
        found.attr[_SPREAD] = True
