"""What PTX shows of a kernel: whether anything of it is left once the compiler has drawn its conclusions, and how many
bytes its accesses move at once.

LLVM may take it for granted that what has no meaning never happens: a whole number divided by zero, a constant cast to
a type that cannot hold it. It deletes what only happens then, which may be all of a kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from assay.kernels.inside.triton.running.widths import WIDEST

_BEGIN = r"^[\s{]*(?:@!?%p\d+\s+)?"
_WRITES = re.compile(_BEGIN + r"(st|atom|red|multimem\.(?:st|red)|cp(?:\.reduce)?\.async\.bulk)([.\w:]*)", re.M)
_MOVES = re.compile(_BEGIN + r"(?:ld|st|atom|red)([.\w:]*)\.(?:b|u|s|f|bf)(\d+)(x2)?\s")
_VECTOR = re.compile(r"\.v(\d)\b")
_COPIES = re.compile(r"\bcp\.async\.c[ag]\.shared\.global[.\w:]* [^;]*?\], \[[^\]]*\], (0x[0-9a-f]+|\d+)")
_TOUCHES = re.compile(r"\b(?:ld|ldu|st|atom|red)\.[\w.:]*global|\bcp\.async\.c[ag]\.")
_OF_CONSTANTS = re.compile(r"\bld\.global\.nc\b")
"""A load of a table of the compiler's own functions: those of a kernel never go this way."""
_TRAP = re.compile(_BEGIN + "trap;", re.M)
_ELSEWHERE = (".shared", ".local", ".param")
"""Memory that ends with the kernel, and the arguments of calls."""

NO_STORES = (
    "the compiler removed every store of this kernel: in the way it reads the kernel, none is ever reached, so a GPU "
    "would do nothing"
)
TRAPS = (
    "the compiler found that this kernel computes what has no value (a constant divided by zero, shifted beyond its "
    "width or cast to a type that cannot hold it, say) and branches on it: it put a trap there, which ends the kernel"
)


def fault(ptx: str) -> str:
    """Why a kernel with this text is none; empty where it is one."""
    if _TRAP.search(ptx):
        return TRAPS
    return "" if any(_is_global(*found.groups()) for found in _WRITES.finditer(ptx)) else NO_STORES


def widths(ptx: str, file: str, sites: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Most bytes that a thread moves at once to or from global memory, by the number of the access and of the helper's
    call around it, as the kernel's text says in comments; 0 for what it does not say.

    Args:
        ptx: With lines of the source.
        file: Whose lines these are.
        sites: Line and column -> number (`language.flow.sites`).
    """
    place = re.compile(re.escape(file) + r":(\d+):(\d+)")
    found: dict[tuple[int, int], int] = {}
    here = (0, 0)
    for line in ptx.splitlines():
        if line.lstrip().startswith(".loc"):
            chain = [sites.get((int(one), int(column)), 0) for one, column in place.findall(line)]
            here = (*chain, 0, 0)[0], (*chain, 0, 0)[1]
        elif moved := _moved(line):
            found[here] = max(found.get(here, 0), moved)
    return found


def _moved(line: str) -> int:
    """Bytes that an instruction moves at once to or from global memory; 0 for any other one. One that is not understood
    may move as many as there are."""
    if _TOUCHES.search(line) is None or _OF_CONSTANTS.search(line) is not None:
        return 0
    if (copied := _COPIES.search(line)) is not None:
        return int(copied[1], 0)
    if (moves := _MOVES.match(line)) is None:
        return WIDEST
    count = _VECTOR.search(moves[1])
    return (int(count[1]) if count else 1) * int(moves[2]) * (2 if moves[3] else 1) // 8


def _is_global(instruction: str, suffixes: str) -> bool:
    """Whether an instruction writes memory that outlives the kernel."""
    if instruction.startswith("cp"):
        return ".global.shared" in suffixes
    return suffixes.startswith(".") and not any(space in suffixes for space in _ELSEWHERE)
