"""What may be answered about a tensor: what shapes, strides, dtypes and gradients say, which is the same on a GPU.

Whatever PyTorch answers that is no tensor, and is not among these, may be another answer there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from assay.kernels.inside.record.reads import NotRecordableError

_PROPERTIES = (
    *("shape", "dtype", "layout", "ndim", "itemsize", "nbytes", "requires_grad", "is_leaf", "grad_fn", "output_nr"),
    *("_version", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn", "is_mps", "is_xpu", "is_hpu"),
    *("is_vulkan", "is_mtia", "is_xla", "is_ipu", "is_maia", "retains_grad", "name", "names", "_backward_hooks"),
    *("_post_accumulate_grad_hooks", "volatile", "grad", "_grad", "_base"),
)
_METHODS = (
    *("size", "stride", "dim", "numel", "nelement", "element_size", "storage_offset", "is_contiguous", "ndimension"),
    *("is_floating_point", "is_complex", "is_signed", "is_same_size", "is_inference", "is_conj", "is_neg", "has_names"),
    *("dim_order", "is_set_to", "is_coalesced", "sparse_dim", "dense_dim", "__len__", "__iter__", "__reversed__"),
    *("__hash__", "__dir__", "_is_view", "register_hook", "register_post_accumulate_grad_hook", "is_distributed"),
    *("_is_zerotensor", "get_device"),
)
_FUNCTIONS = (
    *("numel", "is_floating_point", "is_complex", "is_signed", "is_same_size", "is_inference", "is_conj", "is_neg"),
    *("is_tensor", "result_type", "can_cast", "promote_types", "broadcast_shapes", "get_default_device"),
    *("_has_compatible_shallow_copy_type", "is_distributed", "is_storage", "get_device", "_assert"),
)


_OF_PROFILERS = "profiler."
"""How PyTorch's operators are called that mark what a profiler shows."""


def _known() -> Iterator[Any]:
    for name in _PROPERTIES:
        if (found := getattr(torch.Tensor, name, None)) is not None:
            yield found.__get__
    for owner, names in ((torch.Tensor, _METHODS), (torch, _FUNCTIONS)):
        yield from (getattr(owner, name) for name in names if hasattr(owner, name))
    yield from (torch._C._nn._parse_to, torch._C._set_grad_enabled)


_KNOWN = frozenset(_known())


def check(function: Any, answer: Any) -> None:
    """Take an answer of PyTorch's, if a GPU would give it too.

    Raises:
        NotRecordableError: it might give another one.
    """
    if (
        not _is_tensors(answer)
        and not (answer is None and _gives_nothing(function))
        and function not in _KNOWN
        and not str(function).startswith(_OF_PROFILERS)
    ):
        name = getattr(getattr(function, "__self__", None), "__name__", None) or getattr(function, "__name__", "")
        raise NotRecordableError(
            f"host code asks {name or function!s:.80} of PyTorch, which on a GPU may be answered otherwise than where "
            "host code is recorded: decide by shapes, strides, dtypes and x.device"
        )


def _is_tensors(answer: Any) -> bool:
    if isinstance(answer, torch.Tensor):
        return True
    if not isinstance(answer, list | tuple) or isinstance(answer, torch.Size):
        return False
    return bool(answer) and all(each is None or _is_tensors(each) for each in answer)


def _gives_nothing(function: Any) -> bool:
    """Whether a function is there for what it does: by its name, or an operator by its schema."""
    overloads = [getattr(function, name) for name in function.overloads()] if hasattr(function, "overloads") else []
    if schemas := [each._schema for each in overloads or [function] if hasattr(each, "_schema")]:
        return not any(schema.returns for schema in schemas)
    name = getattr(function, "__name__", "")
    return name in ("__set__", "__setitem__", "__delitem__", "__delete__") or (name.endswith("_") and "__" not in name)
