"""Run as a program: kernels with error bounds, held against random GPUs. Reads from standard input, as JSON, a list of
cases (those of `value_cases`) and one of habits (`random_gpu.Habits`), prints what came of each case.

That is what was raised with bounds, or: `off`, the largest share of a bound that a GPU is off by; `finite`, the share
of elements that have a bound; `moved`, the share of elements that some GPU has otherwise; `size`, the largest bound as
a part of the root mean square; `least` and `most`, bounds in last bits of float32; and `beyond`, elements of which a
GPU has another number than the bound allows.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from assay.kernels.inside.triton import interpreter
from support import random_gpu
from support.value_cases import BITS, Built

MOST = 1e300


def compared(case: dict[str, Any], gpus: list[dict[str, Any]]) -> Any:
    """What came of a case."""
    try:
        built = Built(case)
        out, limits = built.run(bounded=True)
    except Exception as error:  # noqa: BLE001  whatever it was is reported
        return f"{type(error).__name__}: {error}"
    plain, _ = built.run()
    if not torch.equal(*(each.view(BITS[out.itemsize]) for each in (out, plain))):
        return "other bits with bounds than without"
    values, allowed = out.to(torch.float64).numpy(), np.array(limits)
    moved, beyond, off = np.zeros(values.shape, bool), [], 0.0
    for habits in gpus:
        with random_gpu.acting(random_gpu.Habits(**habits)):
            found, _ = built.run(order=random.Random(habits["seed"]))
        other = found.to(torch.float64).numpy()
        same = (found.view(BITS[out.itemsize]) == out.view(BITS[out.itemsize])).numpy() | (
            np.isnan(other) & np.isnan(values)
        )
        with np.errstate(all="ignore"):
            apart = np.where(same | np.isinf(allowed), 0.0, np.abs(other - values))
            wrong = ~same & np.isfinite(allowed) & ~((apart <= allowed) & (allowed > 0))
            off = max(off, float(np.nan_to_num(np.where(allowed > 0, apart / allowed, 0.0), nan=MOST).max(initial=0.0)))
        moved |= ~same
        place = np.flatnonzero(wrong)[:1]
        beyond += [(habits, int(at), float(values[at]), float(other[at]), float(allowed[at])) for at in place]
    finite, inside = np.isfinite(values), np.isfinite(allowed)
    scale = float(np.sqrt(np.mean(values[finite] ** 2))) if finite.any() else 0.0
    size = float(allowed[inside].max(initial=0.0) / (scale or 1.0))
    steps = allowed / np.spacing(np.abs(values).astype(out.to(torch.float32).numpy().dtype)).astype(np.float64)
    return {
        "least": float(steps.min()),
        "most": float(min(steps.max(), MOST)),
        "off": off,
        "finite": float(inside.mean()),
        "moved": float(moved.mean()),
        "size": size,
        "beyond": beyond[:2],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    interpreter.install()
    random_gpu.install()
    given = json.load(sys.stdin)
    print(json.dumps([compared(case, given["gpus"]) for case in given["cases"]]))
