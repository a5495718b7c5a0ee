"""What a problem gives to a submission, without any values: shapes and dtypes, found without memory for them.

    shapes = process.shapes(problem.code)          at sizes at which nothing could be run here

A problem answers from its own process and may answer anything, so every number is bounded here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from assay.kernels.arrays import check_layout, layout_of, size_in_bytes
from assay.kernels.frames import parts_of
from assay.terminal import shown
from assay.types import Json

MAX_VALUES = 1024
"""Values among the arguments of a call, nested ones included."""
MAX_DEPTH = 6
MAX_RANK = 12
MAX_BYTES = 1 << 38
"""Of all tensors together."""
_STRING_CHARACTERS = 256
_MOST_COUNTED = 1 << 62


@dataclass(frozen=True, slots=True)
class Shapes:
    """The arguments of the constructor and of forward, and what the reference does with them.

    A tensor is `{"dtype", "shape"}`, and `layout` where it has one; all else is as in `assay.kernels.frames`.
    """

    init_inputs: tuple[Json, ...]
    inputs: tuple[Json, ...]
    work: Mapping[str, tuple[int, int]]
    """What PyTorch does for the reference: operator -> calls and work."""
    rearranged: bool = False
    """Whether it only moves elements, as found where it was run (`InputSet.rearranged`)."""
    moved_outputs: tuple[int, ...] = ()
    """Outputs that only move elements (`InputSet.moved_outputs`)."""

    @property
    def elements(self) -> int:
        """Of the tensors among the arguments of forward, nested ones left out."""
        return sum(math.prod(each["shape"]) for each in self.inputs if isinstance(each, dict) and "shape" in each)


def shapes_of_answer(header: Mapping[str, Json]) -> Shapes:
    """What the header of an answer says.

    Raises:
        ArithmeticError, AttributeError, LookupError, TypeError, ValueError: it is forged, or larger than any problem.
    """
    checked = _Checked()
    init, inputs = header["init_inputs"], header["inputs"]
    if not isinstance(inputs, list):
        raise ValueError("inputs that are no list")
    given = parts_of(init)
    return Shapes(
        tuple(checked.value(value) for value in (given if isinstance(given, list) else [init])),
        tuple(checked.value(value) for value in inputs),
        work_of(header["work"]),
    )


def work_of(found: Mapping[str, Json]) -> dict[str, tuple[int, int]]:
    """Calls and work of each operator, as a problem's process tells them.

    Raises:
        AttributeError, TypeError, ValueError: what it tells makes no sense.
    """
    return {name: (counted(calls), counted(work)) for name, (calls, work) in found.items()}


def counted(number: object) -> int:
    """A count that a problem's process tells.

    Raises:
        ValueError: it is none, or larger than any.
    """
    if type(number) is not int or not 0 <= number <= _MOST_COUNTED:
        raise ValueError(f"a count of {shown(str(number)[:100], 100)}")
    return number


class _Checked:
    """Copies values and counts what it copied."""

    def __init__(self) -> None:
        self.values, self.bytes = 0, 0

    def value(self, found: Json, depth: int = 0) -> Json:
        self.values += 1
        if self.values > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_VALUES} arguments, or nested deeper than {MAX_DEPTH}")
        if isinstance(found, Mapping) and set(found) == {"tuple"}:
            return {"tuple": self.value(found["tuple"], depth)}
        if isinstance(found, Mapping):
            return self._tensor(found)
        if isinstance(found, list):
            return [self.value(part, depth + 1) for part in found]
        if isinstance(found, str) and len(found) > _STRING_CHARACTERS:
            raise ValueError(f"a text of {len(found)} characters as an argument")
        if type(found) is int and abs(found) > _MOST_COUNTED:
            raise ValueError("an argument larger than any integer of PyTorch's")
        if isinstance(found, float) and not math.isfinite(found):
            raise ValueError("an argument that is not finite")
        if found is None or isinstance(found, bool | int | float | str):
            return found
        raise TypeError(f"an argument of type {type(found).__name__}")

    def _tensor(self, found: Mapping[str, Json]) -> Json:
        dtype, shape = found["dtype"], found["shape"]
        if not isinstance(shape, list) or len(shape) > MAX_RANK:
            raise ValueError("a shape that is none")
        sizes = [counted(size) for size in shape]
        self.bytes += size_in_bytes(dtype, tuple(sizes))
        if (layout := layout_of(found.get("layout"))) is not None:
            check_layout(layout, dtype, sizes)
            self.bytes += size_in_bytes(dtype, (layout.extent,))
        if self.bytes > MAX_BYTES:
            raise ValueError(f"tensors of more than {MAX_BYTES >> 30} GiB")
        return {"dtype": dtype, "shape": sizes} | ({} if layout is None else {"layout": layout.to_json()})
