"""What PTX shows of a kernel: whether anything of it is left once the compiler has drawn its conclusions.

LLVM may take it for granted that what has no meaning never happens: a whole number divided by zero, a constant cast to
a type that cannot hold it. It deletes what only happens then, which may be all of a kernel.
"""

from __future__ import annotations

import re

_BEGIN = r"^[\s{]*(?:@!?%p\d+\s+)?"
_WRITES = re.compile(_BEGIN + r"(st|atom|red|multimem\.(?:st|red)|cp(?:\.reduce)?\.async\.bulk)([.\w:]*)", re.M)
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


def _is_global(instruction: str, suffixes: str) -> bool:
    """Whether an instruction writes memory that outlives the kernel."""
    if instruction.startswith("cp"):
        return ".global.shared" in suffixes
    return suffixes.startswith(".") and not any(space in suffixes for space in _ELSEWHERE)
