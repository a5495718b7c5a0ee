"""Kernels of the closed language as callables of the interpreter, made from generated text alone.

    kernels = rebuild(parse(...))                      after `interpreter.install()`, which gives `tl` its meaning
    kernels["add"][grid](x, y, n, BLOCK=128)           a launch, as of any kernel of Triton

Nothing that a submission wrote is executed: the text is generated (`language.interpreter_text`), it runs without
builtins, and each name in it is a variable, another function of it, an operator of `meaning`, or a function of Triton
from the vocabulary.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.arithmetic import MeaningError
from assay.kernels.inside.triton.meaning import MEANING
from assay.kernels.language.flow.lowering import Lowering, Touched, touched
from assay.kernels.language.flow.steering import STEERED
from assay.kernels.language.form import Function, Kernels, Parameter
from assay.kernels.language.interpreter_text import InterpreterText, interpreted
from assay.kernels.language.limits import is_plain
from assay.kernels.language.vocabulary import TYPES

FILE = "submission.py"
"""What a traceback calls the file; its lines are those of the submission."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One kernel or helper.

    program: runs one program of a launch; takes the arguments by the submission's names, as `_launch` binds them.
    atomic: whether it makes atomic operations.
    asks: whether it uses results of some.
    steered: how what it loads may steer where it comes to memory (`flow.steering`).
    touched: where it may load what was written in the same launch: what it comes to by its parameters.
    touches: the same wherever it loads or writes anything, computed when it is asked for.
    """

    key: str
    name: str
    parameters: tuple[str, ...]
    constexprs: frozenset[str]
    program: Callable[..., None]
    touches: Callable[[], Touched]
    atomic: bool = False
    asks: bool = False
    steered: frozenset[str] = frozenset()
    touched: Touched | None = None

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launch on a grid."""
        executor = engine.GridExecutor(self.program, list(self.parameters), grid)

        def launch(*args: Any, **named: Any) -> None:
            executor(*args, **named)

        return launch


def rebuild(kernels: Kernels) -> dict[str, Rebuilt]:
    """Every function of a submission, by key."""
    text = interpreted(kernels)
    space = execute(text)
    return {
        key: _rebuilt(function, space[text.names[key]], text.lowering) for key, function in kernels.functions.items()
    }


def execute(text: InterpreterText) -> dict[str, Any]:
    """The names that the text defines, once it ran, by name in the text."""
    space: dict[str, Any] = {"__builtins__": {}, **MEANING}
    space.update({own: _of_triton(name) for own, name in text.triton.items()})
    tree = ast.parse(text.source)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", None)
        if line is not None:
            node.lineno = node.end_lineno = text.origins[line - 1]  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    exec(compile(tree, FILE, "exec"), space)
    return space


def _of_triton(name: str) -> Any:
    """A function or constant of Triton by the full name that the vocabulary gives it."""
    home, _, member = name.partition(".")
    if home == "libdevice":
        return getattr(libdevice, member)
    found: Any = tl
    for part in member.split("."):
        found = getattr(found, part)
    return found


def _rebuilt(function: Function, body: Callable[..., Any], lowering: Lowering) -> Rebuilt:
    names = tuple(parameter.name for parameter in function.parameters)
    constexprs = frozenset(parameter.name for parameter in function.parameters if parameter.constexpr)

    def program(**values: Any) -> None:
        for name in constexprs:
            if isinstance(values[name], str) and not is_plain(values[name]):
                raise MeaningError(f"the compile-time string {name}, which the compiler could take for another one")
        body(
            *(
                values[each.name] if each.constexpr else argument(values[each.name], each)
                for each in function.parameters
            )
        )

    program.__name__ = function.name
    program.__defaults__ = body.__defaults__
    program.__annotations__ = dict.fromkeys(constexprs, "constexpr")
    key = function.key
    return Rebuilt(
        key,
        function.name,
        names,
        constexprs,
        program,
        partial(touched, function, lowering.features),
        atomic=key in lowering.atomic,
        asks=key in lowering.asks,
        steered=lowering.features[key] & STEERED,
        touched=lowering.meets.get(key),
    )


def argument(value: Any, parameter: Parameter) -> Any:
    """An argument as the kernel sees it on a GPU.

    A float is a float32, unless the parameter names a type. A whole number that is 1 is a compile-time value, unless
    the parameter names a type or is not to be specialized: the compiler computes with it as with a constant, which
    does not wrap around.

    value: a tensor of the interpreter already where the launch makes one (pointers, whole numbers).
    """
    if isinstance(value, tuple):
        return tuple(argument(item, parameter) for item in value)
    kind = getattr(tl, parameter.type) if parameter.type in TYPES else None
    if isinstance(value, float):
        if kind is not None and not kind.is_floating():
            raise MeaningError(f"the argument {parameter.name} is {value!r}, but the kernel says that it is {kind}")
        return _tensor(value, kind or tl.float32)
    if not isinstance(value, tl.tensor) or not value.dtype.is_int():
        return value
    if kind is not None:
        return value.to(kind)
    if value.dtype == tl.int1:
        return value
    return 1 if parameter.specialized and int(value.handle.data[0]) == 1 else value


def _tensor(value: float, dtype: Any) -> Any:
    if dtype == tl.bfloat16:  # Triton's launcher cuts the bits of a float32 off
        bits = np.array([value]).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        value = float(bits.view(np.float32)[0])
    number = tl.tensor(engine.TensorHandle(np.array([value], dtype=np.float64), tl.float64), tl.float64)
    return number if dtype == tl.float64 else number.to(dtype)
