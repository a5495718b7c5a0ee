"""Elements of inputs and weights that PyTorch puts together, before a kernel has read them.

Counts of arithmetic do not show that kernels made the pass over the inputs: a reference may compute more than is
needed, and a kernel what nobody needs. Where PyTorch adds up elements that no kernel wrote, none made that pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from assay.kernels.operators import kind_of
from assay.kernels.program.form import Operation, Program, Window, operations_in, windows_in
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.operations import arithmetic_of, base_name, elements_read, places_of
from assay.kernels.program.weight_work import made_of_weights

MAX_REDUCED_SHARE = 0.5
"""Elements of inputs that PyTorch may put together, as a share of those of inputs and outputs; the same of weights, as
a share of those of the reference's weights."""
_FEW = 64
"""So many elements may always be put together."""

_Place = tuple[int, tuple[int, tuple[tuple[int, int], ...]]]
"""A storage, and which of its elements."""


def host_reductions(program: Program, weights: int | None) -> list[Finding]:
    """Elements of inputs and weights that PyTorch puts together in forward before a kernel has read them.

    Args:
        program: What was recorded.
        weights: Elements of the reference's parameters; None leaves out what is held against them.
    """
    inputs = {window.storage for window in program.inputs}
    counted = list(reductions(program))
    there = sum(window.elements for window in (*program.inputs, *program.outputs))
    found = _finding([each for each in counted if each.root in inputs], there, "inputs")
    if weights is not None:
        found += _finding([each for each in counted if each.root not in inputs], weights, "weights")
    return found


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operator that puts elements together: pairs of them, and the storage that most of them stem from."""

    pairs: int
    root: int
    operation: Operation


def _finding(counted: list[Reduction], there: int, what: str) -> list[Finding]:
    total, allowed = sum(each.pairs for each in counted), max(int(MAX_REDUCED_SHARE * there), _FEW)
    if total <= allowed:
        return []
    worst = max(counted, key=lambda each: each.pairs).operation
    said = (
        f"PyTorch adds up {total} elements of {what}, or puts them together otherwise, most of them in "
        f"{base_name(worst)}; {allowed} are allowed. Let a kernel read them."
    )
    return [Finding("arithmetic", said, worst.line)]


def reductions(program: Program) -> Iterator[Reduction]:
    """The operators of forward that put elements together which stem from one input or weight and no kernel wrote.

    A reduction of n elements to m puts n - m together, and a pointwise operator one for each of its elements and each
    further part of the same storage that it reads. What it reads in the same places (`x * x.sigmoid()`) is one part.
    """
    known = _Origins()
    for storage in {window.storage for window in program.inputs} | made_of_weights(program):
        known.roots[storage] = frozenset({storage})
    for operation in operations_in(program.forward):
        read = [window for value in elements_read(operation) for window in windows_in(value)]
        read = [window for window in read if window.storage in known.roots]
        counts = {root: known.pairs(operation, read, root) for root in known.roots_of(read)}
        if counts and arithmetic_of(operation) and (pairs := max(counts.values())) > 0:
            yield Reduction(pairs, max(counts, key=lambda root: counts[root]), operation)
        known.note(operation, read)


@dataclass(slots=True)
class _Origins:
    """What tensors are made of, as far as PyTorch made them."""

    roots: dict[int, frozenset[int]] = field(default_factory=dict)
    """Storage -> the inputs and weights that its elements stem from."""
    parts: dict[int, dict[_Place, _Place]] = field(default_factory=dict)
    """Of each storage: a tensor -> the one that it was made of element by element."""

    def roots_of(self, read: list[Window]) -> frozenset[int]:
        """The inputs and weights that some windows stem from."""
        return frozenset[int]().union(*(self.roots[window.storage] for window in read))

    def part(self, window: Window) -> _Place:
        """The elements that a window was made of, each of one."""
        return self.parts.get(window.storage, {}).get(place := _place(window), place)

    def pairs(self, operation: Operation, read: list[Window], root: int) -> int:
        """How many elements of one root an operator puts together."""
        of_root = [window for window in read if root in self.roots[window.storage]]
        made = sum(out.elements for out in operation.outs)
        if kind_of(base_name(operation)) == "reduction":
            return sum(window.elements for window in of_root) - made
        return (len({self.part(window) for window in of_root}) - 1) * made

    def note(self, operation: Operation, read: list[Window]) -> None:
        """Take note of what an operator makes."""
        roots, parts = self.roots_of(read), {self.part(window) for window in read}
        elements = {window.elements for window in read}
        for out in operation.outs:
            self.parts.pop(out.storage, None)
            if roots:
                self.roots[out.storage] = self.roots.get(out.storage, frozenset()) | roots
            if len(parts) == 1 and elements == {out.elements}:
                self.parts[out.storage] = {_place(out): next(iter(parts))}


def _place(window: Window) -> _Place:
    return window.storage, places_of(window)
