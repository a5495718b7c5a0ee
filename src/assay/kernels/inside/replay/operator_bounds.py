"""Error bounds of what PyTorch's operators compute, by a rule for each: an operator without one leaves anything.

    after(Call("sin", [x], [limits], compute, ends, last_bits=4.0, seed=7))  # -> the bounds of each of its results

Most are monotone in each operand, or linear, so that no operand within its bound moves a result further than one at the
end of it does. `compute` gives the results of other operands; of sizes (`sizes=True`) in float64, all factors positive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from assay.kernels.inside.triton.error_bounds.bounds import unlike
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN

_TRIALS, _SIDES = 3, 3
MARGIN = 2.0
"""Times what operands at their ends move a result by: it may move further between them."""
_STEEP = 0.1
"""Bounds of angles from which on a tangent may be anything."""

PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "outer", "convolution"})
MEANS = frozenset({"mean", "avg_pool2d", "_adaptive_avg_pool2d"})
MULTIPLIED = frozenset({"prod", "cumprod"})
SUMS = PRODUCTS | MEANS | MULTIPLIED | {"sum", "cumsum"}
"""Sums and products of many numbers: sizes and bounds go through them as numbers do."""
_CAST_FIRST = frozenset({"sum", "mean", "prod", "cumsum", "cumprod"})
"""Those that can be asked for a type: GPUs cast each number to it first, where a processor may cast the result."""
_IN_OWN_TYPE = frozenset({"cumsum", "cumprod", "prod"})
"""Those that GPUs add up in the type of the operand, where the others have at least float32."""
_COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor"})
_CHOOSES = frozenset({"where", "masked_fill", "embedding", "gather", "index_select", "index"})
_MONOTONE = frozenset(
    {
        *("add", "sub", "rsub", "mul", "neg", "abs", "square", "div", "true_divide", "floor_divide", "reciprocal"),
        *("remainder", "fmod", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "tan"),
        *("tanh", "atan", "sinh", "cosh", "erf", "erfinv", "sigmoid", "relu", "floor", "ceil", "round", "trunc"),
        *("clamp", "clamp_min", "clamp_max", "minimum", "maximum", "sign", "lerp", "addcmul", "addcdiv", "isnan"),
        *("isinf", "softplus", "hardtanh", "leaky_relu", "elu", "celu", "hardsigmoid", "bitwise_and", "bitwise_or"),
        *("bitwise_not", "__and__", "__or__", "__xor__", *_COMPARED),
    }
)
"""Pointwise operators whose results between the ends of operands are between those of the ends and of 0, but for what
`_anything` tells."""
_PLACES = frozenset({"max", "min", "argmax", "argmin", "max_pool2d_with_indices"})
"""Those that tell where they found what: of inexact numbers that may be anywhere."""
_REDUCED = _PLACES | {"amax", "amin", "logsumexp"}
_SMOOTH = frozenset(
    {
        "native_layer_norm",
        "native_group_norm",
        "var",
        "var_mean",
        "std",
        "_softmax",
        "_log_softmax",
        "linalg_vector_norm",
    }
)
"""Norms, whose operands are also moved at random."""
_SLOPES = {"sin": (1.0, 2.0), "cos": (1.0, 2.0), **dict.fromkeys(("silu", "gelu", "mish", "hardswish"), (1.5, UNKNOWN))}
"""How far results move for each operand's at most, and in all."""
_SORTED = frozenset({"sort", "topk"})


class Compute(Protocol):
    """An operator with all its arguments but the tensors that it reads."""

    def __call__(
        self, operands: Sequence[torch.Tensor], *, sizes: bool = False, factors: bool = True
    ) -> list[torch.Tensor]:
        """Its results. `sizes`: without signs, in float64; `factors`: with the factors of sums of products."""
        ...


class Call(NamedTuple):
    """An operator that is run."""

    name: str
    operands: Sequence[torch.Tensor]
    limits: Sequence[Any]
    """The bound of each operand; None of exact ones."""
    compute: Compute
    ends: Callable[[str], tuple[Any, Any]]
    """Values and bounds of an argument, a tensor or a number, by its name."""
    last_bits: float
    """By how many last bits machines differ in it."""
    seed: int


def after(call: Call) -> list[Any]:
    """Bounds of the results."""
    with np.errstate(all="ignore"):
        if call.name in SUMS:
            return [_summed(call)]
        if call.name in _SORTED:
            return _sorted(call)
        if not call.last_bits:
            return _through(call)
        if call.name in ("sin", "cos"):
            found, given = _through(call), call.limits
        else:  # other last bits of operands show what is lost in a step in between
            call = call._replace(operands=_as_fractions(call))
            own = [_last_bits(operand, call.last_bits) for operand in call.operands]
            given = [
                limit if not each.any() else np.maximum(each, 0.0 if limit is None else limit)
                for each, limit in zip(own, call.limits, strict=True)
            ]
            found = _through(call._replace(limits=given))
        off = [_last_bits(result, call.last_bits) for result in call.compute(call.operands)]
        return [limit + each for limit, each in zip(found, off, strict=True)]


def _as_fractions(call: Call) -> Sequence[torch.Tensor]:
    """The operands, whole numbers of an operator that computes with fractions as such."""
    whole = [not (each.is_floating_point() or each.is_complex() or each.dtype == torch.bool) for each in call.operands]
    if call.name not in _MONOTONE or not any(whole):
        return call.operands
    found = next((each.dtype for each in call.compute(call.operands) if each.dtype.is_floating_point), None)
    return [each.to(found) if one and found else each for each, one in zip(call.operands, whole, strict=True)]


def cast(limits: Any, values: torch.Tensor, dtype: torch.dtype) -> Any:
    """Bounds of elements that are moved into another type: what is at either end of them may be rounded to another
    number, and whole numbers may be any then. Fractions that a whole type does not hold are as the machine has it."""
    given = np.zeros(tuple(values.shape)) if limits is None else limits
    if values.dtype == dtype:
        return limits
    if dtype.is_complex or (values.is_complex() and dtype.is_floating_point):
        return np.where(given > 0, UNKNOWN, 0.0)
    values = values.real if values.is_complex() else values
    wide = values.to(torch.float64).numpy()
    if dtype == torch.bool:
        return np.where((given > 0) & (np.abs(wide) <= given), UNKNOWN, 0.0)
    if not dtype.is_floating_point:
        found = np.where(given > 0, UNKNOWN, 0.0)
        if not values.dtype.is_floating_point:
            return found
        kind, cut = torch.iinfo(dtype), np.trunc(wide)
        held = (cut >= float(kind.min)) & (cut < float(kind.max + 1))
        return np.where(held, found, UNKNOWN)
    sides = [np.asarray(wide + side * given) for side in (0.0, -1.0, 1.0)]
    ends = [torch.from_numpy(each).to(dtype).to(torch.float64).numpy() for each in sides]
    if np.isinf(given).any():
        ends[0] = values.to(dtype).to(torch.float64).numpy()
    plain, low, high = ends
    found = np.maximum(unlike(plain, low, least_of(dtype)), unlike(plain, high, least_of(dtype)))
    return np.where(given > 0, np.where(np.isfinite(found), found, UNKNOWN), 0.0)


def least_of(dtype: torch.dtype) -> float:
    """The least number above 0; 1 of whole numbers."""
    if not dtype.is_floating_point:
        return 1.0
    kind = torch.finfo(dtype)
    return max(kind.tiny * kind.eps, 5e-324)


def _last_bits(values: torch.Tensor, count: float) -> Any:
    """So many last bits of each fraction, and 0 for whole types."""
    if not values.dtype.is_floating_point:
        return np.zeros(tuple(values.shape))
    size = values.abs().to(torch.float64).numpy()
    own = np.maximum(torch.finfo(values.dtype).eps * size, least_of(values.dtype))
    return np.where(np.isfinite(size) & (size > 0), count * own, 0.0)


def _wide(values: torch.Tensor) -> Any:
    return values.to(torch.float64).numpy()


def _through(call: Call) -> list[Any]:
    """How far inexact operands move results."""
    plain = call.compute(call.operands)
    if all(limit is None or not limit.any() for limit in call.limits):
        return [np.zeros(tuple(each.shape)) for each in plain]
    if call.name in _SLOPES:
        slope, most = _SLOPES[call.name]
        limit = call.limits[0]
        return [np.where(limit == UNKNOWN, UNKNOWN, np.minimum(slope * limit, most))]
    if call.name not in _MONOTONE | _CHOOSES | _REDUCED | _SMOOTH:
        return [np.full(tuple(each.shape), UNKNOWN) for each in plain]
    found = _at_ends(call, plain)
    shape = tuple(plain[0].shape)
    for operand, limit in zip(call.operands, call.limits, strict=True):
        if limit is None or not limit.any():
            continue
        if not operand.dtype.is_floating_point and (operand.dtype != torch.bool or call.name in _REDUCED | _SMOOTH):
            lost = limit > 0  # whole numbers may be any
        else:
            lost = (limit == UNKNOWN) & (operand.dtype != torch.bool)
            if call.name in _CHOOSES:
                continue
        pointwise = call.name in _MONOTONE or call.name in ("where", "masked_fill")
        lost = np.broadcast_to(lost, shape) if pointwise else lost.any()
        found = [np.where(lost, UNKNOWN, each) for each in found]
    return [np.where(_anything(call), UNKNOWN, found[0]), *found[1:]]


def _at_ends(call: Call, plain: Sequence[torch.Tensor]) -> list[Any]:
    """How far results are moved by operands at their ends, and at 0 where that is within; in norms also by some of
    their elements up and others down."""
    chance = np.random.default_rng(call.seed)
    inexact = [place for place, limit in enumerate(call.limits) if limit is not None and limit.any()]
    zeros = any(
        bool(((np.abs(_wide(call.operands[p])) <= call.limits[p]) & (call.limits[p] > 0)).any()) for p in inexact
    )
    ways = (-1.0, 1.0, 0.0) if zeros and call.name in _MONOTONE else (-1.0, 1.0)
    sides = [
        dict(zip(inexact, each, strict=False)) for each in itertools.product(ways, repeat=min(len(inexact), _SIDES))
    ]
    if call.name in _SMOOTH:
        sides += [{}] * _TRIALS
    found = [np.zeros(tuple(each.shape)) for each in plain]
    for side in sides:
        others = []
        for place, (operand, limit) in enumerate(zip(call.operands, call.limits, strict=True)):
            if place not in inexact:
                others.append(operand)
                continue
            signs = side.get(place, chance.choice((-1.0, 1.0), limit.shape))
            others.append(_moved(operand, limit, signs))
        for place, (each, right) in enumerate(zip(call.compute(others), plain, strict=True)):
            least = least_of(right.dtype)
            found[place] = np.maximum(found[place], unlike(_wide(right), _wide(each), least))
    if call.name in _PLACES:
        pairs = zip(found, plain, strict=True)
        found = [each if right.dtype.is_floating_point else np.full(each.shape, UNKNOWN) for each, right in pairs]
    return [MARGIN * each for each in found]


def _moved(operand: torch.Tensor, limit: Any, signs: Any) -> torch.Tensor:
    """An operand at one end of its bound; `signs` of 0: at 0, where that is within. A truth value may be the other."""
    if operand.dtype == torch.bool:
        return operand ^ torch.from_numpy(np.broadcast_to((limit > 0) & (np.asarray(signs) > 0), limit.shape).copy())
    if not operand.dtype.is_floating_point:
        return operand
    wide = _wide(operand)
    if np.ndim(signs) == 0 and signs == 0.0:
        other = np.where((limit > 0) & (np.abs(wide) <= limit), 0.0, wide)
    else:
        other = wide + np.where(limit == 0, 0.0, signs * limit)
    return torch.from_numpy(np.ascontiguousarray(other).reshape(other.shape)).to(operand.dtype)


def _anything(call: Call) -> Any:
    """Where a result may be anything: next to poles, over a period, and where equals may lie between the ends."""
    name = call.name
    if name in ("div", "true_divide", "floor_divide", "reciprocal", "addcdiv", "rsqrt"):
        by = {"reciprocal": "self", "rsqrt": "self", "addcdiv": "tensor2"}.get(name, "other")
        values, limits = call.ends(by)
        return (limits > 0) & (np.abs(values) <= limits)
    if name in ("remainder", "fmod"):
        (_, limits), (by, limits_by) = call.ends("self"), call.ends("other")
        return (limits_by > 0) | ((limits > 0) & (2.0 * limits >= np.abs(by)))
    if name == "tan":
        values, limits = call.ends("self")
        poles = np.cos(values - limits) * np.cos(values + limits) <= 0
        return (limits > 0) & ((limits > _STEEP) | poles)
    if name == "pow":
        (values, limits), (power, limits_power) = call.ends("self"), call.ends("exponent")
        near = np.abs(values) <= limits
        return ((limits_power > 0) & (values - limits <= 0)) | ((limits > 0) & near & (power < 0))
    if name in ("eq", "ne"):
        (one, limits), (other, limits_other) = call.ends("self"), call.ends("other")
        off = limits + limits_other
        return (off > 0) & (np.abs(one - other) <= off)
    return False


def _summed(call: Call) -> Any:
    """Bounds of sums of many numbers, and of products of them: what comes through of those of the operands, and the
    roundings of any order: as many as there are sums."""
    (plain,) = call.compute(call.operands)
    if call.name in _CAST_FIRST:
        pairs = zip(call.operands, call.limits, strict=True)
        call = call._replace(limits=[_cast_first(operand, limit, plain.dtype) for operand, limit in pairs])
    sizes = [operand.to(torch.float64).abs() for operand in call.operands]
    given = [torch.zeros(()) if limit is None else torch.from_numpy(limit.copy()) for limit in call.limits]
    (least,), (most,) = (
        (_wide(part) for part in call.compute(each, sizes=True))
        for each in (sizes, [size + limit for size, limit in zip(sizes, given, strict=True)])
    )
    inexact = any(limit is not None for limit in call.limits)
    fractions = [operand for operand in call.operands if operand.dtype.is_floating_point]
    if not plain.dtype.is_floating_point:
        return np.full(tuple(plain.shape), UNKNOWN if inexact else 0.0)
    through = np.where(np.isfinite(most), most - least, np.inf) if inexact else np.zeros(tuple(plain.shape))
    own = torch.finfo(plain.dtype)
    kind = own if call.name in _IN_OWN_TYPE or own.eps < torch.finfo(torch.float32).eps else torch.finfo(torch.float32)
    count = _added(call, plain)
    whole = all(bool((torch.round(each) == each).all()) for each in fractions) and call.name not in MEANS
    roundings = np.where(whole & (most <= 2.0 / kind.eps), 0.0, count) * kind.eps
    found = through + roundings * most
    if own.eps > kind.eps:
        found = np.where(found > 0, found + call.last_bits / 4.0 * own.eps * (np.abs(_wide(plain)) + found), 0.0)
    beyond = (_together(call, plain) * most > kind.max) | (np.abs(_wide(plain)) + found > own.max)
    if call.name in MULTIPLIED | PRODUCTS:  # each product may be denormal
        found = np.where(found > 0, found + (count + 1.0) * least_of(plain.dtype), 0.0)
    if call.name in MULTIPLIED:  # in another order parts of it may be too large, or too small
        over, under = (
            _wide(call.compute([limit(size, torch.ones(()).double()) for size in sizes], sizes=True)[0])
            for limit in (torch.maximum, torch.minimum)
        )
        beyond |= (over > kind.max) | ((under < kind.tiny) & (under > 0) & ~(under == least))
    settled = ~np.isfinite(_wide(plain)) & ~np.isfinite(least) & (through == 0) & (not inexact)
    return np.where(settled, 0.0, np.where(beyond | np.isnan(found), UNKNOWN, found))


def _cast_first(operand: torch.Tensor, limit: Any, dtype: torch.dtype) -> Any:
    """The bound of an operand that some machine casts to the type of the result before it adds up: by as much more as
    the cast changes it. What a whole type does not hold may be anything there; whole numbers wrap as their sum does."""
    if operand.dtype == dtype or not (operand.dtype.is_floating_point or dtype.is_floating_point):
        return limit
    there = operand.to(dtype)
    same = (there.to(operand.dtype) == operand) | (torch.isnan(operand) & dtype.is_floating_point)
    off = np.abs(_wide(there) - _wide(operand)) if dtype.is_floating_point else UNKNOWN
    off = np.where(same, 0.0, np.where(np.isnan(off), UNKNOWN, off))
    if limit is None:
        return off if off.any() else None
    return np.maximum(limit, cast(limit, operand, dtype)) + off


def _together(call: Call, plain: torch.Tensor) -> float:
    """How many times a result the sum is that it is made of: a mean is divided once all is added up."""
    taken = call.operands[0]
    if call.name == "mean":
        return taken.numel() / max(plain.numel(), 1)
    return float(math.prod(taken.shape[-2:])) if call.name in MEANS else 1.0


def _added(call: Call, plain: torch.Tensor) -> Any:
    """How many roundings each result has: of the numbers that are added up or multiplied, all but one."""
    taken = call.operands[0]
    if call.name in MEANS:
        return float(max(taken.numel() / max(plain.numel(), 1), 16.0 if call.name == "avg_pool2d" else 1.0))
    if call.name == "prod":
        return taken.numel() / max(plain.numel(), 1) - 1.0
    if call.name == "cumprod":
        return float(max(taken.shape, default=1))
    ones = [torch.ones(operand.shape, dtype=torch.float64) for operand in call.operands]
    (found,) = call.compute(ones, sizes=True, factors=False)
    return np.maximum(_wide(found) - 1.0, 1.0 if call.name in PRODUCTS else 0.0)


def _sorted(call: Call) -> list[Any]:
    """Bounds of sorted numbers: as far as any of them is off. Places are anything where two are as near as that, equals
    too unless it is a stable sort; so is all of what `topk` does not sort."""
    values, places = call.compute(call.operands)
    (taken,), limit = call.operands, call.limits[0]
    most = 0.0 if limit is None else float(limit.max(initial=0.0))
    decided = torch.ones((), dtype=torch.bool)
    if call.ends("sorted")[0] == 0:
        return [np.full(tuple(each.shape), UNKNOWN) for each in (values, places)]
    if taken.dim() and (most or call.ends("stable")[0] != 1):
        axis = int(call.ends("dim")[0])
        ordered = taken.to(torch.float64).sort(dim=axis, descending=True).values
        decided = ((ordered.diff(dim=axis)).abs() > 2.0 * most).all(dim=axis, keepdim=True)
    lost = np.broadcast_to(~decided.numpy(), tuple(places.shape))
    return [np.full(tuple(values.shape), most), np.where(lost, UNKNOWN, 0.0)]
