"""The verdict on a replay once what the compiler made of the launches is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from assay.kernels.compile.stage import Block, CompileReport, Moved, Widths
from assay.kernels.program.judging.outcome import NARROW
from assay.kernels.verdicts import Verdict

SPREAD_UNEVENLY = (
    "a race: {0}() touches a block of shape {1} where it has written a block of that shape, with no barrier between, "
    "and Triton spreads the two over its threads in different ways: one thread writes an element and another one "
    "touches it, in no order. Call tl.debug_barrier() between the two"
)
MOVED_AT_ONCE = (
    "as Triton compiles it, this line moves {0} bytes at once, of which only {1} follow each other from an address "
    "that divides by as many, under one mask: a GPU moves other bytes, or ends the kernel. Triton takes that for "
    "granted of what tl.where, a shift or % has made, of what was loaded under a mask, and of promises. Compute "
    "addresses and masks of sums and products of tl.arange"
)
NOT_KNOWN = (
    "the kernels make more accesses than can be held against what Triton compiles. Write fewer, or fewer launches"
)

NOT_COMPILED = (
    "not all configurations of an autotuned kernel, or not all launches, could be compiled in the time that there is, "
    "and one that was not makes accesses that must not move many bytes at once. Give fewer configurations"
)
_WIDEST = 16
"""Bytes that a thread moves at once."""


def as_compiled(verdict: Verdict, report: CompileReport, variants: Mapping[int, int] | None = None) -> Verdict:
    """The verdict where a kernel leans on what the compiler makes otherwise.

    Args:
        verdict: On a replay, with what it leans on in its evidence.
        report: On the launches that were replayed.
        variants: Number of a launch's step -> the numbers of the variants that were replayed, as bits, where these are
            not all that the report is on.
    """
    if not verdict.ok:
        return verdict
    verdict = spread_alike(verdict, report)
    return moved_at_once(verdict, report, variants or {}) if verdict.ok else verdict


def spread_alike(verdict: Verdict, report: CompileReport) -> Verdict:
    """The verdict once the layouts that the compiler has chosen are known: `wrong` where a kernel leans on one thread
    having an element in two accesses, and they are spread in two ways."""
    for found in verdict.evidence.get("same_lanes", []) if verdict.ok else []:
        block = Block(found["kernel"], tuple(found["shape"]), found["bytes"], found["storage"])
        if report.uneven is None or block in report.uneven:
            where = f"line {found['line']}: " if found["line"] else ""
            said = where + SPREAD_UNEVENLY.format(block.kernel, list(block.shape))
            return replace(verdict, kind="wrong", stage="compile", message=said)
    return verdict


def moved_at_once(verdict: Verdict, report: CompileReport, variants: Mapping[int, int]) -> Verdict:
    """The verdict once it is known how many bytes each access moves at once: `wrong` where that is more than its
    addresses and its mask allow. Arguments as for `as_compiled`."""
    narrow = verdict.evidence.get(NARROW)
    if narrow == []:
        return verdict
    if narrow is None or report.widths is None:
        return replace(verdict, kind="unsupported", stage="compile", message=NOT_KNOWN)
    for step, variant, *site, allowed in narrow:
        table = report.widths.get((step, _number(variants.get(step), variant)))
        if table is None:
            if _as_others_move(report.widths, step, (site[0], site[1])) > allowed:
                return replace(verdict, kind="unsupported", stage="compile", message=NOT_COMPILED)
            continue
        moved = _of_site(table, (site[0], site[1]))
        if moved.bytes > allowed:
            where = f"line {moved.line}: " if moved.line else ""
            said = where + MOVED_AT_ONCE.format(moved.bytes, allowed)
            return replace(verdict, kind="wrong", stage="compile", message=said)
    return verdict


def without_narrow(verdict: Verdict) -> Verdict:
    """The verdict without what only the compiler's text is held against."""
    return replace(verdict, evidence={name: value for name, value in verdict.evidence.items() if name != NARROW})


def _number(bits: int | None, place: int) -> int:
    """The number of a variant by its place among those that are left."""
    if bits is None:
        return place
    left = [number for number in range(bits.bit_length()) if bits >> number & 1]
    return left[place] if place < len(left) else place


def _as_others_move(tables: Mapping[tuple[int, int], Widths], step: int, site: tuple[int, int]) -> int:
    """How many bytes the compiled variants of a launch move at once in an access; more than any where none has it."""
    there = [table for (its, _), table in tables.items() if its == step]
    known = [moved.bytes for table in there for (number, _), moved in table.items() if number == site[0]]
    return max(known, default=_WIDEST + 1)


def _of_site(table: Widths, site: tuple[int, int]) -> Moved:
    """What an access may move at once: that in the same helper's call if it is known, else in any; or what the
    compiler's text says of no access, which may be this one."""
    unknown = [moved for (number, _), moved in table.items() if not number]
    known = [table[site]] if site in table else [moved for (number, _), moved in table.items() if number == site[0]]
    return max([*known, *unknown], default=Moved(0, 0))
