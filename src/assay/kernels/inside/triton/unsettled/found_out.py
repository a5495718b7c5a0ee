"""Whole numbers that the compiler finds out, though they are not written in the kernel: `i - i`, `pid % 1`, `i >> 20`.

What it finds out it computes with as with what is written (`values.constants`). It knows the operations, and of blocks
that count up and of places of programs the bounds. So a number is found out that is the same whatever else those are:
in trials its operations are repeated on the least ones, on the greatest, and on others at random. How much a compiler
finds out is its own affair, so some of the calls that act as one GPU find out nothing.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.unsettled import device
from assay.kernels.inside.triton.values.constants import is_constant, set_constant

_HOW, _TRIED = "how", "tried"
"""Attributes: how a value was computed; what it is in the trials."""
_PROGRAMS = (2**31 - 2, 65534, 65534)
"""The last place of a program on each axis of a grid."""
_POINTER = np.dtype(np.uint64)
_TRIALS = 4
_fresh = itertools.count(1 << 32)
_DEEPEST = 48
"""Operations, one on the result of the other, that are repeated: those before them are held until then."""
_MOVES = ("cast_impl", "create_splat", "create_broadcast", "create_expand_dims", "create_reshape", "create_trans")


class _How(NamedTuple):
    compute: Callable[..., Any]
    """Takes what the operands hold, and gives what the result holds."""
    operands: tuple[Any, ...]
    depth: int


class _Leaf(NamedTuple):
    name: str
    least: int
    most: int


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`), around what computes whole numbers."""
    _install_leaves(builder)
    binary, unary, select = builder.binary_op, builder.unary_op, builder.create_select

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        return _go_on(binary(self, lhs, rhs, op), op, lhs, rhs)

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        return _go_on(unary(self, arg, op), op, arg)

    def create_select(self: Any, condition: Any, lhs: Any, rhs: Any) -> Any:
        found = select(self, condition, lhs, rhs)
        if _finds_out() and is_constant(lhs if condition.data.flat[0] else rhs) and is_known(condition):
            return set_constant(found)
        return _go_on(found, np.where, condition, lhs, rhs)

    builder.binary_op, builder.unary_op, builder.create_select = binary_op, unary_op, create_select
    _divided(builder, "create_idiv", _quotients)
    for name in ("create_srem", "create_urem"):
        _divided(builder, name, np.fmod)
    for name in _MOVES:
        _moved(builder, name)
    _read_as_float(builder)


def _install_leaves(builder: Any) -> None:
    ranges, program = builder.create_make_range, builder.create_get_program_id
    programs = builder.create_get_num_programs

    def create_make_range(self: Any, kind: Any, start: int, stop: int) -> Any:
        return _begin(ranges(self, kind, start, stop), _Leaf(f"range {start} {stop}", int(start), int(stop) - 1))

    def create_get_program_id(self: Any, axis: int) -> Any:
        return _begin(program(self, axis), _Leaf(f"program {int(axis)}", 0, _PROGRAMS[int(axis)]))

    def create_get_num_programs(self: Any, axis: int) -> Any:
        return _begin(programs(self, axis), _Leaf(f"programs {int(axis)}", 1, _PROGRAMS[int(axis)] + 1))

    builder.create_make_range, builder.create_get_program_id = create_make_range, create_get_program_id
    builder.create_get_num_programs = create_get_num_programs


def is_known(handle: Any) -> bool:
    """Whether the compiler of this call knows whole numbers, or truth values, that are all alike."""
    data = handle.data
    if data.dtype.kind not in "iub" or not data.size or (data != data.flat[0]).any():
        return False
    if is_constant(handle):
        return True
    return _HOW in handle.attr and all((tried == data.flat[0]).all() for tried in _tried(handle))


def _finds_out() -> bool:
    return bool(current().device & device.FINDS_OUT)


def _begin(found: Any, leaf: _Leaf) -> Any:
    if _finds_out():
        found.attr[_HOW] = leaf
    return found


def _go_on(found: Any, compute: Callable[..., Any], *operands: Any) -> Any:
    """Note how whole numbers came of others."""
    if not _finds_out() or not _is_whole(found) or not _is_whole(operands[-1]) or is_constant(found):
        return found
    depth = 0
    for operand in operands:
        how = operand.attr.get(_HOW)
        if type(how) is _How and how[2] > depth:
            depth = how[2]
    if depth < _DEEPEST:
        found.attr[_HOW] = _How(compute, operands, depth + 1)
    return found


def _is_whole(handle: Any) -> bool:
    dtype = handle.data.dtype
    return dtype.kind in "iub" and (dtype != _POINTER or not handle.dtype.scalar.is_ptr())


def _tried(handle: Any) -> list[Any]:
    """What a value is in each trial."""
    if _TRIED not in handle.attr:
        how = handle.attr.get(_HOW)
        if isinstance(how, _How):
            found = [_again(how, handle.data, trial) for trial in zip(*map(_tried, how.operands), strict=True)]
        elif is_constant(handle):
            found = [handle.data] * _TRIALS
        else:
            found = _any(handle.data, how)
        handle.attr[_TRIED] = found
    tried: list[Any] = handle.attr[_TRIED]
    return tried


def _again(how: _How, data: Any, operands: tuple[Any, ...]) -> Any:
    return np.asarray(how.compute(*operands)).astype(data.dtype)


def _any(data: Any, leaf: _Leaf | None) -> list[Any]:
    """The least numbers, the greatest, and others: of a leaf, or of a type."""
    limits = np.iinfo(data.dtype) if data.dtype.kind != "b" else None
    least, most = (int(limits.min), int(limits.max)) if limits else (0, 1)
    chance = np.random.default_rng((current().device, next(_fresh) if leaf is None else zlib.crc32(leaf.name.encode())))
    if leaf is not None:
        least, most = leaf.least, leaf.most
    some = [chance.integers(least, most, data.shape, np.int64, endpoint=True) for _ in range(_TRIALS - 2)]
    return [np.full(data.shape, end).astype(data.dtype) for end in (least, most)] + [s.astype(data.dtype) for s in some]


def _quotients(left: Any, right: Any) -> Any:
    safe = np.where(right == 0, np.ones_like(right), right)
    return (left - np.fmod(left, safe)) // safe


def _divided(builder: Any, name: str, function: Callable[..., Any]) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        return _go_on(compute(self, lhs, rhs), function, lhs, rhs)

    setattr(builder, name, operation)


def _moved(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, *args: Any) -> Any:
        found = compute(self, *args)
        place = next(number for number, arg in enumerate(args) if isinstance(arg, engine.TensorHandle))
        source = args[place]
        if not _finds_out() or not _is_whole(source):
            return found
        if found.data.dtype.kind == "f":  # a whole number made a float
            return set_constant(found) if is_known(source) else found

        def again(data: Any) -> Any:
            return compute(self, *args[:place], engine.TensorHandle(data, source.dtype), *args[place + 1 :]).data

        return _go_on(found, again, source)

    setattr(builder, name, operation)


def _read_as_float(builder: Any) -> None:
    compute = builder.create_bitcast

    def create_bitcast(self: Any, src: Any, dst_type: Any) -> Any:
        found = compute(self, src, dst_type)
        return set_constant(found) if _HOW in src.attr and is_known(src) else found

    builder.create_bitcast = create_bitcast
