"""What the operators of the kernel language mean in the interpreter: what Triton's compiler means by them.

Python means something else in places, and a kernel could tell the two apart there: it takes the last block of
`a and b`, lets a loop variable grow past its type, and keeps what a branch at run time did to a compile-time value,
which the compiler forgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton import counters
from assay.kernels.inside.triton.arithmetic import (
    COMPUTE,
    NUMBER,
    TUPLES,
    MeaningError,
    checked,
    is_tensor,
    raw,
    shown,
)
from assay.kernels.inside.triton.error_bounds import builder as error_bounds
from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.values.doubts import decide
from assay.kernels.inside.triton.values.promises import PROMISES
from assay.kernels.language import vocabulary

Thunk = Callable[[], Any]
_DEPTH = 4
"""Tuples in tuples."""


class Combine:
    """A helper as what a reduction combines with."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn


def negation(value: Any) -> Any:
    """`not x`: of a tensor, of each element."""
    value = raw(value)
    if is_tensor(value):
        return value.__not__()
    if value is None or isinstance(value, NUMBER):
        return not value
    raise MeaningError(f"not of {shown(value)}")


def _logic(method: str, decides: bool) -> Callable[..., Any]:
    """`and`, `or`: compile-time values decide at once, tensors are combined element by element."""

    def combine(*thunks: Thunk) -> Any:
        tensors: list[Any] = []
        value: Any = None
        for thunk in thunks:
            value = raw(thunk())
            if is_tensor(value):
                tensors.append(value)
            elif value is not None and not isinstance(value, NUMBER):
                raise MeaningError(f"{method} of {shown(value)}")
            elif bool(value) is decides:
                return value
        if not tensors:
            return value
        found = tensors.pop()
        while tensors:
            found = getattr(tensors.pop(), method)(found)
        return found

    return combine


def dynamic(condition: Any) -> bool:
    """Whether a condition is only known when the kernel runs."""
    return is_tensor(condition)


def truth(condition: Any) -> bool:
    """What `if` and `while` do with a condition."""
    condition = raw(condition)
    if is_tensor(condition):
        if condition.handle.data.size != 1:
            raise MeaningError("a condition that is a block: reduce it with tl.max, or select with tl.where")
        decide(condition.handle)
        error_bounds.decide(condition.handle)
        return bool(condition.handle.data.reshape(-1)[0])
    if condition is None or type(condition) in (bool, int):
        return bool(condition)
    raise MeaningError(f"a condition that is {shown(condition)}: Triton takes a scalar, a bool, an int or None")


def pick(condition: Any, yes: Thunk, no: Thunk) -> Any:
    """`yes if condition else no`: a number that is chosen when the kernel runs becomes a tensor."""
    chosen = yes if truth(condition) else no
    if not dynamic(condition):
        return chosen()
    value = assigned(chosen())
    if not is_tensor(value):
        raise MeaningError(f"a choice at run time that gives {shown(value)}")
    return value


def pick_outside(condition: Any, yes: Thunk, no: Thunk) -> Any:
    """The same of sides that promise something of values from outside of them."""
    unconditional(dynamic(condition))
    return pick(condition, yes, no)


def assigned(value: Any, depth: int = 0) -> Any:
    """What a variable holds: numbers become tensors, also those in tuples."""
    value = raw(value)
    if isinstance(value, TUPLES):
        if depth >= _DEPTH:
            raise MeaningError(f"tuples in tuples, more than {_DEPTH} deep")
        return tuple(assigned(item, depth + 1) for item in value)
    if isinstance(value, NUMBER):
        return engine.interpreter_semantic.to_tensor(checked(value))
    if value is None or isinstance(value, tl.dtype | tl.tensor | tl.core.tensor_descriptor_base):
        return value
    raise MeaningError(f"a variable that holds {shown(value)}")


def _fixed_parts(value: Any) -> bool:
    """Whether a value, or a part of it, is known when compiled."""
    value = raw(value)
    if isinstance(value, TUPLES):
        return not value or any(map(_fixed_parts, value))
    return not isinstance(value, tl.tensor | tl.core.tensor_descriptor_base)


def again(value: Any, changing: bool, before: tuple[Thunk, ...], whole: bool = True) -> Any:
    """A variable that may have a value already, assigned in a branch or loop of run time (`changing`).

    The compiler forgets there what becomes of compile-time values, so that the interpreter and the GPU would go on
    with different ones.
    """
    for thunk in before if changing else ():
        try:
            old = thunk()
        except NameError:
            continue
        if (_fixed_parts(old) or _fixed_parts(value)) and not (whole and old is value):
            raise MeaningError(
                "a variable that is None, a type or another compile-time value on one side of a branch or loop of run "
                "time and something else on the other: give each its own name"
            )
    return value


def fixed(value: Any) -> Any:
    """`x: tl.constexpr = value`."""
    value = raw(value)
    if isinstance(value, NUMBER):
        return checked(value)
    if value is None or isinstance(value, str | tl.dtype):
        return value
    if isinstance(value, TUPLES):
        return tuple(fixed(item) for item in value)
    raise MeaningError(f"a compile-time value that is {shown(value)}: it must be known before the kernel runs")


def unconditional(region: bool) -> None:
    """A branch, loop or choice that promises something of values from outside of it."""
    if region:
        raise MeaningError(
            "tl.multiple_of, tl.max_contiguous or tl.max_constancy in a branch, choice or loop of run time, or after a "
            "return in one, about a variable from outside of it: the compiler believes it wherever the variable is "
            "used. Put it where the variable is assigned"
        )


def static(value: Any) -> Any:
    """An argument that must be known when compiled, such as `axis` or `bitcast`."""
    if is_tensor(value) or (isinstance(value, TUPLES) and any(is_tensor(raw(item)) for item in value)):
        raise MeaningError("a tensor where a compile-time value is needed: use a constant or a tl.constexpr argument")
    return value


def returned(value: Any) -> Any:
    """What a function with several returns gives back: tensors, whose type does not depend on the branch taken."""
    if _fixed_parts(value):
        raise MeaningError("a helper that returns in several places and returns a compile-time value: return tensors")
    return value


def loop(
    arg1: Any,
    arg2: Any = None,
    step: Any = 1,
    num_stages: Any = None,
    loop_unroll_factor: Any = None,
    disallow_acc_multi_buffer: Any = False,
    flatten: Any = False,
    *_: Any,
    ahead: bool = False,
    **more: Any,
) -> Iterator[Any]:
    """`range`, `tl.range`: counts in tensors of the type that Triton gives the loop variable. `ahead`: the compiler
    may start loads of it early."""
    semantic = engine.interpreter_semantic
    step = 1 if raw(step) is None else step
    bounds = [semantic.to_tensor(raw(part)) for part in ((0, arg1, step) if raw(arg2) is None else (arg1, arg2, step))]
    for bound in bounds:
        if not bound.dtype.is_int() or bound.handle.data.size != 1:
            raise MeaningError("a loop whose bounds are not whole numbers")
        if bound.dtype.is_int_unsigned():
            raise MeaningError("a loop with an unsigned bound, which the compiler takes for a signed one: cast it")
        decide(bound.handle)
        error_bounds.decide(bound.handle)
    kind = semantic.integer_promote_impl(
        semantic.integer_promote_impl(bounds[0].dtype, bounds[1].dtype), bounds[2].dtype
    )
    first, last, stride = (int(bound.handle.data.reshape(-1)[0]) for bound in bounds)
    if stride == 0 or (stride < 0 and is_tensor(raw(step))):
        raise MeaningError(
            f"a loop with the step {counters.in_words(stride)}: it must be positive, or known when compiled and not "
            "zero"
        )
    ledger, flat = current(), bool(raw(flatten))
    if flat or ledger.flat:
        counters.check_flat(first, last, stride, kind)
    factor = raw(loop_unroll_factor)
    counters.check(first, last, stride, kind, max(factor, 1) if type(factor) is int else 1, ahead)
    stages = raw(num_stages)
    stages = _WARPS_APART if stages is None and "warp_specialize" in more else stages
    leave = ledger.observer.loop(stages) if ahead and ledger.observer is not None else None
    ledger.flat += flat
    try:
        for value in range(first, last, stride):
            yield semantic.scalar_constant(value, kind)
    finally:
        ledger.flat -= flat
        if leave is not None:
            leave()


_WARPS_APART = 2
"""Stages of a loop whose loads other warps make."""


def early(function: Callable[..., Any]) -> Callable[..., Any]:
    """A load, or a helper that loads, which the compiler may start early."""

    def call(*args: Any, **named: Any) -> Any:
        ledger = current()
        before, ledger.early = ledger.early, True
        try:
            return function(*args, **named)
        finally:
            ledger.early = before

    return call


def site(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """An access, or a helper, as it is called in one place (`language.flow.sites`)."""

    def call(*args: Any, **named: Any) -> Any:
        ledger = current()
        before, ledger.site = ledger.site, (number, ledger.site[0])
        try:
            return function(*args, **named)
        finally:
            ledger.site = before

    return call


def unused(function: Callable[..., Any]) -> Callable[..., Any]:
    """An atomic operation whose result nobody uses."""

    def call(*args: Any, **named: Any) -> Any:
        ledger = current()
        ledger.unused = True
        try:
            return function(*args, **named)
        finally:
            ledger.unused = False

    return call


def static_loop(arg1: Any, arg2: Any = None, step: Any = 1) -> Iterator[int]:
    """`tl.static_range`: counts in compile-time numbers."""
    step = 1 if raw(step) is None else raw(step)
    bounds = (0, raw(arg1), step) if raw(arg2) is None else (raw(arg1), raw(arg2), step)
    if any(type(bound) is not int for bound in bounds) or step == 0:
        raise MeaningError("tl.static_range with bounds that are not compile-time whole numbers")
    yield from range(*bounds)


def index(value: Any, places: tuple[Any, ...]) -> Any:
    """`x[:, None]` of a tensor, `t[0]` of a tuple."""
    value, places = raw(value), tuple(map(raw, places))
    if is_tensor(value):
        if all(place is None or isinstance(place, slice) for place in places):
            return value[places]
        raise MeaningError("a tensor indexed with a number: Triton loads through pointers, or reduces")
    if isinstance(value, TUPLES) and len(places) == 1 and type(places[0]) is int:
        if not -len(value) <= places[0] < len(value):
            raise MeaningError(f"place {places[0]} of a tuple of {len(value)}")
        return raw(tuple(value)[places[0]])
    raise MeaningError(f"an index into {shown(value)}")


def attribute(value: Any, name: str) -> Any:
    """One of the attributes in the vocabulary."""
    value = raw(value)
    if (
        (is_tensor(value) and name in vocabulary.TENSOR_ATTRIBUTES)
        or (isinstance(value, tl.core.tensor_descriptor_base) and name in vocabulary.DESCRIPTOR_ATTRIBUTES)
        or (isinstance(value, tl.dtype) and name in vocabulary.TYPE_ATTRIBUTES and hasattr(value, name))
    ):
        return raw(getattr(value, name))
    raise MeaningError(f"{shown(value)} has no .{name}")


def method(value: Any, name: str) -> Callable[..., Any]:
    """One of the methods in the vocabulary, bound."""
    value = raw(value)
    if (
        (is_tensor(value) and name in vocabulary.TENSOR_METHODS)
        or (isinstance(value, tl.core.tensor_descriptor_base) and name in vocabulary.DESCRIPTOR_METHODS)
        or (isinstance(value, tl.dtype) and name in vocabulary.TYPE_METHODS)
    ):
        found: Callable[..., Any] = getattr(value, name)
        return found
    raise MeaningError(f"{shown(value)} has no .{name}()")


def length(obj: Any) -> int:
    """`len` of a tuple."""
    obj = raw(obj)
    if not isinstance(obj, TUPLES):
        raise MeaningError(f"len of {shown(obj)}")
    return len(obj)


def pointer(element_ty: Any) -> Any:
    """`tl.pointer_type`."""
    element_ty = raw(element_ty)
    if type(element_ty) is not tl.dtype:
        raise MeaningError(f"a pointer to {shown(element_ty)}")
    return tl.pointer_type(element_ty)


MEANING: dict[str, Any] = {
    **COMPUTE,
    **PROMISES,
    "o_is": lambda left, right: raw(left) is raw(right),
    "o_isnot": lambda left, right: raw(left) is not raw(right),
    "o_not": negation,
    "o_and": _logic("logical_and", False),
    "o_or": _logic("logical_or", True),
    "o_range": loop,
    "o_static_range": static_loop,
    "o_len": length,
    "o_fixed": fixed,
    "o_pointer": pointer,
    "o_assigned": assigned,
    "o_again": again,
    "o_dynamic": dynamic,
    "o_truth": truth,
    "o_pick": pick,
    "o_pick_outside": pick_outside,
    "o_returned": returned,
    "o_static": static,
    "o_unconditional": unconditional,
    "o_early": early,
    "o_unused": unused,
    "o_site": site,
    "o_index": index,
    "o_all": slice(None),
    "o_attribute": attribute,
    "o_method": method,
    "o_combine": Combine,
    "o_nan": math.nan,
    "o_inf": math.inf,
}
"""Every operator that generated text may name."""
