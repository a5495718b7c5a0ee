"""Promises that a kernel makes the compiler of its values, held against the values: `tl.multiple_of` and the like.

The compiler divides each axis of a block into groups as long as the contiguity that it knows or was promised. It takes
it that the numbers of a group follow each other, that the first one is a multiple of what was promised, and with
`max_constancy` that they are equal. So it moves up to 16 bytes at once: at the address and under the mask of the first.

A promise that is false of lanes that are never used does no harm, which is what blocks that go round the edge of a
matrix live on (`offsets % M`). So lanes remember the shortest access that would break them (`broken`), and so do lanes
computed from them. What is loaded through a broken lane is anything, and nothing may be stored through it. Kernels
whose promises are true pay nothing for all this.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton import counters, guards
from assay.kernels.inside.triton.arithmetic import MeaningError, is_tensor, raw
from assay.kernels.inside.triton.error_bounds import accesses
from assay.kernels.inside.triton.error_bounds.bounds import bound
from assay.kernels.inside.triton.ledger import WrongValueError, current, refuse
from assay.kernels.inside.triton.running.widths import WIDEST
from assay.kernels.inside.triton.values.handles import numpy_dtype
from assay.kernels.inside.triton.values.ptx import unspecified

NEVER = np.int64(1 << 40)
"""The shortest access that breaks a lane of which all promises are true."""
_ALIGNED = 256
"""Bytes that the address of every storage divides by, on a GPU."""
_GIVEN, _BROKEN, _LOADED, _COUNTS = "given", guards.BROKEN, "loaded", "counts"
"""Attributes of values: what was promised of them, broken lanes, whether they come from memory, and whether what is
broken of them is that they count up, which tells the compiler nothing of where they equal something."""
_FILE = "submission.py"


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    load = builder.create_masked_load

    def create_masked_load(self: Any, *args: Any, **named: Any) -> Any:
        found = load(self, *args, **named)
        found.attr[_LOADED] = True
        return found

    builder.create_masked_load = create_masked_load


def _promise(name: str, late: bool) -> Callable[[Any, Any], Any]:
    def promise(input: Any, values: Any) -> Any:
        value = raw(input)
        if not is_tensor(value) or not isinstance(value.handle, engine.TensorHandle):
            return input
        handle, numbers = value.handle, _numbers(name, values, value.handle.data.ndim)
        given = handle.attr.setdefault(_GIVEN, {"before": handle.attr.pop(_BROKEN, None)})
        given[name] = numbers
        handle.attr.pop(_BROKEN, None)
        broken = _broken(handle, *(given.get(kind) for kind in _KINDS))
        if broken is not None:
            said = f"tl.{name}(..., {', '.join(map(str, numbers))}){_line()} is false"
            if late:
                refuse(WrongValueError(f"{said}, and the variable was used before it: {_MEANS}"))
            if name == "max_constancy":
                refuse(WrongValueError(f"{said}: the compiler believes it, and computes once for several elements"))
            if handle.data.size == 1:
                number = counters.in_words(int(_positions(handle)[0].ravel()[0]))
                refuse(WrongValueError(f"{said} of {number}: {_MEANS}"))
            current().note(f"{said} of some lanes, and what is loaded through them is anything")
            _follow()
        sides = [side for side in (broken, given["before"]) if side is not None]
        handle.attr |= {_BROKEN: _shared(*sides)} if sides else {}
        return input

    return promise


_KINDS = ("multiple_of", "max_contiguous", "max_constancy")
_MEANS = "the compiler believes it, and moves several elements at once"


def _numbers(name: str, values: Any, rank: int) -> tuple[int, ...]:
    values = raw(values)
    numbers = tuple(map(raw, values if isinstance(values, tuple | list | tl.tuple) else (values,)))
    if len(numbers) != rank or any(type(number) is not int or number < 1 for number in numbers):
        raise MeaningError(f"tl.{name} with {numbers}: it takes one compile-time whole number above 0 for each axis")
    return numbers


def _positions(handle: Any) -> tuple[Any, int]:
    """Whole numbers, and by how much neighbours differ; of pointers, bytes from the beginning of their storage. Of
    fractions their bits."""
    if not isinstance(handle.dtype.scalar, tl.pointer_type):
        data = np.ascontiguousarray(handle.data)
        return (data.view(f"i{data.dtype.itemsize}") if data.dtype.kind == "f" else data).astype(np.int64), 1
    starts, at = guards.ranges.starts, handle.data
    if starts.size:
        at = at - starts[np.maximum(np.searchsorted(starts, at, side="right").astype(np.int64) - 1, 0)]
    return at.astype(np.int64), numpy_dtype(handle.get_element_ty()).itemsize


def _broken(handle: Any, multiple: Any, contiguous: Any, constant: Any) -> Any:
    """The shortest access that breaks each lane; None where all promises are true."""
    position, unit = _positions(handle)
    found, pointers = None, isinstance(handle.dtype.scalar, tl.pointer_type)
    for axis in range(position.ndim):
        line = np.moveaxis(position, axis, -1)
        length = line.shape[-1]
        of_axis = [1 if promised is None else promised[axis] for promised in (multiple, contiguous, constant)]
        divisor = math.gcd(of_axis[0], _ALIGNED) if pointers else of_axis[0]
        run, equal = (min(_power_of_two(each), length) for each in of_axis[1:])
        if contiguous is None:
            run = 1 if _LOADED in handle.attr else _run(line, unit)
        one = broken_in_line(line, unit, divisor, run, equal)
        if one is not None:
            one = np.moveaxis(one, -1, axis)
            found = one if found is None else np.minimum(found, one)
    return found


def break_lanes(handle: Any, broken: Any, said: str, *, counts: bool) -> None:
    """Take it that the compiler believes what is false of some lanes, though nobody promised it.

    broken: for each lane the shortest access that breaks it; NEVER for none. counts: the compiler believes that they
    count up, and no more.
    """
    handle.attr |= {_BROKEN: broken, _COUNTS: counts}
    current().note(said)
    _follow()


def broken_in_line(line: Any, unit: int, divisor: int, run: int, equal: int) -> Any:
    """The shortest access that breaks each lane of some lines of numbers; None where all that is promised is true."""
    places = np.arange(line.shape[-1])
    firsts = line[..., places // run * run]
    kept = (line == firsts + places % run * unit).all() and not np.any(firsts % divisor)
    if kept and (equal == 1 or (line == line[..., places // equal * equal]).all()):
        return None
    power = divisor & -divisor
    broken = np.where(firsts % (divisor // power), np.int64(2), NEVER)
    width = 2
    while width <= max(run, power, equal):
        group = min(width, run)
        first = line[..., places // group * group]
        wrong = (line != first + places % group * unit) | (first % min(width * unit, power) != 0)
        if width <= equal:
            wrong |= line != line[..., places // width * width]
        broken = np.where(wrong & (broken == NEVER), np.int64(width), broken)
        width *= 2
    return broken


def _power_of_two(number: int) -> int:
    """The largest one that is not above a number."""
    return 1 << (number.bit_length() - 1)


def _run(line: Any, unit: int) -> int:
    """How many neighbours follow each other: the longest group that divides all lines."""
    length = line.shape[-1]
    steps = np.any((line[..., 1:] - line[..., :-1]) != unit, axis=tuple(range(line.ndim - 1)))
    bits = int(np.bitwise_or.reduce(np.flatnonzero(steps) + 1, initial=length))
    return bits & -bits


def _line() -> str:
    """Where the kernel is, in words."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    return f" in line {frame.f_lineno}" if frame is not None else ""


def assume(cond: Any) -> None:
    """`tl.assume`: must be true."""
    cond = raw(cond)
    if is_tensor(cond) and cond.handle.data.size != 1:
        raise MeaningError("tl.assume of a block: reduce it first")
    if is_tensor(cond) and current().bounds is not None and bound(cond.handle) is not None:
        accesses.refuse_undecided()
    if not (bool(cond.handle.data.reshape(-1)[0]) if is_tensor(cond) else bool(cond)):
        refuse(WrongValueError("tl.assume of what is false: the compiler computes as if it were true"))


PROMISES: dict[str, Any] = {
    "o_assume": assume,
    **{f"o_{name}{'_late' * late}": _promise(name, late) for name in _KINDS for late in (False, True)},
}
"""What generated text calls them."""

_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_following = False


def _follow() -> None:
    """From now on values computed from broken ones are broken, too, and accesses look at it."""
    global _following
    if _following:
        return
    _following = True
    builder = engine.InterpreterBuilder
    for name in ("binary_op", "create_addptr", "create_select", "cast_impl", "create_bitcast"):
        _keep(builder, name, _shared)
    for name in ("create_idiv", "create_lshr", "create_ashr"):
        _keep(builder, name, lambda *sides: np.where(_shared(*sides) < NEVER, np.int64(2), NEVER))
    for name in ("create_broadcast", "create_expand_dims", "create_reshape", "create_trans"):
        _move(builder, name)
    _guard_accesses(builder)


def _shared(*sides: Any) -> Any:
    found = sides[0]
    for side in sides[1:]:
        found = np.minimum(found, side)
    return found


def _keep(builder: Any, name: str, combine: Callable[..., Any]) -> None:
    compute = getattr(builder, name)

    def computed(self: Any, *args: Any) -> Any:
        found = compute(self, *args)
        handles = [arg for arg in args if isinstance(arg, engine.TensorHandle) and _BROKEN in arg.attr]
        equality = name == "binary_op" and args[2] in (np.equal, np.not_equal)
        sides = [arg.attr[_BROKEN] for arg in handles if not (equality and arg.attr.get(_COUNTS))]
        if sides:
            broken = np.broadcast_to(combine(*sides), found.data.shape)
            found.attr[_BROKEN] = broken
            # Made once for what the compiler takes for alike.
            if name == "create_idiv" or (name == "binary_op" and args[2] in _COMPARISONS):
                found.data = unspecified(found.data, broken < NEVER)
        return found

    setattr(builder, name, computed)


def _move(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def moved(self: Any, arg: Any, *rest: Any) -> Any:
        found = compute(self, arg, *rest)
        if _BROKEN in arg.attr:
            found.attr[_BROKEN] = compute(self, engine.TensorHandle(arg.attr[_BROKEN], tl.int64), *rest).data
        return found

    setattr(builder, name, moved)


def _guard_accesses(builder: Any) -> None:
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        found = load(self, ptrs, mask, *rest, **named)
        wrong = _wrong(ptrs, mask)
        if wrong is not None:
            _check_alignment(ptrs, wrong)
            found.data = unspecified(found.data, np.broadcast_to(wrong, found.data.shape))
        return found

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _refuse_wrong("store", ptrs, mask)
        return store(self, ptrs, value, mask, *rest, **named)

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        _refuse_wrong("atomic operation", ptr, mask)
        return rmw(self, op, ptr, val, mask, *rest)

    def create_atomic_cas(self: Any, ptr: Any, *rest: Any) -> Any:
        _refuse_wrong("atomic operation", ptr, True)
        return cas(self, ptr, *rest)

    builder.create_masked_load, builder.create_masked_store = create_masked_load, create_masked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = create_atomic_rmw, create_atomic_cas


def _wrong(ptrs: Any, mask: Any) -> Any:
    """Which lanes an access may take for others; None for none."""
    width = WIDEST // numpy_dtype(ptrs.get_element_ty()).itemsize
    shape, found = ptrs.data.shape, None
    active = np.broadcast_to(mask.data if isinstance(mask, engine.TensorHandle) else mask, shape)
    for side, of_mask in ((ptrs, False), (mask, True)):
        broken = side.attr.get(_BROKEN) if isinstance(side, engine.TensorHandle) else None
        if broken is not None:
            broken = np.broadcast_to(broken, shape)
            here = _taken_for_others(active, broken, width) if of_mask else (broken <= width) & active
            found = here if found is None else found | here
    return found if found is not None and found.any() else None


def _taken_for_others(active: Any, broken: Any, most: int) -> Any:
    """Broken lanes of a mask that has two values in a group: the compiler takes the first one for all."""
    found, width = np.zeros(active.shape, np.bool_), 2
    while width <= most:
        for axis in range(active.ndim):
            lanes = np.moveaxis(active, axis, -1)
            firsts = np.arange(lanes.shape[-1]) // width * width
            groups = lanes != lanes[..., firsts]
            uneven = np.logical_or.reduceat(groups, np.unique(firsts), axis=-1)[..., firsts // width]
            found |= np.moveaxis(uneven, -1, axis) & (broken == width)
        width *= 2
    return found


def _refuse_wrong(what: str, ptrs: Any, mask: Any) -> None:
    wrong = _wrong(ptrs, mask)
    if wrong is not None:
        refuse(
            WrongValueError(
                f"a {what} through {np.count_nonzero(wrong)} lanes of which a promise is false, to addresses that are "
                f"not known then ({'; '.join(current().notes)})"
            )
        )


def _check_alignment(ptrs: Any, wrong: Any) -> None:
    """Refuse an access that a GPU would make misaligned: it ends the kernel, whether or not the lane is used.

    It would be as wide as the lanes around allow, along an axis that the false promise is about.
    """
    unit = numpy_dtype(ptrs.get_element_ty()).itemsize
    for axis in range(ptrs.data.ndim):
        at, lanes = (np.moveaxis(np.broadcast_to(each, ptrs.data.shape), axis, -1) for each in (ptrs.data, wrong))
        if (lanes == lanes[..., :1]).all():
            continue
        width = 2
        while width <= min(WIDEST // unit, at.shape[-1]):
            groups, bad = (each.reshape(-1, width) for each in (at, lanes))
            sound = ~bad.any(axis=1)
            aligned = groups[:, 0] % np.uint64(width * unit) == 0
            follow = (groups == groups[:, :1] + np.arange(width, dtype=np.uint64) * np.uint64(unit)).all(axis=1)
            if sound.any() and (aligned & follow)[sound].all() and not aligned[~sound].all():
                refuse(
                    WrongValueError(
                        f"an access of {width * unit} bytes at an address that does not divide by them, which ends a "
                        f"kernel on a GPU ({'; '.join(current().notes)})"
                    )
                )
            width *= 2
