"""Which names of a function are its own, and what may be done with them.

Python makes a name local to the whole function, Triton's compiler to the block that assigns it. Where the two would
differ the name is refused, so that the interpreter and the compiler read the same variable.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from assay.kernels.language.bindings import is_identifier
from assay.kernels.language.flow.hints import HINTS
from assay.kernels.language.refusals import Refused, shown


@dataclass(frozen=True, slots=True)
class Scope:
    """Local names of a function.

    parameters: in order.
    loops: names that a `for` counts with; each is only ever that.
    fixed: names annotated `tl.constexpr` in the body.
    """

    parameters: tuple[str, ...]
    assigned: frozenset[str]
    loops: frozenset[str]
    fixed: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.parameters or name in self.assigned or name in self.loops or name in self.fixed


def scope_of(function: ast.FunctionDef) -> Scope:
    """The names that a function binds.

    Raises:
        Refused: a name that may not stand in a kernel, or one that is used in two ways.
    """
    parameters = tuple(argument.arg for argument in function.args.args)
    if len(set(parameters)) != len(parameters):
        raise Refused(1, "two parameters of one name", "Python does not read that", "Rename one of them")
    assigned: dict[str, int] = {}
    loops: dict[str, int] = {}
    fixed: dict[str, int] = {}
    targets: set[int] = set()
    nodes = list(ast.walk(function))
    for node in nodes:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            loops.setdefault(node.target.id, node.lineno)
            targets.add(id(node.target))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fixed.setdefault(node.target.id, node.lineno)
            targets.add(id(node.target))
        elif isinstance(node, ast.Assign) and promises_of_itself(node):
            targets.add(id(node.targets[0]))
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in targets:
            assigned.setdefault(node.id, node.lineno)
    for name, line in [*((name, 1) for name in parameters), *assigned.items(), *loops.items(), *fixed.items()]:
        _check_name(name, line)
    for name, line in loops.items():
        if name in assigned or name in fixed or name in parameters:
            raise Refused(
                line,
                f"a loop over {name}, which is assigned elsewhere too",
                "after the loop the compiler and Python would disagree about its value",
                "Give the loop a name of its own",
            )
    for name, line in fixed.items():
        if name in assigned or name in parameters:
            raise Refused(
                line,
                f"the compile-time value {name}, which is assigned elsewhere too",
                "a compile-time value has one value",
                "Give it a name of its own",
            )
    return Scope(parameters, frozenset(assigned), frozenset(loops), frozenset(fixed))


def promises_of_itself(node: ast.Assign) -> bool:
    """Whether an assignment reads `x = tl.multiple_of(x, 16)`, by its words: it leaves x as it is."""
    value: ast.expr = node.value
    while isinstance(value, ast.Call) and value.args:
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        if f"tl.{name}" not in HINTS:
            return False
        value = value.args[0]
    target = node.targets[0]
    same = isinstance(value, ast.Name) and isinstance(target, ast.Name) and value.id == target.id
    return same and value is not node.value and len(node.targets) == 1


def _check_name(name: str, line: int) -> None:
    if not is_identifier(name) or name.startswith("__"):
        raise Refused(
            line,
            f"the name {shown(name)!r}",
            "names are plain ASCII letters, digits and underscores, do not start with two underscores, and are short",
            "Rename it",
        )


def names_in(target: ast.expr) -> Iterator[ast.expr]:
    """The parts of the target of an assignment that are not tuples."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from names_in(part)
    else:
        yield target
