"""How far outputs may be from what a GPU makes of the same program, by the error bounds of the call that made them.

What operators of PyTorch's between launches make of bounds is in `operator_bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN, Kind
from assay.kernels.numerics.tolerance import scale_of
from assay.kernels.program.form import DTYPES, Window
from assay.types import Json

MOST = 1e300
"""What is told of a share that is larger, or infinite."""
FEW = 16
"""A bound that is too large may be chance where at most one element in so many has such a bound: those of a row with a
score that is beside the overflow of an exponential."""
_FORMATS = {"bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}


def kind_of(window: Window) -> Kind:
    """What kind of elements a window shows."""
    if "float" not in window.dtype:
        return Kind(DTYPES[window.dtype], "whole")
    return Kind(DTYPES[window.dtype], _FORMATS.get(window.dtype, "fraction"))


def bounds_of(memory: Memory, window: Window) -> Any:
    """The bounds of the elements of a window; None where all are exact."""
    if memory.bounds is None or (found := memory.bounds.of_window(window, kind_of(window))) is None:
        return None
    return np.where(found.other, UNKNOWN, np.maximum(found.limits, 0.0))


def told(memory: Memory, windows: Sequence[Window]) -> dict[str, Json]:
    """What is told of some outputs: the shares of each, and in which lines numbers are compared that GPUs may have in
    either order. Nothing in calls without bounds."""
    if memory.bounds is None:
        return {}
    largest, mostly = zip(*(shares(memory, window) for window in windows), strict=True) if windows else ((), ())
    return {"inexact": list(largest), "mostly_inexact": list(mostly), "undecided": list(memory.bounds.lines)}


def shares(memory: Memory, window: Window) -> tuple[float, float]:
    """The largest bound of an output's elements, as a part of their own size and of the size of all (`scale_of`), and
    the largest of all but one in `FEW` of them; of whole numbers 0 or `MOST`."""
    window = window.reals
    limits = bounds_of(memory, window)
    if limits is None:
        return 0.0, 0.0
    values = memory.tensor(window)
    if not values.dtype.is_floating_point:
        return MOST, MOST
    size = np.abs(values.to(torch.float64).numpy())
    scale = scale_of(size)
    with np.errstate(all="ignore"):
        found = limits / (np.where(np.isfinite(size), size, 0.0) + scale)
    told = np.sort(np.nan_to_num(found, nan=MOST, posinf=MOST), axis=None)[::-1]
    largest, mostly = (float(min(told[place], MOST)) if told.size else 0.0 for place in (0, told.size // FEW))
    return largest, mostly


def note(memory: Memory, window: Window, limits: Any) -> None:
    """Give the elements of a window other bounds; None for exact ones."""
    bounds = memory.bounds
    if bounds is None or (limits is None and window.storage not in bounds.noted):
        return
    kind = kind_of(window)
    bounds.note(window.storage, bounds.places_of(window, kind), kind, 0.0 if limits is None else limits)


def as_tensor(memory: Memory, window: Window) -> torch.Tensor:
    """The bounds of the elements of a window, 0 for exact ones."""
    limits = bounds_of(memory, window)
    return torch.zeros(window.size, dtype=torch.float64) if limits is None else torch.from_numpy(limits)
