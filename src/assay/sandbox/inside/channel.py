"""What parent and worker say to each other, and where buffers lie: fixed binary layouts that both sides import.

Messages are datagrams on a socket that only the parent and the worker hold. A child holds two pipes of single bytes, so
nothing that it can write is ever parsed, except the report, which the parent reads as bounded untrusted JSON.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

MESSAGE_BYTES = 8192
"""No message is longer."""


class Kind(IntEnum):
    """What a message is."""

    JOB = 1
    """Parent: run this job; four descriptors come along (job, inputs, outputs, stderr)."""
    GO = 2
    """Parent: the inputs of the round asked for are in place."""
    END = 3
    """Parent: there are no more rounds."""
    KILL = 4
    """Parent: end the job now."""
    READY = 10
    """Worker: warm and tested."""
    BROKEN = 11
    """Worker: cannot run jobs; text follows."""
    ASK = 12
    """Worker: the child is done with its round and asks for the next."""
    DONE = 13
    """Worker: the child and everything it started are dead."""


class Cause(IntEnum):
    """Why a child is dead."""

    LEFT = 0
    """It ended by itself or of a signal that the worker did not send."""
    TIMEOUT = 1
    """Killed at its wall limit."""
    KILLED = 2
    """Killed because the parent said so."""
    WALLS = 3
    """A wall could not be put up, so the candidate was never run; text follows."""
    MEMORY = 4
    """Killed because its processes held more than its memory together, or were too many."""


ORDER = struct.Struct("<Bxxxxxxx Q d I I I I I I I I")
"""JOB: kind, job number, wall_s, cpu_s, memory_mb, tmp_mb, processes, open_files, profile, pause, measured."""
BARE = struct.Struct("<Bxxxxxxx Q")
"""GO, END, KILL, READY and BROKEN: kind, job number (0 where there is none)."""
ASKED = struct.Struct("<Bxxxxxxx Q d")
"""ASK: kind, job number, seconds in which the child was to move since it last asked."""
ENDED = struct.Struct("<BBxxxxxx Q i d d")
"""DONE: kind, cause, job number, wait status, wall_s, cpu_s."""

PROFILES = ("numerics", "compile", "gpu", "gpu-compile")
"""Profiles by the numbers that orders carry."""

EXIT_FAILED = 1
"""Exit status of a child whose candidate or harness raised."""
EXIT_MEMORY = 86
"""Exit status of a child that met MemoryError."""

STARTED, REFUSED = b"S", b"F"
"""First byte of a child: its walls stand and the candidate comes next; or they do not, and a text says why."""
ASK_BYTE, GO_BYTE, END_BYTE = b"?", b"g", b"e"

_ALIGNMENT = 64
"""Of each buffer inside its round: a cache line, and enough for any vector type."""
_PAGE = mmap.ALLOCATIONGRANULARITY


@dataclass(frozen=True, slots=True)
class Span:
    """Where the buffers of one round lie in a file: a mappable stretch, and (offset in it, size) of each buffer."""

    start: int
    length: int
    parts: tuple[tuple[int, int], ...]


def spans(rounds: Sequence[Sequence[int]]) -> tuple[list[Span], int]:
    """Where buffers of these sizes lie, per round, and the length of the whole file."""
    found: list[Span] = []
    start = 0
    for sizes in rounds:
        parts, offset = [], 0
        for size in sizes:
            parts.append((offset, size))
            offset += -(-size // _ALIGNMENT) * _ALIGNMENT
        length = max(1, -(-offset // _PAGE)) * _PAGE
        found.append(Span(start, length, tuple(parts)))
        start += length
    return found, start
