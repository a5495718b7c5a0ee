"""How far outputs may be from what a GPU makes of the same program, by the error bounds of the call that made them.

Operators of PyTorch's between launches take bounds along: moves as they move elements, arithmetic by what other values
within the bounds would give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN, Kind
from assay.kernels.program.form import DTYPES, Window
from assay.types import Json

MOST = 1e300
"""What is told of a share that is larger, or infinite."""
_FORMATS = {"bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
_TRIALS, _SIDES = 3, 3
_MARGIN = 2.0


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
    """What is told of some outputs: the share of each, and in which lines numbers are compared that GPUs may have in
    either order. Nothing in calls without bounds."""
    if memory.bounds is None:
        return {}
    return {"inexact": [share(memory, window) for window in windows], "undecided": list(memory.bounds.lines)}


def share(memory: Memory, window: Window) -> float:
    """The largest bound of an output's elements, as a part of their own size and of the root mean square of all; of
    whole numbers 0 or `MOST`."""
    limits = bounds_of(memory, window)
    if limits is None:
        return 0.0
    values = memory.tensor(window)
    if not values.dtype.is_floating_point:
        return MOST
    size = np.abs(values.to(torch.float64).numpy())
    finite = size[np.isfinite(size)]
    scale = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    with np.errstate(all="ignore"):
        found = limits / (np.where(np.isfinite(size), size, 0.0) + scale)
    return float(min(np.nan_to_num(found, nan=MOST, posinf=MOST).max(initial=0.0), MOST))


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


def cast(limits: Any, values: Any, out: Window) -> Any:
    """Bounds of elements that were moved into another type: whole numbers may be any then, and fractions may be rounded
    to either of two numbers."""
    if "float" not in out.dtype:
        return np.where(limits > 0, UNKNOWN, 0.0)
    step = torch.finfo(getattr(torch, out.dtype)).eps
    return np.where(limits > 0, limits + step * (np.abs(values) + limits), 0.0)


def of_machines(
    operands: Sequence[torch.Tensor],
    limits: Sequence[Any],
    compute: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    seed: int,
    *,
    last_bits: float,
    adds: bool,
) -> list[Any]:
    """Bounds of what an operator computes that machines have with other last bits: what it would give of operands that
    are `last_bits` off, and as many of each result. `adds`: it makes whole numbers of whole ones exactly."""
    own = [_last_bits(operand, last_bits) for operand in operands]
    given = [
        limit if not each.any() else np.maximum(each, 0.0 if limit is None else limit)
        for each, limit in zip(own, limits, strict=True)
    ]
    results, exact = compute(operands), adds and not any(each is not None for each in given)
    off = [_last_bits(result, last_bits, also_whole=not exact) for result in results]
    if all(each is None for each in given):
        return off
    return [limit + each for limit, each in zip(of_arithmetic(operands, given, compute, seed), off, strict=True)]


def _last_bits(values: torch.Tensor, count: float, *, also_whole: bool = False) -> Any:
    """So many last bits of each fraction, and 0 for whole numbers, or as many of these."""
    if not values.dtype.is_floating_point:
        return np.zeros(values.shape)
    size = values.abs().to(torch.float64).numpy()
    some = np.isfinite(size) & (also_whole | (np.rint(size) != size))
    return np.where(some, count * torch.finfo(values.dtype).eps * size, 0.0)


def of_arithmetic(
    operands: Sequence[torch.Tensor],
    limits: Sequence[Any],
    compute: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    seed: int,
) -> list[Any]:
    """Bounds of what an operator computes: how far results are moved by operands at their bounds, each up or down, and
    their elements up or down at random."""
    chance = np.random.default_rng(seed)
    plain = [each.to(torch.float64).numpy() for each in compute(operands)]
    found = [np.zeros(each.shape) for each in plain]
    inexact = [place for place, limit in enumerate(limits) if limit is not None]
    sides = [
        dict(zip(inexact, each, strict=False))
        for each in itertools.product((-1.0, 1.0), repeat=min(len(inexact), _SIDES))
    ]
    for side in [*sides, *[{}] * _TRIALS]:
        others = []
        for place, (operand, limit) in enumerate(zip(operands, limits, strict=True)):
            if limit is None or not operand.dtype.is_floating_point:
                others.append(operand)
                continue
            signs = side.get(place, chance.choice((-1.0, 1.0), limit.shape))
            shift = torch.from_numpy(np.broadcast_to(signs * limit, tuple(operand.shape)).copy())
            others.append((operand.to(torch.float64) + shift).to(operand.dtype))
        for place, each in enumerate(compute(others)):
            with np.errstate(invalid="ignore"):
                apart = np.abs(each.to(torch.float64).numpy() - plain[place])
            found[place] = np.maximum(found[place], np.where(np.isnan(apart), UNKNOWN, apart))
    unknown = any(
        limit is not None and not operand.dtype.is_floating_point
        for operand, limit in zip(operands, limits, strict=True)
    )
    return [np.full(each.shape, UNKNOWN) if unknown else _MARGIN * each for each in found]
