"""What every part of reading a function needs: its names, its lines, and the account of its literals."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.kernels.language import bindings, vocabulary
from assay.kernels.language.bindings import Binding
from assay.kernels.language.form import Arguments
from assay.kernels.language.limits import MAX_LITERAL_BYTES, MAX_LITERALS, literal_size
from assay.kernels.language.refusals import Refused, shown
from assay.kernels.language.scopes import Scope
from assay.kernels.language.why import not_a_name


@dataclass(slots=True)
class Names:
    """The names of one function, as it is read.

    loops: the loop variables of the loops around what is read.
    calls: helpers called so far, with what they are called with and the line.
    refused: what was refused so far.
    """

    scope: Scope
    names: Mapping[str, Binding]
    lines: Sequence[str]
    loops: list[str] = field(default_factory=list)
    calls: list[tuple[str, Arguments | None, int]] = field(default_factory=list)
    loop_depth: int = 0
    refused: list[Refused] = field(default_factory=list)
    literals: int = 0
    literal_bytes: int = 0

    def snippet(self, node: Any) -> str:
        """The source of a node, as a message shows it."""
        line = self.lines[node.lineno - 1] if 0 < node.lineno <= len(self.lines) else ""
        end = node.end_col_offset if node.end_lineno == node.lineno else None
        return shown(line.encode("utf-8", "replace")[node.col_offset : end].decode("utf-8", "replace"))

    def count(self, line: int, value: object) -> None:
        """Take a literal into the account."""
        self.literals += 1
        self.literal_bytes += literal_size(value)
        if self.literals > MAX_LITERALS or self.literal_bytes > MAX_LITERAL_BYTES:
            raise Refused(
                line,
                f"a function with more than {MAX_LITERALS} numbers or {MAX_LITERAL_BYTES} bytes of them",
                "a kernel computes its result; it does not carry it",
                "Load the numbers from a tensor, or compute them",
            )

    def bound(self, node: ast.expr) -> Binding | None:
        """What a name, or a dotted name of a module, stands for; None where it is not one."""
        if isinstance(node, ast.Name):
            if node.id in self.scope:
                return None
            if node.id in self.names:
                return self.names[node.id]
            if node.id in vocabulary.BUILTINS or node.id in vocabulary.LOOPS:
                return bindings.Function(node.id)
            raise not_a_name(node)
        if isinstance(node, ast.Attribute):
            home = self.bound(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else None
            if isinstance(home, bindings.Module):
                return bindings.resolve(f"{home.path}.{node.attr}")
            if home is not None and not isinstance(home, bindings.Constant):
                raise self.no_value(node.value, home)
        return None

    def no_value(self, node: ast.expr, found: Binding) -> Refused:
        """The refusal of something that is not a value."""
        if isinstance(found, bindings.Forbidden):
            return Refused(node.lineno, f"`{found.name}`", found.why, found.instead, found.in_triton)
        if isinstance(found, bindings.Unknown):
            return Refused(
                node.lineno,
                f"`{self.snippet(node)}` ({found.what})",
                "a kernel may use triton.language, libdevice, its own helpers and global constexpr numbers",
                "Pass the value as an argument, or make it a tl.constexpr",
                in_triton=False,
            )
        return Refused(
            node.lineno,
            f"`{self.snippet(node)}` as a value",
            "functions and modules are called, not passed around",
            "Call it, or give a helper of your own to tl.reduce or tl.associative_scan",
        )
