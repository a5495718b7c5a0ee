"""A syntax tree looked at once, node by node, without recursion: what the examinations ask of it.

Names are resolved without scopes: a name that an import binds anywhere means that import everywhere.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field

_MOST_PARTS = 12
"""Longer dotted names stand for nothing that is looked for."""


@dataclass(slots=True)
class Tree:
    """The parts of a module that matter, in no order."""

    imports: dict[str, str] = field(default_factory=dict)
    """Name -> dotted name that it stands for."""
    assigned: defaultdict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    """Name -> what is assigned to it, anywhere."""
    classes: dict[str, list[ast.ClassDef]] = field(default_factory=lambda: defaultdict(list))
    calls: list[ast.Call] = field(default_factory=list)
    names: list[ast.Name | ast.Attribute] = field(default_factory=list)
    """Expressions that read a name or an attribute."""
    guards: list[ast.Try] = field(default_factory=list)
    """`try` statements inside functions."""
    module_classes: set[str] = field(default_factory=set)
    """Classes at module level, also those under `if`, `try` and the like."""

    def last(self, node: ast.Name | ast.Attribute) -> str:
        """The last part of what `dotted` gives for a name or an attribute, or would give if it had a dotted name."""
        name = node.attr if isinstance(node, ast.Attribute) else self.imports.get(node.id, node.id)
        return name.rpartition(".")[2]

    def dotted(self, node: ast.AST) -> str:
        """The dotted name that an expression is, such as `torch.compile`, imports resolved; empty if it is none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < _MOST_PARTS:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])


def read_tree(module: ast.Module) -> Tree:
    """Go over a tree once."""
    tree = Tree()
    waiting: list[tuple[ast.AST, bool]] = [(module, False)]
    while waiting:
        node, in_function = waiting.pop()
        kind = type(node)
        if kind in _TAKEN:
            _take(node, in_function, tree)
        inside = in_function or kind in _FUNCTIONS
        # `ast.iter_child_nodes` takes three times as long.
        for part in vars(node).values():
            if isinstance(part, ast.AST):
                waiting.append((part, inside))
            elif type(part) is list:
                waiting += [(child, inside) for child in part if isinstance(child, ast.AST)]
    tree.module_classes.update(_at_module_level(module))
    return tree


_FUNCTIONS = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda})
_TAKEN = frozenset(
    {ast.Import, ast.ImportFrom, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Call, ast.Name, ast.Attribute, ast.Try}
)


def _take(node: ast.AST, in_function: bool, tree: Tree) -> None:
    match node:
        case ast.Name() | ast.Attribute():
            if isinstance(node.ctx, ast.Load):
                tree.names.append(node)
        case ast.Call():
            tree.calls.append(node)
        case ast.Assign():
            for target in node.targets:
                if isinstance(target, ast.Name):
                    tree.assigned[target.id].append(node.value)
        case ast.AnnAssign() if isinstance(node.target, ast.Name) and node.value is not None:
            tree.assigned[node.target.id].append(node.value)
        case ast.ClassDef():
            tree.classes[node.name].append(node)
        case ast.Import() | ast.ImportFrom():
            _take_imports(node, tree)
        case ast.Try() if in_function:
            tree.guards.append(node)


def _take_imports(node: ast.Import | ast.ImportFrom, tree: Tree) -> None:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            tree.imports[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
        else:
            top = alias.name.partition(".")[0]
            tree.imports[alias.asname or top] = alias.name if alias.asname else top


def _at_module_level(module: ast.Module) -> list[str]:
    found = []
    waiting: list[ast.AST] = [module]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.ClassDef):
                found.append(child.name)
            elif isinstance(child, ast.If | ast.Try | ast.ExceptHandler | ast.With | ast.For | ast.While):
                waiting.append(child)
    return found
