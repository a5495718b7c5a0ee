"""Examines the text of a submission: what it is said to be before it runs, in words for whoever wrote it.

    examined = examine(code, "triton")
    examined.fault       why it is no submission at all (a syntax error, no class ModelNew), or None
    examined.cheats      what would fail later, and less clearly
    examined.hints       what may explain a verdict that is not ok

Nothing here is a wall: what a Triton candidate earns is decided by the program that is recorded of it, and this may be
left out. It takes time linear in the text, but Python's parser does not promise that, so it runs in a process that can
be killed (`assay.kernels.text.job`, or where the candidate runs anyway), and never in that of the grader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from assay.kernels.base import Language
from assay.kernels.source_text import MAX_SOURCE_CHARACTERS, encoding_fault, text_around
from assay.kernels.text.examined import (
    EVIDENCE_CHARACTERS,
    FAULT_CHARACTERS,
    MOST_FINDINGS,
    Examined,
    Finding,
    Kind,
    Severity,
)
from assay.kernels.text.native import find_native, read_extensions
from assay.kernels.text.tree import Tree, read_tree

VERSION = 5
"""Raised whenever the examination changes what it finds; part of the grader's version."""

_LOADERS = "torch.utils.cpp_extension.load"
_NO_TRITON = (
    "no function compiled by Triton (triton.jit) in the source: kernels and ModelNew must be in one module, which is "
    "one code block of a reply"
)
_NATIVE = "load_inline builds CUDA sources, and Triton kernels are graded here: grade it with backend=cuda"
_REFERENCE = (
    "ModelNew inherits from Model, the reference, which is not there when a kernel is graded: "
    "derive it from torch.nn.Module"
)
_LAYER = "ModelNew has no forward of its own and inherits that of"
_COMPILED = "torch.compile writes kernels of its own, and only those of the source are graded: leave it out"
_FALLBACK = (
    "an exception is caught here and something else is done instead; what is graded is what forward launches then, so "
    "let the exception through to see it"
)


def examine(code: str, backend: Language = "triton") -> Examined:
    """Look at the source of a submission. Never runs it, and never raises for any text.

    Args:
        code: One Python module.
        backend: `triton` wants a kernel compiled by Triton; `cuda` one given to `load_inline`.
    """
    if len(code) > MAX_SOURCE_CHARACTERS:
        return Examined(f"the source has {len(code)} characters; at most {MAX_SOURCE_CHARACTERS} are read")
    if said := encoding_fault(code):
        return Examined(said)
    try:
        tree = read_tree(ast.parse(code))
    except SyntaxError as error:
        said = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
        return Examined((f"{said}; {around}" if (around := text_around(code)) else said)[:FAULT_CHARACTERS])
    except (ValueError, RecursionError, MemoryError) as error:
        return Examined(f"the source cannot be parsed ({type(error).__name__}: {error})"[:FAULT_CHARACTERS])
    if (fault := _fault(tree)) is not None:
        return Examined(fault)
    model = tree.classes["ModelNew"][0]
    found = [*_bases(model, tree), *_compilers(tree)]
    if backend == "cuda":
        extensions = read_extensions(tree)
        found += find_native(extensions, model.lineno, _has_kernel(tree))
        return Examined(None, _distinct(found), False, extensions)
    found += [*_kernels(model, tree), *_fallbacks(tree)]
    return Examined(None, _distinct(found), _tf32_dot(tree))


def _fault(tree: Tree) -> str | None:
    if "ModelNew" not in tree.module_classes:
        return "no class ModelNew is defined at module level"
    if len(tree.classes["ModelNew"]) > 1:
        return "ModelNew is defined more than once"
    return None


def _distinct(findings: list[Finding]) -> tuple[Finding, ...]:
    """Each (kind, line) once, what decides first, then by line."""
    kept = {(finding.kind, finding.line): finding for finding in reversed(findings)}
    return tuple(sorted(kept.values(), key=lambda f: (f.severity, f.line, f.kind))[:MOST_FINDINGS])


def _at(kind: Kind, node: ast.expr | ast.stmt | ast.ExceptHandler, evidence: str, severity: Severity) -> Finding:
    return Finding(kind, node.lineno, evidence[:EVIDENCE_CHARACTERS], severity)


def _bases(model: ast.ClassDef, tree: Tree) -> Iterator[Finding]:
    """Bases that are the work of somebody else."""
    for base in model.bases:
        dotted = tree.dotted(base)
        if dotted == "Model" and not (tree.classes["Model"] or tree.assigned["Model"]):
            yield _at("inherits_reference", base, _REFERENCE, "cheat")
        elif dotted.startswith("torch.nn.") and dotted != "torch.nn.Module" and not _has_forward(model):
            yield _at("library_layer", base, f"{_LAYER} {dotted}", "cheat")


def _has_forward(model: ast.ClassDef) -> bool:
    return any(isinstance(part, ast.FunctionDef) and part.name == "forward" for part in model.body)


def _compilers(tree: Tree) -> Iterator[Finding]:
    for node in tree.names:
        if tree.last(node) == "compile" and tree.dotted(node) == "torch.compile":
            yield _at("compiler", node, _COMPILED, "hint")


def _has_kernel(tree: Tree) -> bool:
    """Whether anything is named `jit` that is not PyTorch's."""
    if any(tree.last(node) == "jit" and not tree.dotted(node).startswith("torch.") for node in tree.names):
        return True
    return any(dotted.endswith(".jit") and not dotted.startswith("torch.") for dotted in tree.imports.values())


def _kernels(model: ast.ClassDef, tree: Tree) -> Iterator[Finding]:
    """CUDA where Triton is graded, or no kernel at all."""
    loaders = (c for c in tree.calls if tree.dotted(c.func).startswith(_LOADERS) or _last(c.func) == "load_inline")
    native = next(loaders, None)
    if native is not None:
        yield _at("native_code", native, _NATIVE, "cheat")
    elif not _has_kernel(tree):
        yield _at("no_kernel", model, _NO_TRITON, "cheat")


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _fallbacks(tree: Tree) -> Iterator[Finding]:
    """Handlers that compute or return something instead of what failed."""
    for guard in tree.guards:
        for handler in guard.handlers:
            if not any(isinstance(s, ast.Raise) for s in handler.body) and any(map(_is_way_around, handler.body)):
                yield _at("fallback", handler, _FALLBACK, "hint")


def _is_way_around(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return):
        return not (statement.value is None or isinstance(statement.value, ast.Constant))
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call | ast.BinOp)


def _tf32_dot(tree: Tree) -> bool:
    """Whether a product of matrices leaves its precision to the GPU."""
    for call in tree.calls:
        dotted = tree.dotted(call.func)
        if not dotted.startswith("triton."):
            continue
        if dotted.endswith(".dot") and not any(map(_is_exact, call.keywords)):
            return True
        if dotted.endswith(".sum") and call.args and _is_product(call.args[0], tree):
            return True
    return False


def _is_product(summed: ast.expr, tree: Tree) -> bool:
    """Whether it is `a[:, :, None] * b`, of which Triton's compiler makes a product of matrices."""
    terms = tree.assigned.get(summed.id, []) if isinstance(summed, ast.Name) else [summed]
    lefts = [term.left for term in terms if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult)]
    places = [
        left.slice.elts for left in lefts if isinstance(left, ast.Subscript) and isinstance(left.slice, ast.Tuple)
    ]
    return any(isinstance(each[-1], ast.Constant) and each[-1].value is None for each in places if len(each) > 2)


def _is_exact(keyword: ast.keyword) -> bool:
    value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    return (keyword.arg == "input_precision" and value == "ieee") or (keyword.arg == "allow_tf32" and value is False)
