"""What Triton's compiler makes of loops beyond what their text says, and which functions make atomic operations.

Loads of a pipelined loop start up to `num_stages` iterations early, whatever the loop stores: all that stand in a
`tl.range` with `num_stages`, and those that feed a `tl.dot` in any other loop. A `tl.debug_barrier()` in the loop keeps
Triton from pipelining it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from assay.kernels.language import vocabulary
from assay.kernels.language.flow.steering import steering
from assay.kernels.language.flow.walking import (
    WRITES,
    Slice,
    expressions,
    features_of,
    features_of_all,
    is_atomic,
    is_barrier,
    is_load,
    names_of,
    own,
    parts_of,
    statements,
)
from assay.kernels.language.form import (
    Assign,
    Call,
    Do,
    Expression,
    Fix,
    For,
    Function,
    If,
    Invoke,
    Local,
    Method,
    Pass,
    Statement,
    While,
    Whole,
)


@dataclass(frozen=True, slots=True)
class Touched:
    """Parameters of a function by which it may come to what it reads and what it writes."""

    read: frozenset[str]
    written: frozenset[str]


@dataclass(slots=True)
class Lowering:
    """Parts of the form, by `id`; they are those of the functions that it was made of."""

    pipelined: set[int] = field(default_factory=set)
    """Loops whose loads may start early."""
    early: set[int] = field(default_factory=set)
    """Those loads, and calls of helpers that have some."""
    atomic: set[str] = field(default_factory=set)
    """Functions that make atomic operations, by themselves or by their helpers."""
    unused: set[int] = field(default_factory=set)
    """Atomic operations whose result nobody uses."""
    asks: set[str] = field(default_factory=set)
    """Those of them that use the result of one."""
    meets: dict[str, Touched] = field(default_factory=dict)
    """What functions touch in which a load may follow a store or an atomic operation."""
    features: dict[str, frozenset[str]] = field(default_factory=dict)
    """What each function does, by itself or by its helpers."""


def lowered(functions: Mapping[str, Function]) -> Lowering:
    """What holds for the functions of a submission; each stands after those that it calls."""
    found = Lowering()
    has = found.features
    for key, function in functions.items():
        has[key] = _features(function.body, has)
        if "atomic" in has[key]:
            found.atomic.add(key)
            found.unused |= {id(one) for one in _unused(function.body)}
            if _asks(function, has, found.unused):
                found.asks.add(key)
                has[key] |= {"asks"}
        has[key] |= steering(function.body, has)
        if "load" in has[key] and has[key] & WRITES and _meets(function.body, has):
            found.meets[key] = touched(function, has)
        if has[key] & {"staged", "dot loop"}:
            _find_early(function.body, has, found, within=False)
    return found


def _features(body: Sequence[Statement], has: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """What is in a body: `atomic`, `store`, `dot`, `load`, `staged` (a loop with stages of its own), `dot loop`; of
    helpers also `asks` (the result of an atomic operation is used), and what `steering` says."""
    found: set[str] = set()
    for each in body:
        found |= features_of_all(own(each), has)
        inside: Sequence[Statement] = ()
        if isinstance(each, For | While):
            inside = each.body
        elif isinstance(each, If):
            inside = (*each.yes, *each.no)
        below = _features(inside, has) if inside else frozenset()
        found |= below
        if isinstance(each, For) and each.function != "tl.static_range":
            found |= {"dot loop"} if "dot" in below else set()
            found |= {"staged"} if _is_staged(each) else set()
    return frozenset(found)


def _unused(body: Sequence[Statement]) -> Iterator[Expression]:
    """Atomic operations that are statements, or whose result is given to a variable that nobody reads."""
    everything = list(statements(body))
    if not any(is_atomic(one) for each in everything for value in own(each) for one in expressions(value)):
        return
    read = _read(everything)
    for each in everything:
        dropped = isinstance(each, Do) or (isinstance(each, Assign) and not read & set(names_of(each.target)))
        if dropped and isinstance(each, Do | Assign) and is_atomic(each.value):
            yield each.value


def _read(everything: Sequence[Statement]) -> set[str]:
    """The variables on which something depends that a kernel does: not those that only variables without a use are made
    of, which the compiler deletes. `everything`: all statements of the kernel, in order."""
    read, before = set[str](), -1
    while len(read) > before:
        before = len(read)
        for each in reversed(everything):  # what is made of a variable comes after it, but in loops
            if _matters(each, read):
                parts = (one for value in own(each) for one in expressions(value))
                read |= {one.name for one in parts if isinstance(one, Local)}
    return read


def _matters(each: Statement, read: set[str]) -> bool:
    """Whether anything that a kernel does depends on a statement, where it depends on some variables."""
    if isinstance(each, Assign):
        acts = (is_atomic(one) or isinstance(one, Invoke) for one in expressions(each.value))
        return not read.isdisjoint(names_of(each.target)) or any(acts)
    if isinstance(each, If):
        return any(_matters(one, read) for one in (*each.yes, *each.no))
    if isinstance(each, For):
        return any(_matters(one, read) for one in each.body)
    return not isinstance(each, Pass | Fix) or (isinstance(each, Fix) and each.name in read)


def _asks(function: Function, has: Mapping[str, frozenset[str]], unused: Collection[int]) -> bool:
    """Whether a function uses the result of an atomic operation, or one of its helpers does."""
    return any(
        (is_atomic(one) and id(one) not in unused) or (isinstance(one, Invoke) and "asks" in has.get(one.key, ()))
        for each in statements(function.body)
        for value in own(each)
        for one in expressions(value)
    )


def _meets(body: Sequence[Statement], has: Mapping[str, frozenset[str]], written: bool = False) -> bool:
    """Whether a load may follow a store or an atomic operation. A loop comes to its beginning again, and in a helper
    that does both either may be the first. `written`: whether one stands before the body."""
    for each in body:
        here, mixed = features_of_all(own(each), has), _mixed(each, has)
        if (written and "load" in here | mixed) or ("load" in mixed and mixed & WRITES):
            return True
        if isinstance(each, If):
            if _meets(each.yes, has, written) or _meets(each.no, has, written):
                return True
            mixed = _features((*each.yes, *each.no), has)
        written = written or bool((here | mixed) & WRITES)
    return False


def touched(function: Function, has: Mapping[str, frozenset[str]]) -> Touched:
    """By which of its parameters a function comes to memory; `has`: what it and its helpers do."""
    everything = list(statements(function.body))
    read, written = Slice(everything), Slice(everything)
    for one in (one for each in everything for value in own(each) for one in expressions(value)):
        features = features_of(one, has)
        for pointer in _pointers(one) if features & {"load", *WRITES} else ():
            if features & {"load", "atomic"}:
                read.take(pointer)
            if features & WRITES:
                written.take(pointer)
    names = {parameter.name for parameter in function.parameters}
    return Touched(frozenset(read.names & names), frozenset(written.names & names))


def _pointers(one: Expression) -> Sequence[Expression | Whole]:
    """By what an expression comes to memory; of the arguments of a helper, each may be it."""
    if isinstance(one, Call):
        named = dict(one.arguments.named)
        return [value for name, value in named.items() if name in ("pointer", "desc")] or one.arguments.positional[:1]
    return parts_of(one)[:1] if isinstance(one, Method) else parts_of(one)


def _mixed(each: Statement, has: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """What a statement does in no order that matters here: a loop, or helpers that it calls."""
    if isinstance(each, For | While):
        return _features((each,), has)
    calls = (one.key for value in own(each) for one in expressions(value) if isinstance(one, Invoke))
    return frozenset(found for key in calls for found in has.get(key, ()))


def _is_staged(loop: For) -> bool:
    """Whether a loop asks for stages, or for being run by several groups of warps."""
    return bool({"num_stages", "warp_specialize"} & _given(loop))


def _given(loop: For) -> set[str]:
    slots = vocabulary.LOOPS[loop.function].split()[: len(loop.arguments.positional)]
    return {*slots, *(name for name, _ in loop.arguments.named)}


def _find_early(body: Sequence[Statement], has: Mapping[str, frozenset[str]], found: Lowering, within: bool) -> None:
    """`within`: in a loop that is flattened into one with those in it."""
    for each in body:
        if isinstance(each, If):
            _find_early((*each.yes, *each.no), has, found, within)
        elif isinstance(each, While) or (isinstance(each, For) and each.function == "tl.static_range"):
            _find_early(each.body, has, found, within)
        elif isinstance(each, For):
            loads, flat = _starting_early(each, has), "flatten" in _given(each)
            pipelined = bool(loads) or (flat and not _waits(each) and _has_early(each.body, has))
            found.early |= {id(one) for one in loads}
            found.pipelined |= {id(each)} if pipelined and not within else set()
            _find_early(each.body, has, found, within or (pipelined and flat))


def _has_early(body: Sequence[Statement], has: Mapping[str, frozenset[str]]) -> bool:
    """Whether a loop in some statements has loads that start early."""
    return any(isinstance(each, For) and _starting_early(each, has) for each in statements(body))


def _starting_early(loop: For, has: Mapping[str, frozenset[str]]) -> list[Expression]:
    return [] if _waits(loop) else list(_early_loads(loop, has))


def _waits(loop: For) -> bool:
    return any(is_barrier(one) for one in loop.body)


def _early_loads(loop: For, has: Mapping[str, frozenset[str]]) -> Iterator[Expression]:
    """The loads of a loop that may start early, those of loops in it left out; and calls of helpers that load."""
    direct = list(_direct(loop.body, "flatten" in _given(loop)))
    here = [one for each in direct for value in own(each) for one in expressions(value)]
    loading = [one for one in here if is_load(one) or _helper_has(one, has, "load")]
    if _is_staged(loop):
        yield from loading
        return
    fed = Slice(list(statements(loop.body)))
    for one in here:
        if isinstance(one, Call) and one.function == "tl.dot":
            given = dict(zip(("input", "other"), one.arguments.positional, strict=False)) | dict(one.arguments.named)
            fed.take(given.get("input"))
            fed.take(given.get("other"))
        elif _helper_has(one, has, "dot"):
            fed.take(one)
    yield from (one for one in loading if id(one) in fed.taken)


def _helper_has(one: Expression, has: Mapping[str, frozenset[str]], feature: str) -> bool:
    return isinstance(one, Invoke) and feature in has.get(one.key, frozenset())


def _direct(body: Sequence[Statement], flat: bool) -> Iterator[Statement]:
    """Statements of a body without those of the loops in it, which are not unrolled; `flat`: with them."""
    for each in body:
        if isinstance(each, If):
            yield each
            yield from _direct((*each.yes, *each.no), flat)
        elif isinstance(each, For | While):
            yield each
            if flat or (isinstance(each, For) and each.function == "tl.static_range"):
                yield from _direct(each.body, flat)
        else:
            yield each
