"""Inputs that cannot be worked on before the clock runs, outputs that cannot be worked on after it has stopped.

Inputs go to a child under a mask, and their key comes with the order to run. Before that order is acknowledged the
child has to give a digest of every output, and the bytes that it hands over later must have that digest. So whatever
is computed is computed while the parent's clock runs. The mask is no cipher; it costs more to break than kernels take.
`assay.envs.kernelbench.inside.sealing` is the child's half.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

WORD = 8
"""Bytes; masked buffers are filled up to whole words."""
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea and Flood)."""
_BLOCK = 1 << 15


def padded(size: int) -> int:
    """Bytes of a buffer of `size` bytes, filled up to whole words."""
    return -(-size // WORD) * WORD


def _mixed(z: Words) -> Words:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))


def keystream(key: tuple[int, int], start: int, count: int) -> Words:
    """`count` words of the mask, from word number `start`."""
    numbers = np.arange(start, start + count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return _mixed(_mixed(numbers * np.uint64(STEP) + np.uint64(key[0])) + np.uint64(key[1]))


def mask(data: bytes, key: tuple[int, int], start: int) -> bytes:
    """Some bytes under the mask from word number `start` on, filled up to whole words."""
    words = np.frombuffer(data.ljust(padded(len(data)), b"\0"), dtype=np.uint64).copy()
    for at in range(0, len(words), _BLOCK):  # block by block, which stays in the processor's cache
        part = words[at : at + _BLOCK]
        part ^= keystream(key, start + at, len(part))
    return words.tobytes()


def digest(data: bytes) -> int:
    """A 64-bit digest of some bytes: their words, each times an odd number of its own, summed up."""
    words = np.frombuffer(data.ljust(padded(len(data)), b"\0"), dtype=np.uint64)
    with np.errstate(over="ignore"):
        odd = np.arange(len(words), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        return int((words * odd).sum(dtype=np.uint64))
