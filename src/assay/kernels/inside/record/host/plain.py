"""What PyTorch may be given while it is recorded, and who may look on: nothing that runs host code where no mode sees
what that does."""

from __future__ import annotations

import gc
import operator
import re
import sys
import warnings
from collections.abc import Iterable
from types import EllipsisType, NoneType, NotImplementedType
from typing import Any

import torch

from assay.kernels.inside.record.reads import NotRecordableError

_known: set[type] = {
    *(bool, int, float, complex, str, bytes, slice, range, EllipsisType, NoneType, NotImplementedType),
    *(torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, torch.dtype, torch.device, torch.layout, torch.Size),
    *(torch.memory_format, torch.Generator),
}
"""Types whose objects answer what PyTorch asks of them."""
_WITH_PARTS = (list, tuple, dict, set, frozenset, torch.Size)
_OF = frozenset({"torch", "numpy", "builtins", "collections", "assay"})
_SHOW = ("showwarning", "_showwarnmsg_impl", "formatwarning")
_SHOWN_BY = [getattr(warnings, name, None) for name in _SHOW]
_filters: list[Any] = []
"""Filters that were looked at, held so that none comes back as another one."""
_CALLED_BACK = list(gc.callbacks)
_OWN = (
    "host code gives PyTorch an object of a class of its own ({0:.80}), whose methods would run where no recording "
    "sees what they do: give it plain numbers, tensors, tuples and lists"
)
_LOOKS_ON = "host code looks on while PyTorch works ({0}), where no recording sees what it does: leave that out"


def check(values: Iterable[Any]) -> None:
    """Raises NotRecordableError for what PyTorch is given, if a submission's code could run as it is used."""
    for value in values:
        kind = type(value)
        if kind in _WITH_PARTS:
            check(value)
            if kind is dict:
                check(value.values())
        elif kind not in _known:
            if not _is_of_a_library(kind):
                raise NotRecordableError(_OWN.format(kind.__name__))
            _known.add(kind)


def check_alone() -> None:
    """Raises NotRecordableError where something of a submission's runs whenever Python or PyTorch does some thing. What
    collects garbage does not, from here on."""
    if gc.isenabled():
        gc.disable()  # objects that it finds may have a __del__
    if gc.callbacks != _CALLED_BACK:
        raise NotRecordableError(_LOOKS_ON.format("gc.callbacks"))
    if sys.gettrace() is not None or sys.getprofile() is not None:
        raise NotRecordableError(_LOOKS_ON.format("sys.settrace, sys.setprofile"))
    shown = [getattr(warnings, name, None) for name in _SHOW]
    if any(one is not other for one, other in zip(shown, _SHOWN_BY, strict=True)) or not _are_plain(warnings.filters):
        raise NotRecordableError(
            _LOOKS_ON.format("it has warnings recorded, shown or raised, which PyTorch gives of tensors with memory")
        )


def _are_plain(filters: Any) -> bool:
    """Whether filters of warnings do nothing but to choose which are shown. Most often they are those of last time."""
    if len(filters) != len(_filters) or any(map(operator.is_not, filters, _filters)):
        if not all(map(_is_plain, filters)):
            return False
        _filters[:] = filters
    return True


def _is_plain(entry: Any) -> bool:
    """Whether a filter of warnings does nothing but to choose which are shown."""
    action, message, category, module, *_ = entry
    patterns = all(one is None or type(one) in (str, re.Pattern) for one in (message, module))
    return patterns and action != "error" and type(category) is type


def _is_of_a_library(kind: type) -> bool:
    """Whether a class is what it says that it is, one of PyTorch's, NumPy's or Python's."""
    name = kind.__module__
    if type(name) is not str or name.partition(".")[0] not in _OF:
        return False
    found: Any = sys.modules.get(name)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind or (issubclass(kind, tuple) and name == "torch.return_types")
