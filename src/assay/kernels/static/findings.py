"""What static checks find in a source: typed, with a line and the text that shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from assay.types import Json

Severity = Literal["cheat", "suspect"]
"""`cheat`: no honest kernel does this, so the submission earns nothing. `suspect`: honest kernels may; the checks that
watch the kernel run decide, and the finding is kept as evidence."""

Kind = Literal[
    "compiler",
    "cuda_graph",
    "decoy_kernel",
    "dynamic_code",
    "environment",
    "fallback",
    "file_access",
    "foreign_library",
    "global_state",
    "host_code_in_kernel",
    "imports_reference",
    "inherits_reference",
    "introspection",
    "library_call",
    "library_layer",
    "memory_probe",
    "monkeypatch",
    "native_code",
    "network",
    "no_kernel",
    "obfuscation",
    "pickle",
    "process",
    "replay_cache",
    "side_stream",
    "signals",
    "tensor_subclass",
    "threads",
    "timing",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `line` counts from 1; `evidence` is the source text, cut at 160 characters."""

    kind: Kind
    line: int
    evidence: str
    severity: Severity

    def to_json(self) -> dict[str, Json]:
        """Plain data for a verdict."""
        return {"kind": self.kind, "line": self.line, "evidence": self.evidence, "severity": self.severity}


def found(kind: Kind, node: ast.AST, severity: Severity = "cheat", note: str = "") -> Finding:
    """A finding at a node; `note` is put before its text."""
    text = " ".join(ast.unparse(node).split()) if isinstance(node, ast.expr | ast.stmt) else ""
    if len(text) > 160:
        text = text[:157] + "..."
    line = getattr(node, "lineno", 0)
    return Finding(kind, line, f"{note}: {text}" if note and text else note or text, severity)


def distinct(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each (kind, line, severity) once, by line; a cheat hides the suspicion of the same kind on its line."""
    kept: dict[tuple[str, int], Finding] = {}
    for finding in findings:
        key = (finding.kind, finding.line)
        if key not in kept or (kept[key].severity == "suspect" and finding.severity == "cheat"):
            kept[key] = finding
    return tuple(sorted(kept.values(), key=lambda f: (f.line, f.kind)))
