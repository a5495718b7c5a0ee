"""Compositions as text: the problem's module, and modules that solve it, right or with mistakes in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.envs.kernelbench.family.compositions import OPERAND_SHAPES, Composition, Statement
from assay.envs.kernelbench.family.operators import OPERATORS, Lines

PROBLEM = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, {arguments}):
        t = x{body}
        return t


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""

IMPORTS = """import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel("""
INDICES = """out_ptr, C, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    m = c < C"""
CLASS = """


class ModelNew(nn.Module):
    def forward(self, """
SHAPES = """):
        R, C = x.shape
        out = """
GRID = """
        kernel[(R,)]("""
CALL = """, out, C, BLOCK=triton.next_power_of_2(C))
        return out
"""
FULL, REDUCED = "torch.empty_like(x)", "x.new_empty(R)"
PADDED, BARE = ", mask=m, other=0.0)", ")"


def problem_text(composition: Composition, hidden: int | None = None, hint: str = "") -> str:
    """The module of a problem.

    Args:
        hidden: Place of a statement that is shown as `hint` instead; None for the whole module.
    """
    lines = [_torch(statement) for statement in composition.statements]
    if hidden is not None:
        lines[hidden] = hint
    if composition.end:
        lines.append(OPERATORS[composition.end].torch)
    rows, columns = composition.rows, composition.columns
    shapes = [f"{rows}, {columns}"]
    for name in composition.operands:
        shapes.append(OPERAND_SHAPES[name].replace("R", str(rows)).replace("C", str(columns)))
    return PROBLEM.format(
        arguments=", ".join(("x", *composition.operands)),
        body="".join(f"\n        t = {line}" for line in lines),
        inputs=", ".join(f"torch.randn({shape})" for shape in shapes),
    )


def _torch(statement: Statement) -> str:
    return OPERATORS[statement.operator].torch.format(b=statement.operand)


ADDRESSES = {"x": "x_ptr + r * C + c", "y": "y_ptr + r * C + c", "w": "w_ptr + c", "s": "s_ptr + r"}
MISTAKEN_ADDRESSES = {
    "x": "x_ptr + r * BLOCK + c",
    "y": "y_ptr + r * BLOCK + c",
    "w": "w_ptr + r * C + c",
    "s": "s_ptr + c",
}


@dataclass(frozen=True)
class Kernel:
    """The choices that make a solution: what is loaded how, computed how, and stored where."""

    composition: Composition
    statements: tuple[Lines, ...]
    """Lines for each statement and for the reduction, with `{b}` for the second operand."""
    mistaken: frozenset[str] = field(default_factory=frozenset)
    """Operands loaded from wrong addresses; `out` for the store."""
    unmasked: frozenset[str] = field(default_factory=frozenset)
    """Operands loaded without a mask; `out` for the store."""

    def text(self) -> str:
        """The module."""
        names = ("x", *self.composition.operands)
        arguments = ", ".join(names)
        pointers = "".join(f"{name}_ptr, " for name in names)
        lines = [*(self._load(name) for name in names), "t = x", *self._lines(), self._store()]
        body = "".join(f"\n    {line}" for line in lines)
        made = REDUCED if self.composition.end else FULL
        return f"{IMPORTS}{pointers}{INDICES}{body}{CLASS}{arguments}{SHAPES}{made}{GRID}{arguments}{CALL}"

    def _load(self, name: str) -> str:
        address = (MISTAKEN_ADDRESSES if name in self.mistaken else ADDRESSES)[name]
        scalar = address == ADDRESSES["s"]
        return f"{name} = tl.load({address}{BARE if scalar or name in self.unmasked else PADDED}"

    def _store(self) -> str:
        if self.composition.end:
            return f"tl.store(out_ptr + {'c' if 'out' in self.mistaken else 'r'}, t)"
        stride = "BLOCK" if "out" in self.mistaken else "C"
        return f"tl.store(out_ptr + r * {stride} + c, t{')' if 'out' in self.unmasked else ', mask=m)'}"

    def _lines(self) -> list[str]:
        operands = [*(statement.operand for statement in self.composition.statements), None]
        written = zip(operands, self.statements, strict=False)
        return [line.format(b=operand) for operand, lines in written for line in lines]


def right_lines(names: Sequence[str]) -> tuple[Lines, ...]:
    """For each operator the lines that compute it."""
    return tuple(OPERATORS[name].triton for name in names)


def solution_text(composition: Composition) -> str:
    """A right module."""
    return Kernel(composition, right_lines(composition.names)).text()
