"""Sums of products of two broadcasts, of which Triton's compiler makes products of matrices with TF32 operands.

    tl.sum(a[:, :, None] * b[None, :, :], 1)           a: [M, K], b: [K, N] of float32, M and N of at least 16

It looks for these very steps in this order, whatever the axis is that they are summed over. It does not find them where
the operands change sides, where `tl.reshape` adds the axes, or where something stands between two of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds.bounds import JOINS, bound, or_zero

_LEAST, _SEED = 16, 5
_AXIS, _OPERANDS = "axis added", "operands"
"""Attributes: of a matrix with another axis, which one it is, and the matrix; of a product, the matrices."""
AS_MATRICES = "error bound as a product of matrices"
"""Attribute of such a sum."""


def install(builder: Any) -> None:
    """Put it into the interpreter and its builder (`InterpreterBuilder`), around what multiplies and sums."""
    expand, broadcast, multiply = builder.create_expand_dims, builder.create_broadcast, builder.create_fmul

    def create_expand_dims(self: Any, arg: Any, axis: int) -> Any:
        found = expand(self, arg, axis)
        if arg.data.ndim == 2 and axis != 1:
            found.attr[_AXIS] = axis, arg
        return found

    def create_broadcast(self: Any, arg: Any, shape: Any) -> Any:
        found = broadcast(self, arg, shape)
        if _AXIS in arg.attr:
            found.attr[_AXIS] = arg.attr[_AXIS]
        return found

    def create_fmul(self: Any, lhs: Any, rhs: Any) -> Any:
        found = multiply(self, lhs, rhs)
        if _AXIS in lhs.attr and _AXIS in rhs.attr:
            (left, a), (right, b) = lhs.attr[_AXIS], rhs.attr[_AXIS]
            wide = min(found.data.shape[0], found.data.shape[-1]) >= _LEAST and found.data.dtype == np.float32
            if (left, right) == (2, 0) and wide and a.data.shape[1] == b.data.shape[0]:
                found.attr[_OPERANDS] = a, b
        return found

    builder.create_expand_dims, builder.create_broadcast = create_expand_dims, create_broadcast
    builder.create_fmul = create_fmul
    apply = engine.ReduceOps.apply_impl

    def apply_impl(self: Any, values: Any) -> Any:
        operands = values[0].handle.attr.get(_OPERANDS) if len(values) == 1 else None
        found = None
        if operands is not None and self.axis is not None and _adds(self.combine_fn):
            found = _contracted(self, *operands)
        return apply(self, values) if found is None else found

    engine.ReduceOps.apply_impl = apply_impl


def _adds(combine_fn: Any) -> bool:
    """Whether a function that combines is a plain sum."""
    if combine_fn is tl.standard._sum_combine:
        return True
    probes = np.random.default_rng(_SEED).standard_normal((2, 8)).astype(np.float32)
    one, other = (tl.tensor(engine.TensorHandle(side, tl.float32), _PROBE) for side in probes)
    found = combine_fn.fn(one, other)
    return isinstance(found, tl.tensor) and np.allclose(found.handle.data, probes.sum(0), rtol=1e-3)


_PROBE = tl.block_type(tl.float32, [8])


def _contracted(operation: Any, a: Any, b: Any) -> Any:
    """The product of the matrices, or None. Whether the compiler sees the steps also depends on what it knows of the
    operands (not across branches, not of what has one value throughout)."""
    builder = engine.interpreter_builder
    shape, axis = (a.data.shape[0], *b.data.shape), operation.axis % 3
    if (*shape[:axis], *shape[axis + 1 :]) != (shape[0], shape[2]):
        return None  # the compiler fails
    total = engine.TensorHandle(np.zeros((shape[0], shape[2]), np.float32), tl.float32)
    product = builder.create_dot(a, b, total, engine._ir.INPUT_PRECISION.TF32, 0)
    found = operation.to_tensor(np.expand_dims(product.data, axis) if operation.keep_dims else product.data, tl.float32)
    if JOINS in product.attr:  # of calls with error bounds
        found.handle.attr[JOINS] = product.attr[JOINS]
        found.handle.attr[AS_MATRICES] = or_zero(bound(product)) + np.zeros(product.data.shape)
    return found
