"""Values that Triton's compiler computes once for several elements, which it takes for equal.

Where it is to make a comparison, a quotient or a choice of a block, it asks what it knows of the block, makes one value
of each group of equal ones, and gives that to all of them. That shows in the first text of LLVM that it writes: the
same value in several registers. Whether they are equal is proved anew (`lane_facts`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from assay.kernels.inside.triton.compiled.block_steps import Step, shapes, steps
from assay.kernels.inside.triton.compiled.llvm_stage import LlvmStage
from assay.kernels.inside.triton.compiled.places import numbered, whole

MADE_OF = {
    "arith.extsi": "llvm.sext",
    "arith.extui": "llvm.zext",
    "arith.trunci": "llvm.trunc",
    "tt.bitcast": "llvm.bitcast",
    "arith.addi": "llvm.add",
    "arith.subi": "llvm.sub",
    "arith.muli": "llvm.mul",
    "arith.divsi": "llvm.sdiv",
    "arith.divui": "llvm.udiv",
    "arith.remsi": "llvm.srem",
    "arith.remui": "llvm.urem",
    "arith.cmpi": "llvm.icmp",
    "arith.andi": "llvm.and",
    "arith.ori": "llvm.or",
    "arith.xori": "llvm.xor",
    "arith.select": "llvm.select",
    "arith.shli": "llvm.shl",
    "arith.shrui": "llvm.lshr",
    "arith.shrsi": "llvm.ashr",
    "arith.maxsi": "llvm.intr.smax",
    "arith.maxui": "llvm.intr.umax",
    "arith.minsi": "llvm.intr.smin",
    "arith.minui": "llvm.intr.umin",
}
"""What the compiler knows something of -> what it makes of it."""
_PACKED = re.compile(r"^\s*(%[\w.$-]+) = llvm\.insertvalue (%[\w.$-]+), (%[\w.$-]+)\[\d+\]")
_MADE = re.compile(r"^\s*(%[\w.$-]+) = \"?(llvm[\w.]+)\"?.* loc\(#loc\d*\)$")
_SPLAT = re.compile(r"^\s*%[\w.$-]+ = llvm\.bitcast %[\w.$-]+ : (\S+) to \1 ")
"""One number is made a block of: it is given the type that it has."""
_BLOCKED = re.compile(r"^(#\w+) = #ttg\.blocked<\{sizePerThread = \[([\d, ]+)\].*? order = \[([\d, ]+)\]", re.M)
_LAYOUT = re.compile(r"tensor<[^<>#]*(?:<[^<>]*>)?[^<>#]*, (#.*)>$")
_SLICE = re.compile(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$")


def places(module: Any, text: str, capability: int, ptx_version: int) -> list[str]:
    """Where the compiler makes one value of several elements, and nothing shows that they are equal.

    Args:
        module: The kernel in TTGIR. It stays as it is.
        text: What it prints.
        capability: Of the GPU that it is compiled for.
        ptx_version: The same of its machine language.
    """
    found = [step for step in steps(text) if step.name in MADE_OF]
    if not any(step.fact.doubtful and step.fact.constancy != shapes(step.kind)[-1] for step in found):
        return []
    stage = LlvmStage(module.context, text, capability, ptx_version)
    stage.without_structure()
    return not_shown(found, text, stage.first_text())


def not_shown(found: Sequence[Step], text: str, made: str) -> list[str]:
    """The places of steps that are made once for elements of which nothing shows that they are equal.

    Args:
        found: Steps of the kernel, in their order.
        text: TTGIR.
        made: What is made of it in LLVM's dialect, before anything is simplified.
    """
    packed = _packed(made)
    named = numbered(text)
    layouts = {name: (_numbers(sizes), _numbers(order)) for name, sizes, order in _BLOCKED.findall(text)}
    steps_at: dict[tuple[str, str], list[Step]] = {}
    for step in found:
        steps_at.setdefault((whole(named, step.place), MADE_OF[step.name]), []).append(step)
    return [
        place
        for (place, maker), alike in steps_at.items()
        for step, registers in _pairs(alike, packed.get((place, maker), []))
        if len(set(registers)) < len(registers) and not _holds(step, registers, layouts)
    ]


def _pairs(found: Sequence[Step], packed: Sequence[Sequence[str]]) -> Iterator[tuple[Step, Sequence[str]]]:
    """Steps at one place with what was made of them: in their order, or any of any where some are lost."""
    return zip(found, packed, strict=True) if len(found) == len(packed) else product(found, packed)


def _holds(step: Step, registers: Sequence[str], layouts: Mapping[str, tuple[list[int], list[int]]]) -> bool:
    """Whether elements that have one value are equal."""
    shape = shapes(step.kind)[-1]
    found = _LAYOUT.search(step.kind)
    sizes, order = _layout(found[1] if found is not None else "", len(shape), layouts)
    tile = [sizes[axis] for axis in order]
    if len(registers) % math.prod(tile):
        tile = [len(registers), *([1] * (len(tile) - 1))]
    groups = _groups(registers, tile)
    return all(step.fact.constancy[axis] >= min(group, shape[axis]) for axis, group in zip(order, groups, strict=True))


def _groups(registers: Sequence[str], tile: Sequence[int]) -> list[int]:
    """Equal neighbours in each dimension, the fastest one first. `tile`: elements that a thread has side by side."""
    found, stride = [], 1
    for size in tile:
        group = size
        while group > 1 and any(
            registers[place] != registers[place - place // stride % size % group * stride]
            for place in range(len(registers))
        ):
            group //= 2
        found.append(group)
        stride *= size
    return found


def _layout(
    name: str, dimensions: int, layouts: Mapping[str, tuple[list[int], list[int]]]
) -> tuple[list[int], list[int]]:
    """Elements that a thread has beside each other in each dimension, and the dimensions, the fastest one first. Of a
    layout that is not known: any number, in the last dimension."""
    if name in layouts and len(layouts[name][0]) == dimensions:
        return layouts[name]
    if (found := _SLICE.match(name)) is not None:
        dropped, parent = int(found[1]), found[2]
        sizes, order = _layout(parent, dimensions + 1, layouts)
        kept = [axis - (axis > dropped) for axis in order if axis != dropped]
        return [size for axis, size in enumerate(sizes) if axis != dropped], kept
    return [1] * (dimensions - 1) + [1 << 30], list(reversed(range(dimensions)))


def _packed(made: str) -> dict[tuple[str, str], list[list[str]]]:
    """Registers of the blocks that a thread has, in their order, by place and by what made the first of them."""
    makers: dict[str, str] = {}
    open_: dict[str, tuple[list[str], str]] = {}
    named = numbered(made)
    for line in made.splitlines():
        if (packed := _PACKED.match(line)) is not None:
            values, _ = open_.pop(packed[3], ([], ""))
            place = line.rpartition(" loc(")[2].removesuffix(")")
            open_[packed[1]] = [*values, packed[2]], place
        elif (match := _MADE.match(line)) is not None and _SPLAT.match(line) is None:
            makers[match[1]] = match[2]
    found: dict[tuple[str, str], list[list[str]]] = {}
    for values, place in open_.values():
        found.setdefault((whole(named, place), makers.get(values[0], "")), []).append(values)
    return found


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]
