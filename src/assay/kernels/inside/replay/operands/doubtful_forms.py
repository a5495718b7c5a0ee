"""Where PyTorch's functions may have anything on a GPU, since it takes other steps than a processor: it multiplies by
the inverse of a number instead of dividing by it, or makes a power of products, and a step in between may overflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

Ends = Callable[[str], tuple[Any, Any]]
"""Values and bounds of an argument by its name."""
_LOGARITHMS = frozenset({"log", "log2", "log10"})
_QUOTIENTS = frozenset({"div", "true_divide", "floor_divide"})
_WITH_FACTOR = frozenset({"addcmul", "addcdiv"})
"""Those that multiply by a `value` before or after they multiply or divide."""


def doubtful(
    name: str, given: Mapping[str, Any], ends: Ends, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> list[Any]:
    """Which elements of results may be anything, of operators that are not exact.

    Args:
        name: The operator's, without the underscore of one that works in place.
        given: Its arguments by name.
        ends: Values and bounds of one.
        operands: Its tensors.
        results: What a processor makes of them.
    """
    return [_of_result(name, given, ends, operands, each) for each in results]


def _of_result(
    name: str, given: Mapping[str, Any], ends: Ends, operands: Sequence[torch.Tensor], result: torch.Tensor
) -> Any:
    everything = np.ones(tuple(result.shape), np.bool_)
    if (name in _WITH_FACTOR and given.get("value", 1) != 1) or (name == "round" and given.get("decimals", 0)):
        return everything
    if name == "pow":
        return np.broadcast_to(~_settled_powers(given, ends, result), everything.shape)
    if not result.dtype.is_floating_point:
        return ~everything
    found = _endless_of_finite(name, operands, result)
    return found | _by_inverse(ends, result) if name in _QUOTIENTS else found


def _endless_of_finite(name: str, operands: Sequence[torch.Tensor], result: torch.Tensor) -> Any:
    """Infinities, and what is no number, of finite operands: some machine may have a number there."""
    found = ~torch.isfinite(result)
    if not bool(found.any()):
        return found.numpy()
    shape = result.shape
    for operand in operands:
        finite = torch.isfinite(operand)
        fits = _fits(operand.shape, shape)
        found = found & (finite if fits else finite.all())
        if name in _LOGARITHMS and fits:
            found = found & (operand != 0)
    return found.numpy()


def _fits(given: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a shape is broadcast to another one."""
    sides = zip(reversed(given), reversed(shape), strict=False)
    return len(given) <= len(shape) and all(one in (1, other) for one, other in sides)


def _by_inverse(ends: Ends, result: torch.Tensor) -> bool:
    """Whether a GPU divides by multiplying by an inverse, one for all elements, that is less exact than the number."""
    divisor = ends("other")[0]
    if np.ndim(divisor):
        return False
    kind = torch.finfo(torch.float64 if result.dtype == torch.float64 else torch.float32)
    size = abs(float(divisor))
    return 0.0 < size < kind.tiny or 1.0 / kind.tiny < size < np.inf


def _settled_powers(given: Mapping[str, Any], ends: Ends, result: torch.Tensor) -> Any:
    """Squares, powers of whole numbers by a number of Python's that is not negative, and what is far from all limits:
    normal numbers of normal ones above 0."""
    power = given.get("exponent")
    if not result.dtype.is_floating_point:
        return np.bool_(isinstance(power, int) and power >= 0)
    if isinstance(power, int | float) and power == 2:
        return np.bool_(True)
    base, kind = ends("self")[0], torch.finfo(result.dtype)
    values = result.to(torch.float64).numpy()
    return (base >= kind.tiny) & np.isfinite(base) & (values >= kind.tiny) & np.isfinite(values)
