"""What PyTorch says of the results of operators on tensors without memory: by the same code as for those with some.

    meta_kernels.install()      once per process

PyTorch has that code in C++, and puts kernels of Python in front of it, which a compiler can read. These give other
strides in places, most often of an extent of 1, and host code could decide by that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _meta_registrations as registrations
from torch._decomp import global_decomposition_table

from assay.kernels.operators import is_heavy, normal_name

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_KEYS = ("Meta", "CompositeExplicitAutograd")
_TABLES = ("pre_autograd", "post_autograd", "meta")
"""PyTorch's tables of them: a later one goes before an earlier one."""


def install() -> None:
    """Take kernels of Python away, for the rest of this process, wherever there is one in C++."""
    library = registrations._meta_lib_dont_use_me_use_register_meta
    there = {name: kernel for table in _TABLES for name, kernel in global_decomposition_table[table].items()}
    known = {operator: kernel for operator, kernel in there.items() if _key(operator) in library._op_impls}
    library._destroy()  # type: ignore[no-untyped-call]
    left = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
    registrations._meta_lib_dont_use_me_use_register_meta = left
    for operator, kernel in known.items():
        if not _is_native(operator):
            left.impl(operator, kernel)  # type: ignore[no-untyped-call]


def _key(operator: Any) -> str:
    """An operator's name, as a library of PyTorch's keeps it."""
    return f"{operator.name().replace('::', '/')}/Meta" if isinstance(operator, torch._ops.OpOverload) else ""  # type: ignore[no-untyped-call]


def _is_native(operator: Any) -> bool:
    """Whether there is a kernel in C++, and one for writing into given memory (`out=`), by which it may be made. What
    does a problem's work, as a convolution, may be there in C++ for all devices and ask for a library of the device."""
    name = operator.name().partition(".")[0]
    keys = _KEYS[:1] if is_heavy(normal_name(name)) else _KEYS
    out = getattr(operator.overloadpacket, "out", None)
    needed = [operator.name(), *([f"{name}.out"] if out is not None else [])]
    return all(any(_has_kernel(each, key) for key in keys) for each in needed)
