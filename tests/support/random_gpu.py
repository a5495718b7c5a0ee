"""A GPU that there could be: Triton's interpreter in which what is inexact has other results, as far as CUDA's
documents allow them. It knows nothing of error bounds, which are held against what it computes.

    install()
    with acting(Habits(seed=5)):
        ...                             # launches are this GPU's

Equal operands give equal results. What changes with the habits: by how much quotients and functions are off and to
which side, which products are fused with sums (also by way of casts, choices and moves), the order of sums, scans and
products of matrices, whether operands of TF32 are cut off or rounded, and whether denormal numbers are zeros to
functions.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import builder as switching
from assay.kernels.inside.triton.libdevice import DENORMAL, EXACT, LIBRARY, LOGARITHMS, ULPS
from support.random_orders import Orders, nearest, numbers, spacing
from support.unrounded_products import WAS, give, kept_by, known, unrounded_of

Side = Literal["up", "down", "ends", "any", "nearest"]
_LEAST = 2.0**-126
_POINTWISE = dict.fromkeys(("exp", "exp2", "sin", "cos", "rsqrt", "erf"), 2) | {"log": 1, "log2": 1, "sqrt": 1}
"""By how many last bits functions of the language may be off."""
_ALWAYS_ZERO = ("exp2", "sin", "cos", "sqrt", "rsqrt", "erf")
"""Those to which denormal numbers are zeros."""
_ROUNDS_FIRST = np.float32(1.4426950408889634)
_BEGINS_WITH_A_SUM = ("log1p", "expm1", "asinh", "acosh", "atanh", "sinh", "erfc")


@dataclass(frozen=True)
class Habits:
    """What a GPU does."""

    seed: int
    side: Side = "any"
    fuses: Literal["first", "second", "any", "never"] = "any"
    unrounded: bool = False
    """Sums take quotients and functions without their last rounding."""
    flushes: bool = False
    """Denormal numbers are zeros where they may be."""
    cuts: bool = False
    """Operands of TF32 are cut off."""
    order: Literal["row", "tree", "any"] = "any"


class _Gpu(Orders):
    def __init__(self, habits: Habits) -> None:
        super().__init__(habits.seed, habits.order, habits.cuts, give)
        self.habits = habits

    def coin(self) -> bool:
        return bool(self.chance.integers(2))

    def choice(self, name: str, values: Any) -> Any:
        """Numbers from -1 to 1 that depend on what they are for and on values alone."""
        bits = np.ascontiguousarray(np.asarray(values, np.float64)).view(np.uint64)
        mixed = (bits ^ np.uint64(zlib.crc32(f"{name} {self.habits.seed}".encode()))) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        found = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        sides = {
            "up": np.ones_like(found),
            "down": -np.ones_like(found),
            "ends": np.sign(found),
            "nearest": 0.0 * found,
        }
        return sides.get(self.habits.side, found)

    def off(self, name: str, exact: Any, ulps: float, dtype: Any) -> Any:
        """Numbers of a type that are off from exact ones by so many last bits."""
        near = nearest(exact, dtype)
        step = spacing(near, dtype)
        with np.errstate(all="ignore"):
            found = nearest(exact + self.choice(name, exact) * ulps * step, dtype)
            back = np.where(np.abs(found - exact) > ulps * step, np.copysign(step, found - exact), 0.0)
            return np.where(np.isfinite(near), found - back, near)


_gpu: _Gpu | None = None
_class: Any = None


@contextlib.contextmanager
def acting(habits: Habits) -> Iterator[None]:
    """Launches without error bounds are this GPU's."""
    global _gpu
    _gpu = _Gpu(habits)
    try:
        yield
    finally:
        _gpu = None


def gpu() -> _Gpu:
    """The one that acts."""
    assert _gpu is not None
    return _gpu


def install() -> None:
    """Make it, after the interpreter has been installed."""
    global _class
    plain = engine.InterpreterBuilder
    _class = type("RandomGpu", (plain,), _methods(plain))
    switch = switching.switch

    def switched(bounded: bool) -> None:
        switch(bounded)
        if _gpu is not None:
            assert not bounded
            engine.interpreter_builder.__class__ = _class

    switching.switch = switched
    for owner, made in ((engine.ReduceOps, "reduced"), (engine.ScanOps, "scanned")):
        owner.apply_impl = _ordered(owner.apply_impl, made)


def _ordered(apply: Callable[..., Any], made: str) -> Callable[..., Any]:
    def apply_impl(self: Any, values: Any) -> Any:
        if _gpu is None or type(engine.interpreter_builder) is not _class:
            return apply(self, values)
        unrounded = [unrounded_of(each.handle) for each in values]
        found = getattr(_gpu, made)(self, values, unrounded) or apply(self, values)
        source, first = values[0].handle, found[0] if isinstance(found, tuple | list) else found
        if source.data.size == first.handle.data.size and (before := known(source)) is not None and made == "reduced":
            give(first.handle, before.reshape(first.handle.data.shape), source)  # an axis of one
        return found

    return apply_impl


def _rounded(exact: Any, like: Any) -> Any:
    """A handle with the nearest numbers of another's type."""
    return like.with_numbers(exact)


class _Result:
    """Makes handles of a type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype.scalar

    def with_numbers(self, exact: Any) -> Any:
        found = nearest(exact, self.dtype)
        if self.dtype == tl.bfloat16:
            data = (found.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            data = np.where(np.isnan(found), np.uint16(0x7FFF), data)
        else:
            data = found.astype(engine._get_np_dtype(self.dtype))
        return engine.TensorHandle(data, self.dtype)


def _methods(plain: Any) -> dict[str, Any]:
    methods = {
        "create_fmul": _product(plain.create_fmul),
        "create_fadd": _sum(plain.create_fadd, 1.0),
        "create_fsub": _sum(plain.create_fsub, -1.0),
        "create_fdiv": _quotient,
        "create_extern_elementwise": _library(plain.create_extern_elementwise),
        "create_dot": _matrices(plain.create_dot),
    }
    methods |= {f"create_{name}": _function(name, getattr(plain, f"create_{name}")) for name in _POINTWISE}
    return methods | kept_by(plain)


def _product(plain: Any) -> Any:
    def create_fmul(self: Any, lhs: Any, rhs: Any) -> Any:
        found = plain(self, lhs, rhs)
        exact = numbers(lhs) * numbers(rhs)
        for side, factor in ((lhs, numbers(rhs)), (rhs, numbers(lhs))):
            before = unrounded_of(side)
            if before is None:
                continue
            exact = np.where(~np.isnan(before) & (np.abs(factor) == 1.0), before * factor, exact)
            twice = ~np.isnan(before) & (np.abs(factor) == 2.0)
            if twice.any() and gpu().habits.fuses != "never" and gpu().coin():  # it and itself
                sums = np.sign(factor) * (before + numbers(side))
                found = _rounded(np.where(twice, sums, numbers(found)), _Result(found.dtype))
        if (narrow := lhs.attr.get(WAS)) is not None and narrow == rhs.attr.get(WAS):
            found.attr[WAS] = narrow
        return give(found, exact)

    return create_fmul


def _sum(plain: Any, sign: float) -> Any:
    def add(self: Any, lhs: Any, rhs: Any) -> Any:
        found, habit = plain(self, lhs, rhs), gpu().habits.fuses
        one, other = unrounded_of(lhs), unrounded_of(rhs)
        if one is None and other is None:
            return found
        sides = [numbers(lhs), numbers(rhs)]
        if habit != "never" and (habit != "any" or gpu().coin()):
            first = other is None or (one is not None and (habit == "first" or (habit == "any" and gpu().coin())))
            fused = one + sign * sides[1] if first else sides[0] + sign * other
            found = _rounded(np.where(np.isnan(fused), numbers(found), fused), _Result(found.dtype))
        if other is None and one is not None:  # a sum with nothing
            give(found, np.where(sides[1] == 0.0, one, np.nan))
        elif one is None:
            give(found, np.where(sides[0] == 0.0, sign * other, np.nan))
        return found

    return add


def _ending(found: Any, name: str, settled: Any) -> Any:
    """A result that ends in a product, which is not rounded where it is settled."""
    if not gpu().habits.unrounded:
        return found
    values = numbers(found)
    unrounded = values + 0.49 * spacing(values, found.dtype) * gpu().choice(f"{name} ends", values)
    return give(found, np.where(settled, values, unrounded))


def _quotient(self: Any, lhs: Any, rhs: Any) -> Any:
    with np.errstate(all="ignore"):
        exact = np.asarray(numbers(lhs) / numbers(rhs))
    settled = ~np.isfinite(exact) | (exact == 0) | (np.abs(np.frexp(numbers(rhs))[0]) == 0.5)
    if lhs.dtype.scalar == tl.float64:
        return _rounded(exact, _Result(lhs.dtype))
    off = np.where(settled, exact, gpu().off("quotient", exact, 2, tl.float32))
    return _ending(_rounded(off, _Result(lhs.dtype)), "quotient", settled)


def _denormal(values: Any) -> Any:
    return (np.abs(values) < _LEAST) & (values != 0)


def _function(name: str, plain: Any) -> Any:
    exactly: dict[str, Callable[..., Any]] = {"rsqrt": lambda x: 1 / np.sqrt(x), "erf": LIBRARY["__nv_erf"]}

    def compute(self: Any, arg: Any) -> Any:
        kind = arg.dtype.scalar
        if kind not in (tl.float32, tl.float64):
            return plain(self, arg)
        values = arg.data.astype(np.longdouble)
        if kind == tl.float64:
            exact = np.asarray(exactly.get(name, getattr(np, name, None))(values.astype(_precise(name)))).astype(
                np.float64
            )
            if name == "sqrt":
                return plain(self, arg)
            settled = _settled(name, exact, [values]) & ((name != "log2") | (values == 1))
            return _rounded(np.where(settled, exact, gpu().off(name, exact, 1, kind)), _Result(kind))
        if name in _ALWAYS_ZERO or gpu().habits.flushes:
            values = np.where(_denormal(values), np.copysign(np.longdouble(0), values), values)
        with np.errstate(all="ignore"):
            if name == "exp":  # a power of two, whose exponent is rounded
                exponent = (values.astype(np.float32) * _ROUNDS_FIRST).astype(np.longdouble)
                exact = np.exp2(exponent)
            else:
                exact = np.asarray(exactly.get(name, getattr(np, name, None))(values.astype(_precise(name))))
        exact = exact.astype(np.float64)
        settled = _settled(name, exact, [values])
        found = np.where(settled, exact, gpu().off(name, exact, _POINTWISE[name], tl.float32))
        if gpu().habits.flushes:
            found = np.where(_denormal(found), np.copysign(0.0, found), found)
        return _ending(_rounded(found, _Result(arg.dtype)), name, settled)

    return compute


def _precise(name: str) -> Any:
    return np.float64 if name == "erf" else np.longdouble


def _settled(name: str, exact: Any, args: Sequence[Any]) -> Any:
    """What no GPU has otherwise."""
    near, arg = np.abs(exact.astype(np.float32)), args[0]
    return (exact == 0) | _at_its_end(name, near, arg, args)


def _at_its_end(name: str, near: Any, arg: Any, args: Sequence[Any]) -> Any:
    if name in ("exp", "exp10"):
        return (arg == 0) | np.isinf(arg)
    if name == "exp2":
        return (np.rint(arg) == arg) | np.isinf(arg)
    if name == "log2":
        return np.abs(np.frexp(arg)[0]) == 0.5
    if name == "hypot":
        return (arg == 0) | (args[1] == 0)
    if name == "pow":
        return (arg == 1) | (args[1] == 0)
    if name in ("sinpi", "cospi"):
        return np.rint(2 * arg) == 2 * arg
    if name == "cos":
        return (near == 1) & (np.abs(arg) < 2.0**-11)
    most = {"erf": 1, "tanh": 1, "normcdf": 1, "cosh": 1, "erfc": 2}.get(name, -1)
    return near == most


def _library(plain: Any) -> Any:
    def create_extern_elementwise(
        self: Any, lib: str, path: str, symbol: str, args: Any, result: Any, pure: bool
    ) -> Any:
        name = symbol.removeprefix("__nv_").removesuffix("f")
        if symbol in EXACT or result.scalar != tl.float32 or name == "fma":
            return plain(self, lib, path, symbol, args, result, pure)
        given = [numbers(arg) if arg.dtype.scalar.is_floating() else arg.data for arg in args]
        if name in _BEGINS_WITH_A_SUM and gpu().habits.fuses != "never" and gpu().coin():
            before = [unrounded_of(arg) for arg in args]
            given = [
                each if u is None else np.where(np.isnan(u), each, u) for each, u in zip(given, before, strict=True)
            ]
        if symbol not in DENORMAL and (symbol not in LOGARITHMS or gpu().habits.flushes):
            given = [np.where(_denormal(each), np.copysign(0.0, each), each) for each in given]
        with np.errstate(all="ignore"):
            exact = np.asarray(LIBRARY[symbol](*given), np.float64)
        off = gpu().off(name, exact, ULPS.get(symbol, 1), tl.float32)
        settled = _settled(name, exact, given)
        found = np.where(settled, exact, off)
        if gpu().habits.flushes:
            found = np.where(_denormal(found), np.copysign(0.0, found), found)
        return _ending(_rounded(found, _Result(result)), name, settled)

    return create_extern_elementwise


def _matrices(plain: Any) -> Any:
    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        if not d.dtype.scalar.is_floating():
            return plain(self, a, b, d, input_precision, *rest)
        return _rounded(gpu().product_of_matrices(a, b, d, input_precision), _Result(d.dtype))

    return create_dot
