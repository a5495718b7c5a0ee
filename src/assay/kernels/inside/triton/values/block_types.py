"""Types and shapes of Triton's values, each made once.

Triton makes a type with its name for each result and a shape for each tensor, all of them tuples of objects, which is a
third of the time of a small kernel in the interpreter. They are compared by value and never changed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter as engine

MOST = 4096
"""Types that are kept; pointers to other types are the only ones without end."""

_blocks: dict[tuple[int, ...] | None, Any] = {}
"""Id of the type of an element, and the sizes -> type. A block keeps the type of its elements, and so the id."""
_pointers: dict[tuple[int, int], Any] = {}
"""Id of the type that is pointed to, and the address space -> type."""
_arguments: dict[torch.dtype, Any] = {}
_SCALAR = (core.constexpr(1), core.tuple([]))


def install(builder: Any) -> None:
    """Put it into Triton's language and the interpreter's builder (`InterpreterBuilder`), once per process."""
    make, broadcast = tl.block_type.__init__, engine.interpreter_semantic.broadcast_impl_value

    def new(kind: Any, element_ty: Any, shape: Any, *_: Any) -> Any:
        known = _blocks.get(_key(element_ty, shape)) if kind is tl.block_type else None
        return object.__new__(kind) if known is None else known

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        if vars(self):
            return  # made before
        make(self, element_ty, shape)
        self._kin = {}
        if (key := _key(element_ty, shape)) is not None:
            _keep(_blocks, key, self)

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        key = (id(scalar_ty),)
        if key not in self._kin:
            _keep(self._kin, key, tl.block_type(scalar_ty, self.shape))
        return self._kin[key]

    def broadcast_impl_value(lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left.is_block() and right.is_block() and left.shape.values == right.shape.values:
            return lhs, rhs
        return broadcast(lhs, rhs)

    tl.block_type.__new__, tl.block_type.__init__ = new, init
    tl.block_type.with_element_ty = with_element_ty
    tl.tensor.__init__ = _tensor
    engine.interpreter_semantic.broadcast_impl_value = broadcast_impl_value
    builder.get_ptr_ty = _pointer


def _key(element_ty: Any, shape: Any) -> tuple[int, ...] | None:
    """What a type of a block is known by; None for sizes that are refused."""
    sizes = [size.value if type(size) is core.constexpr else size for size in shape]
    return (id(element_ty), *sizes) if all(type(size) is int for size in sizes) else None


def _keep(known: dict[Any, Any], key: tuple[int, ...], value: Any) -> None:
    if len(known) >= MOST:
        known.clear()
    known[key] = value


def _tensor(self: Any, handle: Any, type: Any) -> None:
    """A tensor, which shares its shape with others of its type."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    if not type.is_block():
        self.numel, self.shape = _SCALAR
        return
    if "_seen" not in vars(type):
        sizes = [core.constexpr(size) for size in type.shape]
        type._seen = core.constexpr(math.prod(type.shape)), core.tuple(sizes)
    self.numel, self.shape = type._seen


def _pointer(_builder: Any, element_ty: Any, address_space: int) -> Any:
    key = (id(element_ty), address_space)
    if key not in _pointers:
        _keep(_pointers, key, tl.pointer_type(element_ty, address_space))
    return _pointers[key]


def argument(value: Any) -> Any:
    """An argument of a launch as the interpreter's value: a tensor of PyTorch as a pointer."""
    if type(value) is not torch.Tensor:
        return engine._implicit_cvt(value)
    kind = _arguments.get(value.dtype)
    if kind is None:
        kind = _arguments[value.dtype] = tl.str_to_ty(triton.runtime.jit.mangle_type(value), None)
    return tl.tensor(engine.TensorHandle(np.array([value.data_ptr()], dtype=np.uint64), kind), kind)
