"""Triton functions as data: their text, and what the names in it stand for."""

from __future__ import annotations

import ast
import builtins
import copy
import math
import textwrap
from collections import deque
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

import torch
import triton.language as tl
from triton.language.core import _unwrap_if_constexpr
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

from assay.kernels.inside import submission
from assay.kernels.inside.record import made
from assay.kernels.inside.record.argument_types import check_annotations, check_exact
from assay.kernels.inside.record.reads import NotRecordableError
from assay.kernels.inside.record.tape import Tape
from assay.types import Json

_BLOCKS = ("body", "orelse", "finalbody")
"""Of a statement: the parts that are statements."""
_PLAIN = (bool, int, float, str, type(None), torch.Tensor, torch.dtype)
"""What a launch may be given beside functions, dtypes and descriptors of Triton's, and tuples."""


class Kernels:
    """The Triton functions that were launched, and those that they call, numbered as they appear."""

    def __init__(self, tape: Tape) -> None:
        self.entries: list[dict[str, Json]] = []
        self._numbers: dict[int, int] = {}
        self.held: list[JITFunction[Any]] = []
        self._globals: list[dict[str, tuple[Any, dict[str, Any]]]] = []
        """Of each, the globals that Triton compiled it with: value and namespace by name."""
        self._bound: list[dict[str, tuple[Any, Any]]] = []
        """Of each, what its names stood for at its first launch, and that as it is compared."""
        self._tape = tape

    def number(self, function: JITFunction[Any]) -> int:
        """The number of a Triton function.

        Raises:
            NotRecordableError: its text names what a program cannot carry.
        """
        known = self._numbers.get(id(function))
        if known is not None:
            return known
        made.check_text(function, submission.lines(function.fn.__code__.co_filename))
        number = self._numbers[id(function)] = len(self.entries)
        self.held.append(function)
        source = "".join(function.raw_src)
        check_annotations(function, source)
        self._globals.append({})
        self._bound.append(bound := {})
        entry: dict[str, Json] = {"name": function.__name__, "source": source, "line": _line_of(function), "names": {}}
        self.entries.append(entry)
        scope = function.get_capture_scope()
        for name in names_in(source):
            if name in scope and name != function.__name__ and scope[name] is not getattr(builtins, name, scope):
                if name not in function.arg_names:
                    bound[name] = scope[name], made.frozen(scope[name])
                helper = helper_of(scope[name])
                if helper is not None:
                    entry["names"][name] = {"function": str(self.number(helper))}
                    continue
                check_exact(f"the name {name} in {function.__name__}", scope[name])
                entry["names"][name] = found = binding(scope[name])
                constant = "constant" in found or isinstance(_unwrap_if_constexpr(scope[name]), tl.dtype)
                if constant and name not in function.arg_names:
                    self._watch(number, name, function.__globals__)
        return number

    def _watch(self, number: int, name: str, space: dict[str, Any]) -> None:
        """Note a global with which a function was compiled. Triton keeps those of enclosing functions."""
        if space.get(name) is not None:
            self._globals[number][name] = copy.deepcopy(space[name]), space

    def check_made(self, number: int) -> None:
        """Raises NotRecordableError where a launched function, or one that it calls, is not what it was made, or where
        one of its names stands for something else than at its first launch."""
        for at in self._reached(number):
            made.check(function := self.held[at])
            scope = function.get_capture_scope()
            for name, (value, found) in self._bound[at].items():
                if made.frozen(scope.get(name)) != found and not self._is_watched(at, name):
                    raise NotRecordableError(
                        f"the name {name} in {function.__name__} stands for another {type(value).__name__} than at its "
                        "first launch, which Triton compiled it with: a GPU may run something else than was recorded. "
                        "Make another kernel, or give it an argument"
                    )

    def _is_watched(self, number: int, name: str) -> bool:
        return name in self._globals[number]

    def _reached(self, number: int) -> set[int]:
        """A function and those that it calls."""
        waiting, seen = [number], {number}
        while waiting:
            names = self.entries[waiting.pop()]["names"].values()
            called = {int(found["function"]) for found in names if "function" in found}
            waiting += called - seen
            seen |= called
        return seen

    def check_globals(self, number: int) -> None:
        """Raises RuntimeError, as Triton does at a launch, where a global has changed with which the function, or one
        that it calls, was compiled."""
        for at in self._reached(number):
            for name, (value, space) in self._globals[at].items():
                if (now := space.get(name)) != value:
                    raise RuntimeError(
                        f"Global variable {name} has changed since we compiled this kernel, from {value} to {now}: "
                        "Triton compiles a kernel with the globals of its first launch. Give it an argument instead"
                    )

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
        if not isinstance(found, _PLAIN):
            raise NotRecordableError(
                f"a value of type {type(found).__name__}, with which Triton computes nothing when it compiles: give "
                "int(...) or float(...)"
            )
        return self._tape.value(found)


def _line_of(function: JITFunction[Any]) -> int:
    """The line of the submission at which the text of a kernel begins; 1 for other files."""
    return int(function.starting_line_number) if function.fn.__code__.co_filename == submission.FILE else 1


def helper_of(found: Any) -> JITFunction[Any] | None:
    """The Triton function that a name stands for, under whatever tunes it; None for anything else, and for the
    functions of Triton's own library."""
    while isinstance(found, Autotuner | Heuristics):
        found = found.fn
    if not isinstance(found, JITFunction):
        return None
    return None if str(found.fn.__module__).startswith("triton.") else found


def binding(found: Any) -> dict[str, Json]:
    """What a name stands for, as `assay.kernels.language.bindings` reads it."""
    found = _unwrap_if_constexpr(found)
    if isinstance(found, ModuleType):
        return {"module": found.__name__}
    if isinstance(found, tl.dtype):
        return {"member": f"triton.language.{_DTYPES[str(found)]}"} if str(found) in _DTYPES else {"other": "dtype"}
    if _is_constant(found):
        return {"constant": _constant(found)}
    home, name = getattr(found, "__module__", "") or "", getattr(found, "__name__", "")
    if isinstance(home, str) and home.startswith("triton") and isinstance(name, str) and name:
        return {"member": f"{home}.{name}"}
    return {"other": type(found).__name__}


def _is_constant(found: Any) -> bool:
    if isinstance(found, list | tuple):
        return all(map(_is_constant, found))
    return found is None or type(found) in (bool, int, float, str)


def _constant(found: Any) -> Json:
    """A constant as JSON, which has no infinity."""
    if isinstance(found, list | tuple):
        return [_constant(part) for part in found]
    return {"float": str(found)} if isinstance(found, float) and not math.isfinite(found) else found


_DTYPES = {
    str(getattr(tl, name)): name for name in dir(tl) if isinstance(getattr(tl, name), tl.dtype) and name != "pi32_t"
}


def _name_of_dtype(found: tl.dtype) -> str:
    if str(found) not in _DTYPES:
        raise NotRecordableError(f"the dtype {found} of Triton's")
    return _DTYPES[str(found)]


def names_in(source: str) -> list[str]:
    """Names that a function's text reads, without those of its decorators, and its own: Triton looks up a name of the
    module's only where none of the function's hides it.

    Raises:
        NotRecordableError: the text is not a function's.
    """
    function = ast.parse(textwrap.dedent(source)).body[0]
    if not isinstance(function, ast.FunctionDef):
        raise NotRecordableError("a kernel is a function")
    found: dict[str, None] = {}
    parameters = function.args
    _note_names([parameters, function.returns], set(), found)
    given = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs, parameters.vararg, parameters.kwarg]
    _note_block(function.body, {each.arg for each in given if each is not None}, found)
    return list(found)


def _note_block(statements: Sequence[ast.stmt], own: set[str], found: dict[str, None]) -> set[str]:
    """Note the names of statements that are not the function's own, and give back those that are after them."""
    for statement in statements:
        blocks = [block for block in map(vars(statement).get, _BLOCKS) if block]
        inside = own
        if blocks:
            _note_names([part for name, part in vars(statement).items() if name not in _BLOCKS], own, found)
            inside = own | (_stored(statement.target) if isinstance(statement, ast.For) else set())
        ways = [_note_block(block, set(inside), found) for block in blocks]
        if not blocks:
            _note_names([statement], own, found)
        if isinstance(statement, ast.AugAssign):  # which reads what it stores to
            found |= dict.fromkeys(_stored(statement.target) - own)
        elif isinstance(statement, ast.Assign):
            own = own.union(*map(_stored, statement.targets))
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            own = own | _stored(statement.target)
        elif isinstance(statement, ast.If) and len(ways) == 2:
            own = ways[0] & ways[1]
    return own


def _stored(target: ast.expr) -> set[str]:
    """The names that an assignment gives something."""
    if isinstance(target, ast.Name):
        return {target.id}
    return set().union(*map(_stored, target.elts)) if isinstance(target, ast.Tuple | ast.List) else set()


def _note_names(parts: Sequence[Any], own: Collection[str], found: dict[str, None]) -> None:
    waiting = deque(parts)
    while waiting:  # `ast.walk` takes twice as long
        node = waiting.popleft()
        if isinstance(node, ast.Name):
            if node.id not in own and not isinstance(node.ctx, ast.Store):
                found[node.id] = None
        elif isinstance(node, ast.AST):
            waiting.extend(vars(node).values())
        elif type(node) is list:
            waiting.extend(node)
