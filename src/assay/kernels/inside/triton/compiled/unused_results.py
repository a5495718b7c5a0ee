"""Atomic operations whose results are of no use once the compiler has simplified what is made of them.

    seen = tl.atomic_add(p, 1); tl.debug_barrier(); ... seen * 0      nobody waits for it
    seen = tl.atomic_add(p, 0, sem="acquire"); ... seen * 0           a load, which is dropped

Threads wait for the result of an atomic operation of one thread where one of them uses it. A sum with zero that does
not release is a load, which stays as long as its result is used.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from assay.kernels.inside.triton.compiled.llvm_stage import LlvmStage
from assay.kernels.inside.triton.compiled.places import numbered, whole

_ATOMIC = re.compile(r"^\s*(?:(%[\w.$-]+) = )?tt\.atomic_\w+ .* loc\((#loc\d*)\)$", re.M)
_LOAD = re.compile(r"= nvg\.ld_acquire .* loc\((#loc\d*)\)$", re.M)
_FUNCTION = re.compile(r"^(?=\s*tt\.func )", re.M)


def places(module: Any, text: str, capability: int, ptx_version: int) -> list[str]:
    """Where the result of an atomic operation is not used, as the compiler finds.

    Args:
        module: The kernel in TTGIR. It stays as it is.
        text: What it prints.
        capability: Of the GPU that it is compiled for.
        ptx_version: The same of its machine language.
    """
    if _ATOMIC.search(text) is None:
        return []
    stage = LlvmStage(module.context, text, capability, ptx_version)
    made_of = stage.without_structure()
    loads, left = (_places(_LOAD, each) for each in (stage.first_text(), stage.simplified()))
    return [*_unused(made_of), *(loads - left)]


def _unused(text: str) -> list[str]:
    """Places of atomic operations whose results nothing names. Names are of one function."""
    known = numbered(text)
    return [
        whole(known, place)
        for function in _FUNCTION.split(text)
        for name, place in _ATOMIC.findall(function)
        if not name or len(re.findall(re.escape(name) + r"(?![\w.$-])", function)) < 2
    ]


def _places(operation: re.Pattern[str], text: str) -> Counter[str]:
    """How many of an operation stand at each place."""
    known = numbered(text)
    return Counter(whole(known, place) for place in operation.findall(text))
