"""Answers kept from an earlier call: caches around launches, results keyed by an address, early returns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from assay.kernels.static.compute import VIEWS
from assay.kernels.static.findings import Finding, Severity, found
from assay.kernels.static.names import Source
from assay.kernels.static.tables import CACHES
from assay.kernels.static.trees import walk

_LOOKUPS = ("get", "setdefault", "pop")


def find_replay(source: Source) -> Iterator[Finding]:
    """Every sign that a call may answer with what an earlier call computed."""
    keys = {key.id for node in walk(source.tree) if isinstance(key := _key_of(node), ast.Name)}
    for node in source.host_nodes():
        if isinstance(node, ast.FunctionDef) and launches(node, source):
            decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
            if any(source.dotted(d) in CACHES for d in decorators):
                yield Finding(
                    "replay_cache", node.lineno, f"a cache around {node.name}, which launches a kernel", "cheat"
                )
            yield from _kept_results(node, source)
        elif isinstance(node, ast.Call):
            is_id = source.dotted(node.func) == "builtins.id"
            if is_id or (isinstance(node.func, ast.Attribute) and node.func.attr == "data_ptr"):
                severity = _use_of_address(node, source, keys)
                if severity is not None:
                    yield found("replay_cache", node, severity)
        elif isinstance(node, ast.Attribute) and node.attr == "_version":
            yield found("replay_cache", node)


def _use_of_address(node: ast.expr, source: Source, keys: set[str]) -> Severity | None:
    """How bad a use of an address is: as a key or in a comparison a cheat, in alignment arithmetic nothing at all."""
    child: ast.AST = node
    while (parent := source.parents.get(child)) is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod | ast.BitAnd):
            return None
        if isinstance(parent, ast.Subscript) and parent.slice is child:
            return "cheat"
        if isinstance(parent, ast.Compare):
            return "cheat"
        if _key_of(parent) is child:
            return "cheat"
        child = parent
    if isinstance(parent, ast.Assign) and any(isinstance(t, ast.Name) and t.id in keys for t in parent.targets):
        return "cheat"
    return "suspect"


def _key_of(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Subscript):
        return node.slice
    if isinstance(node, ast.Compare):
        return node.left
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return node.args[0] if node.func.attr in _LOOKUPS else None
    return None


def launches(function: ast.AST, source: Source) -> list[ast.Call]:
    """Calls in a function that launch a kernel, or may: `k[grid](...)`, `k.run(...)`, a helper that launches."""
    return [node for node in source.walk(function) if isinstance(node, ast.Call) and _launches(node, source, set())]


def _launches(node: ast.Call, source: Source, seen: set[str]) -> bool:
    func = node.func
    if isinstance(func, ast.Subscript):
        return True
    if isinstance(func, ast.Attribute) and func.attr in ("run", "apply", "launch"):
        return True
    if not isinstance(func, ast.Name) or func.id in seen or func.id in source.kernels:
        return False
    helper = source.definitions.get(func.id)
    if not isinstance(helper, ast.FunctionDef):
        return False
    calls = (inner for inner in source.walk(helper) if isinstance(inner, ast.Call))
    return any(_launches(inner, source, seen | {func.id}) for inner in calls)


def _kept_results(function: ast.FunctionDef, source: Source) -> Iterator[Finding]:
    """Returns of something kept (an attribute of `self`, an item of a container) that no launch must come before."""
    if any(not _is_conditional(call, function, source) for call in launches(function, source)):
        first = min(call.lineno for call in launches(function, source))
        returns = [r for r in source.walk(function) if isinstance(r, ast.Return) and r.lineno < first]
    else:
        returns = [r for r in source.walk(function) if isinstance(r, ast.Return)]
    for node in returns:
        value = node.value
        while (
            isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in VIEWS | {"get"}
        ):
            value = value.func.value if value.func.attr != "get" else value.func
        kept = isinstance(value, ast.Subscript) or (
            isinstance(value, ast.Attribute) and (value.attr == "get" or _owner(value) == "self")
        )
        if kept and not _is_shape(value):
            yield found("replay_cache", node, note="returns what was kept before")


def _owner(node: ast.Attribute) -> str:
    return node.value.id if isinstance(node.value, ast.Name) else ""


def _is_shape(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"


def _is_conditional(node: ast.AST, function: ast.AST, source: Source) -> bool:
    """Whether a call may be skipped: it is under an `if` without an alternative that launches as well."""
    child: ast.AST = node
    while (parent := source.parents.get(child)) is not None and child is not function:
        if isinstance(parent, ast.If) and child is not parent.test:
            other = parent.orelse if child in parent.body else parent.body
            if not any(launches(statement, source) for statement in other):
                return True
        if isinstance(parent, ast.ExceptHandler | ast.While):
            return True
        child = parent
    return False
