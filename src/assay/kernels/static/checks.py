"""Static checks: what a submission's text gives away before anything of it runs.

    report = check("import torch ...", reference=problem.code)
    report.fault       why it is not a submission at all (a syntax error, no class ModelNew), or None
    report.cheats      findings that no honest kernel has
    report.suspects    findings that the checks at run time have to settle

The checks read the syntax tree, so comments, docstrings and strings mean nothing to them. They are the cheap first
gate, not the wall: the sandbox contains what they miss, and the launch trace says whether the kernel did the work.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from assay.kernels.base import Language
from assay.kernels.source_text import MAX_SOURCE_CHARACTERS, fences_around, is_model_new
from assay.kernels.static.compute import find_library_work, reference_operations
from assay.kernels.static.danger import find_dangers
from assay.kernels.static.findings import Finding, distinct
from assay.kernels.static.layers import find_layer_calls
from assay.kernels.static.names import Source, read_source
from assay.kernels.static.native import find_native_faults
from assay.kernels.static.replay import find_replay
from assay.kernels.static.structure import find_structure
from assay.kernels.static.trees import walk

VERSION = 2
"""Raised whenever a check changes what it finds; part of the grader's version."""


@dataclass(frozen=True, slots=True)
class StaticReport:
    """What the text of a submission shows.

    `kernels` are the names of the Triton kernels, for the launch trace. `tf32_dot_possible` says that a `tl.dot` does
    not ask for `input_precision="ieee"`, so that a GPU rounds float32 operands to TF32.
    """

    findings: tuple[Finding, ...] = ()
    fault: str | None = None
    kernels: tuple[str, ...] = ()
    tf32_dot_possible: bool = False

    @property
    def cheats(self) -> tuple[Finding, ...]:
        """Findings that decide by themselves."""
        return tuple(f for f in self.findings if f.severity == "cheat")

    @property
    def suspects(self) -> tuple[Finding, ...]:
        """Findings that need to be settled at run time."""
        return tuple(f for f in self.findings if f.severity == "suspect")


def check(code: str, backend: Language = "triton", reference: str | None = None) -> StaticReport:
    """Look at the source of a submission. Never runs it, and never raises for any text.

    Args:
        code: One Python module.
        backend: `triton` wants a kernel compiled by Triton; `cuda` one given to `load_inline`.
        reference: The problem's module; its operations are the task, and calling one of them on an input is a cheat.
    """
    operations = _operations(reference)
    if len(code) > MAX_SOURCE_CHARACTERS:
        return StaticReport(fault=f"the source has {len(code)} characters; at most {MAX_SOURCE_CHARACTERS} are read")
    try:
        tree = ast.parse(code)
        source = read_source(tree)
        findings = distinct(_all_findings(source, backend, operations))
    except SyntaxError as error:
        said = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
        return StaticReport(fault=f"{said}; {fences}" if (fences := fences_around(code)) else said)
    except (ValueError, RecursionError, MemoryError) as error:
        return StaticReport(fault=f"the source cannot be parsed ({type(error).__name__}: {error})")
    return StaticReport(findings, _fault(source), tuple(source.kernels), _tf32_dot(source))


def _operations(reference: str | None) -> frozenset[str]:
    """What the problem calls; nothing if its text cannot be read, which is not the candidate's fault."""
    try:
        return reference_operations(reference) if reference is not None else frozenset()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()


def _all_findings(source: Source, backend: Language, operations: frozenset[str]) -> list[Finding]:
    native = backend == "cuda"
    findings = [
        *find_dangers(source, native),
        *find_library_work(source, operations),
        *find_layer_calls(source),
        *find_replay(source),
        *find_structure(source, native),
    ]
    if native:
        findings += find_native_faults(source)
    return findings


def _fault(source: Source) -> str | None:
    if not isinstance(source.definitions.get("ModelNew"), ast.ClassDef):
        return "no class ModelNew is defined at module level"
    if sum(map(is_model_new, walk(source.tree))) > 1:
        return "ModelNew is defined more than once"
    return None


def _tf32_dot(source: Source) -> bool:
    dots = (
        node
        for kernel in source.kernels.values()
        for node in walk(kernel)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "dot"
    )
    return any(not any(k.arg == "input_precision" and _is_ieee(k.value) for k in dot.keywords) for dot in dots)


def _is_ieee(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "ieee"
