"""Kernels of a program as functions that the interpreter runs.

`rebuild` is the one place where a submission's text becomes code beside real values.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import linecache
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from assay.kernels.program.form import Function, Kernel, Name, Value

_BUILTINS = ("range", "len", "float", "int", "bool", "min", "max", "abs", "isinstance", "tuple", "list", "print", "sum")
"""What a kernel may use of Python's own."""


class NotAKernelError(Exception):
    """A text that is not one function. The message says what it is."""


def rebuild(kernels: Sequence[Kernel]) -> list[Any]:
    """The kernels of a program, each able to call those that it names.

    Raises:
        NotAKernelError: a text is not that of one function.
        AttributeError: a module has no such name.
    """
    scopes: list[dict[str, Any]] = [{} for _ in kernels]
    built = [_build(kernel, number, scopes[number]) for number, kernel in enumerate(kernels)]
    for kernel, scope in zip(kernels, scopes, strict=True):
        for name, meaning in kernel.names:
            scope[name] = _meaning(meaning.kind, meaning.value, built)
    return built


def _build(kernel: Kernel, number: int, scope: dict[str, Any]) -> Any:
    file = f"<kernel {number}>"
    text = _plain_text(kernel)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope |= {
        "__builtins__": {name: getattr(builtins, name) for name in _BUILTINS},
        "__name__": "kernel",
        "constexpr": tl.constexpr,
    }
    for name, meaning in kernel.names:
        if meaning.kind in ("module", "attribute", "constexpr", "value"):  # defaults of parameters may need them now
            scope[name] = _meaning(meaning.kind, meaning.value, ())
    exec(compile(text, file, "exec", dont_inherit=True), scope)
    return triton.jit(scope[kernel.name])


def _plain_text(kernel: Kernel) -> str:
    """The function's text, its parameters annotated with nothing but `constexpr`."""
    try:
        body = ast.parse(kernel.source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAKernelError(f"the kernel {kernel.name} is not valid Python: {error}") from error
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].name != kernel.name:
        raise NotAKernelError(f"the kernel {kernel.name} is not one function of that name")
    function = body[0]
    function.decorator_list, function.returns = [], None
    parameters = function.args
    for argument in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs):
        argument.annotation = ast.Name("constexpr", ast.Load()) if argument.arg in kernel.constexprs else None
    return ast.unparse(ast.fix_missing_locations(ast.Module([function], []))) + "\n"


def _meaning(kind: str, value: Value, built: Sequence[Any]) -> Any:
    match kind:
        case "module":
            return importlib.import_module(str(value))
        case "attribute":
            module, _, name = str(value).rpartition(".")
            return getattr(importlib.import_module(module), name)
        case "kernel":
            return built[value]  # type: ignore[index]
        case "constexpr":
            return tl.constexpr(plain(value, built))
    return plain(value, built)


def plain(value: Value, built: Sequence[Any]) -> Any:
    """A constant that a kernel is given or names."""
    if isinstance(value, tuple):
        return tuple(plain(part, built) for part in value)
    if isinstance(value, Function):
        return built[value.kernel]
    if isinstance(value, Name):
        return getattr(tl, value.text)
    return value
