"""Whether a kernel that is left out has changed the outputs, where not even whole calls need give the same bytes twice.

On a GPU atomic operations add in another order each time, so a kernel has mattered only if the outputs moved by more
than what two whole calls on the same inputs differ by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from assay.kernels.arrays import Array, HostTensor
from assay.kernels.numerics.held_inputs import compare_left, forms_of
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.tolerance import compare
from assay.kernels.program.jobs import NO_KERNEL, Replay

NOISES = 8.0
"""How many times what two whole calls differ by a left-out kernel has to move the output, where they differ at all."""

Outputs = Mapping[int, tuple[bytes, ...]]
"""Number of a call -> the bytes of its outputs, and of the inputs that the reference changes in its case."""


def changed_beyond_noise(calls: Sequence[Replay], outputs: Outputs, draw: InputSet, precision: str) -> dict[int, bool]:
    """Kernel -> whether the output was another one without it: no longer right, or further from that of a whole call
    on the same inputs than `NOISES` times what two whole calls differ by.

    A whole call that has no second on the same inputs counts as without noise.
    """
    found = {}
    for place, call in enumerate(calls):
        if call.skip == NO_KERNEL:
            continue
        whole = [
            outputs[other]
            for other, alike in enumerate(calls)
            if alike.case is call.case and alike.skip == NO_KERNEL and not alike.weights
        ]
        wrong = _is_wrong(call, outputs[place], draw, precision)
        found[call.skip] = wrong or _moved(call, outputs[place], whole, draw)
    return found


def _is_wrong(call: Replay, outputs: Sequence[bytes], draw: InputSet, precision: str) -> bool:
    case, made, held = call.case, outputs[: len(draw.outputs)], outputs[len(draw.outputs) :]
    answers = zip(draw.outputs, made, case.exact, case.tolerances(precision), strict=True)
    if any(not compare(HostTensor(*form, data).array(), exact, allowed).ok for form, data, exact, allowed in answers):
        return True
    return not compare_left(forms_of([case.after]), case.after, case.inputs, held, precision).ok


def _moved(call: Replay, without: Sequence[bytes], whole: Sequence[tuple[bytes, ...]], draw: InputSet) -> bool:
    first, *others = whole
    for place, (dtype, shape) in enumerate((*draw.outputs, *(left.form[1:] for left in call.case.after))):
        here, there = (HostTensor(dtype, shape, data[place]).array() for data in (without, first))
        noise = max((_distance(HostTensor(dtype, shape, other[place]).array(), there) for other in others), default=0.0)
        if _distance(here, there) > NOISES * noise:
            return True
    return False


def _distance(one: Array, other: Array) -> float:
    """The largest difference of an element; infinite where one of two is not a number."""
    if not one.size:
        return 0.0
    with np.errstate(all="ignore"):
        wide = np.complex128 if np.iscomplexobj(one) else np.float64
        apart = np.abs(one.astype(wide) - other.astype(wide))
    apart[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max())
