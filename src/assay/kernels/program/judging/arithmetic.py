"""Rules for the arithmetic that PyTorch does beside the kernels."""

from __future__ import annotations

from assay.kernels.base import Policy
from assay.kernels.program.form import DTYPES, Launch, Operation, Program, operations_in, windows_in
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.operations import (
    arithmetic_of,
    base_name,
    dtypes_of,
    elements_read,
    regrouped,
    role_of,
)

MAX_ARITHMETIC_SHARE = 0.02
"""Arithmetic that PyTorch may do beside the kernels, as a share of what it does for the reference. The most that an
honest program of 155 needs is 0.014 (the sum of a product's split sums)."""
MAX_PARTIAL_SHARE = 0.5
"""The same under the policy `partial`."""
MAX_KERNEL_SHARE = 0.1
"""The same as a share of what the kernels do: where a reference wastes its own, little of it may be all that is
needed."""
MIN_PARTIAL_SHARE = 0.5
"""Share of all arithmetic that kernels do at least under the policy `partial`."""
MAX_ARITHMETIC_OPERATIONS = 64
"""Operators that do arithmetic. So many operations, of as many operators on one number each, are held against no
kernel's."""


def partial_share(program: Program, reference: int) -> list[Finding]:
    """Under the policy `partial` PyTorch may do up to half of what it does for the reference."""
    share = arithmetic_share(program, reference)
    if share <= MAX_PARTIAL_SHARE:
        return []
    said = f"PyTorch does {min(share, 1e9):.0%} of the work of the reference; {MAX_PARTIAL_SHARE:.0%} are allowed"
    return [Finding("arithmetic", said)]


def host_arithmetic(program: Program, reference: int, slack: float = 1.0) -> list[Finding]:
    """Arithmetic of PyTorch's in forward and at import, against the reference's."""
    counted = _host_arithmetic(program)
    if not counted:
        return []
    total, (_, worst) = sum(amount for amount, _ in counted), max(counted, key=lambda pair: pair[0])
    allowed = int(MAX_ARITHMETIC_SHARE * slack * reference)
    if total > allowed:
        said = (
            f"PyTorch does {total} arithmetic operations beside the kernels, most of them in {base_name(worst)}; "
            f"{allowed} are allowed, {MAX_ARITHMETIC_SHARE * slack:.0%} of the reference's {reference}. Do them in a "
            "kernel."
        )
        return [Finding("arithmetic", said, worst.line)]
    if len(counted) > MAX_ARITHMETIC_OPERATIONS:
        said = (
            f"{len(counted)} arithmetic operators of PyTorch's beside the kernels; "
            f"{MAX_ARITHMETIC_OPERATIONS} are allowed"
        )
        return [Finding("arithmetic", said, worst.line)]
    return []


def _host_arithmetic(program: Program) -> list[tuple[int, Operation]]:
    """What each operator of forward's and of the import's computes."""
    operations = list(operations_in((*program.module, *program.forward)))
    dtypes = dtypes_of(program) if operations else {}
    rounded = _rounded(program) if operations else {}
    counted = [
        (max(arithmetic_of(each), regrouped(each, dtypes), rounded.get(id(each), 0)), each) for each in operations
    ]
    return [(amount, operation) for amount, operation in counted if amount]


def _rounded(program: Program) -> dict[int, int]:
    """Operators that cast to what does not hold every value they read, where that may be the work (of a rounding, of a
    comparison by what overflows) -> elements: where a kernel goes on with what a kernel wrote, and where PyTorch casts
    it back."""
    found: dict[int, int] = {}
    made, lost, waiting = set[int](), set[int](), dict[int, list[Operation]]()
    for step in (*program.module, *program.forward):
        if isinstance(step, Launch):
            given = (value for variant in step.variants for _, value in variant.args)
            used = {window.storage for value in given for window in windows_in(value)}
            found |= {id(each): _elements(each) for storage in used for each in waiting.pop(storage, ())}
            made |= used
            continue
        moved = elements_read(step)[:1]  # what comes after it says where to
        read = [window for value in moved for window in windows_in(value)]
        if role_of(step) != "move" or not read:
            continue
        came, known = ({window.storage for window in read} & each for each in (made, lost))
        for out in step.outs:
            loses = not all(_holds(out.dtype, window.dtype) for window in read)
            if known and any(_holds(out.dtype, window.dtype) and out.dtype != window.dtype for window in read):
                found[id(step)] = _elements(step)
            if came:
                made.add(out.storage)
                earlier = [each for one in came for each in waiting.get(one, ())]
                waiting.setdefault(out.storage, []).extend([step] if loses else earlier)
            if loses or known:
                lost.add(out.storage)
    return found


def _holds(wide: str, narrow: str) -> bool:
    """Whether a type has every number of another one. What becomes whole numbers is counted as what it is
    (`arithmetic_of`)."""
    if wide == narrow or wide not in _FRACTIONS:
        return True
    if narrow not in _FRACTIONS:
        return narrow == "bool" or 8 * DTYPES[narrow] - (not narrow.startswith("u")) <= _FRACTIONS[wide][0]
    return all(one >= other for one, other in zip(_FRACTIONS[wide], _FRACTIONS[narrow], strict=True))


_FRACTIONS = {
    **{"float64": (53, 11), "float32": (24, 8), "bfloat16": (8, 8), "float16": (11, 5)},
    **{"float8_e5m2": (3, 5), "float8_e4m3fn": (4, 4)},
}
"""Types of fractions -> bits of their numbers, and of exponents."""


def _elements(operation: Operation) -> int:
    return sum(out.elements for out in operation.outs)


def arithmetic_share(program: Program, reference: int) -> float:
    """Arithmetic of PyTorch's in forward as a share of the reference's; what is left is the kernels'."""
    return sum(amount for amount, _ in _host_arithmetic(program)) / max(reference, 1)


def kernel_share(program: Program, done: int) -> float:
    """Share of all arithmetic that is the kernels', which did `done` operations in a call."""
    total = sum(amount for amount, _ in _host_arithmetic(program))
    return 1.0 if total <= MAX_ARITHMETIC_OPERATIONS else done / (done + total)


def beside_kernels(program: Program, done: int, policy: Policy = "strict") -> list[Finding]:
    """Arithmetic of PyTorch's in forward, against what the kernels do.

    Args:
        program: What was recorded.
        done: Operations of the kernels in one call, as a replay measured.
        policy: `partial` lets PyTorch do as much as the kernels.
    """
    counted = _host_arithmetic(program)
    total = sum(amount for amount, _ in counted)
    most = MAX_KERNEL_SHARE if policy == "strict" else 1.0 / MIN_PARTIAL_SHARE - 1.0
    allowed = max(int(most * done), MAX_ARITHMETIC_OPERATIONS)
    if total <= allowed:
        return []
    _, worst = max(counted, key=lambda pair: pair[0])
    said = (
        f"PyTorch does {total} arithmetic operations beside kernels that do {done}, most of them in "
        f"{base_name(worst)}; {allowed} are allowed, {most:.0%} of the kernels'. Do them in a kernel."
    )
    return [Finding("arithmetic", said, worst.line)]
