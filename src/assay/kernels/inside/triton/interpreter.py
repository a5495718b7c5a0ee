"""Triton's interpreter made fit for grading: it counts launches, keeps a budget, and checks every access to memory.

What the interpreter gets silently wrong is mended (`bfloat16`) or refused instead of graded, what it lacks and a GPU
has (libdevice, a driver to ask while tuning) is supplied.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import numpy as np
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime import interpreter as engine
from triton.runtime.driver import driver

from assay.kernels.inside.triton import guards
from assay.kernels.inside.triton.error_bounds import builder as error_bounds
from assay.kernels.inside.triton.ledger import PausedError, UnsupportedError, current, refuse
from assay.kernels.inside.triton.libdevice import DENORMAL, EXACT, KEEPS_NAN, LIBRARY, LOGARITHMS
from assay.kernels.inside.triton.stub_driver import StubDriver, measure_nothing
from assay.kernels.inside.triton.values import (
    bfloat16,
    block_types,
    casts,
    constants,
    contractions,
    counting,
    doubts,
    functions,
    handles,
    products,
    promises,
    ptx,
    quotients,
    reductions,
)
from assay.kernels.inside.triton.values.combining import trees
from assay.kernels.program.limits import OPTIONS


def _tensor_ranges(values: Any) -> Iterator[tuple[int, int]]:
    for value in values:
        if isinstance(value, tuple):
            yield from _tensor_ranges(value)
            continue
        if isinstance(value, engine.TensorDescriptor):
            value = value.base
        value = engine._unwrap_tensor(value)
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _launch(executor: Any, *args: Any, **kwargs: Any) -> None:
    """One launch, in place of Triton's own, which would copy every tensor to the host and back."""
    function, names = executor.fn, executor.arg_names
    bound = _bind(function, names, args, kwargs)
    grid = executor.grid(bound) if callable(executor.grid) else executor.grid
    extents = _extents(function.__name__, grid)
    current().count(function.__name__, extents)
    current().fuses = bool(kwargs.get("enable_fp_fusion", True))
    # Hooks and kernels are the candidate's Python, so only what is done around them is kept from the modes that watch.
    for hook in executor.pre_run_hooks:
        hook(*args, **{name: value for name, value in kwargs.items() if name in names})
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        guards.ranges.set(set(_tensor_ranges(bound.values())))
        values = {
            name: value if name in executor.constexprs else block_types.argument(value) for name, value in bound.items()
        }
    try:
        try:
            error_bounds.switch(current().bounds is not None)
            _run_programs(function, values, (*extents, 1, 1)[:3])
        finally:
            doubts.forget()
            error_bounds.switch(False)
    except Exception as error:
        refusal = current().refusal
        if refusal is not None:
            raise refusal from None
        cause = error.__cause__ if isinstance(error, engine.InterpreterError) else error
        missing = _missing_feature(cause)
        if missing:
            refuse(UnsupportedError(missing))
        raise


def _extents(name: str, grid: Any) -> tuple[int, ...]:
    """The extents of a grid, as far as a GPU takes them.

    Raises:
        TypeError, ValueError: it does not.
    """
    try:
        extents = tuple(operator.index(extent) for extent in grid)
    except TypeError as error:
        raise TypeError(f"the grid of {name}() must be a tuple of whole numbers, not {grid!r:.80}") from error
    if not 1 <= len(extents) <= 3:
        raise ValueError(f"the grid of {name}() has {len(extents)} dimensions; there are 1 to 3")
    if min(extents) < 0:
        raise ValueError(f"the grid of {name}() has a negative extent: {extents}")
    return extents


def _bind(function: Any, names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Name -> argument, defaults included; options of the compiler (`num_warps`, say) are left out.

    Raises:
        TypeError: an argument is missing, unknown, or there twice.
    """
    if len(args) > len(names):
        raise TypeError(f"{function.__name__}() takes {len(names)} arguments but {len(args)} were given")
    bound = dict(zip(names, args, strict=False))
    for name in bound.keys() & kwargs.keys():
        raise TypeError(f"{function.__name__}() got multiple values for argument {name!r}")
    defaults = function.__defaults__ or ()
    for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        bound.setdefault(name, default)
    for name, value in kwargs.items():
        if name in names:
            bound[name] = value
        elif name not in OPTIONS:
            raise TypeError(f"{function.__name__}() has no argument {name!r}, nor has the compiler such an option")
    missing = [name for name in names if name not in bound]
    if missing:
        raise TypeError(f"{function.__name__}() is missing the arguments {', '.join(missing)}")
    return bound


def _run_programs(function: Any, values: dict[str, Any], grid: tuple[int, ...]) -> None:
    builder = engine.interpreter_builder
    builder.set_grid_dim(*grid)
    places = list(enumerate(itertools.product(*map(range, grid))))
    ledger = current()
    if ledger.schedule:
        places = [places[number] for number in ledger.schedule]
    elif ledger.order is not None:
        ledger.order.shuffle(places)

    def run(numbered: tuple[int, tuple[int, ...]]) -> None:
        number, place = numbered
        if ledger.observer is not None:
            ledger.observer.begin(number)
        builder.set_grid_idx(*place)
        function(**values)

    if ledger.turns is not None:
        ledger.turns.run(function.__name__, places, run)
        return
    for numbered in places:
        with contextlib.suppress(PausedError):
            run(numbered)


def _missing_feature(cause: BaseException | None) -> str:
    """What the interpreter lacks, where that is what ended a launch."""
    text = str(cause)
    if isinstance(cause, NotImplementedError):
        return f"the interpreter does not have it: {text}"
    if isinstance(cause, ValueError) and text == "Unsupported data type":
        return "the interpreter does not have this atomic operation for this type"
    if isinstance(cause, AttributeError) and isinstance(cause.obj, engine.InterpreterBuilder):
        return f"the interpreter cannot compute this (it has no {cause.name}): it needs a GPU"
    return ""


def install() -> None:
    """Put all of it into Triton, once per process."""
    driver.set_active(StubDriver())
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = measure_nothing
    np.seterr(all="ignore")  # a GPU does not warn, either
    engine.GridExecutor.__call__ = _launch
    builder = engine.InterpreterBuilder
    # Indices wrap in NumPy as they do on a GPU; checking each sum for overflow would cost a fifth of the time.
    engine.interpreter_builder.options = engine.InterpreterOptions(sanitize_overflow=False)
    engine.FunctionRewriter._get_jit_fn_file_line = _first_line
    _keep_language_patched()
    block_types.install(builder)
    handles.install(builder)
    bfloat16.install(builder)
    ptx.install(builder)
    casts.install(builder)
    guards.install(builder)
    products.install(builder)
    functions.install(builder)
    reductions.install()
    trees.install()
    contractions.install(builder)
    constants.install(builder)
    promises.install(builder)
    quotients.install(builder)
    builder.create_extern_elementwise = _extern_elementwise
    counting.install(builder)
    doubts.install()
    error_bounds.install()
    _serve_libdevice()


def _first_line(rewriter: Any) -> tuple[str, int]:
    """File and line of a kernel, without having Triton read and hash its source for them."""
    code = rewriter.fn.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    decorators = next((place for place, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    return code.co_filename, code.co_firstlineno + decorators


class _NothingToRestore:
    def restore(self) -> None:
        """The language stays as it is."""


def _keep_language_patched() -> None:
    """Give `triton.language` its interpreted meaning permanently; doing it again would take a millisecond of every
    launch."""
    scope = engine._LangPatchScope()
    builder = engine.interpreter_builder
    for language in (tl, tl.core):
        engine._patch_builtin(language, builder, scope)
        engine._patch_builtin(language.tensor, builder, scope)
        engine._patch_lang_tensor(language.tensor, scope)
        engine._patch_lang_core(language, scope)
    tl.core.tensor.T = property(tl.trans)
    # As for the compiler. The interpreter's has the values, which are secret, and Triton puts it into its messages.
    tl.core.tensor.__str__ = tl.core.tensor.__repr__ = lambda self: str(self.type)
    engine._patch_builtin(tl.math, builder, scope)
    engine._patch_builtin(tl.core.tensor_descriptor_base, builder, scope)
    engine._patch_lang = lambda fn: _NothingToRestore()


def _extern_elementwise(_self: Any, _name: str, _path: str, symbol: str, args: Any, result: Any, _pure: bool) -> Any:
    function = LIBRARY.get(symbol)
    if function is None:
        refuse(UnsupportedError(f"the interpreter does not have libdevice's {symbol}"))
    dtype, kind, single = result.scalar, engine._get_np_dtype(result), np.dtype(np.float32)
    flushes = symbol not in DENORMAL and symbol not in LOGARITHMS
    given = [functions.flushed(a.data) if flushes and a.data.dtype == single else a.data for a in args]
    if symbol not in EXACT:  # rounded once, to nearest
        given = [each.astype(np.float64) if each.dtype == single else each for each in given]
    data = np.asarray(function(*given))
    if data.dtype.kind == "f" and kind.kind == "i":
        return engine.TensorHandle(casts.saturated(data, kind), dtype)
    data = data.astype(kind)
    if flushes and kind == single:
        data = functions.flushed(data)
    return engine.TensorHandle(data if symbol in KEEPS_NAN else functions.canonical(data), dtype)


def _serve_libdevice() -> None:
    """Let kernels call libdevice under both of its names; outside a compiler Triton leaves both without a meaning."""
    from triton.language.extra import libdevice as general
    from triton.language.extra.cuda import libdevice as cuda

    for name, function in list(vars(cuda).items()):
        if callable(function) and getattr(function, "__module__", "") == cuda.__name__:
            served = _served(function)
            setattr(cuda, name, served)
            if hasattr(general, name):
                setattr(general, name, served)


def _served(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, _semantic: object = None) -> Any:
        return function(*args, _semantic=engine.interpreter_semantic)

    return call
