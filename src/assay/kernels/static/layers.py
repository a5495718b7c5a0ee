"""Library layers: kept for their weights they are fine; calling one is what the kernel was to replace."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from assay.kernels.static.compute import function_name
from assay.kernels.static.findings import Finding, found
from assay.kernels.static.names import Source
from assay.kernels.static.tables import HARMLESS_LAYERS
from assay.kernels.static.trees import walk

_WALKS = ("children", "modules", "named_children", "named_modules", "values", "items")


def find_layer_calls(source: Source) -> Iterator[Finding]:
    """Every way in which reachable code calls a library layer, or hands one to something that does."""
    attributes = set(_layer_attributes(source))
    attributes |= set(_regrouped(source, attributes))
    locals_ = set(_layer_locals(source, attributes))
    for node in source.host_nodes():
        if isinstance(node, ast.Call):
            if _is_layer_expression(node.func, source, attributes, locals_):
                yield found("library_layer", node)
            elif isinstance(node.func, ast.Attribute) and node.func.attr in ("forward", "__call__", "_conv_forward"):
                if _is_layer_expression(node.func.value, source, attributes, locals_):
                    yield found("library_layer", node)
                elif node.func.attr == "__call__":
                    yield found("obfuscation", node, "suspect", note="a call spelled out")
            yield from _passed_on(node, source, attributes, locals_)
        elif isinstance(node, ast.Attribute) and attributes and node.attr in ("_modules", "get_submodule"):
            yield found("library_layer", node, note="reaches a layer by its name")


def _passed_on(node: ast.Call, source: Source, attributes: set[str], locals_: set[str]) -> Iterator[Finding]:
    """A layer given to something that may call it: to `map` and its like surely, to a helper only if that calls it."""
    values = (*node.args, *(keyword.value for keyword in node.keywords))
    spread = [part for value in values for part in (value.elts if isinstance(value, ast.List | ast.Tuple) else [value])]
    given = [value for value in spread if _is_layer_expression(value, source, attributes, locals_)]
    if not given or function_name(node, source) == "__init__":
        return
    helper = source.definitions.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if helper is None:
        harmless = isinstance(node.func, ast.Name) and node.func.id in (
            "isinstance",
            "hasattr",
            "getattr",
            "len",
            "enumerate",
        )
        yield found("library_layer", node, "suspect" if harmless else "cheat", note="a layer passed on")
    elif any(_calls_a_parameter(function) for function in walk(helper) if isinstance(function, ast.FunctionDef)):
        yield found("library_layer", node, note="a layer passed to a helper that calls it")


def _calls_a_parameter(function: ast.FunctionDef) -> bool:
    parameters = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in parameters
        for node in walk(function)
    )


def _makes_layer(value: ast.AST, source: Source) -> bool:
    """Whether an expression builds a library layer, also inside a list or a container."""
    for node in walk(value):
        if isinstance(node, ast.Call) and not _only_a_part(node, source):
            parts = (source.dotted(node.func) or "").split(".")
            is_layer = parts[:2] == ["torch", "nn"] and parts[-1][:1].isupper() and parts[-1] not in HARMLESS_LAYERS
            if is_layer and parts[-1] not in ("Sequential", "ModuleList", "ModuleDict"):
                return True
    return False


def _only_a_part(node: ast.Call, source: Source) -> bool:
    """Whether only something of a new layer is kept, as in `nn.Linear(3, 4).weight`."""
    parent = source.parents.get(node)
    return isinstance(parent, ast.Attribute) and not isinstance(source.parents.get(parent), ast.Call)


def _layer_attributes(source: Source) -> Iterator[str]:
    """Attributes that hold library layers, each by its name alone and as `Class.name` for those of `self`."""
    for node in walk(source.tree):
        names: list[str] = []
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            if _makes_layer(node.value, source):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.attr for target in targets if isinstance(target, ast.Attribute)]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _makes_layer_argument(node, source)
        ):
            if node.func.attr in ("add_module", "register_module", "__setattr__") and node.args:
                given = node.args[0]
                names = [given.value] if isinstance(given, ast.Constant) and isinstance(given.value, str) else []
            elif isinstance(node.func.value, ast.Attribute):
                names = [node.func.value.attr]
        owner = _class_around(node, source) if names else None
        for name in names:
            yield name
            if owner is not None:
                yield f"{owner.name}.{name}"


def _regrouped(source: Source, attributes: set[str]) -> Iterator[str]:
    """Attributes that hold layers which other attributes hold as well: `self.layers = [self.first, self.second]`."""
    for node in walk(source.tree):
        if not isinstance(node, ast.Assign):
            continue
        whole = (n for n in walk(node.value) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
        if any(
            _holds_layer(n, source, attributes) and not isinstance(source.parents.get(n), ast.Attribute) for n in whole
        ):
            owner = _class_around(node, source)
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    yield target.attr
                    if owner is not None:
                        yield f"{owner.name}.{target.attr}"


def _class_around(node: ast.AST, source: Source) -> ast.ClassDef | None:
    current = source.parents.get(node)
    while current is not None and not isinstance(current, ast.ClassDef):
        current = source.parents.get(current)
    return current


def _holds_layer(node: ast.Attribute, source: Source, attributes: set[str]) -> bool:
    """Whether an attribute holds a layer: one of `self` by its class, unless that inherits; any other by its name."""
    owner = _class_around(node, source)
    of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
    if (
        of_self
        and owner is not None
        and not any(isinstance(b, ast.Name) and b.id in source.definitions for b in owner.bases)
    ):
        return f"{owner.name}.{node.attr}" in attributes
    return node.attr in attributes


def _makes_layer_argument(node: ast.Call, source: Source) -> bool:
    return any(_makes_layer(argument, source) for argument in node.args)


def _layer_locals(source: Source, attributes: set[str]) -> Iterator[str]:
    """Names that hold a library layer: assigned one, or drawn from a container of them."""
    known: set[str] = set()
    for _ in range(3):
        for node in walk(source.tree):
            if isinstance(node, ast.Assign):
                direct = isinstance(node.value, ast.Call) and _is_constructor(node.value, source)
                if direct or _is_layer_expression(node.value, source, attributes, known):
                    known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.For | ast.comprehension):
                drawn = _container(node.iter)
                whole_module = isinstance(drawn, ast.Name) and drawn.id == "self" and bool(attributes)
                if whole_module or _is_layer_expression(drawn, source, attributes, known):
                    known |= {name.id for name in walk(node.target) if isinstance(name, ast.Name)}
    yield from known


def _container(iterated: ast.expr) -> ast.expr:
    """What a loop draws from, without `enumerate`, `zip`, `.children()` and the like around it."""
    while isinstance(iterated, ast.Call):
        if isinstance(iterated.func, ast.Attribute) and iterated.func.attr in _WALKS:
            iterated = iterated.func.value
        elif iterated.args:
            iterated = iterated.args[-1]
        else:
            break
    return iterated


def _is_constructor(node: ast.Call, source: Source) -> bool:
    parts = (source.dotted(node.func) or "").split(".")
    return parts[:2] == ["torch", "nn"] and parts[-1][:1].isupper() and parts[-1] not in HARMLESS_LAYERS


def _is_layer_expression(node: ast.expr, source: Source, attributes: set[str], locals_: set[str]) -> bool:
    """Whether an expression is a library layer: an attribute or name that holds one, an item of one, a new one."""
    if isinstance(node, ast.Attribute):
        return source.dotted(node) is None and _holds_layer(node, source, attributes)
    if isinstance(node, ast.Subscript):
        return _is_layer_expression(node.value, source, attributes, locals_)
    if isinstance(node, ast.Name):
        return node.id in locals_
    return isinstance(node, ast.Call) and _is_constructor(node, source)
