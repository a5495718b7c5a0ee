"""How much a reference's constructor computes of what it draws, counted as a submission's is, and what the numbers of a
tensor were drawn from.

with ConstructionTrace(init_inputs) as trace:
    model = Model(*init_inputs)
trace.amount
trace.origins(dict(model.named_parameters()))
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from assay.kernels.inside.problem.lineage import Lineage, is_apart
from assay.kernels.operators import MOST_KEPT, Draw
from assay.kernels.program.form import DTYPES, Operation, Value, Window
from assay.kernels.program.operations import role_of
from assay.kernels.program.weight_work import draw_of, tainted_by, work_on


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the numbers of a tensor come from."""

    own: bool = False
    """Whether each element is made of one drawn number of a continuous draw, smoothly, and of nothing else."""
    shared: bool = False
    """Whether something else that is still there, or that the host computed with, depends on the same draws."""


class ConstructionTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts arithmetic on random numbers and on the constructor's inputs. Changes no result."""

    supports_higher_order_operators = True

    def __init__(self, init_inputs: Any) -> None:
        """`init_inputs`: the constructor's arguments, however nested."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.amount = 0
        """Arithmetic operations, as `program.weight_work` counts them."""
        self.draws: dict[Draw, None] = {}
        """What it drew from, in order."""
        self._numbers: dict[int, int] = {}
        self._seen: list[StorageWeakRef] = []
        self._bytes: list[int] = []
        self._tainted = {self._window(tensor).storage for tensor in _tensors(init_inputs) if _has_form(tensor)}
        self._lineage = Lineage()

    def origins(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Origin]:
        """Where the numbers of tensors come from that the constructor made and that are still there."""
        windows = {name: self._window(tensor) for name, tensor in tensors.items() if _has_form(tensor)}
        places: dict[int, set[int]] = defaultdict(set)
        for place, held in self._lineage.storages():
            gone = self._seen[place].expired()  # type: ignore[no-untyped-call]
            for draw in () if gone else held.draws:
                places[draw].add(place)
        users = Counter(draw for window in windows.values() for draw in self._lineage.held(window.storage).draws)
        shared = {draw for draw in places if len(places[draw]) > 1 or users[draw] > 1} | self._lineage.told
        return {name: self._origin(windows[name], shared) if name in windows else Origin() for name in tensors}

    def _origin(self, window: Window, shared: Set[int]) -> Origin:
        held = self._lineage.held(window.storage)
        return Origin(held.own and is_apart(window), bool(held.draws & shared))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import the compiler, which takes seconds, to keep it away from this class.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operator and count it."""
        named = dict(kwargs or {})
        schema = getattr(func, "_schema", None)
        if schema is None:
            return func(*args, **named)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **named)
        result = func(*args, **named)
        if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            return result
        outs = tuple(self._window(out) for out in _tensors(result) if _has_form(out))
        given = tuple(self._value(value) for value in args)
        operation = Operation(schema.name, given, tuple((name, self._value(named[name])) for name in named), outs, 0)
        self.amount += work_on(operation, self._tainted)
        self._tainted |= tainted_by(operation, self._tainted)
        if role_of(operation) == "random":
            numbers = tuple(value if type(value) in (int, float) else None for value in args)
            drawn = Operation(schema.name, numbers, tuple((key, named[key]) for key in named), outs, 0)
            self.draws[draw_of(drawn)] = None
        changed = (args[place] for place in _written(func) if place < len(args))
        own = (self._window(tensor) for value in changed for tensor in _tensors(value) if _has_form(tensor))
        written = tuple(dict.fromkeys((*outs, *own)))
        self._lineage.follow(operation, written, self._bytes.__getitem__)
        return result

    def _value(self, found: Any) -> Value:
        if isinstance(found, list | tuple):
            return tuple(self._value(part) for part in found)
        return self._window(found) if isinstance(found, torch.Tensor) and _has_form(found) else None

    def _window(self, tensor: torch.Tensor) -> Window:
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            # A weak reference keeps the address, not the memory, so no other storage comes to have this number.
            number = self._numbers[storage._cdata] = len(self._seen)
            self._seen.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
            self._bytes.append(0)
        self._bytes[number] = storage.nbytes()
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Window(number, dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


@functools.lru_cache(maxsize=MOST_KEPT)
def _written(func: Any) -> tuple[int, ...]:
    """The places of the arguments that an operator writes; kept, since a schema is slow to read."""
    aliases = (argument.alias_info for argument in func._schema.arguments)
    return tuple(place for place, alias in enumerate(aliases) if alias is not None and alias.is_write)


def _has_form(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and str(tensor.dtype).removeprefix("torch.") in DTYPES


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
