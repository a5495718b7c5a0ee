"""What does the work instead of a kernel: functions and methods of PyTorch, and its compilers.

Heavy operations (products, convolutions, normalisations, scans, sorts) are cheats wherever the host can reach them.
Light ones (element-wise, simple reductions) are honest as finishing touches and therefore suspect; applied straight to
an input, and named by the reference as well, they are the task itself and a cheat.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from assay.kernels.operators import is_heavy, normal_name
from assay.kernels.static.findings import Finding, Severity, found
from assay.kernels.static.names import Source, literal_getattr
from assay.kernels.static.tables import (
    COMPUTE_PREFIXES,
    HARMLESS_FUNCTIONAL,
    HARMLESS_LAYERS,
    HEAVY_FUNCTIONS,
    HEAVY_METHODS,
    LIGHT,
)
from assay.kernels.static.trees import walk

VIEWS = frozenset(
    {"contiguous", "view", "reshape", "float", "to", "flatten", "T", "mT", "t", "transpose", "permute", "squeeze"}
    | {"unsqueeze", "detach", "clone", "cuda", "half", "double", "expand", "type_as", "data"}
)
"""Methods and attributes that change how a tensor is looked at or where it lies, not what is in it."""
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@functools.lru_cache(maxsize=256)
def reference_operations(code: str) -> frozenset[str]:
    """Names of the functions and methods that a reference calls, without trailing underscores."""
    called = set()
    for node in walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called.add(node.func.attr.rstrip("_").lower())
    return frozenset(called)


def find_library_work(source: Source, reference: frozenset[str]) -> Iterator[Finding]:
    """Everything in the reachable host code that computes without a kernel of the candidate's own."""
    for name, dotted in source.loaded_names():
        yield from _library_name(name, dotted, source, reference)
    for node in source.host_nodes():
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            yield found("library_call", node, _while_building(node, source))
        elif isinstance(node, ast.Attribute):
            yield from _method(node, node.attr, node.value, source, reference)
        elif isinstance(node, ast.Call) and (attribute := literal_getattr(node, source)) is not None:
            yield from _method(node, attribute, node.args[0], source, reference)


def _while_building(node: ast.AST, source: Source) -> Severity:
    """Work on weights while the module is built is suspect; anywhere else it is a cheat."""
    return "suspect" if function_name(node, source) == "__init__" else "cheat"


def function_name(node: ast.AST, source: Source) -> str:
    """Name of the innermost function around a node; empty at module level and in a lambda."""
    function = _function(node, source)
    return function.name if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) else ""


def _function(node: ast.AST, source: Source) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    """The innermost function around a node."""
    current = source.parents.get(node)
    while current is not None and not isinstance(current, _FUNCTION):
        current = source.parents.get(current)
    return current


def _library_name(node: ast.expr, dotted: str, source: Source, reference: frozenset[str]) -> Iterator[Finding]:
    if dotted.startswith("torch.nn.modules.utils."):
        return
    if dotted in HARMLESS_FUNCTIONAL:
        yield found("library_call", node, "suspect")
        return
    kind = next(
        (k for prefix, k in COMPUTE_PREFIXES.items() if dotted == prefix or dotted.startswith(prefix + ".")), None
    )
    if kind is not None:
        yield found(kind, node, "cheat" if kind == "compiler" else _while_building(node, source))
        return
    parts = dotted.split(".")
    if parts[:2] == ["torch", "nn"] and len(parts) > 3 and parts[2] not in HARMLESS_LAYERS:
        yield found("library_layer", node, note="a method of a library layer")
    elif parts[:2] == ["torch", "ops"]:
        yield found("library_call", node, "suspect", note="a registered operator")
    elif parts[0] == "torch" and len(parts) > 1 and (len(parts) == 2 or parts[1] == "Tensor"):
        if parts[-1] in HEAVY_FUNCTIONS or is_heavy(normal_name(parts[-1])):
            yield found("library_call", node, _while_building(node, source))
        elif parts[-1] in LIGHT:
            call = source.parents.get(node)
            operand = call.args[0] if isinstance(call, ast.Call) and call.func is node and call.args else None
            yield _light(node, parts[-1], operand, source, reference)


def _method(
    node: ast.expr, name: str, receiver: ast.expr, source: Source, reference: frozenset[str]
) -> Iterator[Finding]:
    parent = source.parents.get(node)
    called = isinstance(parent, ast.Call) and parent.func is node
    if isinstance(parent, ast.Attribute) or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return
    if source.dotted(receiver) is not None or _is_own(receiver, source):
        return
    if name in HEAVY_METHODS:
        if name == "sort" and isinstance(parent, ast.Call) and isinstance(source.parents.get(parent), ast.Expr):
            return
        yield found("library_call", node, _while_building(node, source))
    elif called and name in LIGHT:
        yield _light(node, name, receiver, source, reference)


def _is_own(receiver: ast.expr, source: Source) -> bool:
    """Whether a method is the candidate's own: of `self`, of `super()`, of a class it defines, or of its extension."""
    if isinstance(receiver, ast.Call):
        return source.dotted(receiver.func) == "builtins.super"
    if not isinstance(receiver, ast.Name):
        return False
    return (
        receiver.id in ("self", "cls", "ctx") or receiver.id in source.definitions or receiver.id in source.extensions
    )


def _light(node: ast.expr, name: str, operand: ast.expr | None, source: Source, reference: frozenset[str]) -> Finding:
    task = name.rstrip("_") in reference and operand is not None and _is_input(operand, node, source)
    return found("library_call", node, "cheat" if task and _while_building(node, source) == "cheat" else "suspect")


def _is_input(operand: ast.expr, node: ast.AST, source: Source) -> bool:
    """Whether an operand is a parameter of the function around it, or a view of one."""
    while True:
        if isinstance(operand, ast.Call):
            operand = operand.func
        elif isinstance(operand, ast.Attribute) and operand.attr in VIEWS:
            operand = operand.value
        else:
            break
    function = _function(node, source)
    if function is None or not isinstance(operand, ast.Name) or operand.id in ("self", "ctx"):
        return False
    arguments = function.args
    return operand.id in {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
