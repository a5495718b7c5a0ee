"""Notes every operator that reaches ATen, and runs it on tensors without memory, for the shapes of its results."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from assay.kernels.inside.pretend_cuda import DEVICE
from assay.kernels.inside.record import streams
from assay.kernels.inside.record.devices import META
from assay.kernels.inside.record.host import custom, gpu_operands, plain
from assay.kernels.inside.record.host.draws import Draws
from assay.kernels.inside.record.host.known import OPERATORS
from assay.kernels.inside.record.reads import RAISED, NotRecordableError, raised
from assay.kernels.inside.record.tape import Tape
from assay.kernels.operators import kind_of, normal_name
from assay.kernels.program.operations import COPIES, RANDOM

_READ = frozenset(
    {
        *(
            "_local_scalar_dense",
            "item",
            "equal",
            "is_nonzero",
            "nonzero",
            "nonzero_numpy",
            "masked_select",
            "allclose",
        ),
        *("unique_dim", "_unique", "_unique2", "unique_consecutive", "bincount", "histc", "_assert_async"),
    }
)
"""Operators whose answer, or the shape of it, depends on values."""
_ANSWERED = frozenset(
    {
        *("is_same_size", "is_set_to", "is_pinned", "_has_same_storage_numel", "is_coalesced", "sparse_dim"),
        *("dense_dim", "_fused_sdp_choice", "_use_cudnn_ctc_loss"),
    }
)
"""Operators that are given tensors and give none: what they say follows from shapes, or chooses between ways to the
same result."""
_UNSAFE = frozenset({"_unsafe_view", "lift"})
"""Views that do not say so: of a copy that nobody else has, and of what a transform may take in."""
_BY_STEPS = "CompositeExplicitAutograd"
"""Under which PyTorch keeps what it makes of other operators."""
_MADE_EMPTY = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "_efficientzerotensor"}
)
"""What only allocates: a storage is all that there is to note."""
_OTHER_MEMORY = frozenset({"set", "resize", "resize_as", "_resize_output", "record_stream"})
_OTHER_MEMORY_SAID = (
    "{0} gives a tensor other memory, or memory of another size, and a program has tensors that stay where they are: "
    "make one of the shape that is needed (torch.empty), and views by view, narrow or as_strided"
)
_DROPPED = frozenset({"device", "layout", "pin_memory", "non_blocking", "memory_format", "generator"})
"""Arguments that say where a result is or how it lies, which its window says."""


_function_modes: Any = _get_current_function_mode_stack


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records into a tape. Tensors from literal values become ones without memory, their bytes noted."""

    supports_higher_order_operators = True

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self.pretended: TorchFunctionMode | None = None
        """The mode that pretends a GPU, once there is one."""
        self.draws = Draws()
        self._twins: dict[int, torch.Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import the compiler, which takes longer than PyTorch itself, to keep it away from this class.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note one operator."""
        plain.check_alone()
        named = dict(kwargs or {})
        plain.check((*args, *named.values()))
        schema = getattr(func, "_schema", None)
        if schema is None:
            raise NotRecordableError(f"the operator {func} takes functions")
        library, _, base = schema.name.partition("::")
        if base in _READ and library == "aten":
            if base not in OPERATORS:
                raise self._tape.read(f"torch's {base}")
            return self._tape.told(f"torch's {base}", func, args, named)
        custom.check(func.name())
        places = self._tape.places
        tensors = custom.tensors_of((*args, *named.values()))
        if (body := custom.body_of(func.name(), bool(tensors) and all(map(places.is_on_host, tensors)))) is not None:
            return self._run(body, list(map(_asked_for, args)), {k: _asked_for(v) for k, v in named.items()})
        if library != "aten" and schema.name in OPDEFS:
            return self._run(_body_of(schema.name), args, named)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **named)
        if not schema.returns and tensors:
            return self._by_steps(func, schema, base, args, named)
        with torch._C.DisableTorchFunction():
            return self._note(func, schema, library, base, args, named)

    def _by_steps(self, func: Any, schema: Any, base: str, args: Sequence[Any], named: dict[str, Any]) -> None:
        """Note the steps of an operator that gives nothing back: it is there for what it writes, or for what it raises
        by values.

        Raises:
            HostReadError: it writes nothing.
            NotRecordableError: PyTorch does not put it together of others.
        """
        if not _written(schema):
            raise self._tape.read(f"torch's {base}")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _BY_STEPS):
            raise NotRecordableError(
                f"{base} gives nothing back, and PyTorch does not put it together of operators that do: call those"
            )
        with self:
            func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **named)
        for argument in _flat(
            [value for one, value in _by_name(schema, args, named).items() if one in _written(schema)]
        ):
            if isinstance(argument, torch.Tensor):
                torch.autograd.graph.increment_version(argument)  # which its steps do not, below where that is done

    def _run(self, body: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Run the body of an operator of a submission's as it is run on a GPU: PyTorch has taken off the mode that
        pretends one, where it was PyTorch that was called."""
        own = self.pretended
        with self, contextlib.nullcontext() if own is None or own in _function_modes() else own:
            return body(*args, **named)

    def _note(self, func: Any, schema: Any, library: str, base: str, args: Sequence[Any], named: dict[str, Any]) -> Any:
        if named.get("generator") is not None:
            raise NotRecordableError(f"{base} with a generator of its own: only the default one has the graded seed")
        if _by_name(schema, args, named).get("non_blocking"):
            raise NotRecordableError(
                f"{base} with non_blocking=True, for which nobody waits: call Tensor.copy_, Tensor.to or Tensor.cuda, "
                "of which that is recorded, or leave it out"
            )
        args = [self._taken(argument) for argument in args]
        named = {name: self._taken(value) for name, value in named.items()}
        if normal_name(base) in _OTHER_MEMORY:
            raise NotRecordableError(_OTHER_MEMORY_SAID.format(base))
        if self._tape.places.casting and kind_of(normal_name(base)) != "free":
            raise NotRecordableError(
                f"{base} under torch.autocast, which casts what tensors on a GPU hold: leave it out, and cast by to()"
            )
        asked, makes = named.get("device"), any(argument.name == "device" for argument in schema.arguments)
        if makes:
            named["device"] = META
            named.pop("pin_memory", None)
        views = (
            base in _UNSAFE
            or torch.Tag.inplace_view in func.tags
            or any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        )
        given = [part for part in _flat([*args, *named.values()]) if isinstance(part, torch.Tensor)]
        shapes = [part.shape for part in given]
        try:
            result = func(*args, **named)
        except NotImplementedError as error:
            # Host code may catch it, and a GPU raises nothing.
            raise NotRecordableError(
                f"{base} cannot be recorded, since PyTorch does not say what shapes come of it ({error!s:.200}). "
                "Do it in a kernel"
            ) from error
        except RAISED as error:
            raised(base, error, view=views)
            raise
        outs = [part for part in _flat(result) if isinstance(part, torch.Tensor)]
        if views and _are_in(outs, given):
            _check_views(base, result)
            return result
        if any(now.shape != before for now, before in zip(given, shapes, strict=True)):
            raise NotRecordableError(f"{base} gives a tensor another shape (out=): give it one of the result's shape")
        _check_results(schema, base, _by_name(schema, args, named), given, outs)
        gpu_operands.check_dtypes(normal_name(base), [*given, *outs])
        numbers = gpu_operands.numbers_of_the_host(normal_name(base), _by_name(schema, args, named))
        self._tape.places.note(normal_name(base), asked, makes, given, outs, numbers)
        self._follow(func, given, outs, copies=normal_name(base) in COPIES)
        if normal_name(base) in RANDOM:
            if named.get("memory_format") not in (None, torch.preserve_format):
                raise NotRecordableError(f"{base} with a memory_format, in whose order it draws: draw without one")
            self._check_draw(base, outs)
        if base in _MADE_EMPTY and not _written(schema):
            return result
        if outs:
            name = f"{'' if library == 'aten' else library + '::'}{base}.{schema.overload_name or 'default'}"
            kept = {key: value for key, value in named.items() if key not in _DROPPED}
            self._tape.add_operation(name, _without_places(schema, args), kept, outs, given)
        return result

    def _check_draw(self, base: str, outs: list[torch.Tensor]) -> None:
        """Raises NotRecordableError where a draw is not the next one of the generator, or where a constructor draws
        other numbers on a GPU than the reference does."""
        self.draws.check(base)
        if self.draws.of_weights and any(self._tape.places.is_put(out, DEVICE) for out in outs):
            raise NotRecordableError(
                f"{base} draws on the GPU, whose generator gives other numbers than that of the host, by which the "
                "reference draws its weights: draw without a device, model.to('cuda') moves what is drawn"
            )

    def _follow(self, func: Any, given: list[torch.Tensor], outs: list[torch.Tensor], *, copies: bool) -> None:
        """Take note of memory that is made, and of what the host itself does. `copies`: it may be between devices."""
        places = self._tape.places
        known = {tensor.untyped_storage()._cdata for tensor in given if tensor.layout is torch.strided}
        made = [out.untyped_storage() for out in outs if out.layout is torch.strided]
        for out in outs:
            if out.layout is torch.strided and out.untyped_storage()._cdata not in known:
                self._tape.room.take(out.untyped_storage(), places.is_put(out, DEVICE))
        for storage in made:
            if places.is_shared(storage):
                raise NotRecordableError(
                    f"{func!s:.80} writes into a tensor that shares its memory with a NumPy array or another object "
                    "of the host's, where host code could read it: make it with torch.tensor()"
                )
        if not self._tape.follows_streams:
            return
        for storage in made:
            if storage._cdata not in known:
                streams.order.made(storage)
        here = [tensor for tensor in (*given, *outs) if places.is_on_host(tensor)]
        if given and (len(here) == len(given) + len(outs) or not copies):  # of others the host reads a number
            for tensor in here:
                streams.order.on_host(tensor.untyped_storage()._cdata)

    def _taken(self, value: Any) -> Any:
        """A tensor from literal values as one without memory, views of one storage staying views of one."""
        if isinstance(value, list | tuple):
            return [self._taken(part) for part in value]
        if not isinstance(value, torch.Tensor) or value.device.type == "meta":
            return value
        if value.device.type != "cpu":
            raise NotRecordableError(f"a tensor on {value.device}")
        return self._twin(value)

    def _twin(self, value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        known = self._twins.get(storage._cdata)
        if known is None:
            number = self._tape.storage(value)
            known = self._twins[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=META)
            self._tape.same(known, number)
            self._tape.places.put(known, self._tape.places.device_of(value))
            if not self._tape.places.copying and not storage.resizable():
                self._tape.places.share(known)
        self._tape.check_constant(storage)
        twin = torch.empty(0, dtype=value.dtype, device=META)
        return twin.set_(known.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def _check_results(
    schema: Any, base: str, arguments: Mapping[str, Any], given: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> None:
    """Raises NotRecordableError for an operator of which its results do not show all that it does."""
    writes = _written(schema)
    written = _flat([arguments.get(name) for name in writes])
    if any(isinstance(part, torch.Tensor) and not any(part is out for out in outs) for part in written):
        raise NotRecordableError(f"{base} writes a tensor that it does not give back: do it by operators that do")
    if not writes and outs and _are_in(outs, given, any_of_them=True):
        raise NotRecordableError(f"{base} gives the memory of what it is given, and does not say so: make a copy of it")
    if given and not outs and base not in _ANSWERED:
        raise NotRecordableError(
            f"host code asks {base} of PyTorch, which on a GPU may be answered otherwise than where host code is "
            "recorded: decide by shapes, strides, dtypes and x.device"
        )


def _written(schema: Any) -> frozenset[str]:
    """The arguments that an operator writes."""
    return frozenset(one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write)


def _are_in(outs: Sequence[torch.Tensor], given: Sequence[torch.Tensor], *, any_of_them: bool = False) -> bool:
    """Whether results lie in the memory of what an operator is given."""
    if any(part.layout is not torch.strided for part in (*outs, *given)):
        return not any_of_them
    known = {part.untyped_storage()._cdata for part in given}
    return (any if any_of_them else all)(out.untyped_storage()._cdata in known for out in outs)


def _check_views(base: str, made: Any) -> None:
    """Raises RuntimeError for a view that is larger than its storage, as PyTorch does where there is memory."""
    for view in _flat(made):
        if not isinstance(view, torch.Tensor) or view.layout is not torch.strided or not view.numel():
            continue
        last = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
        end, there = (view.storage_offset() + last + 1) * view.element_size(), view.untyped_storage().nbytes()
        if end > there:
            raise RuntimeError(
                f"{base}: sizes {list(view.shape)}, strides {list(view.stride())} and offset {view.storage_offset()} "
                f"require a storage of {end} bytes, which is out of bounds for storage of size {there}"
            )


def _without_places(schema: Any, args: Sequence[Any]) -> list[Any]:
    """Positional arguments, the last ones left out where they only say where a result is."""
    kept = list(args)
    while kept and schema.arguments[len(kept) - 1].name in _DROPPED:
        kept.pop()
    return kept


def _asked_for(value: Any) -> Any:
    """The GPU, where the device without memory stands for it."""
    return DEVICE if isinstance(value, torch.device) and value == META else value


def _by_name(schema: Any, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by their names."""
    return {**dict(zip((argument.name for argument in schema.arguments), args, strict=False)), **named}


def _body_of(name: str) -> Any:
    """The function behind an operator that `torch.library.custom_op` made."""
    bodies: dict[str | None, Any] = OPDEFS[name]._backend_fns
    for key in ("cuda", None, "cpu"):
        if key in bodies:
            return bodies[key]
    raise NotRecordableError(f"the operator {name} has no body for a GPU")


def _flat(result: Any) -> list[Any]:
    if isinstance(result, list | tuple):
        return [part for item in result for part in _flat(item)]
    return [result]
