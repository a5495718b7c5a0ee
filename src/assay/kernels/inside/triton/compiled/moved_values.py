"""Values that Triton's compiler takes from another place than the text says: its first stage (TTIR) shows it.

    tl.reduce((tl.reshape(v, [N]), k), 0, f)     lets the reshape put v in any order, and k stays as it is
    v = tl.load(p, mask=c); ...; v if c else z   loads where the choice stands, after what was stored in between
    acc = tl.maximum(acc, tl.sum(v, 0))          in a loop, takes the maximum in each thread, and sums up after the loop

Each holds of a rewriting rule of the compiler's that does not ask for what else there is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from triton._C.libtriton import ir, passes

from assay.kernels.inside.triton.compiled.places import numbered, whole

_VALUE = r"%[\w.$-]+"
_MADE = re.compile(rf"^\s*({_VALUE})(?::\d+)? = (.*)$")
_ARGUMENT = re.compile(rf"({_VALUE}): ")
_LOOSE = re.compile(r"tt\.reshape .* allow_reorder (?!efficient_layout)")
_UNIFORM = re.compile(r"arith\.constant dense<[^\[\]]*> |tt\.splat ")
_IN_THREADS = re.compile(r"tt\.reshape .* allow_reorder efficient_layout ")
_REDUCED = re.compile(r'"tt\.reduce"\(([^()]*)\)')
_COUNTED = re.compile(rf"tt\.histogram ({_VALUE}), ({_VALUE}) ")
_STEPS = re.compile(r"= ((?:arith|math)\.\w+) ")
_JOINED = r"^\s*%[\w.$-]+ = ([\w.]+) .*{}\b"
_ALIKE = frozenset({f"arith.{name}" for name in ("addf", "maxnumf", "maximumf", "minnumf", "minimumf")})
"""Steps that make the same where threads keep their parts; a sum's roundings are known (`error_bounds`)."""
_END = re.compile(r"^\s*\}\) : ")
_PLACE = re.compile(r"loc\((#loc\d*)\)$")
_CHOICES = re.compile(r"\barith\.select %[^:]*: tensor|\bscf\.if .* -> \(|\bcf\.cond_br\b")
_SPLAT_MASK = re.compile(r"\btt\.splat .*: i1 -> tensor<")
_LOADS = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"})
_LOOPS = frozenset({"scf.for", "scf.while"})
_WRITES = re.compile(
    r"tt\.(?:\w*store|atomic_\w+|descriptor_(?:store|reduce|scatter)|call)$|.*barrier|tt\.elementwise|.*asm"
)
_OWN = "<load of the kernel's own>"
"""No variable has such a name, and names are places too."""


def reordered(text: str) -> list[str]:
    """The places of what takes elements in any order beside others that stay in theirs; `text`: TTIR, with places."""
    return _written_out(text, _reordered(text))


def reduced_late(text: str) -> list[str]:
    """The places of reductions that each thread makes of its own elements first, through all turns of a loop, unless
    they are sums that are added up, or extremes of which the same is taken; `text`: TTGIR, with places."""
    return _written_out(text, _reduced_late(text))


def _written_out(text: str, found: Iterator[str]) -> list[str]:
    places = list(found)
    known = numbered(text) if places else {}
    return [whole(known, place) for place in places]


def _reordered(text: str) -> Iterator[str]:
    for operands, made, place, _, _ in _reductions(text):
        bound = {each for each in operands if not _UNIFORM.match(made.get(each, ""))}
        if len(bound) > 1 and any(_LOOSE.match(made.get(each, "")) for each in bound):
            yield place


def _reduced_late(text: str) -> Iterator[str]:
    if "efficient_layout" not in text:
        return
    for operands, made, place, body, result in _reductions(text):
        if any(_IN_THREADS.match(made.get(each, "")) for each in operands):
            within = set(_STEPS.findall(body))
            joined = {found[1] for found in re.finditer(_JOINED.format(re.escape(result)), text, re.M)}
            if len(within) != 1 or joined != within or not within <= _ALIKE:
                yield place


def _reductions(text: str) -> Iterator[tuple[set[str], dict[str, str], str, str, str]]:
    """Reductions and histograms under a mask: operands, what makes each value at that point, place, body and result. A
    name stands for what was last given it: parts of a module beside each other may have the same names."""
    made: dict[str, str] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if (reduced := _REDUCED.search(line)) is not None:
            end = next((place for place in range(number, len(lines)) if _END.match(lines[place])), number)
            operands = {each.strip() for each in reduced[1].split(",")}
            result = given[1] if (given := _MADE.match(line)) is not None else ""
            yield operands, made, _place(lines[end]), "\n".join(lines[number:end]), result
        elif (counted := _COUNTED.search(line)) is not None:
            yield set(counted.groups()), made, _place(line), "", ""
        if (given := _MADE.match(line)) is not None:
            made[given[1]] = given[2]
        elif line.lstrip().startswith("^"):
            made.update(dict.fromkeys(_ARGUMENT.findall(line), ""))


def _place(line: str) -> str:
    found = _PLACE.search(line)
    return found[1] if found is not None else ""


def may_reorder(text: str) -> bool:
    """Whether a kernel in TTIR has elements that may be in any order."""
    return "allow_reorder" in text


def may_load_again(text: str) -> bool:
    """Whether a kernel, as it is read, has a load under a mask that is one number, and a choice by one."""
    return _SPLAT_MASK.search(text) is not None and _CHOICES.search(text) is not None


def loaded_again(module: Any) -> list[str]:
    """The places of loads that the compiler makes of choices, where something may be written in between.

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
    return [str(load.get_result(0).get_loc()) for load in _late(module)]


def _late(module: Any) -> list[Any]:
    """Loads that the compiler has made, and that may come after something that writes, or in a loop with it."""
    made: list[Any] = []
    first_write = last = math.inf
    for number, operation in enumerate(_all(module)):
        name = operation.get_name()
        if name in _LOADS and _OWN not in str(operation.get_result(0).get_loc()):
            made.append(operation)
            last = number
        elif name in _LOOPS:
            last = number
        elif first_write == math.inf and _WRITES.match(name):
            first_write = number
    return made if made and first_write < last else []


def _all(module: Any) -> list[Any]:
    """The operations of a module, one that has others in it after those."""
    found: list[Any] = []
    module.walk(found.append)
    return found


def _loads(module: Any) -> list[Any]:
    return [operation for operation in _all(module) if operation.get_name() in _LOADS]
