"""What Triton's launcher takes: arguments by the types of parameters and what the text says of them, options, grids."""

from __future__ import annotations

import ast
import functools
import numbers
import operator
import struct
import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from triton._utils import type_canonicalisation_dict
from triton.compiler.compiler import make_backend
from triton.language.core import constexpr
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, create_function_from_signature, mangle_type
from triton.tools.tensor_descriptor import TensorDescriptor

from assay.kernels.inside.record.host.addresses import Address
from assay.kernels.inside.record.reads import HostReadError, NotRecordableError
from assay.kernels.inside.tensors import hidden, hidden_by_class
from assay.kernels.language.vocabulary import names_constexpr, type_named
from assay.kernels.program.limits import GRID, option_fault
from assay.types import Json

_EXACT = (bool, int, float, str)
_SIGNED = frozenset({"i1", "i8", "i16", "i32", "i64"})
_UNSIGNED = frozenset({"u1", "u8", "u16", "u32", "u64"})
_FLOATS = frozenset({"fp16", "bf16", "fp32", "f32", "fp64"})
_binders: dict[int, tuple[JITFunction[Any], Any]] = {}
_GIVE = "so Triton raises at the launch. Give a number of the annotated type"


def taken(function: JITFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Parameter -> argument, defaults included, as Triton binds them and its launcher reads them. Triton says what it
    would compile the kernel for, as it does before it compiles.

    Raises:
        TypeError: an argument is missing, unknown, or there twice, or there is no type for it in a kernel.
        OverflowError: a number that the launcher cannot read for its type.
        HostReadError: an argument of which the launcher reads a value.
        NotRecordableError: an argument that shows itself otherwise to Triton than to Python.
    """
    with torch._C.DisableTorchFunction():  # a tensor is asked for its address, which is no read
        try:
            bound, types, given = _binder(function)(*args, **kwargs)
        except TypeError as error:
            said = str(error).replace("dynamic_func()", f"{function.__name__}()")  # of Triton's, which stands for it
            raise TypeError(_untaken(function, args, kwargs) or said) from error
    known = default_options()
    if unknown := [name for name in given if name not in known and name not in function.arg_names]:
        raise TypeError(f"{function.__name__}() has no argument {unknown[0]!r}, nor has a launch such an option")
    hash(tuple(types))  # by which Triton looks kernels up
    for parameter, (kind, _) in zip(function.params, types, strict=True):
        value, what = bound[parameter.name], f"the argument {parameter.name} of {function.__name__}()"
        if isinstance(value, constexpr) and not parameter.is_constexpr:
            raise NotRecordableError(f"{what} is a tl.constexpr, and the parameter is none: give the number")
        # Where an annotation names the type, nothing but the conversion asks for the value's.
        if parameter.annotation_type:
            _check_annotated(what, kind, value)
        _check_plain(what, value)
        if parameter.is_constexpr:
            check_exact(what, value)
    return {name: as_c_reads(value) for name, value in bound.items()}


def as_c_reads(value: Any) -> Any:
    """A number or tuple as C code reads it, whatever methods its class has. An address stays one: as a plain number it
    would no longer be seen that a value was read."""
    if isinstance(value, bool | np.generic | Address):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, tuple):
        return tuple(map(as_c_reads, tuple.__iter__(value)))
    return value


def parts_of(value: Any) -> Iterator[Any]:
    """An argument, or what a tuple of tuples of them has; the tensor of a descriptor."""
    if isinstance(value, list | tuple):
        for part in list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value):
            yield from parts_of(part)
    else:
        yield getattr(value, "base", value)


def check_exact(what: str, value: Any) -> None:
    """Raises NotRecordableError for a compile-time value of a class of the submission's: Triton asks it whether it
    equals another one, and for its text, and it may say anything."""
    if type(value) in (tuple, list, torch.Size):
        for part in value:
            check_exact(what, part)
        return
    if isinstance(value, constexpr):
        if type(value) is not constexpr:
            raise NotRecordableError(f"{what} is of a class made of tl.constexpr: give tl.constexpr(...) itself")
        check_exact(what, value.value)
    looks = isinstance(value, int | float | str | tuple | list) and not isinstance(value, np.generic | Address)
    if looks and type(value) not in _EXACT:
        raise NotRecordableError(
            f"{what} is of a class {type(value).__name__:.40} that only looks like a number or a text to Triton: "
            "give int(...), float(...), str(...) or tuple(...)"
        )


def _check_plain(what: str, value: Any) -> None:
    """Raises NotRecordableError for a tensor, or a descriptor, of which Triton would be shown something else, and
    ValueError for a descriptor that no GPU takes."""
    for part in tuple.__iter__(value) if isinstance(value, tuple) else (value,):
        if isinstance(part, tuple):
            _check_plain(what, part)
            continue
        if getattr(part, "round_f32_to_tf32", False):
            raise NotRecordableError(f"{what} is a descriptor that rounds to TF32: leave round_f32_to_tf32 out")
        if isinstance(part, TensorDescriptor):
            sizes = (part.shape, part.strides, part.block_shape)
            exact = all(type(each) in (list, tuple, torch.Size) for each in sizes) and type(part.padding) is str
            if type(part) is not TensorDescriptor or not exact or any(type(n) is not int for s in sizes for n in s):
                raise NotRecordableError(
                    f"{what} is a descriptor of something else than plain numbers: give TensorDescriptor lists of int"
                )
            if part.padding == "nan" and part.base.element_size() == 1:
                raise ValueError(f"{what} is a descriptor of bytes that is padded with NaN, which a GPU refuses")
            part = part.base
        if isinstance(part, torch.Tensor) and (name := hidden(part) or hidden_by_class(type(part))):
            raise NotRecordableError(f"{what} is a tensor with a {name:.80} of its own in the place of PyTorch's")


def _binder(function: JITFunction[Any]) -> Any:
    """What Triton takes a launch's arguments by. The kernel's own stays unmade: what is in its caches would be launched
    without being compiled."""
    held, binder = _binders.get(id(function), (None, None))
    if held is not function:
        binder = create_function_from_signature(function.signature, function.params, backend())
        _binders[id(function)] = function, binder
    return binder


@functools.cache
def backend() -> Any:
    """The compiler of the GPU that is compiled for."""
    return make_backend(driver.active.get_current_target())


@functools.cache
def default_options() -> Mapping[str, Any]:
    """What a launch that says nothing is compiled with. Settings of Triton's that it follows are looked at by
    themselves (`host_state`)."""
    return MappingProxyType(vars(backend().parse_options({})))


def _check_annotated(what: str, kind: str, value: Any) -> None:
    """What the launcher does with a value for a parameter whose annotation names its type: whole numbers wrap around
    within 64 bits; those without a sign must have none."""
    shown = f"{what} is annotated as {kind} and is {_text(value)}"
    if kind.startswith("*"):
        if not isinstance(value, torch.Tensor) or mangle_type(value) != kind.replace("*k", "*"):
            raise NotRecordableError(f"{shown}: leave the annotation out, Triton takes the tensor's own type")
    elif kind in _SIGNED or kind in _UNSIGNED:
        if not isinstance(value, int if kind in _UNSIGNED else numbers.Integral):
            if kind in _SIGNED:
                _check_unread(what, kind, value)
            raise TypeError(f"{shown}, {_GIVE}")
        least, beyond = (0, 1 << 64) if kind in _UNSIGNED else (-1 << 63, 1 << 63)
        if not least <= int(value) < beyond:
            raise OverflowError(f"{shown}, {_GIVE}, from {least} to {beyond - 1}")
        if kind == "u1" and int(value) not in (0, 1):
            raise NotRecordableError(f"{shown}: give True or False")
    elif kind in _FLOATS:
        if not isinstance(value, numbers.Real):
            _check_unread(what, kind, value)
            raise TypeError(f"{shown}, {_GIVE}")
        try:
            struct.pack("<e" if kind == "fp16" else "<d", float(value))
        except OverflowError as error:
            raise OverflowError(f"{shown}, {_GIVE} that is not too large for it") from error
    else:
        raise TypeError(f"{shown}, a type that Triton's launcher has not. Leave the annotation out")


def _check_unread(what: str, kind: str, value: Any) -> None:
    """Raises HostReadError for a tensor of one element: where a number is annotated, the launcher takes its value."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and (kind in _FLOATS or not value.is_floating_point()):
        raise HostReadError(f"{what}, a tensor where {kind} is annotated,")


def _text(value: Any) -> str:
    """A value in a message: a number where it is one."""
    if type(value) in (bool, int, float):
        return f"{value!r:.40}" if not isinstance(value, int) or value.bit_length() < 128 else "a larger number"
    return f"a {type(value).__name__}"


def check_annotations(function: JITFunction[Any], source: str) -> None:
    """Hold what Triton takes for the types of parameters against what the text names, from which it is replayed.

    Raises:
        NotRecordableError: they differ, as where the annotation is another name for a type.
    """
    tree = ast.parse(textwrap.dedent(source)).body[0]
    written = {each.arg: each.annotation for each in tree.args.args} if isinstance(tree, ast.FunctionDef) else {}
    if list(written) != function.arg_names:
        raise NotRecordableError(
            f"the parameters of {function.__name__}() are {', '.join(written)} in its text, and Triton takes them for "
            f"{', '.join(function.arg_names)}: leave __signature__ alone"
        )
    for parameter in function.params:
        annotation = written.get(parameter.name)
        named, found = type_named(annotation), parameter.annotation_type
        alike = type_canonicalisation_dict.get(named, "") == found or (named in ("", "const") and found.startswith("*"))
        alike = alike and parameter.is_const == (named == "const")
        if parameter.is_constexpr != names_constexpr(annotation) or not (alike or parameter.is_constexpr):
            raise NotRecordableError(
                f"the parameter {parameter.name} of {function.__name__}() is annotated as "
                f"{ast.unparse(annotation) if annotation is not None else 'nothing':.80}, which Triton takes for "
                f"{'tl.constexpr' if parameter.is_constexpr else found or 'no type'}: write tl.constexpr, or the type "
                "by its own name (tl.int32), or nothing"
            )


def _untaken(function: JITFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Which argument has no type in a kernel, and what to do; empty where each has one, or none can be bound."""
    try:
        named = {name: value for name, value in kwargs.items() if name in function.arg_names}
        bound = function.signature.bind(*args, **named).arguments
    except TypeError:
        return ""
    for parameter in function.params:
        try:
            if not parameter.is_constexpr and parameter.name in bound:
                mangle_type(bound[parameter.name])
        except TypeError as error:
            return (
                f"the argument {parameter.name} of {function.__name__}() has no type in a kernel, so Triton raises at "
                f"the launch ({error}). It takes tensors, tensor descriptors, bool, int, float, None and tuples of "
                "these: give int(...), float(...) or tuple(...), or make it tl.constexpr where it is no number"
            )
    return ""


def options_of(function: JITFunction[Any], kwargs: dict[str, Any]) -> dict[str, Json]:
    """What a launch tells the compiler: a keyword is an option to Triton also where it is a parameter's.

    Raises:
        AssertionError, TypeError: Triton does not take a value.
        NotRecordableError: an option, or a value of one, that a program cannot carry.
    """
    plain = default_options()
    if all(kwargs[name] is plain[name] for name in plain.keys() & kwargs.keys()):
        return {}
    for name, value in kwargs.items():
        if name in plain and name not in function.arg_names and type(value) not in (bool, int, float, str, type(None)):
            said = option_fault(name, value) or f"{name} of a launch is a plain number"
            raise NotRecordableError(f"a launch of {function.__name__}(): {said}")
    try:
        chosen = vars(backend().parse_options(dict(kwargs)))
    except (AssertionError, TypeError) as error:
        given = {name: repr(kwargs[name]) for name in plain if name in kwargs}
        said = ", ".join(f"{name}={text:.40}" for name, text in given.items() if text != repr(plain[name]))
        kind = AssertionError if isinstance(error, AssertionError) else TypeError
        raise kind(f"Triton raises at a launch of {function.__name__}() with {said}: {error}") from error
    options = {name: value for name, value in chosen.items() if name in kwargs and value != plain.get(name)}
    for name, value in options.items():
        if fault := option_fault(name, value):
            raise NotRecordableError(f"a launch of {function.__name__}(): {fault}")
    return options


def extents_of(name: str, grid: Any) -> list[int]:
    """The extents of a grid, by the places that Triton asks for.

    Raises:
        TypeError, ValueError: no GPU takes it.
        HostReadError: an address is in it.
    """
    if isinstance(grid, torch.Tensor) or not hasattr(grid, "__getitem__"):
        raise TypeError(f"the grid of {name}() must be a tuple of whole numbers, not {type(grid).__name__}")
    size = len(grid)
    if not 1 <= size <= 3:
        raise ValueError(f"the grid of {name}() has {size} dimensions; there are 1 to 3")
    extents = [as_c_reads(grid[place]) for place in range(size)]
    if any(isinstance(extent, Address) for extent in extents):
        raise HostReadError("an address from data_ptr() in a grid")
    extents = [operator.index(extent) for extent in extents]
    if min(extents) < 0:
        raise ValueError(f"the grid of {name}() has a negative extent: {tuple(extents)}")
    if any(extent > most for extent, most in zip(extents, GRID, strict=False)):
        raise ValueError(f"the grid of {name}() is {tuple(extents)}, and no GPU takes more than {GRID}")
    return extents
