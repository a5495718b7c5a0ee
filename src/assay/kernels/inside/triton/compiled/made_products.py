"""Products of matrices that nobody asked for: Triton's compiler makes a `tl.dot` of sums of products of two broadcasts.

    tl.sum(a[:, :, None] * b[None, :, :] - 0.0, 1)       a dot, with operands of TF32 where they are float32

It looks for these steps once it has dropped all that changes nothing, so the text of a kernel does not show whether it
will find them: what the compiler makes of it does. The dots of the kernel's own are marked by their places, which every
pass hands on, and what has no mark afterwards was made.
"""

from __future__ import annotations

from typing import Any

from triton._C.libtriton import ir, passes

_DOT, _REDUCE = "tt.dot", "tt.reduce"
_OWN = "<dot of the kernel's own>"
"""No variable has such a name, and names are places too."""


def reduces(module: Any) -> bool:
    """Whether a module has a reduction, of which a dot may be made."""
    return bool(_named(module, _REDUCE))


def multiplies(module: Any) -> bool:
    """Whether a module has a dot, whoever asked for it."""
    return bool(_named(module, _DOT))


def places(module: Any) -> list[str]:
    """The places of sums that become dots.

    Args:
        module: As Triton's front end reads the kernel, with places. It is changed.
    """
    builder = ir.builder(module.context)
    for dot in _named(module, _DOT):
        dot.get_result(0).set_loc(builder.create_name_loc(_OWN, dot.get_result(0).get_loc()))
    manager = ir.pass_manager(module.context)
    # What `make_ttir` begins with. Not the rest: it takes equal dots for one, be one of them made.
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    manager.run(module, "made_products")
    found = (str(dot.get_result(0).get_loc()) for dot in _named(module, _DOT))
    return [place for place in found if _OWN not in place]


def _named(module: Any, name: str) -> list[Any]:
    found = []
    module.walk(lambda operation: found.append(operation) if operation.get_name() == name else None)
    return found
