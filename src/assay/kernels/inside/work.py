"""How much work each of PyTorch's operators did while some code ran: calls, and elements or multiply-adds.

    with WorkTrace() as trace:
        model(*inputs)
    trace.operations            {"addmm": (1, 524288), "relu": (1, 4096), "view": (2, 0)}

Work is multiply-adds for products, convolutions, attention and recurrent layers, and for anything else the elements of
its largest input or output. Views, allocations, copies and casts are calls without work. Operators are seen where they
reach ATen, so `nn.Linear` counts as the `addmm` that it is, and in the bodies of custom operators. In a
process with hostile code a trace is a hint, no proof: that code can step around it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

from assay.kernels.operators import kind_of, normal_name

Measure = Callable[[Sequence[Any], Mapping[str, Any], Any], int]
"""Work of one call, from its positional arguments, its named arguments and its result."""

_TENSOR, _LISTS = torch.Tensor, (list, tuple)
_OUTER = ("outer", "ger", "addr", "kron")
MAX_OPERATORS = 4096
"""Operators told apart; further ones count as `OTHER`. PyTorch has fewer, code that defines operators may not."""
OTHER = "other"
_MOVES = frozenset({"cat", "stack", "copy", "flip", "roll", "repeat", "repeat_interleave", "_chunk_cat"})
"""Operators without work that put together what a gathering kernel would."""

_UNMEASURABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class WorkTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that the current thread runs within it. Counting never raises and never changes a result."""

    # Operators of higher order (flex attention, say) are passed through; without this they would be refused.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        """Nothing is counted yet. A trace may be entered again, and then goes on counting."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts: dict[Any, _Count] = {}
        self.moved = 0
        """Elements that operators without work put into other places; copies of a whole tensor not included."""

    @property
    def operations(self) -> dict[str, tuple[int, int]]:
        """Name of an operator, as `operators.normal_name` gives it -> (calls, work)."""
        merged: dict[str, tuple[int, int]] = {}
        for count in self._counts.values():
            if not count.calls:
                continue
            calls, work = merged.get(count.name, (0, 0))
            merged[count.name] = calls + count.calls, work + count.work
        return merged

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import the compiler, which takes seconds, to keep it away from this class.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Code that `torch.compile` handles is counted as it runs, not while it is being compiled."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operator and count it."""
        if kwargs is None:
            kwargs = {}
        count = self._counts.get(func) or self._new_count(func)
        if count.composite:
            # Run under the trace again, or the operators that this one is made of would not be seen.
            with self:
                return func.decompose(*args, **kwargs)
        if count.body is not None:
            with self:
                return count.body(*args, **kwargs)
        result = func(*args, **kwargs)
        count.calls += 1
        if count.moves:
            self.moved += _elements((), {}, result)
        if count.measure is not None:
            count.work += _measured(count.measure, args, kwargs, result)
        return result

    def _new_count(self, func: Any) -> _Count:
        schema = getattr(func, "_schema", None)
        name = normal_name(schema.name if schema is not None else str(func))
        if len(self._counts) < MAX_OPERATORS:
            self._counts[func] = count = _Count(name, _measure_of(name, schema), _is_composite(func), _body_of(name))
            return count
        return self._counts.setdefault(OTHER, _Count(OTHER, _elements, False))


class _Count:
    """What an operator did so far, and how its work is measured (None where it does none)."""

    __slots__ = ("body", "calls", "composite", "measure", "moves", "name", "work")

    def __init__(
        self, name: str, measure: Measure | None, composite: bool, body: Callable[..., Any] | None = None
    ) -> None:
        self.name, self.measure, self.composite, self.calls, self.work = name, measure, composite, 0, 0
        self.body, self.moves = body, name in _MOVES


def _body_of(name: str) -> Callable[..., Any] | None:
    """The function behind an operator that `torch.library.custom_op` made; a mode is not active in it by itself."""
    made = OPDEFS.get(name) if "::" in name and not name.startswith(("prims::", "rngprims::")) else None
    if made is None:
        return None
    bodies: dict[str | None, Callable[..., Any]] = made._backend_fns
    return bodies.get("cpu") or bodies.get(None)


def _is_composite(func: Any) -> bool:
    """Whether an operator is defined by others. Outside inference mode those are all that reaches a trace."""
    named = getattr(func, "name", None)
    if not callable(named) or not hasattr(func, "decompose"):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(named(), "CompositeImplicitAutograd"))


def _measured(measure: Measure, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """The measure's answer, or elements where a variant of an operator has its arguments elsewhere, or nothing."""
    for attempt in (measure, _elements):
        try:
            return attempt(args, kwargs, result)
        except _UNMEASURABLE:
            continue
    return 0


def _measure_of(name: str, schema: Any) -> Measure | None:
    views = schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    kind = kind_of(name)
    if views or kind == "free":
        return None
    if kind == "product":
        return _elements if name in _OUTER else _product_and_sum if "add" in name else _product
    if kind == "convolution" and "col" not in name:
        return _transposed_convolution if "transpose" in name else _convolution
    if kind == "attention":
        return _attention
    if kind == "recurrent":
        return _recurrent
    if kind == "linalg":
        return _factorisation
    if (window := re.fullmatch(r"(max|avg)_pool([123])d(_with_indices)?", name)) is not None:
        return partial(_pooling, int(window[2]))
    return _results if kind in ("index", "embedding") else _elements


def _elements(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements of the largest tensor that goes in or comes out; those of a list of tensors count together."""
    largest = 0
    for value in (result, *args, *kwargs.values()):
        if isinstance(value, _TENSOR):
            size = value.numel() * (1 + value.dtype.is_complex)
        elif isinstance(value, _LISTS):
            size = sum(part.numel() for part in value if isinstance(part, _TENSOR))
        else:
            continue
        if size > largest:
            largest = size
    return largest


def _results(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements fetched or put: the most of indices, what is put, and the result unless that is the table itself."""
    if isinstance(result, _LISTS):
        return _elements((), {}, result)
    given = _elements(args[1:], kwargs, None)
    return given or int(result.numel()) if result is args[0] else max(given, int(result.numel()))


def _product(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements of the result times the dimension summed over, which is the last of the left matrix."""
    return int(result.numel() * args[0].shape[-1])


def _product_and_sum(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """The same where what is added to the product comes first; `addbmm` sums over its batch as well."""
    left = args[1]
    batch = left.shape[0] if left.dim() == 3 and result.dim() == 2 else 1
    return int(result.numel() * left.shape[-1] * batch)


def _convolution(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements of the result times the weights that each sees; in a transposed one, those that each input goes to."""
    if not isinstance(result, _TENSOR):
        return _elements(args, kwargs, result)
    weight = args[1]
    transposed = args[6] if len(args) > 6 and isinstance(args[6], bool) else False
    return int((args[0] if transposed else result).numel() * (weight.numel() // max(1, weight.shape[0])))


def _transposed_convolution(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements of the input times the weights by which each is spread."""
    return int(args[0].numel() * (args[1].numel() // max(1, args[1].shape[0])))


def _pooling(dimensions: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements of the result times those of the window that each is made of."""
    made = result[0] if isinstance(result, _LISTS) else result
    extents = args[1] if len(args) > 1 else kwargs["kernel_size"]
    extents = [extents] if isinstance(extents, int) else list(extents)
    window = math.prod(extents) ** (dimensions if len(extents) == 1 else 1)
    return max(int(made.numel() * window), _elements(args, kwargs, result))


def _attention(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Both products of query (..., L, E), key (..., S, E) and value (..., S, F): L * S * (E + F) for each head."""
    query, key, value = args[0], args[1], args[2]
    return int(query.numel() * key.shape[-2] + query.numel() // query.shape[-1] * key.shape[-2] * value.shape[-1])


def _recurrent(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Each weight once for each sample and step (a layer's input has the features last)."""
    given = args[1] if isinstance(args[1], _LISTS) else args[1:3]
    weights = sum(t.numel() for t in given if isinstance(t, _TENSOR) and t.dim() == 2)
    return int(args[0].numel() // args[0].shape[-1] * weights) or _elements(args, kwargs, result)


def _factorisation(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements times the last dimension, of the largest matrix: the order of factorising or solving square ones."""
    return max(int(a.numel() * a.shape[-1]) for a in args if isinstance(a, _TENSOR))
