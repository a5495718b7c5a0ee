"""Objects that a model keeps: `copy.deepcopy` and `torch.save` of the model run methods of theirs, which must be
none of the submission's."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import gc
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from assay.kernels.inside.record.reads import NotRecordableError, plain_dict
from assay.kernels.inside.tensors import bases_of

_NAMES = ("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
"""What copies and pickles of an object run."""
_COPIED_BY: tuple[dict[Any, Any], ...] = (copyreg.dispatch_table, vars(copy)["_deepcopy_dispatch"])
"""Classes whose objects a function copies or saves."""
_WHOLE = (type, ModuleType, FunctionType, MethodType, torch.Tensor)
"""Objects that are copied as a whole, or looked at elsewhere."""
_MOST = 1 << 17
"""Objects that are looked at."""
_copied: list[dict[Any, Any]] = [{} for _ in _COPIED_BY]
"""The same as it was before a submission was imported."""
_known: set[int] = set()
"""Classes that were there before a submission was imported."""
_methods: set[int] = set()
"""Their methods by these names."""


def hold() -> None:
    """Take the classes that there are for what they have to be."""
    _copied[:] = map(dict, _COPIED_BY)
    _known.clear()
    waiting: list[type] = [object]
    while waiting:
        kind = waiting.pop()
        if id(kind) not in _known:
            _known.add(id(kind))
            _methods.update(id(vars(kind)[name]) for name in _NAMES if name in vars(kind))
            waiting += type.__subclasses__(kind)
    of_slots = (vars(dataclasses).get(name) for name in ("_dataclass_getstate", "_dataclass_setstate"))
    _methods.update(id(each) for each in of_slots if each is not None)


def check_class(kind: type, what: str) -> None:
    """Raises NotRecordableError for a class whose objects are copied or saved by a function of the submission's."""
    if any(registry.get(kind) is not before.get(kind) for registry, before in zip(_COPIED_BY, _copied, strict=True)):
        raise NotRecordableError(f"{what} is copied or saved by a function of its own (copyreg): leave that out")


def check(model_part: Any, space: dict[str, Any]) -> None:
    """Raises NotRecordableError where what a module keeps says itself how it is copied or saved. `space`: the module's
    dict, without its modules."""
    waiting, seen = [*space.values()], set[int]()
    while waiting:
        found = waiting.pop()
        kind = type(found)
        if id(found) in seen or kind in _PLAIN:
            continue
        seen.add(id(found))
        if len(seen) > _MOST:
            raise NotRecordableError(
                f"{type(model_part).__name__:.80} keeps more than {_MOST:,} objects, which are looked at one by one: "
                "keep numbers in a tensor"
            )
        _check_object(kind, f"a {kind.__name__:.80} that {type(model_part).__name__:.80} keeps")
        if isinstance(found, torch.Tensor):
            waiting += plain_dict(found, f"a tensor that {type(model_part).__name__:.80} keeps").values()
        inside = id(kind) not in _known or kind in _CONTAINERS
        if inside and not isinstance(found, _WHOLE):
            waiting += [part for part in gc.get_referents(found) if part is not kind]


_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size})
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


def _check_object(kind: type, what: str) -> None:
    check_class(kind, what)
    for each in bases_of(kind):
        own = vars(each)
        if name := next((name for name in _NAMES if name in own and id(own[name]) not in _methods), ""):
            raise NotRecordableError(
                f"{what} has a {name} of its own, which runs where its caller copies or saves the model: leave that out"
            )
