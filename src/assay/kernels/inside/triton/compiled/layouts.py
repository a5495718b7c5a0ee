"""How the compiler spreads accesses over threads, as its text for a GPU (TTGIR) says.

    spreads(text)     of each access to memory: its block, its parameters, its layout

Triton gives each load and each store a layout of its own, by what it knows of addresses and by what is loaded beside
it, so accesses of one shape need not be spread alike. In some layouts several threads have an element, as of a row of
a product's result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

Block = tuple[tuple[int, ...], int]
"""Shape, and bytes of an element."""


class Spread(NamedTuple):
    """An access to a block of pointers."""

    block: Block
    parameters: frozenset[str] | None
    """Of the kernel, those through which it may come to memory; None for any."""
    layout: str
    """Empty for one in which several threads may have an element though there are enough."""


_ACCESS = re.compile(r"\b(?:tt\.(?:load|store|atomic_\w+)|ttg\.async_copy_global_to_local) (.*)")
_POINTERS = re.compile(r"tensor<((?:\d+x)+)!tt\.ptr<[a-z]+(\d+)\w*(?:, \d+)?>, ")
_BLOCKED = re.compile(
    r"^(#\w+) = #ttg\.blocked<\{sizePerThread = \[(.*?)\], threadsPerWarp = \[(.*?)\], warpsPerCTA = \[(.*?)\], "
    r"order = \[[\d, ]*\]\}>$",
    re.M,
)
_FUNCTION = re.compile(r"^\s*tt\.func .*", re.M)
_PARAMETER = re.compile(r'(%[\w.$-]+): !tt\.ptr<[^{}()]*?> (?:\{[^{}]*\} )?loc\("(\w+)"')
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_MADE = re.compile(r"^\s*(%[\w.$-]+) = ([\w.]+) (.*)", re.M)
_MOVES = {"tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "ttg.convert_layout"}
"""Steps whose first operand is a pointer, or pointers, to the same memory as their result's."""


def spreads(text: str) -> frozenset[Spread]:
    """How each access to a block is spread over the threads of its kernel. Where there are fewer elements than threads,
    several threads have each of them in any layout."""
    headers = _FUNCTION.findall(text)
    # Names are of one function, and of one part where warps are given different ones: else no pointer is known.
    alone = len(headers) == 1 and "warp_specialize" not in text
    roots = dict(_PARAMETER.findall(headers[0])) if alone else {}
    made = {name: (step, rest) for name, step, rest in _MADE.findall(text)}
    reaches = {alias: [tuple(map(int, part.split(","))) for part in parts] for alias, *parts in _BLOCKED.findall(text)}
    return frozenset(_accesses(text, roots, made, reaches))


def uneven(found: Collection[Spread], storages: Mapping[str, Collection[int]]) -> Iterator[tuple[Block, int]]:
    """Blocks and storages that a launch of the kernel touches in several ways, or in one of which it does not show that
    each element has one thread.

    Args:
        found: How its accesses are spread.
        storages: What each of its parameters comes to.
    """
    every = {storage for each in storages.values() for storage in each}
    layouts: dict[tuple[Block, int], set[str]] = {}
    for block, parameters, layout in found:
        known = parameters is not None and parameters <= storages.keys()
        for storage in {one for name in parameters or () for one in storages[name]} if known else every:
            layouts.setdefault((block, storage), set()).add(layout)
    return (place for place, ways in layouts.items() if len(ways) > 1 or "" in ways)


def _accesses(
    text: str,
    roots: Mapping[str, str],
    made: Mapping[str, tuple[str, str]],
    reaches: Mapping[str, Sequence[tuple[int, ...]]],
) -> Iterator[Spread]:
    for access in _ACCESS.finditer(text):
        if (pointers := _POINTERS.search(access[1])) is None:
            continue
        shape = tuple(map(int, pointers[1][:-1].split("x")))
        block = shape, max(1, int(pointers[2]) // 8)
        layout = _first_argument(access[1][pointers.end() :])
        start = _VALUE.search(access[1])
        root = _root(start[0], roots, made) if start is not None else ""
        own = layout in reaches and _has_one_thread(shape, *reaches[layout])
        yield Spread(block, frozenset({root}) if root else None, layout if own else "")


def _root(value: str, roots: Mapping[str, str], made: Mapping[str, tuple[str, str]]) -> str:
    """The parameter that a pointer is made of by moves alone; empty where that does not show, as of one that a loop
    moves on."""
    for _ in range(len(made) + 1):
        if value in roots:
            return roots[value]
        step, rest = made.get(value, ("", ""))
        following = _VALUE.match(rest) if step in _MOVES else None
        if following is None:
            return ""
        value = following[0]
    return ""


def _has_one_thread(shape: Sequence[int], *layout: Sequence[int]) -> bool:
    """Whether each element has one thread, where they are not fewer than threads. `layout`: elements of a thread,
    threads of a warp and warps, in each dimension."""
    each, lanes, warps = layout
    fewer = math.prod(shape) < math.prod(lanes) * math.prod(warps)
    return fewer or all(math.prod(at) <= size for size, *at in zip(shape, each, lanes, warps, strict=True))


def _first_argument(text: str) -> str:
    """What stands before the bracket that closes a type."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "<") - (sign == ">")
        if depth < 0:
            return text[:place]
    return text
