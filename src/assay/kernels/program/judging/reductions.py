"""Elements of inputs and weights that PyTorch adds up, or otherwise makes fewer, before a kernel has read them.

Counts of arithmetic do not show that kernels made the pass over the inputs: a reference may compute more than is
needed, and a kernel what nobody needs. Where PyTorch makes few elements of many that no kernel wrote, none made it.
"""

from __future__ import annotations

import math

from assay.kernels.program.form import DTYPES, Operation, Program, Window, operations_in, windows_in
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.operations import arithmetic_of, base_name, elements_read
from assay.kernels.program.weight_work import made_of_weights

MAX_REDUCED_SHARE = 0.5
"""Elements of inputs and weights that PyTorch may lose to sums and the like, as a share of all that these and the
outputs have."""
_FEW = 64
"""So many elements may always be lost."""
_HALVES = 2
"""An operator makes few elements of many where these are more than so many times as many: what gates one half of an
input by the other is no sum."""


def host_reductions(program: Program, weights: int) -> list[Finding]:
    """Elements of inputs and weights that PyTorch makes fewer in forward before a kernel has read them."""
    counted = reductions(program)
    total = sum(lost for lost, _ in counted)
    there = weights + sum(window.elements for window in (*program.inputs, *program.outputs))
    allowed = max(int(MAX_REDUCED_SHARE * there), _FEW)
    if total <= allowed:
        return []
    _, worst = max(counted, key=lambda pair: pair[0])
    said = (
        f"PyTorch adds up {total} elements of inputs and weights, or makes them fewer otherwise, most of them in "
        f"{base_name(worst)}; {allowed} are allowed. Let a kernel read them."
    )
    return [Finding("arithmetic", said, worst.line)]


def reductions(program: Program) -> list[tuple[int, Operation]]:
    """The operators of forward that make few elements of many that no kernel wrote, with how many they lose.

    Many are as many as the input or weight has that the elements stem from: sums of its slices, or of copies of them,
    lose as many as a sum of it does.
    """
    origins = dict.fromkeys({window.storage for window in program.inputs} | made_of_weights(program), 0)
    found = []
    for operation in operations_in(program.forward):
        read = [window for value in elements_read(operation) for window in windows_in(value)]
        read = [window for window in read if window.storage in origins]
        if not read:
            continue
        most = max(_origin(window, program, origins) for window in read)
        made = sum(out.elements for out in operation.outs)
        lost = sum(min(_distinct(window), most) for window in read) - made
        if lost > 0 and _HALVES * made < most and arithmetic_of(operation):
            found.append((lost, operation))
        for out in operation.outs:
            origins[out.storage] = max(origins.get(out.storage, 0), most)
    return found


def _origin(window: Window, program: Program, origins: dict[int, int]) -> int:
    """Elements of the storage that a window shows, or of what these were made of."""
    return max(origins[window.storage], program.storages[window.storage] // DTYPES[window.dtype])


def _distinct(window: Window) -> int:
    """Elements, those that are shown again and again counted once."""
    return math.prod(size for size, stride in zip(window.size, window.stride, strict=True) if stride)
