"""Error bounds of mixtures of two numbers, `a + (b - a) * t`: the error of `a` counts once, and not once in the
difference and once more beside it. Means of means are made so, over and over (`tl.reduce` with Welford's function).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from assay.kernels.inside.triton.error_bounds.bounds import TWINS, bound, or_zero, wide

_OF, _PART = "difference of", "a part of a difference"
"""Attributes: `_Difference`; the same beside the factor and its bound."""


class _Difference(NamedTuple):
    """The data of both sides and their bounds, and the bound of what is between them before it is rounded."""

    minuend: Any
    subtrahend: Any
    left: Any
    right: Any
    limits: Any


def note_difference(found: Any, lhs: Any, rhs: Any, limits: Any) -> None:
    """Keep what a difference was made of. `limits`: its bound, without that of its rounding."""
    if TWINS not in lhs.attr and TWINS not in rhs.attr:
        found.attr[_OF] = _Difference(lhs.data, rhs.data, or_zero(bound(lhs)), or_zero(bound(rhs)), limits)


def note_part(found: Any, lhs: Any, rhs: Any) -> None:
    """Keep of a product with a difference what that was made of."""
    for side, factor in ((lhs, rhs), (rhs, lhs)):
        if _OF in side.attr:
            found.attr[_PART] = side.attr[_OF], wide(factor), or_zero(bound(factor))


def of_mixture(limits: Any, lhs: Any, rhs: Any, sign: float) -> Any:
    """The bound of a sum, or of a difference, less where it is a mixture: of `a` beside `(b - a) * t` the error of `a`
    comes through `1 - t` times and that of `b` `t` times, and of `b` less `(b - a) * t` the other way round."""
    for base, part in ((lhs, rhs), (rhs, lhs)) if sign > 0 else ((lhs, rhs),):
        if _PART not in part.attr or TWINS in base.attr:
            continue
        between, factor, doubt = part.attr[_PART]
        if base.data is not (between.subtrahend if sign > 0 else between.minuend):
            continue
        mine, other = (between.right, between.left) if sign > 0 else (between.left, between.right)
        with np.errstate(invalid="ignore"):
            own = np.maximum(or_zero(bound(part)) - between.limits * np.abs(factor), 0.0) + doubt * (mine + other)
            mixed = mine * np.abs(1.0 - factor) + other * np.abs(factor) + own
        limits = np.where(np.isfinite(mixed), np.minimum(limits, mixed), limits)
    return limits
