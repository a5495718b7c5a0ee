"""How fast a problem can be at best on a GPU: what must be moved over bandwidth, what must be computed over peak.

A time below the floor was not measured right, whatever the reason, so it is withheld rather than rewarded. The floor
errs downwards: sparsity aside, peaks are the highest that NVIDIA states for the type (for float32 that of TF32, since
three such products make one float32 product), and what the second-level cache can still hold back is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAUNCH_S = 1e-6
"""No launch between two events takes less."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU can do at best, from its data sheet. Dense peaks, boost clock."""

    bandwidth: float
    """Bytes a second."""
    cache: int
    """Bytes of second-level cache."""
    peak: Mapping[str, float]
    """Operations a second by the dtype of the operands."""


def _gpu(gigabytes_s: float, cache_mb: float, float32: float, half: float, float64: float) -> Gpu:
    peaks = {"float32": float32, "float16": half, "bfloat16": half, "float64": float64}
    return Gpu(gigabytes_s * 1e9, int(cache_mb * 1e6), {name: tera * 1e12 for name, tera in peaks.items()})


GPUS: dict[str, Gpu] = {
    "B200": _gpu(8000, 126, 1100, 2250, 40),
    "H200": _gpu(4800, 50, 495, 990, 67),
    "H100": _gpu(3350, 50, 495, 990, 67),
    "A100": _gpu(2039, 40, 156, 312, 19.5),
    "L40S": _gpu(864, 96, 183, 362, 1.4),
    "A10G": _gpu(600, 6, 70, 140, 1.0),
    "L4": _gpu(300, 48, 60, 121, 0.5),
    "T4": _gpu(320, 4, 8.1, 65, 0.25),
}
"""Of several variants (PCIe and SXM, 40 and 80 GB) the fastest."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a call cannot do without."""

    bytes: int
    """Inputs, weights and outputs that must be moved."""
    flops: float = 0.0
    """Operations of the reference, 0 where they are not known."""
    dtype: str = "float32"
    """Of the operands."""


def find_gpu(name: str) -> Gpu | None:
    """The GPU that a driver's name ("NVIDIA H100 80GB HBM3") stands for; None for one that the table lacks."""
    words = name.upper().replace("-", " ").split()
    return next((gpu for key, gpu in GPUS.items() if key in words), None)


def floor_s(work: Work, gpu: Gpu) -> float:
    """Seconds that no correct call can be faster than."""
    moved = max(0, work.bytes - gpu.cache) / gpu.bandwidth
    computed = work.flops / gpu.peak.get(work.dtype, max(gpu.peak.values()))
    return max(LAUNCH_S, moved, computed)
