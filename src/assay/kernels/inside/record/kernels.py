"""Triton functions as data: their text, and what the names in it stand for."""

from __future__ import annotations

import ast
import builtins
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

from assay.kernels.inside import submission
from assay.kernels.inside.record.reads import NotRecordableError
from assay.kernels.inside.record.tape import Tape
from assay.types import Json


class Kernels:
    """The Triton functions that were launched, and those that they call, numbered as they appear."""

    def __init__(self, tape: Tape) -> None:
        self.entries: list[dict[str, Json]] = []
        self._numbers: dict[int, int] = {}
        self._held: list[JITFunction[Any]] = []
        self._tape = tape

    def number(self, function: JITFunction[Any]) -> int:
        """The number of a Triton function.

        Raises:
            NotRecordableError: its text names what a program cannot carry.
        """
        known = self._numbers.get(id(function))
        if known is not None:
            return known
        number = self._numbers[id(function)] = len(self.entries)
        self._held.append(function)
        entry: dict[str, Json] = {"name": function.__name__, "source": function.src, "names": {}, "constexprs": []}
        self.entries.append(entry)
        entry["line"] = _line_of(function)
        entry["constexprs"] = [parameter.name for parameter in function.params if parameter.is_constexpr]
        scope = function.get_capture_scope()
        for name in _free_names(function.src):
            if name in scope and scope[name] is not getattr(builtins, name, scope):
                entry["names"][name] = self._meaning(name, scope[name], function.__name__)
        return number

    def value(self, found: Any) -> Json:
        """An argument of a launch, where kernels and Triton's own constants are among the values."""
        if isinstance(found, tl.constexpr):
            return self.value(found.value)
        if isinstance(found, JITFunction):
            return {"kernel": self.number(found)}
        if isinstance(found, tl.dtype):
            return {"language": _name_of_dtype(found)}
        if isinstance(found, list | tuple):
            return [self.value(part) for part in found]
        if type(found).__name__ == "TensorDescriptor" and type(found).__module__ == "triton.tools.tensor_descriptor":
            sizes = ([int(part) for part in sizes] for sizes in (found.shape, found.strides, found.block_shape))
            return {"descriptor": [self._tape.window(found.base), *sizes, found.padding]}
        return self._tape.value(found)

    def _meaning(self, name: str, found: Any, kernel: str) -> Json:
        if isinstance(found, tl.constexpr):
            return {"constexpr": self.value(found)}
        if isinstance(found, JITFunction | Autotuner | Heuristics):
            while not isinstance(found, JITFunction):
                found = found.fn
            return {"kernel": self.number(found)}
        if isinstance(found, ModuleType):
            return {"module": found.__name__}
        if isinstance(found, tl.dtype):
            return {"attribute": f"triton.language.{_name_of_dtype(found)}"}
        if getattr(found, "__module__", "").startswith("triton."):
            return {"attribute": f"{_public_home(found)}.{getattr(found, '__name__', '')}"}
        if found is None or isinstance(found, bool | int | float | str | tuple):
            return {"value": self.value(found)}
        raise NotRecordableError(f"the kernel {kernel} uses {name}, a {type(found).__name__} from outside it")


def _line_of(function: JITFunction[Any]) -> int:
    """The line of the submission at which the text of a kernel begins, its decorators left out; 0 for other files."""
    if function.fn.__code__.co_filename != submission.FILE:
        return 0
    above = next((place for place, line in enumerate(function.raw_src) if line.lstrip().startswith("def ")), 0)
    return int(function.starting_line_number) + above


def _public_home(found: Any) -> str:
    name = getattr(found, "__name__", "")
    if getattr(tl, name, None) is found:
        return "triton.language"
    return str(found.__module__)


_DTYPES = {
    str(getattr(tl, name)): name for name in dir(tl) if isinstance(getattr(tl, name), tl.dtype) and name != "pi32_t"
}


def _name_of_dtype(found: tl.dtype) -> str:
    if str(found) not in _DTYPES:
        raise NotRecordableError(f"the dtype {found} of Triton's")
    return _DTYPES[str(found)]


def _free_names(source: str) -> list[str]:
    """Names that a function's text reads, its annotations of parameters left out."""
    function = ast.parse(source).body[0]
    if not isinstance(function, ast.FunctionDef):
        raise NotRecordableError("a kernel is a function")
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    function.returns, function.decorator_list = None, []
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return list(dict.fromkeys(node.id for node in names))
