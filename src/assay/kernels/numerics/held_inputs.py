"""Inputs that a reference changes, and outputs that it makes in the memory of an input: what a submission must match.

Each case stands for itself. An input that the reference changes there must hold the same afterwards, within the
tolerance; one that it leaves as it is must keep its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from assay.kernels.arrays import HostTensor, Value, host_tensors
from assay.kernels.frames import Frame
from assay.kernels.numerics.tolerance import Comparison, Tolerance, compare_bytes, tolerance_for
from assay.types import Json

Form = tuple[int, str, tuple[int, ...]]
"""Number of a tensor among the inputs, its dtype and shape."""


@dataclass(frozen=True, slots=True)
class Left:
    """An input that the reference changes in a case."""

    place: int
    """Its number among the tensors of the inputs."""
    exact: HostTensor
    """What it holds after the call, in float64."""
    rounded: HostTensor
    """The same in the working precision."""
    returned: bool = False
    """Whether the outputs show every element of it. A submission may then have the result in other memory."""

    @property
    def form(self) -> Form:
        """How it is handed back."""
        return self.place, self.rounded.dtype, self.rounded.shape

    @property
    def settled(self) -> bool:
        """Whether both precisions are finite at the same elements."""
        exact, rounded = self.exact.array(), self.rounded.array()
        if not all(np.issubdtype(array.dtype, np.inexact) for array in (exact, rounded)):
            return True
        return np.array_equal(np.isfinite(exact), np.isfinite(rounded))

    def tolerance(self, precision: str) -> Tolerance:
        """How far a submission may be off."""
        return tolerance_for(self.exact.array(), self.rounded.array(), precision)


@dataclass(frozen=True, slots=True)
class Own:
    """An output of the reference that lies in the memory of an input."""

    output: int
    place: int
    """The input's number among the tensors of the inputs."""
    offset: int
    stride: tuple[int, ...]
    """Where in that memory it begins and how it strides, in elements."""
    same: HostTensor
    """Booleans in the output's shape: the elements that hold what the input was given, in both precisions."""


def left_of(frame: Frame, entries: Sequence[Json], inputs: Sequence[Value]) -> tuple[Left, ...]:
    """What an answer of the reference's process says of inputs that were changed.

    Raises:
        LookupError, TypeError, ValueError: it makes no sense.
    """
    tensors = list(host_tensors(inputs))
    found = []
    for place, exact, rounded, returned in entries:
        left = Left(_numbered(place, tensors), frame.tensor(exact), frame.tensor(rounded), returned is True)
        given = tensors[left.place]
        if (left.rounded.dtype, left.rounded.shape) != (given.dtype, given.shape) or left.exact.shape != given.shape:
            raise ValueError(f"input {place} is said to be left in another form")
        found.append(left)
    return tuple(found)


def own_of(
    frame: Frame, entries: Sequence[Json], inputs: Sequence[Value], outputs: Sequence[HostTensor]
) -> tuple[Own, ...]:
    """What such an answer says of outputs in the memory of inputs. `outputs`: in the working precision.

    Raises:
        LookupError, TypeError, ValueError: it makes no sense.
    """
    tensors = list(host_tensors(inputs))
    found = []
    for output, place, offset, stride, same in entries:
        number = _numbered(output, outputs)
        own = Own(number, _numbered(place, tensors), int(offset), tuple(map(int, stride)), frame.tensor(same))
        if own.same.dtype != "bool" or own.same.shape != outputs[number].shape:
            raise ValueError(f"output {output} is said to be in the memory of an input in another form")
        found.append(own)
    return tuple(found)


def _numbered(number: Json, among: Sequence[object]) -> int:
    if type(number) is not int or not 0 <= number < len(among):
        raise ValueError(f"there is no tensor {number!r}")
    return number


def forms_of(cases: Sequence[Sequence[Left]]) -> tuple[Form, ...]:
    """The inputs that are changed in some case, as a replay hands them back after every call."""
    return tuple(sorted({left.form for after in cases for left in after}))


def compare_left(
    forms: Sequence[Form], after: Sequence[Left], inputs: Sequence[Value], held: Sequence[bytes], precision: str
) -> Comparison:
    """Whether a call left the inputs that the reference changes as that does; the worst of them, or the first that is
    wrong.

    Args:
        forms: The inputs that were handed back (`forms_of`).
        after: What the reference leaves in the call's case.
        inputs: The arguments of the call.
        held: The bytes that were handed back.
        precision: Working precision.
    """
    worst = Comparison(True, 0.0, 0, 0)
    given = list(host_tensors(inputs))
    for left, data in zip(after, held_in(forms, after, held), strict=True):
        if left.returned and data == given[left.place].data:
            continue
        form = left.rounded.dtype, left.rounded.shape
        found = compare_bytes(*form, data, left.exact.array(), left.tolerance(precision))
        if not found.ok:
            said = f"input {left.place} is left otherwise than the reference does: {found.message}"
            return replace(found, message=said)
        worst = found if found.worst >= worst.worst else worst
    return worst


def held_in(forms: Sequence[Form], after: Sequence[Left], held: Sequence[bytes]) -> tuple[bytes, ...]:
    """Of the bytes that were handed back those of the inputs that the reference changes in a case."""
    known = {place: data for (place, *_), data in zip(forms, held, strict=True)}
    return tuple(known[left.place] for left in after)
