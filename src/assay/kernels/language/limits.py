"""How much a kernel may hold, and how much it does: counted without recursion, in time linear in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from assay.kernels.language.refusals import Refused

MAX_FUNCTIONS = 64
"""Kernels and helpers together."""
MAX_SOURCE = 32 * 1024
"""Bytes of the source of one function."""
MAX_SOURCES = 128 * 1024
"""Bytes of all sources."""
MAX_NODES = 8_000
"""Nodes of Python's syntax tree of one function."""
MAX_ALL_NODES = 20_000
"""Nodes of all functions. The honest kernels in the catalogue have at most 345 each."""
MAX_DEPTH = 70
"""Levels of nesting of statements and expressions."""
MAX_NAMES = 256
"""Names that a function takes from outside."""
MAX_NAME = 100
"""Characters of a name."""
MAX_LITERALS = 512
"""Numbers and strings in one function."""
MAX_LITERAL_BYTES = 1024
"""Bytes of the numbers and strings in one function."""
MAX_TEXT = 200
"""Characters of a string."""
MAX_PARAMETERS = 128
MAX_LOOPS = 10
"""Loops in loops; Python itself stops at twenty."""
MAX_EXPANDED = 200_000
"""Nodes of a function with the bodies of all helpers in the places of their calls: what the compiler has to do."""
INT_BITS = 64
"""Whole numbers beyond these have no type in Triton."""


_PLAIN = re.compile(r"[A-Za-z0-9_.+ -]*")


def is_plain(text: str) -> bool:
    """Whether a compile-time string is one that Triton's compiler tells from every other.

    It names the variants of a helper after their arguments and writes `_` for brackets and `_sq_` for quotes there, so
    that "a[" and "a_" would share one variant: the first one compiled.
    """
    return len(text) <= MAX_TEXT and _PLAIN.fullmatch(text) is not None and "_sq" not in text and "sq_" not in text


def measure(tree: ast.AST) -> int:
    """Nodes of a tree.

    Raises:
        Refused: it has too many nodes or levels.
    """
    nodes = 0
    line = 1
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        if nodes > MAX_NODES:
            raise Refused(
                line,
                f"a function of more than {MAX_NODES} pieces",
                "kernels are read whole before they are run, so their size is bounded",
                "Write a loop or a helper for what is repeated",
            )
        level = [child for node in level for part in vars(node).values() for child in _children(part)]
        if not level:
            return nodes
        line = getattr(level[0], "lineno", line)
    raise Refused(
        line,
        f"nesting of more than {MAX_DEPTH} levels",
        "kernels are read whole before they are run, so their depth is bounded",
        "Give the inner parts names of their own",
    )


_SIGNS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def _children(part: object) -> Iterable[ast.AST]:
    """The nodes in a field of a node, without signs."""
    if isinstance(part, list):
        return [child for child in part if isinstance(child, ast.AST) and not isinstance(child, _SIGNS)]
    return (part,) if isinstance(part, ast.AST) and not isinstance(part, _SIGNS) else ()


def literal_size(value: object) -> int:
    """Bytes that a number or a string can carry; truth values and None carry none."""
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return max(1, (value.bit_length() + 7) // 8)
    return len(value.encode("utf-8", "replace")) if isinstance(value, str) else 8
