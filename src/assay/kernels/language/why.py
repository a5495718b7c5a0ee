"""Why parts of Python are not in the language, and what to write instead."""

from __future__ import annotations

import ast
from typing import NamedTuple

from assay.kernels.language.refusals import Refused, shown


class Reason(NamedTuple):
    """What something is called, why it is refused, and what to write instead."""

    what: str
    why: str
    instead: str


_ONE_WORLD = "a kernel computes on blocks of numbers and has no objects of Python"
_RANGE = "Write `for i in range(...)`, tl.range or tl.static_range"

EXPRESSIONS: dict[type[ast.expr], Reason] = {
    ast.JoinedStr: Reason("an f-string", "it formats values, which a kernel has no use for", "Leave it out"),
    ast.Lambda: Reason("a lambda", "functions are helpers with @triton.jit", "Write a helper"),
    ast.NamedExpr: Reason(
        "an assignment in an expression", "Triton assigns in statements", "Assign in a line of its own"
    ),
    ast.ListComp: Reason("a comprehension", "Triton has loops", "Write `for i in tl.static_range(...)`"),
    ast.SetComp: Reason("a comprehension", "Triton has loops", "Write `for i in tl.static_range(...)`"),
    ast.DictComp: Reason("a comprehension", "Triton has loops", "Write `for i in tl.static_range(...)`"),
    ast.GeneratorExp: Reason("a generator", "Triton has loops", "Write `for i in tl.static_range(...)`"),
    ast.Dict: Reason("a dictionary", _ONE_WORLD, "Use variables, or a tuple"),
    ast.Set: Reason("a set", _ONE_WORLD, "Use variables, or a tuple"),
    ast.Starred: Reason("an unpacked argument", "what goes where must be known before the kernel runs", "Write it out"),
    ast.Slice: Reason("a slice here", "it has a meaning only as x[:, None]", "Index a tensor with it"),
    ast.Await: Reason("`await`", "a kernel runs to its end", "Leave it out"),
    ast.Yield: Reason("`yield`", "a kernel runs to its end", "Return the value"),
    ast.YieldFrom: Reason("`yield from`", "a kernel runs to its end", "Return the value"),
}
_STATEMENTS: dict[str, Reason] = {
    "Import": Reason("an import", "names of a kernel come from its module", "Import at the top of the submission"),
    "ImportFrom": Reason("an import", "names of a kernel come from its module", "Import at the top of the submission"),
    "FunctionDef": Reason("a function in a function", "Triton has none", "Write a helper with @triton.jit beside it"),
    "AsyncFunctionDef": Reason("an async function", "a kernel runs to its end", "Write `def`"),
    "ClassDef": Reason("a class", _ONE_WORLD, "Use variables, or a tuple"),
    "With": Reason("`with`", _ONE_WORLD, "Leave it out"),
    "AsyncWith": Reason("`async with`", _ONE_WORLD, "Leave it out"),
    "AsyncFor": Reason("`async for`", "a kernel runs to its end", _RANGE),
    "Try": Reason("`try`", "a kernel has no exceptions", "Mask what must not be touched"),
    "TryStar": Reason("`try`", "a kernel has no exceptions", "Mask what must not be touched"),
    "Raise": Reason("`raise`", "a kernel has no exceptions", "Use tl.static_assert or tl.device_assert"),
    "Global": Reason("`global`", "a kernel changes tensors and nothing else", "Store to a tensor"),
    "Nonlocal": Reason("`nonlocal`", "a kernel changes tensors and nothing else", "Store to a tensor"),
    "Delete": Reason("`del`", "variables end with the kernel", "Leave it out"),
    "Match": Reason("`match`", "Triton has `if`", "Write `if` and `elif`"),
    "Break": Reason("`break`", "Triton's loops run to their end", "Put the condition into a while loop or a mask"),
    "Continue": Reason("`continue`", "Triton's loops run to their end", "Put the rest of the body under an `if`"),
    "TypeAlias": Reason("a type alias", _ONE_WORLD, "Leave it out"),
}
_BUILTINS = {
    "abs": "tl.abs",
    "sum": "tl.sum",
    "pow": "x * x, or tl.exp and tl.log",
    "round": "libdevice.rint",
    "bool": "x != 0",
    "print": "nothing: what a kernel prints is not part of its result",
    "isinstance": "a tl.constexpr argument that says which",
    "hasattr": "a tl.constexpr argument that says which",
    "getattr": "the function by its name",
    "type": "x.dtype",
    "list": "a tuple",
    "tuple": "parentheses",
    "zip": "one loop over an index",
    "enumerate": "one loop over an index",
    "map": "a loop",
}

_PERHAPS = (ast.JoinedStr, ast.ListComp, ast.GeneratorExp, ast.Starred, ast.Slice, ast.With, ast.FunctionDef)
"""Parts that Triton takes in some versions or places."""
_PERHAPS_NAMES = ("print", "isinstance", "hasattr", "getattr", "type", "list", "tuple", "bool", "sum", "abs")


def refused_expression(node: ast.expr, snippet: str) -> Refused:
    """The refusal of a kind of expression."""
    reason = EXPRESSIONS.get(
        type(node), Reason("this expression", "only what Triton has is", "Write it with functions of tl")
    )
    in_triton = isinstance(node, _PERHAPS)
    return Refused(node.lineno, f"{reason.what} (`{snippet}`)", reason.why, reason.instead, in_triton)


def refused_statement(node: ast.stmt, snippet: str) -> Refused:
    """The refusal of a kind of statement."""
    reason = _STATEMENTS.get(
        type(node).__name__, Reason("this statement", "only what Triton has is", "Write it with functions of tl")
    )
    in_triton = isinstance(node, _PERHAPS)
    return Refused(node.lineno, f"{reason.what} (`{snippet}`)", reason.why, reason.instead, in_triton)


def not_a_name(node: ast.Name) -> Refused:
    """The refusal of a name that stands for nothing."""
    instead = _BUILTINS.get(node.id)
    return Refused(
        node.lineno,
        f"the name `{shown(node.id)}`",
        "it is neither a variable of the kernel, nor triton.language, a helper, or a global constexpr",
        f"Use {instead}" if instead else "Define it in the kernel, or pass it as an argument",
        in_triton=node.id in _PERHAPS_NAMES,
    )
