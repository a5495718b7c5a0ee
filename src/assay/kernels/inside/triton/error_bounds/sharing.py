"""What goes with values that an operation leaves as they are, or moves: their losses as products, and the errors that
they share with others."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import threads
from assay.kernels.inside.triton.error_bounds.bounds import (
    BITS,
    JOINS,
    MOST,
    NARROW,
    OF_WHOLE,
    TWINS,
    WAS,
    Joins,
    Lean,
    apart,
    bound,
    give,
    give_loss,
    last_bits,
    lean,
    loss,
    loss_of_any,
    named,
    none_shared,
    of_its_own,
    or_zero,
    wide,
)
from assay.kernels.inside.triton.error_bounds.certain import powers_of_two
from assay.kernels.inside.triton.ledger import current

PAIR = "exclusive or of a pair"
"""Attribute: of each lane the names (`Lean.copies`) of two numbers whose bits were combined, and their bounds."""

_ORIGINS = frozenset((JOINS, OF_WHOLE))
_NARROW = {"fp16": np.float16, "fp32": np.float32}
"""Types of which LLVM sees constants to be."""
_NEARLY_ALL = 0.9
"""So much of a product's error has to come from one factor, to be known by that one's."""

_MIXED, _NAMES = 0x5851F42D4C957F2D, (1 << 62) - 1
"""An odd factor that takes names to others, and the bits that they have."""
_plain: Any = engine.InterpreterBuilder
MOVES = ("broadcast", "expand_dims", "splat", "unsplat", "reshape", "trans")
"""Methods of the builder, without `create_`, that move lanes."""
_LAID_OUT = frozenset(("create_expand_dims", "create_reshape", "create_trans"))
"""Those after which lanes may lie in another layout."""


def of_choice(found: Any, condition: Any, lhs: Any, rhs: Any) -> Lean | None:
    """What is chosen by `where` shares what its side does."""
    sides = [named(side, MOST) or none_shared(found.data.shape) for side in (lhs, rhs)]
    origins, parts, copies = (np.where(condition.data, *each) for each in zip(*sides, strict=True))
    if (doubt := bound(condition)) is not None:
        origins, copies = (np.where(doubt > 0, 0, each) for each in (origins, copies))
    return Lean(origins, parts, copies)


def of_extreme(found: Any, lhs: Any, rhs: Any) -> Lean | None:
    """The larger or smaller of two is one of them, where no error can make it the other."""
    limits = or_zero(bound(lhs)) + or_zero(bound(rhs))
    with np.errstate(invalid="ignore"):
        between = np.abs(wide(lhs) - wide(rhs))
    sides = [named(side, MOST) or none_shared(found.data.shape) for side in (lhs, rhs)]
    same = (sides[0].origins == sides[1].origins) & (sides[0].parts == sides[1].parts)
    one = (sides[0].copies == sides[1].copies) & (sides[0].copies != 0)
    mine = found.data == lhs.data
    origins, parts, copies = (np.where(mine, *each) for each in zip(*sides, strict=True))
    other = between > limits
    return Lean(np.where(other | same, origins, 0), parts, np.where(other | one, copies, 0))


def of_product(found: Any, lhs: Any, rhs: Any, limits: Any) -> Lean | None:
    """Times a power of two an error is that much larger. Other products are rounded, and have two errors: they share
    the one that is nearly all."""
    result: Lean | None = None
    for one, other in ((lhs, rhs), (rhs, lhs)):
        shared = lean(one)
        if shared is None:
            continue
        factor = wide(other)
        if bound(other) is None and powers_of_two(factor).all():
            return Lean(shared.origins, shared.parts * factor, np.where(factor == 1.0, shared.copies, 0))
        parts = np.where(np.isfinite(factor), shared.parts * factor, 0.0)
        if np.any(most := (shared.origins != 0) & (np.abs(parts) >= _NEARLY_ALL * limits) & (limits > 0)):
            result = result or of_its_own(limits, twins=TWINS in found.attr)
            result = Lean(
                np.where(most, shared.origins, result.origins), np.where(most, parts, result.parts), result.copies
            )
    return result


def of_cast(found: Any, source: Any, limits: Any) -> tuple[Any, Lean | None]:
    """A cast keeps an error but for what it rounds. Where it may round to either of two numbers, that is an error of
    its own, which what is left of the operand makes up for. Gives back the bound, too."""
    kinds = found.dtype.scalar, source.dtype.scalar
    if not all(kind.is_floating() for kind in kinds):
        return limits, None
    if kinds[0].primitive_bitwidth >= kinds[1].primitive_bitwidth:
        return limits, named(source, MOST)
    shared, own = lean(source), of_its_own(limits, twins=TWINS in found.attr)
    if shared is None:
        return limits, own
    mine = or_zero(bound(source))
    kept = (np.abs(shared.parts) >= MOST * mine) & (limits <= 2.0 * mine)
    limits = np.where((limits > 0) & kept, mine + last_bits(wide(found), found.dtype), limits)
    origins, parts = (np.where(kept, *each) for each in zip(shared[:2], own[:2], strict=True))
    return limits, Lean(origins, parts, own.copies)


def of_bits(found: Any, source: Any, limits: Any) -> Lean | None:
    """Bits of one number are one error, whatever type they are read as. Those of a negative number count up where it
    goes down."""
    shared = named(source)
    if shared is None:
        return None
    kinds = [each.dtype.scalar.is_floating() for each in (found, source)]
    sign: Any = 1.0
    if kinds[0] != kinds[1]:
        number, spread = (found, limits) if kinds[0] else (source, bound(source))
        sign = np.where(np.abs(wide(number)) > spread, np.sign(wide(number)), 0.0)
    whole = (np.abs(shared.parts) == bound(source)) & (sign != 0.0)
    parts = np.where(whole, np.sign(shared.parts) * sign * limits, 0.0)
    return Lean(np.where(whole, shared.origins, 0), parts, shared.copies)


def note_twins(found: Any, operands: Iterable[Any], *, fused: bool = False) -> None:
    """Keep that a value may be made twice. `fused`: by a sum that may take products unrounded."""
    for operand in operands:
        if type(operand) is engine.TensorHandle and (
            TWINS in operand.attr or (fused and np.any(or_zero(loss(operand))))
        ):
            found.attr[TWINS] = True
            return


def keep_loss(found: Any, operand: Any) -> None:
    """A compiler may drop a step that changes no bit, and fuse the product before it. Of steps on its bits it may drop
    several that together change none: all numbers that are made of them keep the loss."""
    lost, data, before = loss_of_any(operand), found.data, operand.data
    if lost is None or data.shape != before.shape:
        return
    if BITS in operand.attr and not found.dtype.scalar.is_floating():
        found.attr[BITS] = True
        _keep(found, operand, lost, np.ones(data.shape, bool))
    elif data.dtype == before.dtype:
        _keep(found, operand, lost, np.abs(data) == np.abs(before) if data.dtype.kind == "f" else data == before)


def keep_origin(found: Any, operand: Any) -> None:
    """After such a step a value is made of what it was made of before."""
    _keep_narrow(found, operand)
    known, data, before = operand.attr.keys() & _ORIGINS, found.data, operand.data
    if not known or data.dtype != before.dtype or not np.array_equal(data, before):
        return
    for name in known:
        found.attr.setdefault(name, operand.attr[name])
    if JOINS in known and (mine := found.attr[JOINS]) is not (other := operand.attr[JOINS]):
        size, reach = np.maximum(mine.size, other.size), np.maximum(mine.reach, other.reach)
        roundings, goes_on = max(mine.roundings, other.roundings), mine.goes_on or other.goes_on
        found.attr[JOINS] = Joins(size, reach, mine.whole & other.whole, roundings, goes_on)


def _keep_narrow(found: Any, operand: Any) -> None:
    """LLVM takes casts to a narrow type through choices, extremes, and changes of signs."""
    data, before = found.data, operand.data
    if WAS not in operand.attr and NARROW not in operand.attr:
        return
    if data.dtype != before.dtype or data.shape != before.shape or data.dtype.kind not in "fu":
        return
    alike = np.abs(wide(found)) == np.abs(wide(operand))
    if WAS in operand.attr and alike.any():
        found.attr.setdefault(WAS, operand.attr[WAS])
    if NARROW in operand.attr:
        lost, name = operand.attr[NARROW]
        kept, other = np.where(alike, lost, 0.0), found.attr.get(NARROW, (0.0, name))
        found.attr[NARROW] = np.maximum(kept, other[0]), name


def keep_loss_of_cast(found: Any, operand: Any, *, bits: bool = False) -> None:
    """A compiler may drop two casts, there and back, or make a product of narrow numbers in their own type. `bits`: the
    same bits are read as another type."""
    kinds = found.dtype.scalar, operand.dtype.scalar
    fractions = [kind.is_floating() for kind in kinds]
    if all(fractions) and kinds[0].primitive_bitwidth > kinds[1].primitive_bitwidth:
        found.attr[WAS] = kinds[1].name
    if JOINS in operand.attr and all(fractions) and np.array_equal(wide(found), wide(operand)):
        found.attr[JOINS] = operand.attr[JOINS]
    lost = loss_of_any(operand)
    if lost is None:
        return
    if not fractions[0] and (bits if fractions[1] else BITS in operand.attr):
        found.attr[BITS] = True
        give_loss(found, lost, operand)
    elif fractions[0] != fractions[1]:
        if found.data.itemsize == operand.data.itemsize:
            give_loss(found, lost, operand)
    elif operand.attr.get(WAS) == kinds[0].name:
        give_loss(found, lost + apart(wide(found), wide(operand)))
    else:
        _keep(found, operand, lost, wide(found) == wide(operand))


def note_width(product: Any, lhs: Any, rhs: Any) -> None:
    """Operands of a product may both have been cast from one narrow type, or one of them may be a constant of it."""
    for one, other in ((lhs, rhs), (rhs, lhs)):
        narrow = one.attr.get(WAS)
        if narrow is not None and (narrow == other.attr.get(WAS) or _has_numbers_of(other, narrow)):
            product.attr[WAS] = narrow


def _has_numbers_of(handle: Any, narrow: str) -> bool:
    """Whether a narrow type has all numbers of an exact value."""
    kind, values = _NARROW.get(narrow), wide(handle)
    if kind is None or bound(handle) is not None or loss(handle) is not None:
        return False
    with np.errstate(all="ignore"):
        return bool(np.array_equal(values.astype(kind).astype(np.float64), values, equal_nan=True))


def _keep(found: Any, operand: Any, lost: Any, alike: Any) -> None:
    if np.any(alike):
        kept, other = np.where(alike, lost, 0.0), loss(found)
        give_loss(found, kept if other is None else np.maximum(kept, other), operand)


def moving(name: str) -> Callable[..., Any]:
    """A method that moves lanes: what is known of them moves along."""

    def operation(self: Any, *args: Any, **options: Any) -> Any:
        move = getattr(_plain, name)
        found = move(self, *args, **options)
        place = 1 if name == "create_splat" else 0
        source = args[place]
        threads.moved(name.removeprefix("create_"), found, source)

        def moved(values: Any, kind: Any) -> Any:
            values = np.ascontiguousarray(np.broadcast_to(values, source.data.shape))
            other = [*args[:place], engine.TensorHandle(values, kind), *args[place + 1 :]]
            if name == "create_splat":  # is told the type of what it makes
                other[0] = tl.block_type(kind, list(args[0].shape))
            return move(self, *other, **options).data

        if type(source) is engine.TensorHandle and source.attr:
            _carry(source, found, moved, (name, *args[:place], *args[place + 1 :]) if name in _LAID_OUT else None)
        return found

    return operation


def _carry(source: Any, found: Any, moved: Callable[[Any, Any], Any], move: Any = None) -> None:
    """`move`: what the lanes go through to another layout, if they do."""
    if (shared := named(source, MOST)) is not None:
        if TWINS in source.attr and move is not None:
            shared = _elsewhere(shared, move)
        kinds = tl.int64, tl.float64, tl.int64
        parts = (moved(part, kind) for part, kind in zip(shared, kinds, strict=True))
        give(found, moved(bound(source), tl.float64), Lean(*parts))
    if current().fuses and (lost := loss_of_any(source)) is not None:
        give_loss(found, moved(lost, tl.float64), source)
        found.attr |= {BITS: True} if BITS in source.attr else {}
    if JOINS in source.attr:
        joins = source.attr[JOINS]
        size, reach, whole = (np.broadcast_to(each, source.data.shape) for each in joins[:3])
        found.attr[JOINS] = joins._replace(
            size=moved(size, tl.float64), reach=moved(reach, tl.float64), whole=moved(whole, tl.int1)
        )
    if OF_WHOLE in source.attr:
        found.attr[OF_WHOLE] = moved(source.attr[OF_WHOLE].astype(np.int64), tl.int64)
    if PAIR in source.attr:
        names, limits = source.attr[PAIR][:2], source.attr[PAIR][2:]
        found.attr[PAIR] = *(moved(each, tl.int64) for each in names), *(moved(each, tl.float64) for each in limits)
    if WAS in source.attr:
        found.attr[WAS] = source.attr[WAS]
    if NARROW in source.attr:
        lost, name = source.attr[NARROW]
        found.attr[NARROW] = moved(lost, tl.float64), name
    note_twins(found, (source,))


def _elsewhere(shared: Lean, move: Any) -> Lean:
    """Values that may be made again behind a move: copies of each other there, and of none elsewhere."""
    key = zlib.crc32(repr(move).encode())
    origins, copies = (-1 - ((names * _MIXED + key) & _NAMES) for names in (shared.origins, shared.copies))
    copies = np.where(shared.copies == 0, 0, copies)
    return Lean(np.where(shared.origins < 0, origins, shared.origins), shared.parts, copies)


def join(self: Any, lhs: Any, rhs: Any) -> Any:
    """`tl.join`."""
    found, sides = _plain.create_join(self, lhs, rhs), (lhs, rhs)
    if any(bound(side) is not None for side in sides):
        shared = [named(side, MOST) or none_shared(side.data.shape) for side in sides]
        for place, side in enumerate(sides):
            if TWINS in side.attr:
                shared[place] = _elsewhere(shared[place], ("join", place))
        parts = (np.stack(each, -1) for each in zip(*shared, strict=True))
        give(found, _stacked([bound(side) for side in sides], lhs.data.shape), Lean(*parts))
        note_twins(found, sides)
    losses = [(loss_of_any if BITS in side.attr else loss)(side) for side in sides]
    if current().fuses and (of := [side for side, lost in zip(sides, losses, strict=True) if lost is not None]):
        give_loss(found, _stacked(losses, lhs.data.shape), of[0])
        found.attr |= {BITS: True} if BITS in of[0].attr else {}
    for side in sides:
        if WAS in side.attr:
            found.attr[WAS] = side.attr[WAS]
    if narrow := [side.attr.get(NARROW, (None, "")) for side in sides if NARROW in side.attr]:
        every = [side.attr.get(NARROW, (None, ""))[0] for side in sides]
        found.attr[NARROW] = _stacked(every, lhs.data.shape), narrow[0][1]
    return found


def _stacked(parts: Any, shape: Any) -> Any:
    return np.stack([np.broadcast_to(or_zero(part), shape) for part in parts], -1)


def split(self: Any, val: Any) -> Any:
    """`tl.split`."""
    parts = _plain.create_split(self, val)
    for place, part in enumerate(parts):

        def chosen(values: Any, _: Any, place: int = place) -> Any:
            return np.broadcast_to(values, val.data.shape)[..., place]

        _carry(val, part, chosen, ("split", place))
    return parts
