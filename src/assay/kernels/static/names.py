"""What names in a source stand for, and what a call of `ModelNew` can reach: the ground under the static checks.

Resolution ignores scopes: a name that an import binds anywhere means that import everywhere. Reachability follows names
and attribute names from `ModelNew` and from the statements that run at import, so a copy of the reference that nothing
uses is not looked at. Bodies of Triton kernels are set apart: their code is compiled for the device, not run.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field

from assay.kernels.static.tables import TRITON_JIT
from assay.kernels.static.trees import children, walk

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_BUILTINS = frozenset(dir(builtins)) | {"__builtins__", "__file__"}
_ALIAS_ROUNDS = 4
_NOT_MAIN = object()
"""The module's own name, of which no more is known than that it is not `__main__`."""
_MAX_PARTS = 12
"""Longer dotted names stand for nothing that a table knows."""


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed source with what the checks ask of it again and again."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST]
    imports: dict[str, str]
    """Name -> dotted name that it stands for, through imports and plain assignments."""
    bound: frozenset[str]
    """Names that the source itself assigns, defines or takes as a parameter."""
    definitions: dict[str, Definition]
    """Functions and classes at module level, also under `if` and `try`; the last of a name."""
    kernels: dict[str, ast.FunctionDef]
    """Functions compiled by Triton."""
    dead: frozenset[ast.AST]
    """Statements that cannot run: under a constant condition, after a return, in `if __name__ == "__main__"`."""
    extensions: set[str] = field(default_factory=set)
    """Names that hold what `torch.utils.cpp_extension` compiled and loaded."""
    reachable: list[ast.AST] = field(default_factory=list)
    """Statements at module level and definitions that `ModelNew` or the import can reach, kernels not included."""
    _host_nodes: list[ast.AST] = field(default_factory=list)

    def dotted(self, node: ast.AST) -> str | None:
        """The dotted name that an expression is, such as `torch.nn.functional.relu`; None if it is not a name."""
        parts: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Call) and (attribute := literal_getattr(node, self)) is not None:
                parts.append(attribute)
                node = node.args[0]
            else:
                break
        if not isinstance(node, ast.Name):
            return None
        if node.id in self.imports:
            root = self.imports[node.id]
        elif node.id in _BUILTINS and node.id not in self.bound:
            root = f"builtins.{node.id}"
        else:
            return None
        return ".".join([root, *reversed(parts)]) if len(parts) + root.count(".") < _MAX_PARTS else None

    def inside_kernel(self, node: ast.AST) -> bool:
        """Whether a node is part of a kernel's body (not of its decorators or defaults)."""
        child = node
        while (parent := self.parents.get(child)) is not None:
            if isinstance(parent, ast.FunctionDef) and _is_kernel(self, parent) and child in parent.body:
                return True
            child = parent
        return False

    def in_annotation(self, node: ast.AST) -> bool:
        """Whether a node is part of a type annotation."""
        child = node
        while (parent := self.parents.get(child)) is not None:
            if isinstance(parent, ast.arg | ast.AnnAssign) and parent.annotation is child:
                return True
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.returns is child:
                return True
            if isinstance(parent, ast.stmt):
                return False
            child = parent
        return False

    def host_nodes(self) -> Iterator[ast.AST]:
        """Every node of the reachable code that runs on the host."""
        if not self._host_nodes:
            self._host_nodes.extend(node for root in self.reachable for node in self.walk(root))
        yield from self._host_nodes

    def loaded_names(self) -> Iterator[tuple[ast.expr, str]]:
        """Reachable expressions that read a dotted name, as long as it goes, with that name; annotations left out."""
        for node in self.host_nodes():
            if not isinstance(node, ast.Name | ast.Attribute) or isinstance(node.ctx, ast.Del):
                continue
            if isinstance(self.parents.get(node), ast.Attribute) or self.in_annotation(node):
                continue
            dotted = self.dotted(node)
            if dotted is not None and (isinstance(node.ctx, ast.Load) or "." in dotted):
                yield node, dotted

    def walk(self, root: ast.AST) -> Iterator[ast.AST]:
        """Nodes below `root` without bodies of kernels and without dead statements."""
        stack = [root]
        while stack:
            node = stack.pop()
            if node in self.dead:
                continue
            yield node
            if isinstance(node, ast.FunctionDef) and _is_kernel(self, node):
                stack += [*node.decorator_list, node.args]
            else:
                stack += children(node)


def literal_getattr(node: ast.Call, source: Source) -> str | None:
    """The attribute that a call `getattr(object, "name")` reads; None for any other call."""
    is_getattr = isinstance(node.func, ast.Name) and node.func.id == "getattr" and "getattr" not in source.bound
    if is_getattr and len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
        value = node.args[1].value
        return value if isinstance(value, str) else None
    return None


def read_source(tree: ast.Module) -> Source:
    """Everything that the checks need to know about a parsed source."""
    parents = {child: node for node in walk(tree) for child in children(node)}
    imports = dict(_import_bindings(tree))
    bound = frozenset(_bound_names(tree))
    source = Source(tree, parents, imports, bound, {}, {}, frozenset(_dead_statements(tree)))
    for _ in range(_ALIAS_ROUNDS):
        if not _add_aliases(source):
            break
    source.extensions.update(_extensions(source))
    source.definitions.update(_definitions(tree.body))
    source.kernels.update(_kernels(source))
    source.reachable.extend(_reachable(source))
    return source


def _extensions(source: Source) -> Iterator[str]:
    for node in walk(source.tree):
        made = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and source.dotted(node.value.func)
        if isinstance(node, ast.Assign) and (made or "").startswith("torch.utils.cpp_extension"):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _import_bindings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _add_aliases(source: Source) -> bool:
    """Take in names that are assigned a dotted name (`mm = torch.matmul`); whether there was a new one."""
    new = False
    for node in walk(source.tree):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs.append((target, node.value))
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign):
            pairs += [(node.target, node.value)] if node.value is not None else []
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            for argument, default in zip(reversed(positional), reversed(node.defaults), strict=False):
                pairs.append((ast.Name(argument.arg), default))
            for argument, value in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                pairs += [(ast.Name(argument.arg), value)] if value is not None else []
        for target, value in pairs:
            if isinstance(target, ast.Name) and target.id not in source.imports:
                dotted = source.dotted(value)
                if dotted is not None and not _is_scalar(dotted):
                    source.imports[target.id] = dotted
                    new = True
    return new


def _is_scalar(dotted: str) -> bool:
    """Whether a name holds a plain constant, so that an alias of it is not callable."""
    return dotted.startswith(("builtins.True", "builtins.False", "builtins.None", "math."))


def _definitions(body: list[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for part in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _definitions(handler.body)


def _kernels(source: Source) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions decorated with `triton.jit`, at any depth, and those given to it in a call."""
    wrapped = {
        argument.id
        for node in walk(source.tree)
        if isinstance(node, ast.Call) and source.dotted(node.func) in TRITON_JIT
        for argument in node.args
        if isinstance(argument, ast.Name)
    }
    for node in walk(source.tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        decorators = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
        if node.name in wrapped or any(source.dotted(d) in TRITON_JIT for d in decorators):
            yield node.name, node


def _dead_statements(tree: ast.Module) -> Iterator[ast.AST]:
    constants = _constants(tree)
    for node in walk(tree):
        if isinstance(node, ast.If | ast.While):
            value = _truth(node.test, constants)
            if value is False:
                yield from node.body
            elif value is True and isinstance(node, ast.If):
                yield from node.orelse
        for part in ("body", "orelse", "finalbody"):
            block = getattr(node, part, None)
            if isinstance(block, list):
                ends = [
                    i for i, s in enumerate(block) if isinstance(s, ast.Return | ast.Raise | ast.Continue | ast.Break)
                ]
                yield from block[ends[0] + 1 :] if ends else []


def _constants(tree: ast.Module) -> dict[str, object]:
    """Names that the whole source binds exactly once, by assigning a literal at module level."""
    stores: dict[str, int] = {}
    for node in walk(tree):
        for name in _bindings(node):
            stores[name] = stores.get(name, 0) + 1
    values: dict[str, object] = {} if "__name__" in stores else {"__name__": _NOT_MAIN}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Constant):
            target = node.targets[0]
            if isinstance(target, ast.Name) and stores[target.id] == 1:
                values[target.id] = node.value.value
    return values


_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar


def _bindings(node: ast.AST) -> Iterator[str]:
    """Names that a node itself binds, in whatever scope."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, _NAMED):
        yield node.name or ""
    elif isinstance(node, ast.MatchMapping):
        yield node.rest or ""
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names


def _truth(test: ast.expr, constants: dict[str, object]) -> bool | None:
    """The value of a condition that is plainly constant; None where it may be either."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.Name) and test.id in constants:
        return bool(constants[test.id])  # a module's name is never empty
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = _truth(test.operand, constants)
        return None if value is None else not value
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.NotEq):
        sides = [_constant(side, constants) for side in (test.left, test.comparators[0])]
        if _NOT_MAIN in sides:
            return isinstance(test.ops[0], ast.NotEq) if "__main__" in sides else None
        if None not in sides:
            return (sides[0] == sides[1]) is isinstance(test.ops[0], ast.Eq)
    if isinstance(test, ast.BoolOp):
        values = [_truth(value, constants) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in values:
            return decisive
        return None if None in values else not decisive
    return None


def _constant(node: ast.expr, constants: dict[str, object]) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def _reachable(source: Source) -> Iterator[ast.AST]:
    """Statements at module level, and the definitions that they and `ModelNew` name, directly or through others."""
    waiting: list[ast.AST] = list(_plain_statements(source.tree.body))
    waiting += [source.definitions["ModelNew"]] if "ModelNew" in source.definitions else []
    # A decorator of unknown effect may call what it decorates, or keep it somewhere for a later call.
    waiting += [d for d in source.definitions.values() if d.decorator_list and not _is_kernel(source, d)]
    waiting += _named_in_kernels(source)
    seen: set[ast.AST] = set()
    while waiting:
        root = waiting.pop()
        if root in seen or root in source.dead or _is_kernel(source, root):
            continue
        seen.add(root)
        yield root
        for node in source.walk(root):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in source.definitions:
                waiting.append(source.definitions[node.id])


def _named_in_kernels(source: Source) -> Iterator[ast.AST]:
    """Definitions that kernels name: the interpreter, which runs kernels as Python, would call the host's functions."""
    for kernel in source.kernels.values():
        for node in walk(kernel):
            if isinstance(node, ast.Name) and node.id in source.definitions:
                yield source.definitions[node.id]


def _is_kernel(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and source.kernels.get(node.name) is node


def _plain_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at module level that are not definitions, including those inside compound statements."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
