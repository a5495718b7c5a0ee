"""How far a right answer may be from the exact one, and whether a given answer is that near.

An element may be off by `absolute + relative * |exact|`. Both come from the working precision; `absolute` also grows
with the size of the exact output (its root mean square), so that small outputs are not swallowed, and with the error
that the reference itself makes in that precision (its distance from float64), so that no one is asked for more than it
gives. Numbers that stand for what is masked (-1e9) have no part in that size: all else would be swallowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.kernels.arrays import Array, Exact, HostTensor

RELATIVE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Share of an element's size, and of the output's root mean square, by the precision that the candidate works in. For
float32 it is KernelBench's 1e-4: rounding operands to float16 or TF32 exceeds it on products, honest kernels do not."""
ENVELOPE_SLACK = 16.0
"""How many times the reference's own largest error is allowed: another order of summation is a few times as bad."""
LEAST_MASK, MASK_TIMES, MASK_SHARE, MASKS = 1000.0, 100.0, 0.01, 4
"""A number stands for what is masked where it is at least so large (those at which functions saturate are not), the
others are so many times smaller, and at least this share of the elements have it, or nearly. An output may have several
of these numbers."""
MAX_ENVELOPE_SHARE = 0.02
"""The envelope counts up to this share of the root mean square; a reference that is worse than that decides nothing."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed deviation of each element: `absolute + relative * |exact|`. Zero for both means exact equality."""

    absolute: float
    relative: float

    def allowed(self, exact: npt.NDArray[np.floating]) -> Exact:
        """Allowed deviation of each element, in the shape of `exact`."""
        return self.absolute + self.relative * np.abs(exact.astype(np.float64))

    def share_of(self, exact: Array) -> float:
        """It as a share of an element's size and of the root mean square of all: what is at most allowed."""
        scale = scale_of(as_reals(exact).astype(np.float64))
        return max(self.relative, self.absolute / scale if scale else 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an answer compares. `worst` is the largest deviation over what is allowed (at most 1 when `ok`)."""

    ok: bool
    worst: float
    mismatches: int
    size: int
    message: str = ""
    """What is wrong with the first wrong element, or with the shape; empty when `ok`."""


def compare_bytes(dtype: str, shape: tuple[int, ...], data: bytes, exact: Array, tolerance: Tolerance) -> Comparison:
    """The same of an answer as a stranger's bytes, of which those of truth values may be any.

    Raises:
        ValueError: they are no tensor of that form.
    """
    answer = HostTensor(dtype, shape, data)
    if dtype == "bool" and (odd := int((np.frombuffer(data, np.uint8) > 1).sum())):
        said = f"{odd} truth values have a byte that is neither 0 nor 1, which operators take for either"
        return Comparison(False, math.inf, odd, len(data), said)
    return compare(answer.array(), exact, tolerance)


def rms(values: npt.NDArray[np.floating]) -> float:
    """Root mean square of the finite elements; 0 for none."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return 0.0
    largest = float(np.abs(finite).max())
    return largest * float(np.sqrt(np.mean((finite / largest) ** 2))) if largest else 0.0


def scale_of(values: npt.NDArray[np.floating]) -> float:
    """The root mean square of the finite elements that are computed, and do not stand for what is masked."""
    return rms(values[computed(values)])


def computed(values: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Which elements are finite and do not stand for what is masked: for that the largest number is taken where many
    have it and the others are far smaller (`MASK_TIMES`)."""
    sizes = np.abs(values.astype(np.float64))
    kept = np.isfinite(sizes)
    for _ in range(MASKS):
        left = sizes[kept]
        largest = left.max(initial=0.0)
        rest = kept & (sizes < largest * (1 - _NEARLY_ALIKE))
        many = max(2.0, MASK_SHARE * sizes.size)
        few = largest < LEAST_MASK or np.count_nonzero(rest) > left.size - many
        if few or not 0 < rms(sizes[rest]) * MASK_TIMES < rms(left):
            break
        kept = rest
    return kept


_NEARLY_ALIKE = 0.01
"""Scores may have been added to a mask."""


def tolerance_for(exact: Array, rounded: Array, precision: str) -> Tolerance:
    """The tolerance of one output.

    Args:
        exact: The reference's output in float64 (or its integers).
        rounded: The reference's output computed in `precision`, in the same shape.
        precision: Working precision of the candidate: a float dtype's name.

    Raises:
        ValueError: unknown precision, or two shapes.
    """
    if precision not in RELATIVE:
        raise ValueError(f"precision {precision!r} is not one of {sorted(RELATIVE)}")
    if exact.shape != rounded.shape:
        raise ValueError(f"exact output {exact.shape} and rounded output {rounded.shape} differ in shape")
    exact, rounded = as_reals(exact), as_reals(rounded)
    if not np.issubdtype(exact.dtype, np.floating):
        return Tolerance(0.0, 0.0)
    truth = exact.astype(np.float64)
    both = computed(truth) & np.isfinite(rounded.astype(np.float64))
    envelope = float(np.abs(truth[both] - rounded[both].astype(np.float64)).max(initial=0.0))
    scale = scale_of(truth)
    relative = RELATIVE[precision]
    absolute = max(relative * scale, min(ENVELOPE_SLACK * envelope, MAX_ENVELOPE_SHARE * scale))
    return Tolerance(absolute, relative)


def compare(answer: Array, exact: Array, tolerance: Tolerance) -> Comparison:
    """Whether an answer is near enough to the exact output, element by element.

    NaN is right only where the exact output is NaN, an infinity only where it is the same infinity. Integers and
    booleans must be equal.
    """
    if answer.shape != exact.shape:
        return Comparison(False, np.inf, exact.size, exact.size, f"shape {answer.shape} instead of {exact.shape}")
    if not exact.size:
        return Comparison(True, 0.0, 0, 0)
    answer, exact = as_reals(answer), as_reals(exact)
    if not np.issubdtype(exact.dtype, np.floating):
        wrong = answer != exact
        return _verdict(wrong, np.where(wrong, np.inf, 0.0), answer, exact)
    with np.errstate(invalid="ignore", divide="ignore"):  # "invalid" is also the cast of a signalling NaN
        truth, given = exact.astype(np.float64), answer.astype(np.float64)
        finite = np.isfinite(truth) & np.isfinite(given)
        deviation = np.abs(given - truth)
        allowed = tolerance.allowed(truth)
        ratio = np.where(deviation == 0, 0.0, deviation / allowed)
    same = (truth == given) | (np.isnan(truth) & np.isnan(given))
    ratio = np.where(finite, ratio, np.where(same, 0.0, np.inf))
    return _verdict(ratio > 1.0, ratio, answer, exact)


def as_reals(values: Array) -> Array:
    """Complex numbers as pairs of floats, along a new last axis; anything else as it is."""
    if not np.issubdtype(values.dtype, np.complexfloating):
        return values
    return np.stack((values.real, values.imag), axis=-1)


def _verdict(wrong: npt.NDArray[np.bool_], ratio: Exact, answer: Array, exact: Array) -> Comparison:
    mismatches = int(np.count_nonzero(wrong))
    worst = float(ratio.max())
    if not mismatches:
        return Comparison(True, worst, 0, exact.size)
    place = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    are = "is" if mismatches == 1 else "are"
    message = (
        f"{mismatches} of {exact.size} elements {are} wrong; the first is [{', '.join(map(str, place))}]: "
        f"{answer[place]} instead of {exact[place]}"
    )
    return Comparison(False, worst, mismatches, exact.size, message)


def constant_passes(exact: Array, tolerance: Tolerance, share: float = 0.99) -> bool:
    """Whether one number, everywhere, is near enough for at least `share` of the elements: the signal is swallowed."""
    values = as_reals(exact).astype(np.float64).ravel()
    if not values.size:
        return True
    if not np.isfinite(values).all():
        return False
    guesses = (0.0, float(np.median(values)), float(np.mean(values)))
    allowed = tolerance.allowed(values)
    return any(float(np.mean(np.abs(values - guess) <= allowed)) >= share for guess in guesses)
