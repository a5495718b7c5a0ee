"""What a model says of its parameters: it has to be PyTorch that says so.

Whoever trains a model or loads weights goes by `parameters()` and `load_state_dict()`. Where a submission answers
instead, its caller may be told of other parameters than those that its kernels read.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from assay.kernels.inside.pretend_cuda import DEVICE
from assay.kernels.inside.record.host import copies
from assay.kernels.inside.record.reads import NotRecordableError, plain_dict
from assay.kernels.inside.tensors import bases_of, hidden, hidden_by_class
from assay.types import Json

Module = torch.nn.Module
_FREE = frozenset(
    {
        *("__annotations__", "__dict__", "__doc__", "__module__", "__weakref__", "T_destination", "_version"),
        *("call_super_init", "dump_patches", "__init__", "__repr__", "__dir__", "extra_repr", "_get_name"),
        *("__new__", "__init_subclass__", "__subclasshook__", "__str__", "__format__", "__sizeof__", "forward"),
    }
)
"""What a model may say itself: how it is made, what it computes, and how it is shown."""
TELLING = (
    *("__copy__", "__deepcopy__"),
    *(name for name in {**vars(object), **vars(Module)} if name not in _FREE),
)
"""Attributes of a model by which its caller calls and moves it, tells its parts from each other, comes to parameters
and buffers, saves and loads them: all others."""
_PARTS = ("_parameters", "_buffers", "_modules")
HOOKS = (
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    *("_backward_hooks", "_backward_pre_hooks"),
)
"""What is called while weights are saved, loaded or trained."""
_CALLED = ("_forward_hooks", "_forward_pre_hooks")
"""What is called with a model, and not with its `forward`."""
_fresh = vars(Module())
CONTAINERS = {
    name: type(vars(Module())[name]) for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
}
"""In what a module keeps its parts -> the class of that."""
_TRAINED = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a tensor that change its gradient."""
_MARK = "assay"
_METACLASSES = (type(torch.Tensor), type(torch.nn.Parameter), type)
_layers: dict[type, dict[str, Any]] = {}
"""PyTorch's modules and what they are made of, and what each says of `TELLING`, before a submission is imported."""


def hold() -> None:
    """Take PyTorch's modules for what they have to be from now on."""
    for kind in _known(Module):
        _layers[kind] = {name: vars(kind).get(name) for name in TELLING}
    copies.hold()


class OfReference:
    """What a job says of the reference's weights: names of what no optimizer changes, and shapes of parameters."""

    def __init__(self, header: Mapping[str, Json]) -> None:
        self.fixed: Collection[str] = header.get("fixed", ())
        self.shapes = {name: tuple(shape) for name, shape in header.get("weights", ())}


def check(model: Any, reference: OfReference) -> None:
    """Raises NotRecordableError where a model, or a part of it, does not leave to PyTorch what its parameters are, or
    has under a name of the reference's what its caller does not expect there."""
    for part in _parts(model):
        kind = f"{type(part).__name__:.80}"
        own = plain_dict(part, kind)
        if type(type(part)) not in (type, ABCMeta):
            raise NotRecordableError(f"{kind} has a metaclass of its own: leave that out")
        copies.check_class(type(part), kind)
        _check_methods(part, own, kind)
        _check_parts(part, own, kind)
        for name in (*HOOKS, *(_CALLED if part is model else ())):
            if type(own.get(name)) is not type(_fresh[name]) or len(own[name]) or _is_of_class(part, name):
                raise NotRecordableError(
                    f"{kind} has hooks for weights that are saved, loaded or trained, or of the model's own call "
                    f"({name}): leave them out, and leave {name} as torch.nn.Module makes it"
                )
        copies.check(part, {name: value for name, value in own.items() if name != "_modules"})
    if is_module(model):
        _check_names(model, reference)


def _check_names(model: Any, reference: OfReference) -> None:
    """Raises NotRecordableError where something under a name of the reference's is not what its caller expects."""
    fixed, parameters = reference.fixed, named_parameters(model)
    if name := next((name for name, each in parameters if name in fixed and _is_trained(each)), ""):
        raise NotRecordableError(
            f"optimizers change the parameter {name:.80}, and of the reference they do not: use register_buffer, or "
            "requires_grad=False"
        )
    saved = saved_names(model) if fixed else []
    if name := next((name for name, _ in named_buffers(model) if name in fixed and name not in saved), ""):
        raise NotRecordableError(
            f"the buffer {name:.80} is not saved with the model, and of the reference it is: leave persistent=False out"
        )
    for name, parameter in parameters:
        wanted, there = reference.shapes.get(name), tuple(_plain(parameter, "shape"))
        if wanted is not None and there not in (wanted, wanted[1:] if wanted == (1,) else wanted):
            raise NotRecordableError(
                f"the parameter {name:.80} has shape {there}, and the reference's of that name {wanted}, so that "
                "load_state_dict of its weights fails: give it another name"
            )


def check_accumulated(model: Any) -> None:
    """Raises NotRecordableError where gradients of a parameter pass through a node of autograd's that somebody holds:
    it may have hooks, of which a parameter says nothing. One that nobody holds is made anew, without any."""
    for name, parameter in named_parameters(model):
        if not _is_trained(parameter) or _plain(parameter, "grad_fn") is not None:
            continue
        _notes_of(parameter)[_MARK] = True
        if _MARK in _notes_of(parameter):
            raise NotRecordableError(
                f"something holds the node of autograd that adds up gradients of the parameter {name:.80}: hooks on "
                "it, or a result that was made under torch.enable_grad() and kept. Leave that out"
            )


def _notes_of(parameter: torch.Tensor) -> dict[str, bool]:
    """What is noted at the node that adds up its gradients."""
    node: Any = get_gradient_edge(parameter).node
    return node.metadata  # type: ignore[no-any-return]


def _check_methods(part: Any, own: Mapping[str, Any], kind: str) -> None:
    """Raises NotRecordableError for a module that says itself what PyTorch should say of it."""
    changed = [own.keys(), *map(_changed, bases_of(type(part)))]
    if name := next((name for name in TELLING for names in changed if name in names), ""):
        raise NotRecordableError(
            f"{kind} has a {name} of its own, by which its caller calls it, moves it, or reads or sets its weights: "
            "leave that to torch.nn.Module. Write forward, give parameters the names that you want them to have, and "
            "register tensors that move with the model as buffers"
        )
    if name := next((name for name in CONTAINERS for names in changed[1:] if name in names), ""):
        raise NotRecordableError(
            f"{kind} has a {name} of its class, through which its caller reads or sets its weights: leave that to "
            "torch.nn.Module"
        )


def _check_parts(part: Any, own: Mapping[str, Any], kind: str) -> None:
    """Raises NotRecordableError for parameters, buffers and modules that are kept otherwise than PyTorch keeps them."""
    for name, made in CONTAINERS.items():
        if name in own and type(own[name]) is not made:
            raise NotRecordableError(
                f"{name} of {kind} is a {type(own[name]).__name__:.80}, through which its caller reads or sets its "
                "weights: leave it as torch.nn.Module makes it"
            )
    spaces = (own, *map(vars, bases_of(type(part))))
    names = [name for container in _PARTS for name in own.get(container) or {}]
    if any(type(name) is not str or not name or "." in name for name in names) or len(set(names)) < len(names):
        raise NotRecordableError(
            f"{kind} has parts under names that torch.nn.Module would not give them (no plain text, one with a dot, "
            "two of one name): assign them, or use register_parameter and the like"
        )
    if name := next((name for name in names for space in spaces if name in space), ""):
        raise NotRecordableError(
            f"{kind} has something else under the name {name:.80}, which hides a part of it: leave that out"
        )
    for module in (own.get("_modules") or {}).values():
        if module is not None and not is_module(module):
            raise NotRecordableError(
                f"{kind} has a {type(module).__name__:.80} among its modules, which is no torch.nn.Module: derive it "
                "from that"
            )
    for name in ("_parameters", "_buffers"):
        for tensor in (own.get(name) or {}).values():
            _check_tensor(tensor, f"in {name} of {kind}")


def _is_of_class(part: Any, name: str) -> bool:
    return any(name in vars(kind) for kind in bases_of(type(part)))


def _plain(tensor: Any, name: str) -> Any:
    """An attribute of a tensor as PyTorch has it, whatever the tensor says."""
    return vars(torch._C.TensorBase)[name].__get__(tensor)


def dtype_of_gradients(tensor: Any) -> Any:
    """The dtype that gradients of a tensor are to have; its own before PyTorch 2.10, which has no other."""
    with torch._C.DisableTorchFunction():
        own = vars(torch._C.TensorBase)
        return own.get("grad_dtype", own["dtype"]).__get__(tensor)


def _is_trained(parameter: Any) -> bool:
    return bool(_plain(parameter, "requires_grad"))


def _overlaps(tensor: Any) -> bool:
    """Whether two elements may be in one place; each step of a tensor that has none goes beyond all smaller ones."""
    extents = zip(_plain(tensor, "shape"), torch._C.TensorBase.stride(tensor), strict=True)
    reached = 0
    for step, size in sorted((step, size) for size, step in extents if size > 1):
        if step <= reached:
            return True
        reached += step * (size - 1)
    return False


def _check_tensor(tensor: Any, where: str) -> None:
    """Raises NotRecordableError for a parameter or buffer that answers otherwise than a tensor of PyTorch's."""
    if tensor is None:
        return
    kind = type(tensor)
    if torch.Tensor not in bases_of(kind) or type(kind) not in _METACLASSES:
        raise NotRecordableError(f"a {kind.__name__:.80} {where} is no tensor of PyTorch's")
    copies.check_class(kind, f"a {kind.__name__:.80} {where}")
    if UninitializedTensorMixin in bases_of(kind):
        raise NotRecordableError(
            f"a {kind.__name__:.80} {where} has no shape before the first call (a lazy module): give it the reference's"
        )
    if torch._C.TensorBase.is_inference(tensor):
        raise NotRecordableError(
            f"a {kind.__name__:.80} {where} was made under torch.inference_mode(): no optimizer and no load_state_dict "
            "can change it. Make parameters and buffers outside of it"
        )
    if _overlaps(tensor):
        raise NotRecordableError(
            f"a {kind.__name__:.80} {where} has several elements in one place (as after expand): no optimizer and no "
            "load_state_dict can change them. Give it memory of its own, as by contiguous()"
        )
    strange = dtype_of_gradients(tensor) is not _plain(tensor, "dtype")
    if any(_plain(tensor, name) for name in _TRAINED) or _plain(tensor, "grad") is not None or strange:
        raise NotRecordableError(
            f"a {kind.__name__:.80} {where} has a gradient, one of another dtype (grad_dtype), or hooks that change "
            "one, before anybody trains it: leave that out"
        )
    if name := hidden(tensor) or hidden_by_class(kind):
        raise NotRecordableError(
            f"a {kind.__name__:.80} {where} has a {name:.80} of its own, by which its caller reads or sets it: use "
            "torch.nn.Parameter, and register_buffer for other tensors"
        )


def _changed(kind: type) -> Collection[str]:
    """What a class says otherwise than PyTorch does."""
    there, before = vars(kind), _layers.get(kind)
    return there.keys() if before is None else [name for name in TELLING if there.get(name) is not before[name]]


def named_parameters(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Its parameters, as PyTorch names them."""
    return list(Module.named_parameters(model))


def saved_names(model: Any) -> list[str]:
    """The names under which it is saved and loaded."""
    return list(Module.state_dict(model, keep_vars=True))


def named_buffers(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Its buffers, as PyTorch names them."""
    return list(Module.named_buffers(model))


def is_module(thing: Any) -> bool:
    """Whether it is a module of PyTorch, whatever it says of its class."""
    return any(kind is Module for kind in bases_of(type(thing)))


def _parts(model: Any) -> Iterator[Any]:
    """A model and all modules in it, whatever its own methods say; nothing where it is none."""
    waiting, seen = [model], set[int]()
    while waiting:
        part = waiting.pop()
        if not is_module(part) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += (plain_dict(part, f"{type(part).__name__:.80}").get("_modules") or {}).values()


def _known(kind: type) -> set[type]:
    """A class, all that it is made of, and all that are made of it so far."""
    below: list[type] = kind.__subclasses__()
    return {*kind.__mro__, *(each for one in below for each in _known(one))}


def moved(model: Any, precision: str) -> Any:
    """A model as its caller moves it, by PyTorch's `to`.

    Raises:
        TypeError: it is none.
    """
    if not is_module(model):
        raise TypeError(
            "ModelNew is no torch.nn.Module, so that its caller can neither move it (model.to('cuda')) nor set its "
            "weights. Derive it from torch.nn.Module"
        )
    return model.to(DEVICE) if precision == "float32" else model.to(DEVICE, getattr(torch, precision))
