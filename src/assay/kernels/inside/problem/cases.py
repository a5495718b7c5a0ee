"""Cases of a problem: its reference on inputs of each family, as far as it takes them.

What an input may be is a guess where it cannot be seen. Where the reference refuses a family, or is not finite in it,
one input may be to blame (a probability, an argument of `log`), and the others would never be varied. So its inputs
are varied one after the other there, and those with which the reference gives no numbers are brought into smaller
domains (`numerics.domains`), or stay as they were drawn. Of one that takes negative numbers in some places alone (not
in a column that goes through `log`), those places are found by halves.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from assay.kernels.arrays import HostTensor, Value, host_tensors, same_value
from assay.kernels.frames import Frame
from assay.kernels.inside.problem.held import Left, same_in_both
from assay.kernels.inside.problem.range_ends import RangeEnds
from assay.kernels.inside.problem.ties import AnyOrder, chooses, same
from assay.kernels.inside.problem.values import to_value
from assay.kernels.numerics.domains import DOMAINS, narrowed, spliced, with_numbers
from assay.kernels.numerics.families import Family, has_flags, vary
from assay.kernels.numerics.tolerance import compare, tolerance_for
from assay.types import Json

MOST_VARIED = 8
"""Inputs of a problem above which some are varied together."""
MAX_VARIED_S, MAX_NARROWED_S = 0.2, 0.05
"""CPU seconds of a case above which none is varied without the others, or no smaller domains are tried: each input
takes as much for each family, and each domain of it."""
MOST_PARTS, LEAST_PARTS = 16, 6
"""Parts of an axis that are varied by themselves, at most and where none of them is taken."""
_TIES = "equal elements, in whose order its outputs are one answer of several"


class Reference(Protocol):
    """What is asked of a problem's module (`inside.reference_model.Reference`)."""

    precision: torch.dtype
    """The working precision."""
    left: Left
    """What the last pass left in its inputs."""

    def inputs(self, seed: int) -> tuple[Value, ...]:
        """A draw of its inputs."""
        ...

    def outputs(
        self,
        model: torch.nn.Module,
        inputs: Sequence[Value],
        dtype: torch.dtype,
        seed: int,
        under: contextlib.AbstractContextManager[object] | None = None,
    ) -> list[HostTensor]:
        """Its outputs in some dtype, `under` what changes operators."""
        ...

    def work(self, model: torch.nn.Module, inputs: Sequence[Value], seed: int) -> dict[str, tuple[int, int]]:
        """Calls and work of each operator."""
        ...


class TooLargeError(Exception):
    """The output has more elements than the request allows."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError | OSError)
        and any(sign in str(error) for sign in ("allocate memory", "Cannot allocate", "not enough memory"))
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """Inputs that a problem takes, and its outputs in the working precision and in float64."""

    inputs: tuple[Value, ...]
    rounded: list[HostTensor]
    exact: list[HostTensor]
    left: tuple[Left, Left]
    """What it leaves in these inputs: exact, and rounded."""
    dtypes: tuple[torch.dtype, torch.dtype]
    """What `exact` is in, and the working precision."""

    @property
    def finite(self) -> bool:
        """Whether all outputs are finite."""
        return all(np.isfinite(output.array()).all() for output in self.rounded)

    def gives(self, outputs: Sequence[HostTensor], precision: str) -> bool:
        """Whether outputs are the same within the tolerance: rounding differs with where memory lies."""
        known = [(one.array(), other.array()) for one, other in zip(self.exact, self.rounded, strict=True)]
        return len(outputs) == len(known) and all(
            compare(output.array(), rounded, tolerance_for(exact, rounded, precision)).ok
            for output, (exact, rounded) in zip(outputs, known, strict=True)
        )


class Families:
    """Adds cases to the answer to one request."""

    def __init__(self, frame: Frame, reference: Reference, model: torch.nn.Module, request: Json) -> None:
        self._frame, self._reference, self._model, self._request = frame, reference, model, request
        self._tried: list[Tried] = []
        self._seconds = 0.0
        self._domains: dict[int, int] = {}
        """By an input's place, the number of the largest domain in which the problem was seen to take it."""

    def add(self) -> list[Tried]:
        """Add a case of each family that the problem takes, and its work in the first one."""
        request, reference = self._request, self._reference
        other = reference.inputs(request["number_seed"]) if request["number_seed"] != request["input_seed"] else None
        for number, family in enumerate(request["families"]):
            # Each family starts from a fresh draw of its own, so no two show the same numbers in another dress.
            with RangeEnds() if number else contextlib.nullcontext():  # type: ignore[no-untyped-call]
                given = reference.inputs(request["input_seed"] + number)
            other = given if other is None else other
            self._add_family(number, family, with_numbers(given, other), other)
            if number == 0 and self._tried:
                first = self._tried[0].inputs
                self._frame.header["work"] = reference.work(self._model, first, request["weight_seed"])
        return self._tried

    def _add_family(self, number: int, family: Family, drawn: tuple[Value, ...], other: tuple[Value, ...]) -> None:
        flags = has_flags(drawn, family)
        found, refused = None, ""
        for turned in (True, False) if flags else (False,):
            if (inputs := self._varied(number, family, drawn, other, turned)) is None:
                break
            found, refused = self._try(inputs)
            # That they may be turned is a guess: if it gives no numbers, the rest of the family shall not be lost.
            if found is not None and (found.finite or not turned):
                break
        if number and (found is None or not found.finite):
            inputs = self._varied(number, family, drawn, other, flags)
            found = self._in_part(drawn, inputs or drawn, other, number) or found
        if found is None:
            if refused:
                self._frame.header["refused"][family] = refused
            return
        self._tried.append(found)
        add_case(self._frame, family, found)

    def _varied(
        self, number: int, family: Family, drawn: tuple[Value, ...], other: tuple[Value, ...], flags: bool
    ) -> tuple[Value, ...] | None:
        return vary(drawn, family, np.random.default_rng((self._request["input_seed"], number)), other, flags=flags)

    def _try(self, inputs: tuple[Value, ...]) -> tuple[Tried | None, str]:
        """What some inputs give, or why the problem refuses them: those are no part of it, its own have to work."""
        first = not self._tried
        began = time.process_time()
        try:
            found = evaluated(
                self._reference, self._model, inputs, self._request["weight_seed"], self._request["max_output"]
            )
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if first or out_of_memory(error):
                raise
            return None, f"{type(error).__name__}: {error}"[:500]
        if first:
            self._seconds = time.process_time() - began
        elif chooses(self._frame.header["work"]) and self._has_ties(found):
            return None, _TIES
        return found, ""

    def _has_ties(self, found: Tried) -> bool:
        """Whether a case has other outputs where equal elements come in another order."""
        seed = self._request["weight_seed"]
        given = (self._model, found.inputs, found.dtypes[0], seed)
        return not same(*(self._reference.outputs(*given, under) for under in (None, AnyOrder(seed))))

    def _in_part(
        self, drawn: tuple[Value, ...], varied: tuple[Value, ...], other: tuple[Value, ...], number: int
    ) -> Tried | None:
        """The case with as many varied inputs as the problem takes, tried in turn; None where it takes none.
        Another one comes first in each family, since two may be taken alone and not together."""
        units = [
            unit for unit in _units(drawn, other) if any(not same_value(drawn[place], varied[place]) for place in unit)
        ]
        if not units or self._seconds > MAX_VARIED_S:
            return None
        groups = min(len(units), MOST_VARIED)
        units = [[at for unit in units[first::groups] for at in unit] for first in range(groups)]
        found: Tried | None = None
        start = number % len(units)
        rest = []
        for unit in (*units[start:], *units[:start]):
            inputs = tuple(
                varied[at] if at in unit else value for at, value in enumerate(found.inputs if found else drawn)
            )
            # All inputs together have been tried. A single one is all of them.
            tried = self._finite(inputs) if len(units) > 1 else None
            found = tried or found
            if tried is None and self._seconds <= MAX_NARROWED_S:
                rest.append(unit)
        for unit in rest:
            found = self._in_a_domain(drawn, varied, found.inputs if found else drawn, unit) or found
            if number == 1 and len(unit) == 1:
                found = self._in_places(varied, found.inputs if found else drawn, unit[0]) or found
        return found

    def _in_a_domain(
        self, drawn: tuple[Value, ...], varied: tuple[Value, ...], kept: tuple[Value, ...], unit: list[int]
    ) -> Tried | None:
        """The case with one input varied within the largest domain in which the problem takes it."""
        for domain in DOMAINS[self._domains.get(unit[0], 0) :]:
            inputs = tuple(
                narrowed(drawn[at], varied[at], domain) if at in unit else value for at, value in enumerate(kept)
            )
            if (tried := self._finite(inputs)) is not None:
                self._domains[unit[0]] = DOMAINS.index(domain)
                return tried
        return None

    def _in_places(self, varied: tuple[Value, ...], kept: tuple[Value, ...], at: int) -> Tried | None:
        """The case with one tensor varied where the problem takes it, found by halves along each of its axes."""
        whole, found = varied[at], None
        if not isinstance(whole, HostTensor):
            return None
        for axis in reversed(range(len(whole.shape))):
            parts, done = [range(whole.shape[axis])], 0
            for part in parts:  # grows below
                middle = (part.start + part.stop) // 2
                for half in (range(part.start, middle), range(middle, part.stop)):
                    if not half or len(half) == len(part) or done >= (MOST_PARTS if found else LEAST_PARTS):
                        continue
                    done += 1
                    base = kept[at]
                    assert isinstance(base, HostTensor), "it is one as it is varied"
                    inputs = (*kept[:at], spliced(base, whole, axis, half), *kept[at + 1 :])
                    if (tried := self._finite(inputs)) is not None:
                        kept, found = inputs, tried
                    else:
                        parts.append(half)
            if found is not None:
                return found
        return None

    def _finite(self, inputs: tuple[Value, ...]) -> Tried | None:
        tried, _ = self._try(inputs)
        return tried if tried is not None and tried.finite else None


def _units(drawn: Sequence[Value], other: Sequence[Value]) -> list[list[int]]:
    """The places of arguments that are varied together: equal ones, and those that share memory."""
    units: list[tuple[set[int], list[int]]] = []
    for place, value in enumerate(drawn):
        memory = {tensor.layout.storage for tensor in host_tensors([value]) if tensor.layout is not None}
        joined: list[int] = [place]
        for unit in [*units]:
            first = unit[1][0]
            if memory & unit[0] or (
                len(other) == len(drawn) and same_value(value, drawn[first]) and same_value(other[place], other[first])
            ):
                units.remove(unit)
                memory |= unit[0]
                joined = [*unit[1], *joined]
        units.append((memory, joined))
    return [places for _, places in units]


def evaluated(
    reference: Reference, model: torch.nn.Module, inputs: tuple[Value, ...], seed: int, limit: int | None = None
) -> Tried:
    """What the reference makes of some inputs.

    Raises:
        TooLargeError: its outputs have more than `limit` elements.
        Exception: whatever the problem raises.
    """
    rounded = reference.outputs(model, inputs, reference.precision, seed)
    rounded_left = reference.left
    size = sum(math.prod(tensor.shape) for tensor in rounded)
    if limit is not None and size > limit:
        raise TooLargeError(f"{size} elements in the output, more than {limit}")
    try:
        exact, dtype = reference.outputs(model, inputs, torch.float64, seed), torch.float64
        left = reference.left
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        # Some modules insist on float32 inside; their own output is then the best truth there is.
        exact, dtype, left = rounded, reference.precision, rounded_left
    return Tried(inputs, rounded, exact, (left, rounded_left), (dtype, reference.precision))


def add_case(frame: Frame, name: str, found: Tried) -> None:
    """Add a case to an answer, and say what it has."""
    if found.dtypes[0] != torch.float64:
        frame.header["exact"] = str(found.dtypes[0]).removeprefix("torch.")
    alike = same_in_both(*found.left)
    frame.header["cases"].append(
        {
            "family": name,
            "inputs": [frame.add(value) for value in found.inputs],
            "exact": [frame.add(value) for value in found.exact],
            "rounded": [frame.add(value) for value in found.rounded],
            "after": _after(frame, found),
            "own": [[*place, frame.add(to_value(same))] for place, same in alike.items()],
        }
    )


def _after(frame: Frame, found: Tried) -> list[Json]:
    """Inputs that a pass in either precision changes, what both leave there, and whether the outputs show all of it."""
    tensors = list(host_tensors(found.inputs))
    exact, rounded = found.left
    shown = exact.returned & rounded.returned
    both = list(zip(found.left, found.dtypes, strict=True))
    return [
        [place, *(frame.add(left.value(place, tensors, dtype)) for left, dtype in both), place in shown]
        for place in sorted({*exact.after, *rounded.after})
    ]
