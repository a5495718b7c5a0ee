"""Values that host code may read: of small tensors on the host that it made itself, of literal values and ranges.

They depend on no input, weight or seed, and Python's own numbers could stand for them: the rates of dropout of a model
are often read from `torch.linspace`. Nothing is computed before host code reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from assay.kernels.inside.record.reads import RAISED
from assay.types import Json

MOST_BYTES = 1 << 16
"""Of a storage whose values are known."""
READS = frozenset(
    {
        *("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__"),
        *("__repr__", "__format__", "numpy", "__array__"),
    }
)
"""Methods that give Python's numbers or text; of arrays a copy that nobody can write."""
OPERATORS = frozenset({"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "bincount"})
"""Operators whose answer, or the shape of it, depends on values."""


def method(name: str) -> Callable[..., Any] | None:
    """A method of `READS` as it is answered of a tensor with its values; None for any other."""
    if name not in READS:
        return None

    def answered(held: torch.Tensor, *args: Any, **named: Any) -> Any:
        found = getattr(torch.Tensor, name)(held.clone(), *args, **named)
        if isinstance(found, np.ndarray):
            found.flags.writeable = False  # the tensor's own memory, for PyTorch, in which a change would show
        return found

    return answered


class _UnknownError(Exception):
    """An operand has no known values."""


class KnownValues:
    """What operators of the host have made of literal values and ranges, by the numbers of storages."""

    def __init__(self) -> None:
        self._literals: dict[int, bytes] = {}
        self._steps: list[tuple[Json, bool]] = []
        self._done = 0
        """How many of them have been computed."""
        self._memory: dict[int, torch.Tensor | None] = {}
        """The bytes of each storage that a step wrote; None where they are not known."""

    def literal(self, number: int, content: bytes) -> None:
        """Take note of a storage that literal values fill."""
        if len(content) <= MOST_BYTES:
            self._literals[number] = content

    def note(self, step: Json, *, follows: bool) -> None:
        """Take note of an operator that writes a tensor of the host. `follows`: whether what it writes follows from the
        program alone: it draws nothing, and all that it takes is on the host too."""
        self._steps.append((step, follows))

    def steps(self) -> set[int]:
        """The operators noted whose results follow from the program alone, by `id`."""
        return {id(step) for step, follows in self._steps if follows}

    def of(self, window: list[Json], bytes_of: Callable[[int], int]) -> torch.Tensor | None:
        """The values of a window; None where they are not known. `bytes_of` gives the size of a storage."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
            while self._done < len(self._steps):
                step, follows = self._steps[self._done]
                self._done += 1
                self._take(step, follows, bytes_of)
            try:
                return self._window(window)
            except _UnknownError:
                return None

    def _take(self, step: Json, follows: bool, bytes_of: Callable[[int], int]) -> None:
        """Compute what a step writes, or forget what was there."""
        outs = step["outs"]
        numbers = [out[0] for out in outs]
        try:
            if not follows or any(bytes_of(number) > MOST_BYTES for number in numbers):
                raise _UnknownError
            args = self._value(step["args"])
            kwargs = {name: self._value(value) for name, value in step["kwargs"].items()}
            taken = {window[0] for window in _windows((step["args"], list(step["kwargs"].values())))}
            base, _, overload = step["op"].partition(".")
            results = getattr(getattr(torch.ops.aten, base), overload)(*args, **kwargs)
            for out, result in zip(outs, results if isinstance(results, list | tuple) else [results], strict=True):
                if out[0] not in taken:  # of those it has written the memory itself
                    if result.nbytes != bytes_of(out[0]):  # of the rest nothing is known
                        raise _UnknownError
                    self._memory[out[0]] = torch.zeros(bytes_of(out[0]), dtype=torch.uint8)
                    self._window(out).copy_(result)
        except (_UnknownError, *RAISED):  # also of what this machine's PyTorch cannot compute
            self._memory |= dict.fromkeys(numbers)

    def _value(self, found: Json) -> Any:
        if isinstance(found, list):
            return [self._value(part) for part in found]
        if not isinstance(found, dict):
            return found
        if "window" in found:
            return self._window(found["window"])
        return getattr(torch, found["dtype"]) if "dtype" in found else float(found["float"])

    def _window(self, window: list[Json]) -> torch.Tensor:
        number, dtype, size, stride, offset = window
        if number not in self._memory and (content := self._literals.get(number)) is not None:
            self._memory[number] = torch.tensor(list(content), dtype=torch.uint8)
        if (memory := self._memory.get(number)) is None:
            raise _UnknownError
        return torch.empty(0, dtype=getattr(torch, dtype)).set_(memory.untyped_storage(), offset, size, stride)


def _windows(found: Any) -> list[list[Json]]:
    """The windows in arguments of a step."""
    if isinstance(found, dict):
        return [found["window"]] if "window" in found else []
    return [window for part in found for window in _windows(part)] if isinstance(found, list | tuple) else []
