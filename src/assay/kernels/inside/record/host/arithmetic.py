"""How this process computes with fractions: as IEEE 754 has it, unless host code set another mode of its processor."""

from __future__ import annotations

from assay.kernels.inside.record.reads import NotRecordableError

_ONE, _LEAST, _HALF_A_BIT, _MORE = 1.0, 5e-324, 2.0**-53, 1.5 * 2.0**-53
"""In names, so that Python computes with them when it is asked."""


def check() -> None:
    """Raises NotRecordableError where denormal numbers are flushed to zero, or results rounded to another side."""
    nearest = _ONE + _HALF_A_BIT == _ONE < _ONE + _MORE
    if not (nearest and _LEAST * _ONE > 0.0):
        raise NotRecordableError(
            "host code changed how its processor computes (torch.set_flush_denormal, a rounding mode), and the replay "
            "computes as IEEE 754 has it: leave that as it is"
        )
