"""Counts the arithmetic that kernels do, as `program.operations` counts PyTorch's: lanes of operations on fractions,
those of reductions, scans and atomic operations, and 2 m n k of a product.

Whole numbers are not counted where they are added and compared: addresses and masks are made of them. Nor are moves,
choices and casts.
"""

from __future__ import annotations

import math
from typing import Any

from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import current

_POINTWISE = (
    *("fadd", "fsub", "fmul", "fdiv", "frem", "precise_divf", "fma", "fabs", "floor", "ceil", "clampf"),
    *("maxnumf", "minnumf", "maximumf", "minimumf", "exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt"),
    *("precise_sqrt", "erf", "extern_elementwise"),
    *(f"fcmp{order}{relation}" for order in "OU" for relation in ("EQ", "NE", "LT", "LE", "GT", "GE")),
)
"""Methods of the builder, without `create_`, that do one operation for each element of their result."""


def install(builder: Any) -> None:
    """Put it into the interpreter and its builder (`InterpreterBuilder`), around all that is there."""
    for name in _POINTWISE:
        _count_results(builder, f"create_{name}")
    _count_products(builder)
    _count_atomics(builder)
    for owner, names in ((engine.ReduceOps, ("sum", "min_max")), (engine.ScanOps, ("cumsum", "cumprod"))):
        for name in names:
            _count_operand(owner, name)


def _count_results(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(*args: Any, **named: Any) -> Any:
        found = compute(*args, **named)
        current().arithmetic += found.data.size
        return found

    setattr(builder, name, operation)


def _count_products(builder: Any) -> None:
    compute = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        current().arithmetic += 2 * math.prod(a.data.shape) * b.data.shape[-1]
        return compute(self, a, b, *rest)

    builder.create_dot = create_dot


def _count_atomics(builder: Any) -> None:
    compute = builder.create_atomic_rmw

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, *rest: Any, **named: Any) -> Any:
        if op != engine._ir.ATOMIC_OP.XCHG:  # an exchange moves
            current().arithmetic += ptr.data.size
        return compute(self, op, ptr, *rest, **named)

    builder.create_atomic_rmw = create_atomic_rmw


def _count_operand(owner: Any, name: str) -> None:
    """Functions of a kernel's own that reduce or scan are run lane by lane, and counted there."""
    compute = getattr(owner, name)

    def operation(self: Any, values: Any, *rest: Any, **named: Any) -> Any:
        block = values[0] if isinstance(values, tuple) else values
        current().arithmetic += block.handle.data.size
        return compute(self, values, *rest, **named)

    setattr(owner, name, operation)
