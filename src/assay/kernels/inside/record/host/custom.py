"""Operators that a submission defines: which of their kernels a GPU would run.

PyTorch's dispatcher picks a kernel by the device of what it is given, and a recording's tensors are on none. So what is
registered is noted here, and picked as for a GPU.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

import torch
from torch.library import Library

from assay.kernels.inside import submission
from assay.kernels.inside.record.reads import NotRecordableError

_IMPLICIT, _EXPLICIT = "CompositeImplicitAutograd", "CompositeExplicitAutograd"
_OF_GPUS = ("CUDA", _EXPLICIT, _IMPLICIT)
_OF_THE_HOST = ("CPU", _EXPLICIT, _IMPLICIT)
"""Keys under which a kernel is looked for, in their order."""
_BESIDE = frozenset({"Meta", *_OF_GPUS, *_OF_THE_HOST})
"""Keys that decide nothing else on a GPU: shapes without values, and kernels for other devices."""
_TORCH = os.path.dirname(torch.__file__)
_FOREIGN = (
    "host code registers a kernel for {0}, an operator that it has not defined, so that a GPU would run something else "
    "than was recorded: call a function of your own instead"
)
_kernels: dict[str, dict[str, Any]] = defaultdict(dict)
"""Operator -> key -> what is registered there."""
_faults: dict[str, str] = {}
"""Operator -> what is wrong with its kernels."""
_defined: set[str] = set()
_foreign: set[str] = set()
"""Operators defined by others for which kernels were registered since."""


def install() -> None:
    """Take note of what is defined and registered from now on."""
    define: Any = Library.define
    implement: Any = Library.impl

    def defining(self: Any, schema: str, *args: Any, **kwargs: Any) -> Any:
        name = define(self, schema, *args, **kwargs)
        _defined.add(_full_name(self.ns, str(schema).partition("(")[0]))
        return name

    def implementing(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> Any:
        made = implement(self, op_name, fn, dispatch_key, **kwargs)
        name = op_name if isinstance(op_name, str) else op_name.name()
        key = dispatch_key or self.dispatch_key
        _register(_full_name(self.ns, name), fn, key, bool(kwargs.get("with_keyset")))
        return made

    Library.define, Library.impl = defining, implementing  # type: ignore[method-assign]


def _register(name: str, fn: Any, key: str, takes_keys: bool) -> None:
    if name not in _defined:
        if not _is_below(fn, _TORCH) and _by_submission():
            raise NotRecordableError(_FOREIGN.format(name))
        if key != "Meta":
            _foreign.add(name)
        return
    known = _kernels[name]
    if key in ("Autograd", "ADInplaceOrView") and _is_of_pytorch(fn):
        return
    if key in known or key not in _BESIDE or takes_keys:
        what = "a second kernel" if key in known else "one that takes keys" if takes_keys else "a kernel"
        _faults[name] = f"the operator {name} gets {what} under the key {key}: give it one for CUDA, or for all devices"
    known[key] = fn
    # What PyTorch puts together of others is taken at once where no kernel is for the device: here, but on no GPU.
    others = known.keys() - {"Meta"}
    if _IMPLICIT in known and len(others) > 1 and _by_submission():
        raise NotRecordableError(
            f"the operator {name} has kernels under {' and '.join(sorted(others))}, of which a GPU takes another one "
            "than is recorded: give it one"
        )


def _by_submission() -> bool:
    """Whether a submission is what registers, and not a module of PyTorch's that it imports."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != submission.FILE:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    return frame is not None


def _is_of_pytorch(fn: Any) -> bool:
    """Whether it is the function around an operator by which PyTorch computes gradients, or counts changes."""
    return _is_below(fn, f"{_TORCH}/_library")


def _is_below(fn: Any, folder: str) -> bool:
    """Whether a function is written in a folder."""
    code = getattr(fn, "__code__", None)
    return isinstance(code, CodeType) and code.co_filename.startswith(f"{folder}/")


def _full_name(space: str, name: str) -> str:
    """An operator's name as the dispatcher has it."""
    name = name.strip()
    return (name if "::" in name else f"{space}::{name}").removesuffix(".default")


def check(name: str) -> None:
    """Raises NotRecordableError where an operator of PyTorch's has kernels of a submission's."""
    if name.removesuffix(".default") in _foreign:
        raise NotRecordableError(_FOREIGN.format(name))


def body_of(name: str, on_host: bool) -> Callable[..., Any] | None:
    """The kernel that a GPU would run for an operator; None where the operator is not a submission's.

    Args:
        name: As the dispatcher has it.
        on_host: Whether all tensors that it is given are on the host.

    Raises:
        NotImplementedError: there is none.
        NotRecordableError: its kernels are not such that it can be told.
    """
    name = name.removesuffix(".default")
    if name not in _defined:
        return None
    if name in _faults:
        raise NotRecordableError(_faults[name])
    known = _kernels.get(name, {})
    for key in _OF_THE_HOST if on_host else _OF_GPUS:
        if key in known:
            return known[key]  # type: ignore[no-any-return]
    raise NotImplementedError(
        f"Could not run '{name}' with arguments from the {'CPU' if on_host else 'CUDA'} backend: it has kernels for "
        f"{', '.join(sorted(known)) or 'none'}. Register one for CUDA, or leave device_types out"
    )


def tensors_of(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among arguments."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_of(value)
    return found
