"""Values that Triton's compiler takes from another place than the text says: its first stage (TTIR) shows it.

    tl.reduce((tl.reshape(v, [N]), k), 0, f)     lets the reshape put v in any order, and k stays as it is
    v = tl.load(p, mask=c); ...; v if c else z   loads where the choice stands, after what was stored in between
    acc = acc * tl.reduce(v, 0, times)           in a loop, multiplies up in each thread, and reduces after the loop

Each holds of a rewriting rule of the compiler's that does not ask for what else there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from triton._C.libtriton import ir, passes

from assay.kernels.inside.triton.compiled.places import numbered, whole

_VALUE = r"%[\w.$-]+(?:#\d+)?"
_RESHAPED = re.compile(rf"^\s*({_VALUE}) = tt\.reshape {_VALUE} allow_reorder(?! efficient_layout)\b", re.M)
_CONSTANT = re.compile(rf"^\s*({_VALUE}) = arith\.constant dense<[^\[\]]*> :", re.M)
_REDUCED = re.compile(r'"tt\.reduce"\(([^()]*)\)')
_COUNTED = re.compile(rf"tt\.histogram ({_VALUE}), ({_VALUE})")
_CLOSED = re.compile(r"^\s*\}\) : .*loc\((#loc\d*)\)$", re.M)
_OWN_PLACE = re.compile(r"loc\((#loc\d*)\)$", re.M)
_IN_THREADS = re.compile(rf"^\s*({_VALUE}) = tt\.reshape {_VALUE} allow_reorder efficient_layout\b", re.M)
_CHOICES = re.compile(r"\barith\.select %[^:]*: tensor|\bscf\.if .* -> \(|\bcf\.cond_br\b")
_SPLAT_MASK = re.compile(r"\btt\.splat .*: i1 -> tensor<")
_LOADS = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"})
_OWN = "<load of the kernel's own>"
"""No variable has such a name, and names are places too."""


def reordered(text: str) -> list[str]:
    """The places of what takes elements in any order beside others that stay in theirs; `text`: TTIR, with places."""
    return _written_out(text, _reordered(text))


def multiplied_in_threads(text: str) -> list[str]:
    """The places of products that each thread makes of its own elements first; `text`: TTGIR, with places."""
    return _written_out(text, _multiplied(text))


def _written_out(text: str, found: Iterator[str]) -> list[str]:
    places = list(found)
    known = numbered(text) if places else {}
    return [whole(known, place) for place in places]


def _reordered(text: str) -> Iterator[str]:
    loose = set(_RESHAPED.findall(text))
    constant = set(_CONSTANT.findall(text))
    for found in _REDUCED.finditer(text):
        operands = {each.strip() for each in found[1].split(",")} - constant
        if len(operands) > 1 and operands & loose:
            yield _place_after(_CLOSED, text, found.end())
    for found in _COUNTED.finditer(text):
        if found[1] in loose or found[2] in loose:
            yield _place_after(_OWN_PLACE, text, found.end())


def _multiplied(text: str) -> Iterator[str]:
    parts = set(_IN_THREADS.findall(text))
    for found in _REDUCED.finditer(text) if parts else ():
        end = _CLOSED.search(text, found.end())
        if end is not None and found[1].strip() in parts and "arith.mulf" in text[found.end() : end.start()]:
            yield end[1]


def _place_after(pattern: re.Pattern[str], text: str, start: int) -> str:
    found = pattern.search(text, start)
    return found[1] if found is not None else ""


def may_reorder(text: str) -> bool:
    """Whether a kernel in TTIR has elements that may be in any order."""
    return "allow_reorder" in text


def may_load_again(text: str) -> bool:
    """Whether a kernel, as it is read, has a load under a mask that is one number, and a choice by one."""
    return _SPLAT_MASK.search(text) is not None and _CHOICES.search(text) is not None


def loaded_again(module: Any) -> list[str]:
    """The places of loads that the compiler makes of choices.

    Args:
        module: As Triton's front end reads the kernel, with places. It is changed.
    """
    builder = ir.builder(module.context)
    for load in _loads(module):
        load.get_result(0).set_loc(builder.create_name_loc(_OWN, load.get_result(0).get_loc()))
    manager = ir.pass_manager(module.context)
    # What `make_ttir` begins with.
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    manager.run(module, "moved_values")
    places = (str(load.get_result(0).get_loc()) for load in _loads(module))
    return [place for place in places if _OWN not in place]


def _loads(module: Any) -> list[Any]:
    found = []
    module.walk(lambda operation: found.append(operation) if operation.get_name() in _LOADS else None)
    return found
