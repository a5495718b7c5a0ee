"""Constants are known for such: what is computed from them alone the compiler computes itself.

What has no value there (a float cast to a type that cannot hold it) it takes for anything it likes, though a GPU would
have given it one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

_MARK = "constant"
"""The attribute of a constant."""
_MADE = (
    *("get_fp16", "get_bf16", "get_fp32", "get_fp64", "get_null_value", "get_all_ones_value", "get_int1"),
    *(f"get_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
_KEPT = (
    *("cast_impl", "unary_op", "create_fma", "create_fp_to_fp"),
    *("create_splat", "create_broadcast", "create_expand_dims", "create_reshape"),
)
"""Builders whose result is constant where all operands are; `create_add` and others of two operands are `binary_op`."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`), over all that computes."""
    builder.get_fp16 = _half
    for name in _MADE:
        _made(builder, name)
    for name in _KEPT:
        _kept(builder, name)
    binary, select = builder.binary_op, builder.create_select

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        found = binary(self, lhs, rhs, op)
        if lhs.attr and rhs.attr and is_constant(lhs, rhs):
            found.attr[_MARK] = True
        return found

    def create_select(self: Any, condition: Any, lhs: Any, rhs: Any) -> Any:
        found = select(self, condition, lhs, rhs)
        if is_constant(lhs, rhs):
            found.attr[_MARK] = True
        return found

    builder.binary_op, builder.create_select = binary_op, create_select


def is_constant(*handles: Any) -> bool:
    """Whether the compiler knows some values: they are written in the kernel, or computed from what is."""
    return all(_MARK in handle.attr for handle in handles)


def set_constant(handle: Any) -> Any:
    """Say that the compiler knows a value."""
    handle.attr[_MARK] = True
    return handle


def _half(_self: Any, value: Any) -> Any:
    """A constant is a float32 before it is a float16, and rounded twice."""
    return engine.TensorHandle(np.array([value], dtype=np.float32).astype(np.float16), tl.float16)


def _made(builder: Any, name: str) -> None:
    make = getattr(builder, name)

    def made(self: Any, value: Any) -> Any:
        found = make(self, value)
        found.attr[_MARK] = True
        return found

    setattr(builder, name, made)


def _kept(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def computed(self: Any, *args: Any) -> Any:
        found = compute(self, *args)
        for arg in args:
            if isinstance(arg, engine.TensorHandle) and _MARK not in arg.attr:
                return found
        found.attr[_MARK] = True
        return found

    setattr(builder, name, computed)
