"""The kernels in the text of a submission as plain data for the kernel language, read without running it."""

from __future__ import annotations

import ast
from typing import Any

TL = {"tl": {"module": "triton.language"}}


def one(source: str, **names: Any) -> dict[str, Any]:
    """A table with one kernel, whose `tl` is Triton's language."""
    return {"kernel": {"source": source, "names": {**TL, **names}}}


def body(lines: str, **names: Any) -> dict[str, Any]:
    """A table with one kernel of some lines. It has pointers x and out, a number n, and a compile-time BLOCK."""
    indented = "".join(f"    {line}\n" for line in lines.strip("\n").splitlines())
    return one(f"def kernel(x, out, n, BLOCK: tl.constexpr):\n{indented}", **names)


def kernels_of(code: str) -> dict[str, Any]:
    """Every function under `triton.jit` in a module, wherever it stands, with what the module's names stand for."""
    tree = ast.parse(code)
    names = _names(tree)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_kernel(node)]
    names.update({node.name: {"function": node.name} for node in found})
    lines = code.splitlines(keepends=True)
    table = {}
    for node in found:
        line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        own = {name: what for name, what in names.items() if name in used and name != node.name}
        table[node.name] = {"source": "".join(lines[line - 1 : node.end_lineno]), "line": line, "names": own}
    return table


def _is_kernel(node: ast.FunctionDef) -> bool:
    heads = [decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in node.decorator_list]
    return any(isinstance(head, ast.Attribute | ast.Name) and ast.unparse(head).endswith("jit") for head in heads)


def _names(tree: ast.Module) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = {"module": alias.name}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                kind = "module" if alias.name in ("language", "libdevice") else "member"
                names[alias.asname or alias.name] = {kind: path}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name not in names and node in tree.body:
                names[name] = _constant(node.value)
    return names


def _constant(node: ast.expr) -> dict[str, Any]:
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("constexpr") and node.args:
        node = node.args[0]
    try:
        return {"constant": ast.literal_eval(node)}
    except ValueError:
        return {"other": type(node).__name__}
