"""Sums, scans and products of matrices in an order of a GPU's own (`random_gpu`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.arithmetic import MeaningError

_MANTISSA = {"fp16": (10, -14), "bf16": (7, -126), "fp32": (23, -126), "fp64": (52, -1022)}
"""Bits of a mantissa behind the point, and the least exponent of normal numbers."""
_MOST = {"fp16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127, "fp32": (2 - 2.0**-23) * 2.0**127}
_TF32 = engine._ir.INPUT_PRECISION.TF32
_TF32X3 = engine._ir.INPUT_PRECISION.TF32x3


_OF_EIGHT_BITS = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def numbers(handle: Any) -> Any:
    """Values as float64."""
    kind = handle.dtype.scalar
    if kind == tl.bfloat16:
        return (handle.data.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if kind in _OF_EIGHT_BITS:
        return torch.from_numpy(handle.data.copy()).view(_OF_EIGHT_BITS[kind]).to(torch.float64).numpy()
    return handle.data.astype(np.float64)


def spacing(values: Any, dtype: Any) -> Any:
    """The distance of numbers of a type from those beside them that are larger."""
    bits, least = _MANTISSA[dtype.scalar.name]
    exponents = np.frexp(np.where(np.isfinite(values), values, 1.0))[1] - 1
    return np.ldexp(1.0, np.maximum(np.where(values == 0, least, exponents), least) - bits)


def nearest(values: Any, dtype: Any) -> Any:
    """The nearest numbers of a type, as float64, ties to even."""
    values = np.asarray(values).astype(np.float64)
    if dtype.scalar == tl.float64:
        return values
    with np.errstate(all="ignore"):
        step = spacing(values, dtype)
        found = np.where(np.isfinite(values), np.rint(values / step) * step, values)
    found = np.where(np.abs(found) > _MOST[dtype.scalar.name], np.copysign(np.inf, found), found)
    return np.copysign(found, values)


def cut(values: Any, bits: int) -> Any:
    """Numbers with so many bits of mantissa behind the point, the others cut off."""
    step = np.ldexp(1.0, np.frexp(values)[1] - 1 - bits)
    return np.trunc(values / step) * step


class Orders:
    """The orders of one GPU."""

    def __init__(
        self, seed: int, order: Literal["row", "tree", "any"], cuts: bool, give: Callable[[Any, Any], Any]
    ) -> None:
        self.chance = np.random.default_rng(seed)
        self.order, self.cuts, self.give = order, cuts, give

    def _in_tree(self) -> bool:
        return self.order == "tree" or (self.order == "any" and bool(self.chance.integers(2)))

    def reduced(self, operation: Any, values: Any, unrounded: Any) -> Any:
        """A sum, or what a function of the kernel's own makes, in another order; None where order plays no part."""
        kind = values[0].dtype.scalar
        own = isinstance(operation.combine_fn, engine.InterpretedFunction) or hasattr(operation.combine_fn, "fn")
        name = getattr(getattr(operation.combine_fn, "fn", None), "__module__", "")
        if operation.combine_fn is tl.standard._sum_combine:
            if not kind.is_floating() or "operands" in values[0].handle.attr:
                return None
            combine = adding(kind)
        elif own and name != "triton.language.standard":
            combine = _Own(operation.combine_fn.fn, [each.dtype.scalar for each in values], self.give)
        else:
            return None
        parts = [_axis_last(each.handle.data, operation.axis) for each in values]
        if combine.wide:
            parts = [_axis_last(numbers(values[0].handle), operation.axis)]
        order = self.chance.permutation(parts[0].shape[-1])
        parts = [part[..., order] for part in parts]
        exact = None if unrounded[0] is None else _axis_last(unrounded[0], operation.axis)[..., order]
        found = self._row(combine, parts, exact) if not self._in_tree() else _tree(combine, parts, exact)
        made = []
        for part, each in zip(found, values, strict=True):
            data = combine.narrow(part)
            shape = [1] * each.handle.data.ndim if operation.axis is None else list(each.handle.data.shape)
            if operation.axis is not None:
                shape[operation.axis] = 1
            data = data.reshape(shape)
            if not operation.keep_dims:
                data = data.reshape(-1)[0] if operation.axis is None else np.squeeze(data, operation.axis)
            made.append(operation.to_tensor(data, each.dtype))
        return made

    def _row(self, combine: Any, parts: Any, exact: Any) -> Any:
        found = [part[..., 0] for part in parts]
        for place in range(1, parts[0].shape[-1]):
            fused = None if exact is None or self.chance.integers(2) else exact[..., place]
            found = combine(found, [part[..., place] for part in parts], fused)
        return found

    def scanned(self, operation: Any, values: Any, unrounded: Any) -> Any:
        """A scan by way of a tree, or None."""
        kind, standard = values[0].dtype.scalar, operation.combine_fn in (tl.standard._sum_combine, _PRODUCT)
        if standard and not kind.is_floating():
            return None
        if standard:
            combine: Any = adding(kind) if operation.combine_fn is not _PRODUCT else multiplying(kind)
            parts = [np.moveaxis(numbers(values[0].handle), operation.axis, -1)]
        else:
            combine = _Own(operation.combine_fn.fn, [each.dtype.scalar for each in values], self.give)
            parts = [np.moveaxis(each.handle.data, operation.axis, -1) for each in values]
        exact = None if unrounded[0] is None else np.moveaxis(unrounded[0], operation.axis, -1)
        if operation.reverse:
            parts, exact = [np.flip(part, -1) for part in parts], None if exact is None else np.flip(exact, -1)
        found = _by_doubling(combine, parts, exact) if self._in_tree() else self._by_steps(combine, parts, exact)
        if operation.reverse:
            found = [np.flip(part, -1) for part in found]
        data = [np.moveaxis(combine.narrow(part), -1, operation.axis) for part in found]
        return [operation.to_tensor(each, value.dtype) for each, value in zip(data, values, strict=True)]

    def _by_steps(self, combine: Any, parts: Any, exact: Any) -> Any:
        """Groups in a row each, and then the groups."""
        length = parts[0].shape[-1]
        group = 1 << int(self.chance.integers(0, length.bit_length()))
        found = [part.copy() for part in parts]
        for place in range(1, length):
            if place % group:
                fused = None if exact is None or self.chance.integers(2) else exact[..., place]
                for whole, one in zip(found, combine(_at(found, place - 1), _at(parts, place), fused), strict=True):
                    whole[..., place] = one
        for start in range(group, length, group):
            before = [np.broadcast_to(part[..., start - 1 : start], part[..., :group].shape) for part in found]
            made = combine(before, [part[..., start : start + group] for part in found], None)
            for whole, one in zip(found, made, strict=True):
                whole[..., start : start + group] = one
        return found

    def product_of_matrices(self, a: Any, b: Any, d: Any, precision: Any) -> Any:
        """`tl.dot`, as float64 that are to be rounded to the type of `d`."""
        left, right, total = (numbers(side) for side in (a, b, d))
        kind = tl.float32 if d.dtype.scalar != tl.float64 else tl.float64
        of_cores = a.dtype.scalar not in (tl.float32, tl.float64) or precision in (_TF32, _TF32X3)
        if a.dtype.scalar == tl.float32 and precision == _TF32:
            left, right = (cut(side, 10) if self.cuts else _to_ten_bits(side) for side in (left, right))
        order = self.chance.permutation(left.shape[-1])
        left, right = left[..., order], right[..., order, :]
        at_once = int(self.chance.choice([4, 8])) if of_cores and self.order != "row" else 1
        for start in range(0, left.shape[-1], at_once):
            products = left[..., :, start : start + at_once, None] * right[..., None, start : start + at_once, :]
            if not of_cores:
                total = nearest(total + products.sum(-2), kind)
                continue
            largest = np.maximum(np.abs(products).max(-2), np.abs(total))
            step = np.where(largest == 0, 1.0, spacing(largest, kind))
            sums = np.trunc(products / step[..., None, :]).sum(-2) * step + np.trunc(total / step) * step
            total = nearest(sums, kind)
            if d.dtype.scalar == tl.float16:
                total = nearest(total, tl.float16)
        return total


def _to_ten_bits(values: Any) -> Any:
    step = np.ldexp(1.0, np.frexp(values)[1] - 1 - 10)
    return np.rint(values / step) * step


_PRODUCT = tl.standard._prod_combine


class _Operation:
    """Combines parts that are float64, each result rounded to a type."""

    wide = True

    def __init__(self, compute: Callable[[Any, Any], Any], kind: Any) -> None:
        self.compute, self.kind = compute, kind

    def __call__(self, left: Any, right: Any, fused: Any) -> Any:
        with np.errstate(all="ignore"):
            other = right[0] if fused is None else np.where(np.isnan(fused), right[0], fused)
            return [nearest(self.compute(left[0], other), self.kind)]

    def narrow(self, part: Any) -> Any:
        if self.kind != tl.bfloat16:
            return part.astype(engine._get_np_dtype(self.kind))
        return (part.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def adding(kind: Any) -> _Operation:
    """Sums."""
    return _Operation(np.add, kind)


def multiplying(kind: Any) -> _Operation:
    """Products."""
    return _Operation(np.multiply, kind)


class _Own:
    """Combines parts by a kernel's own function, in the builder of the GPU that acts."""

    wide = False

    def __init__(self, function: Callable[..., Any], kinds: Any, give: Callable[..., Any]) -> None:
        self.function, self.kinds, self.give = function, kinds, give

    def __call__(self, left: Any, right: Any, fused: Any) -> Any:
        try:
            return self._made([*left, *right], fused)
        except MeaningError:  # a branch, which takes one element after the other
            found = [np.empty_like(part) for part in left]
            for place in np.ndindex(left[0].shape):
                for whole, one in zip(found, self._made([p[place] for p in (*left, *right)], None), strict=True):
                    whole[place] = one.item()
            return found

    def _made(self, parts: Any, fused: Any) -> Any:
        operands = []
        for part, kind in zip(parts, self.kinds * 2, strict=True):
            shape = list(np.shape(part))
            handle = engine.TensorHandle(np.ascontiguousarray(part).reshape(shape or (1,)), kind)
            operands.append(tl.tensor(handle, tl.block_type(kind, shape) if shape else kind))
        if fused is not None:
            self.give(operands[len(self.kinds)].handle, fused)
        found = self.function(*operands)
        found = found if isinstance(found, tuple) else (found,)
        return [
            each.to(kind).handle.data.reshape(np.shape(parts[0])) for each, kind in zip(found, self.kinds, strict=True)
        ]

    def narrow(self, part: Any) -> Any:
        return part


def _at(parts: Any, place: int) -> Any:
    return [part[..., place] for part in parts]


def _axis_last(data: Any, axis: int | None) -> Any:
    return data.reshape(-1) if axis is None else np.moveaxis(data, axis, -1)


def _tree(combine: Any, parts: Any, exact: Any) -> Any:
    """Neighbours first."""
    while parts[0].shape[-1] > 1:
        halves = [[part[..., start::2] for part in parts] for start in (0, 1)]
        parts = combine(*halves, None if exact is None else exact[..., 1::2])
        exact = None
    return [part[..., 0] for part in parts]


def _by_doubling(combine: Any, parts: Any, exact: Any) -> Any:
    """As the lanes of a warp do: each with the one before, then with that of the pair before, and so on."""
    found, step = [part.copy() for part in parts], 1
    while step < found[0].shape[-1]:
        fused = exact if step == 1 else None
        made = combine([np.roll(part, step, -1) for part in found], found, fused)  # blocks have all lanes
        found = [np.concatenate([part[..., :step], one[..., step:]], -1) for part, one in zip(found, made, strict=True)]
        step *= 2
    return found
