"""Whether a source has the shape of an honest submission: its own kernel, launched, its result returned, no way around.

What is decided here is decided by the text alone and in favour of the candidate; whether the kernel that is launched
did the work is for the checks that watch it run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from assay.kernels.static.findings import Finding, found
from assay.kernels.static.names import Source
from assay.kernels.static.replay import launches
from assay.kernels.static.tables import LIGHT
from assay.kernels.static.trees import walk

_SIZE_CALLS = ("numel", "size", "stride", "dim", "cdiv", "next_power_of_2", "element_size")
_HARMLESS_CALLS = ("warn", "warning", "info", "debug", "error", "exception", "print", "format", "str", "repr", "type")


def find_structure(source: Source, native: bool) -> Iterator[Finding]:
    """Faults of the whole: base classes, missing or idle kernels, ways around them."""
    model = source.definitions.get("ModelNew")
    if not isinstance(model, ast.ClassDef):
        return
    yield from _bases(model, source)
    yield from _fallbacks(source)
    if native:
        return
    if not source.kernels:
        yield Finding("no_kernel", model.lineno, "no function compiled by Triton (triton.jit) in the source", "cheat")
        return
    yield from _decoys(model, source)


def _bases(model: ast.ClassDef, source: Source) -> Iterator[Finding]:
    """Bases of `ModelNew` other than `torch.nn.Module` and classes of the source that come down to it."""
    waiting, seen = [model], set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for base in current.bases:
            dotted = source.dotted(base) or ""
            own = source.definitions.get(base.id) if isinstance(base, ast.Name) else None
            if isinstance(own, ast.ClassDef):
                waiting.append(own)
                if own.name == "Model":
                    yield found("inherits_reference", base)
            elif isinstance(base, ast.Name) and base.id == "Model":
                yield found("inherits_reference", base)
            elif dotted.startswith("torch.nn.") and dotted != "torch.nn.Module":
                overridden = any(isinstance(s, ast.FunctionDef) and s.name == "forward" for s in current.body)
                yield found("library_layer", base, "suspect" if overridden else "cheat", note="a library layer as base")


def _fallbacks(source: Source) -> Iterator[Finding]:
    """Handlers that compute, return or call instead of the kernel that failed."""
    for node in source.host_nodes():
        if isinstance(node, ast.Try | ast.TryStar):
            in_function = _in_function(node, source)
            for handler in node.handlers:
                if not in_function and _is_import_guard(node):
                    continue
                raises = any(isinstance(s, ast.Raise) for s in handler.body)
                way_around = [s for s in handler.body if _is_way_around(s, in_function)]
                if way_around and not raises:
                    yield found("fallback", way_around[0])
                elif in_function and not raises:
                    yield Finding("fallback", handler.lineno, "an exception is swallowed", "suspect")
            if in_function and any(isinstance(inner, ast.Return) for s in node.finalbody for inner in walk(s)):
                yield found("fallback", node.finalbody[-1], note="returns whatever happened")


def _in_function(node: ast.AST, source: Source) -> bool:
    current = source.parents.get(node)
    while current is not None:
        if isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return True
        current = source.parents.get(current)
    return False


def _is_import_guard(node: ast.Try | ast.TryStar) -> bool:
    """`try: import x` with handlers that import something else, set constants, or do nothing."""
    if not all(isinstance(s, ast.Import | ast.ImportFrom | ast.Assign) for s in node.body):
        return False
    if not any(isinstance(s, ast.Import | ast.ImportFrom) for s in node.body):
        return False
    for handler in node.handlers:
        for statement in handler.body:
            plain = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant | ast.Attribute)
            if not plain and not isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass | ast.Raise):
                return False
    return True


def _is_way_around(statement: ast.stmt, in_function: bool) -> bool:
    """Whether a statement of a handler does the work some other way, or defines what will."""
    for node in walk(statement):
        if isinstance(node, ast.Raise):
            return False
    for node in walk(statement):
        if isinstance(node, ast.Return) and not (node.value is None or isinstance(node.value, ast.Constant)):
            return True
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in _HARMLESS_CALLS:
                return in_function or name not in ("join", "getLogger")
    return False


def _decoys(model: ast.ClassDef, source: Source) -> Iterator[Finding]:
    """Kernels that no call of `ModelNew` can reach, and a forward whose result no launch has anything to do with."""
    reached = {
        node.id
        for root in _from_model(model, source)
        for node in source.walk(root)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    line = next(iter(source.kernels.values())).lineno
    if not reached & _kernel_names(source):
        names = ", ".join(source.kernels)
        yield Finding("decoy_kernel", line, f"nothing that ModelNew calls launches {names}", "cheat")
        return
    if not any(launches(root, source) for root in _from_model(model, source)):
        yield Finding("decoy_kernel", line, "a kernel is named but never launched", "cheat")
        return
    forward = next((s for s in model.body if isinstance(s, ast.FunctionDef) and s.name == "forward"), None)
    if forward is not None:
        yield from _unused_result(forward, source)


def _kernel_names(source: Source) -> set[str]:
    """Names under which a kernel can be launched: its own, and those of what it was put into."""
    names = set(source.kernels)
    for _ in range(3):
        for node in source.tree.body:
            if isinstance(node, ast.Assign):
                mentions = {n.id for n in walk(node.value) if isinstance(n, ast.Name)}
                if mentions & names:
                    names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return names


def _from_model(model: ast.ClassDef, source: Source) -> list[ast.AST]:
    """`ModelNew` and the definitions that it names, directly or through others."""
    waiting: list[ast.AST] = [model]
    seen: list[ast.AST] = []
    while waiting:
        root = waiting.pop()
        if root in seen or root in source.kernels.values():
            continue
        seen.append(root)
        for node in source.walk(root):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in source.definitions:
                waiting.append(source.definitions[node.id])
    return seen


def _unused_result(forward: ast.FunctionDef, source: Source) -> Iterator[Finding]:
    """Returns of a forward that launches, none of which depend on anything that a launch could have written."""
    calls = launches(forward, source)
    if not calls:
        return
    inputs = {a.arg for a in forward.args.args[1:]}
    sources = _assignments(forward, source)
    given = {ast.unparse(n) for call in calls for a in _arguments(call) for n in walk(a) if _is_place(n)}
    kept = _buffers(source)
    written = {name for name in given & set(sources) if not all(_is_size(value) for value in sources[name])}
    written |= {name for name in given if name in inputs or name.partition(".")[2] in kept}
    for node in source.walk(forward):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        reached = _dependencies(node.value, sources)
        if any(isinstance(inner, ast.Call) and inner in calls for value in reached[1] for inner in walk(value)):
            return
        if reached[0] & (written - inputs):
            return
        computes = any(isinstance(n, ast.Attribute) and n.attr in LIGHT for value in reached[1] for n in walk(value))
        if reached[0] & written & inputs and not computes:
            return
    yield Finding("decoy_kernel", forward.lineno, "no result of a launch is returned by forward", "cheat")


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_place(node: ast.AST) -> bool:
    """A name, or an attribute of a name: what can be assigned and given to a launch."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))


def _is_size(value: ast.expr) -> bool:
    """Whether an expression is about sizes only, so that no launch writes to what is named after it."""
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Subscript):
        return _is_size(value.value)
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Attribute) and value.func.attr in _SIZE_CALLS
    return isinstance(value, ast.Attribute) and value.attr in ("shape", "dtype", "device", "ndim")


def _buffers(source: Source) -> set[str]:
    """Attributes that the source fills with new tensors, or registers as buffers."""
    names = set()
    for node in walk(source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            maker = node.value.func.attr if isinstance(node.value.func, ast.Attribute) else ""
            if maker.startswith(("empty", "zeros", "ones", "full", "new_", "clone")):
                names |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer"
        ):
            name = node.args[0] if node.args else None
            names |= {name.value} if isinstance(name, ast.Constant) and isinstance(name.value, str) else set()
    return names


def _assignments(forward: ast.FunctionDef, source: Source) -> dict[str, list[ast.expr]]:
    """Name or `self.name` -> the expressions assigned to it in a function."""
    values: dict[str, list[ast.expr]] = {}
    for node in source.walk(forward):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (isinstance(node, ast.AnnAssign) and node.value):
            pairs = [(node.target, node.value)] if node.value is not None else []
        elif isinstance(node, ast.For):
            pairs = [(node.target, node.iter)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            pairs = [(node.func.value, argument) for argument in node.args]
        for target, value in pairs:
            for part in walk(target):
                if _is_place(part):
                    values.setdefault(ast.unparse(part), []).append(value)
    return values


def _dependencies(value: ast.expr, sources: dict[str, list[ast.expr]]) -> tuple[set[str], list[ast.expr]]:
    """Names that a value is made from, through assignments, and the expressions met on the way."""
    names: set[str] = set()
    expressions = [value]
    waiting = [value]
    while waiting:
        for node in walk(waiting.pop()):
            if _is_place(node):
                name = ast.unparse(node)
                if name not in names:
                    names.add(name)
                    expressions += sources.get(name, [])
                    waiting += sources.get(name, [])
    return names, expressions
