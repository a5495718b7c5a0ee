"""Kernels of a live module as the table that `language.parse` reads, for tests that need no recording."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from assay.kernels.inside.record.kernels import binding, names_in
from assay.types import Json


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
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    space = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    return {name: space[name] for name in names_in(source) if name in space and name != function.__name__}


def _helper(value: Any) -> Any:
    """The Python function of a helper of the submission; None for everything else, Triton's own helpers too."""
    function = getattr(value, "fn", None)
    if not inspect.isfunction(function) or function.__module__.startswith("triton."):
        return None
    return function if type(value).__name__ in ("JITFunction", "InterpretedFunction") else _helper(value)
