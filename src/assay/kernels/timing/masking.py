"""Inputs that cannot be worked on before the clock runs, outputs that cannot be worked on after it has stopped.

Inputs go to a child under a mask, and their key comes with the order to run. Before that order is acknowledged the
child has to give a digest of every output, and the bytes that it hands over later must have that digest. So whatever
is computed is computed while the parent's clock runs. The mask is not a cipher: breaking it only has to
take longer than kernels do. `assay.kernels.inside.timing.masking` is the child's half.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

WORD = 8
"""Bytes; masked buffers are filled up to whole words."""
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea and Flood)."""
BLOCK = 1 << 12
"""Words; few enough to stay in a processor's cache."""


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


def numbered(number: int) -> int:
    """Where in the keystream the factors of a buffer lie."""
    return 2 * BLOCK + (number << 32)


def mask(data: bytes, key: tuple[int, int], number: int) -> bytes:
    """Some bytes under the mask of buffer `number`, filled up to whole words.

    Each block of words goes under `first + factor * second`, two stretches of the keystream that all blocks share and a
    word of it that no two blocks do: three operations a word instead of sixteen.
    """
    words = np.frombuffer(data.ljust(padded(len(data)), b"\0"), dtype=np.uint64).copy()
    first, second = keystream(key, 0, BLOCK), keystream(key, BLOCK, BLOCK)
    for block, factor in enumerate(keystream(key, numbered(number), -(-len(words) // BLOCK))):
        part = words[block * BLOCK : (block + 1) * BLOCK]
        part ^= (second * factor + first)[: len(part)]
    return words.tobytes()


def digest(data: bytes) -> int:
    """A 64-bit digest of some bytes: their words, each times an odd number of its own, summed up."""
    words = np.frombuffer(data.ljust(padded(len(data)), b"\0"), dtype=np.uint64)
    with np.errstate(over="ignore"):
        odd = np.arange(len(words), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        return int((words * odd).sum(dtype=np.uint64))
