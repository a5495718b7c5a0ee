"""Which addresses a kernel may touch: those of the tensors that it was given."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NEAR = 1 << 20
"""Bytes beside a tensor within which it is told how far an access is from it."""


def spread(values: Any, shape: tuple[int, ...]) -> Any:
    """An array in a shape that it is broadcast to; NumPy takes longer than a small kernel for one that has it."""
    return values if values.shape == shape else np.broadcast_to(values, shape)


class Ranges:
    """Address ranges of the tensors that a launch may touch."""

    def __init__(self) -> None:
        self.starts = np.zeros(0, dtype=np.uint64)
        self.ends = np.zeros(0, dtype=np.uint64)

    def set(self, ranges: set[tuple[int, int]]) -> None:
        """Replace them: first address and the one after the last, of each tensor's storage."""
        ordered = sorted(ranges)
        self.starts = np.array([start for start, _ in ordered], dtype=np.uint64)
        self.ends = np.array([end for _, end in ordered], dtype=np.uint64)

    def fault(self, pointers: Any, mask: Any, size: int, what: str) -> str:
        """What is wrong with an access of `size` bytes at each of some addresses; empty where nothing is."""
        touched = pointers[spread(mask, pointers.shape)] if mask is not None else pointers
        if not touched.size:
            return ""
        if not self.starts.size:
            return f"a {what} although the kernel was given no tensor"
        if size > 1 and (touched & np.uint64(size - 1)).any():
            return (
                f"a {what} of {size} bytes at an address that is no multiple of {size}: a GPU ends the kernel there "
                "(misaligned address). Keep to the type of the tensor."
            )
        low, high, width = touched.min(), touched.max(), np.uint64(size)
        place = int(np.searchsorted(self.starts, low, side="right")) - 1
        # Sums of addresses wrap around, so that the last of them would lie before every end; differences do not.
        if place >= 0 and high <= self.ends[place] and self.ends[place] - high >= width:
            return ""
        places = np.searchsorted(self.starts, touched, side="right").astype(np.int64) - 1
        ends = self.ends[np.maximum(places, 0)]
        outside = (places < 0) | (touched > ends) | (ends - touched < width)
        if not np.any(outside):
            return ""
        return (
            f"a {what} of {size} bytes that {self._beside(int(touched[np.argmax(outside)]), size)} of a tensor that "
            f"the kernel was given ({np.count_nonzero(outside)} of {touched.size} addresses). Mask it."
        )

    def _beside(self, address: int, size: int) -> str:
        """Where an access is that is outside, as seen from the nearest tensor."""
        after = int(np.searchsorted(self.starts, np.uint64(address), side="right"))
        beyond = address + size - int(self.ends[after - 1]) if after else math.inf
        if after < len(self.starts) and int(self.starts[after]) - address < beyond:
            return f"begins {_bytes(int(self.starts[after]) - address)} before the start"
        return f"ends {_bytes(beyond)} past the end"


def _bytes(distance: float) -> str:
    """A distance in words: a longer one may be a secret value that a kernel made an address of."""
    return f"{distance} bytes" if distance <= NEAR else f"more than {NEAR} bytes"
