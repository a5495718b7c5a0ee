"""What a kernel is made of, as plain data for `language.parse`: its source, and what its names stand for.

Runs where the submission runs, so that nothing in it is trusted: whoever reads the data checks it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.language.core import _unwrap_if_constexpr

from assay.types import Json

_LANGUAGE = "triton.language"


def collect(functions: Iterable[Any]) -> tuple[dict[str, Json], dict[int, str]]:
    """Kernels (`JITFunction`, or what the interpreter makes of it) and all helpers that they reach.

    Returns the table for `parse`, and the key of each kernel by `id` of its Python function.
    """
    table: dict[str, Json] = {}
    keys: dict[int, str] = {}
    waiting = [function.fn for function in functions]
    for function in waiting:
        if id(function) not in keys:
            keys[id(function)] = f"{function.__name__}_{len(keys)}"
    for function in waiting:
        key = keys[id(function)]
        if key in table:
            continue
        source, line = _source(function)
        names: dict[str, Json] = {}
        for name, value in _used(function, source).items():
            helper = _helper(value)
            if helper is not None:
                if id(helper) not in keys:
                    keys[id(helper)] = f"{helper.__name__}_{len(keys)}"
                    waiting.append(helper)
                names[name] = {"function": keys[id(helper)]}
            else:
                names[name] = binding(value)
        table[key] = {"source": source, "line": line, "names": names}
    return table, keys


def _source(function: Any) -> tuple[str, int]:
    lines, line = inspect.getsourcelines(function)
    return "".join(lines), max(1, line)


def _used(function: Any, source: str) -> dict[str, Any]:
    """Name -> value of everything outside of the function that its source names."""
    tree = ast.parse(textwrap.dedent(source))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    space = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    return {name: space[name] for name in sorted(names) if name in space and name != function.__name__}


def _helper(value: Any) -> Any:
    """The Python function of a helper of the submission; None for everything else, Triton's own helpers too."""
    function = getattr(value, "fn", None)
    if not inspect.isfunction(function) or function.__module__.startswith("triton."):
        return None
    return function if type(value).__name__ in ("JITFunction", "InterpretedFunction") else _helper(value)


def binding(value: Any) -> Json:
    """What a name stands for, as `language.bindings` reads it."""
    value = _unwrap_if_constexpr(value)
    if isinstance(value, ModuleType):
        return {"module": value.__name__}
    if isinstance(value, tl.dtype):
        name = next((name for name in tl.__all__ if getattr(tl, name) is value), "")
        return {"member": f"{_LANGUAGE}.{name}"} if name else {"other": "dtype"}
    if value is None or isinstance(value, bool | int | float | str | tuple | list):
        return {"constant": value}
    home, name = getattr(value, "__module__", "") or "", getattr(value, "__name__", "")
    if home.startswith("triton") and isinstance(name, str) and name:
        return {"member": f"{home}.{name}"}
    return {"other": type(value).__name__}
