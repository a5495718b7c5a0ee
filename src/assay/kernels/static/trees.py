"""Walks over syntax trees, remembered: the checks go over the same nodes dozens of times."""

from __future__ import annotations

import ast
from collections import deque

_CHILDREN = "_assay_children"
_BELOW = "_assay_below"


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """The direct children of a node, as `ast.iter_child_nodes` gives them. The tree must not change afterwards."""
    known: tuple[ast.AST, ...] | None = node.__dict__.get(_CHILDREN)
    if known is None:
        known = node.__dict__[_CHILDREN] = tuple(ast.iter_child_nodes(node))
    return known


def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """A node and everything below it, in the order of `ast.walk`. The tree must not change afterwards."""
    known: tuple[ast.AST, ...] | None = node.__dict__.get(_BELOW)
    if known is None:
        found: list[ast.AST] = []
        waiting = deque([node])
        while waiting:
            found.append(waiting.popleft())
            waiting.extend(children(found[-1]))
        known = node.__dict__[_BELOW] = tuple(found)
    return known
