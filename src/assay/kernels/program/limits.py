"""How large a program may be. A program is untrusted data, and whoever runs it pays for its numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Most of each. The largest of 155 honest programs had 6 kB of JSON, 40 storages and 14 launches."""

    json_bytes: int = 1 << 18
    storage_bytes: int = 1 << 30
    """All storages together."""
    storages: int = 4096
    tensors: int = 1024
    """Inputs, parameters and outputs, each."""
    steps: int = 8192
    """Operations and launches together, those of hooks included."""
    kernels: int = 64
    names: int = 256
    """Names outside a kernel that its text uses."""
    source_characters: int = 1 << 16
    """The texts of all kernels together."""
    variants: int = 64
    args: int = 256
    nesting: int = 6
    rank: int = 12
    elements: int = 1 << 28
    """Of one window."""
    literal_bytes: int = 1 << 16
    """Of all constants together."""
    string_characters: int = 256


ON_DEVICE = Limits(storage_bytes=1 << 36, elements=1 << 32)
"""On a GPU, at the sizes that problems are published with."""

UNALLOCATED = Limits(storage_bytes=1 << 40, elements=1 << 40)
"""Where a program is looked at and never run."""
