"""The interpreter's builder with error bounds: each method has a rule, or its result may be anything.

`switch` chooses the builder of a launch. Calls without bounds pay nothing for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import choices, pointwise, sums
from assay.kernels.inside.triton.error_bounds.bounds import (
    UNKNOWN,
    apart,
    bound,
    carries,
    difference,
    epsilon,
    give,
    give_lean,
    give_loss,
    last_bits,
    loss,
    or_zero,
    lean,
    named,
    wide,
)
from assay.kernels.inside.triton.error_bounds.memory import BITS, Bounds, Found, Kind, line_of_kernel
from assay.kernels.inside.triton.ledger import WrongValueError, current, refuse
from assay.kernels.inside.triton.values.handles import numpy_dtype

_plain: Any = engine.InterpreterBuilder
_bounded: Any = None

_MOVES = ("broadcast", "expand_dims", "splat", "unsplat", "reshape", "trans")
_INNER = frozenset(
    {
        *("create_load", "create_store", "create_tensor_pointer_load", "create_tensor_pointer_store", "create_clampf"),
        *("create_si_to_fp", "create_ui_to_fp", "create_fp_ext", "create_fp_trunc", "create_int_cast"),
        *("create_descriptor_load", "create_descriptor_store", "create_make_tensor_descriptor", "create_make_block_ptr"),
        *("create_advance", "create_barrier", "create_print", "create_int_to_ptr", "create_ptr_to_int", "create_cat"),
        *("create_make_range", "create_get_program_id", "create_get_num_programs", "create_inline_asm"),
        *("create_descriptor_gather", "create_descriptor_scatter"),
    }
)
"""Methods that call others, which have the rules, or take and give nothing inexact, or are refused."""
_OWN = frozenset(
    {
        *("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas", "create_join"),
        *("create_split", "create_extern_elementwise", "create_assert", "create_assume"),
        *(f"create_{name}" for name in _MOVES),
    }
)
RULES: dict[str, Callable[..., Any]] = {
    **pointwise.OF_FRACTIONS,
    **choices.OF_CHOICES,
    **choices.OF_CASTS,
    "create_dot": sums.matrices,
    "create_histogram": sums.counted,
    "create_gather": choices.gathered,
}
_ALWAYS = pointwise.ALWAYS | {"create_dot", "create_add", "create_bitcast"}
_EXTREMES = frozenset(f"create_{name}" for name in ("maxnumf", "minnumf", "maximumf", "minimumf"))
_NO_MEMORY = (
    "an address, a mask or a branch depends on the last bits of an inexact result, of which each GPU has its own{0}: "
    "round it, or compare with a margin"
)


def names() -> Iterator[str]:
    """The methods of the builder that take or give values."""
    return (name for name in dir(_plain) if name.startswith("create_") or name == "cast_impl")


def without_rule() -> list[str]:
    """Methods of which nobody has said what they do to bounds; their results may be anything."""
    return [name for name in names() if name not in RULES and name not in _INNER | _OWN]


def install() -> None:
    """Make the builder that has bounds, after all else that changes the interpreter."""
    global _bounded, _scratch
    members: dict[str, Any] = {}
    for name in names():
        if name not in _INNER | _OWN:
            members[name] = _ruled(name, RULES.get(name, choices.anything))
    members |= {f"create_{name}": _moving(f"create_{name}") for name in _MOVES}
    members |= {"create_join": _join, "create_split": _split, "create_extern_elementwise": _library}
    members |= {"create_masked_load": _load, "create_masked_store": _store}
    members |= {"create_atomic_rmw": _rmw, "create_atomic_cas": _cas}
    _bounded, _scratch = type("Bounded", (_plain,), members), _plain()
    engine.ReduceOps.apply_impl = _reduced(engine.ReduceOps.apply_impl)
    engine.ScanOps.apply_impl = _scanned(engine.ScanOps.apply_impl)


def switch(bounded: bool) -> None:
    """Use the builder with bounds, or the plain one."""
    engine.interpreter_builder.__class__ = _bounded if bounded else _plain


def decide(handle: Any) -> None:
    """A value decides where the program goes."""
    if current().bounds is not None and bound(handle) is not None:
        _refuse()


def _refuse() -> None:
    line = line_of_kernel()
    refuse(WrongValueError(_NO_MEMORY.format(f" (line {line})" if line else "")))


def _handles(args: Any) -> Iterator[Any]:
    for arg in args:
        if type(arg) is engine.TensorHandle:
            yield arg


def _ruled(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    always = name in _ALWAYS
    turns = rule is choices.compared

    def operation(self: Any, *args: Any, **options: Any) -> Any:
        found = getattr(_plain, name)(self, *args, **options)
        bounds = _bounds()
        inexact = any(arg.attr and carries(arg) for arg in _handles(args))
        if not (always or inexact) and bounds.unspecified is None:
            return found
        limits = None
        if always or any(bound(arg) is not None for arg in _handles(args)):
            limits = rule(found, *_taken(name, args), **options)
        give(found, _specified(bounds, limits))
        if inexact:
            _follow(name, found, list(_handles(args)))
        if turns and bound(found) is not None:
            bounds.decided()
        return found

    return operation


def _taken(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a rule is given of the operands."""
    if name in choices.OF_CASTS:
        return args[:1]
    if name == "create_dot":
        return args[:4]
    return tuple(args) if name in ("create_gather", "create_histogram") else tuple(_handles(args))


def _bounds() -> Bounds:
    bounds: Bounds = current().bounds
    return bounds


def _specified(bounds: Bounds, limits: Any) -> Any:
    """The bound of a result, with what has no value."""
    lanes, bounds.unspecified = bounds.unspecified, None
    return limits if lanes is None else np.where(lanes, UNKNOWN, or_zero(limits))


def _follow(name: str, found: Any, operands: list[Any]) -> None:
    """What goes with values that an operation leaves as they are: their losses as products, and their origins."""
    if current().may_fuse and name not in ("create_fmul", "create_addptr"):
        for operand in operands:
            if (lost := loss(operand)) is not None:
                _keep_loss(name, found, operand, lost)
    if bound(found) is not None and (share := _SHARES.get(name)) is not None:
        share(found, *operands)


def _shared_by_sum(found: Any, lhs: Any, rhs: Any, *, sign: float) -> None:
    _, shared = difference(lhs, rhs, sign)
    if shared is not None:
        give_lean(found, *shared)


def _shared_by_product(found: Any, lhs: Any, rhs: Any) -> None:
    """Times an exact number an error is that much larger."""
    for one, other in ((lhs, rhs), (rhs, lhs)):
        shared = lean(one)
        if shared is not None and bound(other) is None:
            give_lean(found, shared.origins, np.where(shared.parts == 0, 0.0, shared.parts * wide(other)))


def _shared_by_choice(found: Any, condition: Any, lhs: Any, rhs: Any) -> None:
    sides = [named(side) for side in (lhs, rhs)]
    parts = [np.where(condition.data, *(0 if side is None else side[place] for side in sides)) for place in (0, 1)]
    if (doubt := bound(condition)) is not None:
        parts[0] = np.where(doubt > 0, 0, parts[0])
    give_lean(found, *parts)


def _shared_by_extreme(found: Any, lhs: Any, rhs: Any) -> None:
    sides = [named(side) for side in (lhs, rhs)]
    mine = found.data == lhs.data
    give_lean(found, *(np.where(mine, *(0 if side is None else side[place] for side in sides)) for place in (0, 1)))


def _shared_by_cast(found: Any, source: Any) -> None:
    """A cast keeps an error but for what it rounds; where it may round to either of two numbers that is an error of its
    own, which what is left of the operand makes up for."""
    if not (found.dtype.scalar.is_floating() and source.dtype.scalar.is_floating()):
        return
    limits, shared = bound(found), lean(source)
    if shared is not None:
        kept = np.abs(shared.parts) > 0.5 * or_zero(bound(source))
        parts = np.where(kept, shared.parts, 0.0)
        give(found, np.where((limits > 0) & kept, or_zero(bound(source)) + last_bits(wide(found), found.dtype), limits))
        if kept.any():
            give_lean(found, np.where(kept, shared.origins, 0), parts)
            return
    named(found)


def _shared_by_bits(found: Any, source: Any) -> None:
    """Bits are the same error if their number is, whatever type they are read as."""
    if (shared := named(source)) is not None:
        give_lean(found, shared.origins, bound(found))


_SHARES: dict[str, Callable[..., None]] = {
    "create_fadd": partial(_shared_by_sum, sign=1.0),
    "create_fsub": partial(_shared_by_sum, sign=-1.0),
    "create_fmul": _shared_by_product,
    "create_select": _shared_by_choice,
    "create_bitcast": _shared_by_bits,
    **dict.fromkeys(("cast_impl", "create_fp_to_fp"), _shared_by_cast),
    **dict.fromkeys(_EXTREMES, _shared_by_extreme),
}
"""How operations hand on what operands share of their errors."""


def _keep_loss(name: str, found: Any, operand: Any, lost: Any) -> None:
    """A compiler may drop a step that changes no bit, and fuse the product before it."""
    data, before = found.data, operand.data
    if data.shape != before.shape:
        return
    if name in choices.OF_CASTS:
        same = found.dtype.scalar.is_floating() == operand.dtype.scalar.is_floating() or data.itemsize == before.itemsize
        alike: Any = same
    elif data.dtype != before.dtype:
        return
    else:
        alike = np.abs(data) == np.abs(before) if data.dtype.kind == "f" else data == before
    if np.any(alike):
        kept = np.where(alike, lost, 0.0)
        other = loss(found)
        give_loss(found, kept if other is None else np.maximum(kept, other))


def _moving(name: str) -> Callable[..., Any]:
    """Operations that move lanes: what is known of them moves along."""

    def operation(self: Any, *args: Any, **options: Any) -> Any:
        move = getattr(_plain, name)
        found = move(self, *args, **options)
        place = 1 if name == "create_splat" else 0
        source = args[place]
        if type(source) is not engine.TensorHandle or not source.attr or not carries(source):
            return found

        def moved(values: Any, kind: Any) -> Any:
            values = np.ascontiguousarray(np.broadcast_to(values, source.data.shape))
            other = (*args[:place], engine.TensorHandle(values, kind), *args[place + 1 :])
            return move(_scratch, *_typed(name, other, kind), **options).data

        _carry(source, found, moved)
        return found

    return operation


_scratch: Any = None


def _typed(name: str, args: tuple[Any, ...], kind: Any) -> tuple[Any, ...]:
    """`create_splat` is told the type of what it makes."""
    return (tl.block_type(kind, list(args[0].shape)), *args[1:]) if name == "create_splat" else args


def _carry(source: Any, found: Any, moved: Callable[[Any, Any], Any]) -> None:
    if (shared := named(source)) is not None:
        give(found, moved(bound(source), tl.float64))
        give_lean(found, moved(shared.origins, tl.int64), moved(shared.parts, tl.float64))
    if current().may_fuse and (lost := loss(source)) is not None:
        give_loss(found, moved(lost, tl.float64))
    if choices.PAIR in source.attr:
        found.attr[choices.PAIR] = source.attr[choices.PAIR]


def _join(self: Any, lhs: Any, rhs: Any) -> Any:
    found = _plain.create_join(self, lhs, rhs)
    if carries(lhs) or carries(rhs):
        sides = lhs, rhs
        give(found, _stacked([or_zero(bound(side)) for side in sides], sides))
        shared = [named(side) for side in sides]
        give_lean(found, *(_stacked([0 if each is None else each[place] for each in shared], sides) for place in (0, 1)))
        if current().may_fuse and any(loss(side) is not None for side in sides):
            give_loss(found, _stacked([or_zero(loss(side)) for side in sides], sides))
    return found


def _stacked(parts: Any, sides: Any) -> Any:
    return np.stack([np.broadcast_to(part, side.data.shape) for part, side in zip(parts, sides, strict=True)], -1)


def _split(self: Any, val: Any) -> Any:
    parts = _plain.create_split(self, val)
    for place, part in enumerate(parts):
        _carry(val, part, lambda values, _, place=place: np.broadcast_to(values, val.data.shape)[..., place])
    return parts


def _library(self: Any, name: str, path: str, symbol: str, args: Any, result: Any, pure: bool) -> Any:
    found = _plain.create_extern_elementwise(self, name, path, symbol, args, result, pure)
    bounds = _bounds()
    if found.dtype.scalar.is_floating():
        limits = pointwise.of_library(symbol)(found, *args)
    else:
        limits = _whole_of_library(symbol, found, args)
    give(found, _specified(bounds, limits))
    if symbol in ("__nv_fabs", "__nv_fabsf"):
        _follow("create_fabs", found, list(args))
    return found


def _whole_of_library(symbol: str, found: Any, args: Any) -> Any:
    if all(bound(arg) is None for arg in args):
        return None
    return pointwise.spread(symbol, pointwise.LIBRARY[symbol], wide(found), args)


def _kind(handle: Any) -> Kind:
    """What kind of elements a pointer points to."""
    element = handle.get_element_ty()
    return Kind(numpy_dtype(element).itemsize, bool(element.is_floating()))


def _certain(*parts: Any) -> None:
    """Refuse addresses and masks that are not certain."""
    for part in parts:
        if isinstance(part, engine.TensorHandle) and bound(part) is not None:
            _refuse()


def _load(self: Any, ptrs: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    found = _plain.create_masked_load(self, ptrs, mask, *rest, **options)
    bounds = _bounds()
    active = np.asarray(mask.data if isinstance(mask, engine.TensorHandle) else mask)
    seen = bounds.load(ptrs.data, active, _kind(ptrs))
    other = rest[0] if rest else options.get("other")
    beside = None if other is None else bound(other)
    if seen is not None or beside is not None:
        lanes = np.broadcast_to(active, found.data.shape)
        give(found, np.where(lanes, 0.0 if seen is None else as_read(found, seen), or_zero(beside)))
        if seen is not None and bound(found) is not None:
            give_lean(found, np.where(lanes, seen.origins, 0), np.where(seen.other, bound(found), seen.leans))
    doubt = [bound(part) for part in (ptrs, mask) if isinstance(part, engine.TensorHandle) and bound(part) is not None]
    if doubt:
        give(found, np.where(np.maximum.reduce(np.broadcast_arrays(*doubt)) > 0, UNKNOWN, or_zero(bound(found))))
    if bounds.unspecified is not None:
        give(found, _specified(bounds, bound(found)))
    return found


def _share_memory(found: Any, seen: Found) -> None:
    if (limits := bound(found)) is not None:
        give_lean(found, seen.origins, np.where(seen.other, limits, seen.leans))


def as_read(found: Any, seen: Found) -> Any:
    """Bounds of what is read, some of it as another kind than it was written as."""
    limits = np.maximum(seen.limits, 0.0)
    if not seen.other.any():
        return limits
    written = _of_other_kind(found)
    if written is None:
        return np.where(seen.other, UNKNOWN, limits)
    give(written, np.where(seen.other, limits, 0.0))
    return np.where(seen.other, choices.read_as(found, written), limits)


def _of_other_kind(found: Any) -> Any:
    """What was written, where a fraction is read as a whole number or the other way round."""
    kinds = {2: (tl.int16, tl.float16), 4: (tl.int32, tl.float32), 8: (tl.int64, tl.float64)}
    if found.dtype.scalar.name in ("bf16",) or found.data.dtype.itemsize not in kinds:
        return None
    kind = kinds[found.data.dtype.itemsize][0 if found.dtype.scalar.is_floating() else 1]
    return engine.TensorHandle(np.ascontiguousarray(found.data).view(numpy_dtype(kind)), kind)


def _left(value: Any) -> Any:
    """The bounds that a stored value leaves in memory."""
    limits = bound(value)
    if not value.dtype.scalar.is_floating():
        return limits
    nan = np.isnan(wide(value))
    if not nan.any():
        return limits
    limits = np.broadcast_to(or_zero(limits), value.data.shape)
    return np.where(nan & (limits == 0), BITS, limits)


def _store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    _certain(ptrs, mask)
    found = _plain.create_masked_store(self, ptrs, value, mask, *rest, **options)
    active = None if mask is None else np.asarray(mask.data if isinstance(mask, engine.TensorHandle) else mask)
    _bounds().store(ptrs.data, active, _left(value), _kind(ptrs), named(value))
    return found


def _rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    _certain(ptr, mask)
    bounds, kinds = _bounds(), engine._ir.ATOMIC_OP
    kind, active = _kind(ptr), np.broadcast_to(mask.data, ptr.data.shape)
    before = bounds.load(ptr.data, active, kind)
    found = _plain.create_atomic_rmw(self, op, ptr, val, mask, *rest, **options)
    brought = bound(val)
    if op == kinds.FADD:
        limits = or_zero(brought) + _lost(found, val)
        if np.any(limits) or before is not None:
            bounds.add(ptr.data, active, limits, kind)
            give(found, np.full(found.data.shape, UNKNOWN))
    elif op == kinds.XCHG:
        bounds.store(ptr.data, active, _left(val), kind, named(val))
        if before is not None:
            _share_memory(give(found, as_read(found, before)), before)
    elif brought is not None or before is not None:
        widest = np.maximum(or_zero(brought), 0.0 if before is None else as_read(found, before))
        if op == kinds.ADD:
            bounds.add(ptr.data, active, or_zero(brought), kind)
        elif op in (kinds.MAX, kinds.MIN, kinds.UMAX, kinds.UMIN):
            bounds.store(ptr.data, active, np.broadcast_to(widest, ptr.data.shape), kind)
        else:
            bounds.store(ptr.data, active, np.where(widest > 0, UNKNOWN, 0.0), kind)
        give(found, np.where(np.broadcast_to(widest, found.data.shape) > 0, UNKNOWN, 0.0))
    if not active.all():
        give(found, np.where(active.reshape(found.data.shape), or_zero(bound(found)), UNKNOWN))
    return found


def _lost(found: Any, val: Any) -> Any:
    """What sums lose that are made in an order of the GPU's: nothing of whole numbers with few enough bits."""
    before, added = wide(found), wide(val)
    sums = before + added
    whole = (np.rint(before) == before) & (np.rint(added) == added) & (np.abs(sums) <= 2.0 / epsilon(val.dtype))
    most = np.maximum.reduce([np.abs(each) for each in np.broadcast_arrays(before, added, sums)])
    return np.where(whole | (added == 0), 0.0, epsilon(val.dtype) * np.where(np.isfinite(most), most, 0.0))


def _cas(self: Any, ptr: Any, cmp: Any, val: Any, *rest: Any, **options: Any) -> Any:
    _certain(ptr)
    bounds, kind = _bounds(), _kind(ptr)
    before = bounds.load(ptr.data, None, kind)
    found = _plain.create_atomic_cas(self, ptr, cmp, val, *rest, **options)
    shape = ptr.data.shape
    if before is not None:
        _share_memory(give(found, as_read(found, before)), before)
    inexact = before is not None or bound(cmp) is not None
    undecided = choices.compared(found, found, cmp) if inexact else np.zeros(found.data.shape)
    swapped = np.broadcast_to((found.data == cmp.data) | (undecided > 0), shape)
    limits = np.where(np.broadcast_to(undecided, shape) > 0, UNKNOWN, np.broadcast_to(or_zero(_left(val)), shape))
    if before is not None or limits.any():
        bounds.store(ptr.data, swapped, limits, kind, named(val))
    return found


def _reduced(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Reductions of Triton's own; those with functions of a kernel's own have their bounds from there."""

    def apply_impl(self: Any, values: Any) -> Any:
        found = apply(self, values)
        name = sums.REDUCED.get(self.combine_fn)
        if current().bounds is None or name is None or name == "prod":
            return found
        source = values[0].handle
        parts = found if isinstance(found, tuple | list) else (found,)
        for part, limits in zip(parts, sums.of_reduction(name, source, self.axis), strict=False):
            handle = part.handle
            limits = np.reshape(limits, handle.data.shape)
            if name == "sum" and source.dtype.scalar.is_floating():
                limits = limits + _contracted(handle, source, self.axis)
            give(handle, limits)
        if bound(source) is not None:
            _choose(name, parts[0].handle, source, self.axis)
        return found

    return apply_impl


def _contracted(found: Any, source: Any, axis: int | None) -> Any:
    """What a sum of products loses where the compiler makes a product of matrices of it."""
    plain = wide(source).sum(axis).reshape(found.data.shape)
    between = apart(wide(found), plain)
    size = np.abs(wide(source)).sum(axis).reshape(found.data.shape)
    return np.where(between > 2.0**-16 * size, 2.0 * between + 2.0**-10 * size, 0.0)


def _choose(name: str, found: Any, source: Any, axis: int | None) -> None:
    """The origins of extremes, and the pairs of an exclusive `or`."""
    if name == "xor" and axis is not None and source.data.shape[axis] == 2:
        choices.pair(found, source, axis)
    if name.partition(" ")[0] in ("max", "min", "argmax", "argmin") and bound(found) is not None:
        shared = named(source)
        assert shared is not None
        data, (origins, leans) = source.data, shared
        if axis is None:
            data, origins, leans, axis = data.reshape(-1), origins.reshape(-1), leans.reshape(-1), 0
        values = np.where(np.isnan(data), -np.inf if "max" in name else np.inf, data) if data.dtype.kind == "f" else data
        places = np.expand_dims(values.argmax(axis) if "max" in name else values.argmin(axis), axis)
        give_lean(found, *(np.take_along_axis(each, places, axis).reshape(found.data.shape) for each in (origins, leans)))


def _scanned(apply: Callable[..., Any]) -> Callable[..., Any]:
    def apply_impl(self: Any, values: Any) -> Any:
        reverse = self.reverse
        found = apply(self, values)
        name = sums.REDUCED.get(self.combine_fn)
        if current().bounds is None or name not in ("sum", "prod"):
            return found
        source, made = values[0].handle, found[0].handle
        axis = self.axis % source.data.ndim
        data, limits = wide(source), bound(source)
        if name == "sum" and current().may_fuse and (lost := loss(source)) is not None:
            limits = or_zero(limits) + lost
        if not source.dtype.scalar.is_floating():
            if limits is not None:
                give(made, np.full(made.data.shape, UNKNOWN))
            return found
        turned = [each if each is None or not reverse else np.flip(each, axis) for each in (data, limits, wide(made))]
        if name == "sum":
            spread = sums.scanned(turned[0], axis, source.dtype, turned[1])
        else:
            spread = sums.multiplied(turned[2], turned[0], axis, source.dtype, turned[1])
        give(made, np.flip(spread, axis) if reverse else spread)
        return found

    return apply_impl
