"""Bits of NaN: a GPU's arithmetic has one, the compiler has another one of constants that it computes itself."""

from __future__ import annotations

from assay.kernels.inside.triton.ledger import current

_FACTOR = 0x9E3779B97F4A7C15


def folded() -> bool:
    """Whether the next NaN is one of the compiler's (0x7FC00000 as a float32) and not the GPU's (0x7FFFFFFF).

    The GPU's in calls that round to nearest, the compiler's in calls that move products, either in others: so not all
    of a call are alike there.
    """
    ledger = current()
    if not ledger.rounding or ledger.products:
        return ledger.products
    ledger.nans += 1
    return bool((ledger.rounding * _FACTOR ^ ledger.nans * _FACTOR) >> 29 & 1)
