"""Which problems are worth a reward: those that nothing simpler than the work itself can solve.

A problem is refused when, over all families of inputs, its output is zero, or one constant, or one of its inputs, or
does not depend on the inputs, or not on the weights it has, or varies less than the tolerance allows, or varies by
itself or with earlier calls, or is not finite. It is refused as well when it changes an input, which its outputs do not
show, by no more than the tolerance: a kernel could leave that input as it was given. A family in which the output is
constant, while others vary, proves nothing by itself and is named, so that a grader does not take it for evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from assay.kernels.arrays import Array, HostTensor, Value, host_tensors
from assay.kernels.numerics.families import Family
from assay.kernels.numerics.held_inputs import Left, Own
from assay.kernels.numerics.tolerance import (
    MAX_ENVELOPE_SHARE,
    Tolerance,
    as_reals,
    compare,
    computed,
    constant_passes,
    rms,
    tolerance_for,
)
from assay.types import Json

Reason = Literal[
    "no_output",
    "non_finite",
    "nondeterministic",
    "stateful",
    "zero",
    "constant",
    "identity",
    "input_independent",
    "weight_independent",
    "tolerance_exceeds_signal",
]


SPECIAL: Family = "faint"
"""Tells kernels that keep a norm finite from others. Alone it makes no problem worth solving: a constant would be right
on all else."""


@dataclass(frozen=True)
class Case:
    """The reference on one set of inputs: outputs in float64 (`exact`) and in the working precision (`rounded`)."""

    family: str
    inputs: tuple[Value, ...]
    exact: tuple[Array, ...]
    rounded: tuple[Array, ...]
    after: tuple[Left, ...] = ()
    """Inputs that the reference changes, in the order of their numbers."""
    own: tuple[Own, ...] = ()
    """Outputs that it makes in the memory of an input."""

    def tolerances(self, precision: str) -> tuple[Tolerance, ...]:
        """The tolerance of each output."""
        known = self._tolerances.get(precision)
        if known is None:
            pairs = zip(self.exact, self.rounded, strict=True)
            known = self._tolerances[precision] = tuple(tolerance_for(e, r, precision) for e, r in pairs)
        return known

    @cached_property
    def _tolerances(self) -> dict[str, tuple[Tolerance, ...]]:
        """By precision, kept: many candidates meet a case."""
        return {}

    @cached_property
    def shows_answer(self) -> bool:
        """Whether an input is the output already: a kernel that works in place, left out, is right then."""
        given = [value for value in self.inputs if isinstance(value, HostTensor)]
        return any(v.shape == exact.shape and np.array_equal(v.array(), exact) for v in given for exact in self.exact)

    @property
    def finite(self) -> bool:
        """Whether every output is finite in both precisions."""
        outputs = (*self.exact, *self.rounded)
        return all(bool(np.isfinite(o).all()) for o in outputs if np.issubdtype(o.dtype, np.inexact))

    @property
    def noisy(self) -> bool:
        """Whether the reference's own rounding decides too much of an output for that to decide anything.

        That is an error as large as a good part of the signal, or whole numbers that come out otherwise; of
        inputs that it changes also elements that are finite in one precision alone.
        """
        pairs = [*zip(self.exact, self.rounded, strict=True)]
        pairs += [(left.exact.array(), left.rounded.array()) for left in self.after]
        return any(_noisy(e, r) for e, r in pairs) or not all(left.settled for left in self.after)


def _noisy(exact: Array, rounded: Array) -> bool:
    if not np.issubdtype(exact.dtype, np.inexact):
        return not np.array_equal(exact, rounded)
    truth = as_reals(exact).astype(np.float64)
    with np.errstate(invalid="ignore"):  # of an infinity and itself
        error = truth - as_reals(rounded).astype(np.float64)
    kept = computed(truth)
    return rms(error[kept]) > MAX_ENVELOPE_SHARE * rms(truth[kept])


@dataclass(frozen=True, slots=True)
class Screening:
    """What screening found. `reason` is None for a problem worth a reward, `detail` says what was seen."""

    reason: Reason | None
    detail: str = ""
    constant_families: tuple[str, ...] = ()
    """Families in which a constant would pass."""
    dropped_families: tuple[str, ...] = ()
    """Families in which the reference is not finite, or mostly rounding error, so that they cannot be used."""

    @property
    def rewarded(self) -> bool:
        """Whether a solution of the problem may be rewarded."""
        return self.reason is None

    def to_json(self) -> dict[str, Json]:
        """Plain data for a verdict or a table."""
        return {
            "reason": self.reason,
            "detail": self.detail,
            "constant_families": list(self.constant_families),
            "dropped_families": list(self.dropped_families),
        }


def screen(
    cases: Sequence[Case],
    other_weights: Case | None = None,
    again: Case | None = None,
    precision: str = "float32",
    carries: bool = False,
) -> Screening:
    """Screen one problem.

    Args:
        cases: The reference on inputs of several families, `given` first; all with the same weights.
        other_weights: The inputs of the first case under other weights; None for a problem without weights.
        again: The first case once more, under another state of the random generator.
        precision: The precision that candidates work in.
        carries: Whether outputs depend on what earlier calls left in the model.
    """
    if not cases or not cases[0].exact or all(not output.size for output in cases[0].exact):
        return Screening("no_output", "the reference returns nothing that could be compared")
    dropped = tuple(case.family for case in cases if not case.finite or case.noisy)
    if not cases[0].finite:
        return Screening("non_finite", f"the reference is not finite on its own inputs ({cases[0].family})")
    if cases[0].noisy:
        detail = f"the reference's own rounding error in {precision} is as large as what it computes"
        return Screening("tolerance_exceeds_signal", detail, (), dropped)
    if carries:
        return Screening("stateful", "its outputs depend on what earlier calls left in the model", (), dropped)
    usable = [case for case in cases if case.family not in dropped]
    constant = tuple(case.family for case in usable if _is_constant(case, precision))
    ordinary = [case for case in usable if case.family != SPECIAL]
    reason, detail = _reason(ordinary, tuple(set(constant) - {SPECIAL}), other_weights, again, precision)
    return Screening(reason, detail, constant, dropped)


def _reason(
    cases: Sequence[Case], constant: tuple[str, ...], other_weights: Case | None, again: Case | None, precision: str
) -> tuple[Reason | None, str]:
    if again is not None and not _same(again, cases[0], precision):
        return "nondeterministic", "the same inputs and weights give different outputs"
    if all(not np.any(output) for case in cases for output in case.exact):
        return "zero", "every output is zero"
    if len(constant) == len(cases) and _one_constant(cases, precision):
        return "constant", f"every output is {_first(cases[0]):.6g}"
    if len(cases) > 1 and all(_same(case, cases[0], precision) for case in cases[1:]):
        return "input_independent", "different inputs give the same output"
    for index in range(len(cases[0].inputs)):
        if all(_is_input(case, index, precision) for case in cases):
            return "identity", f"the output is input {index}"
    if other_weights is not None and cases[0].family not in constant and _same(other_weights, cases[0], precision):
        return "weight_independent", "other weights give the same output"
    if len(constant) == len(cases) and any(output.size > 1 for output in cases[0].exact):
        return "tolerance_exceeds_signal", "within a call, a constant is as close to the output as the tolerance allows"
    if (place := _left_alone(cases, precision)) is not None:
        detail = (
            f"forward changes input {place} by no more than the tolerance, so a kernel could leave it as it was given: "
            f"return it, change it by more, or grade in a precision finer than {precision}"
        )
        return "tolerance_exceeds_signal", detail
    return None, ""


def _left_alone(cases: Sequence[Case], precision: str) -> int | None:
    """The number of the first input that the reference changes and that passes unchanged in all cases. None where there
    is none; inputs that the outputs show do not count, since those decide."""
    passes: dict[int, bool] = {}
    for case in cases:
        given = list(host_tensors(case.inputs))
        for left in case.after:
            if not left.returned:
                alike = compare(given[left.place].array(), left.exact.array(), left.tolerance(precision)).ok
                passes[left.place] = passes.get(left.place, True) and alike
    return next((place for place, alike in sorted(passes.items()) if alike), None)


def _first(case: Case) -> float:
    return float(as_reals(case.exact[0]).ravel()[0])


def _is_constant(case: Case, precision: str) -> bool:
    """Whether one number would pass for each output; a single number always would, so it takes no part."""
    many = [(o, t) for o, t in zip(case.exact, case.tolerances(precision), strict=True) if o.size > 1]
    if not many:
        return all(not np.any(output) for output in case.exact)
    return all(constant_passes(output, tolerance) for output, tolerance in many)


def _one_constant(cases: Sequence[Case], precision: str) -> bool:
    """Whether the same number would pass in all cases."""
    for index, output in enumerate(cases[0].exact):
        guess = float(np.median(as_reals(output).astype(np.float64)))
        for case in cases:
            exact = as_reals(case.exact[index]).astype(np.float64)
            tolerance = case.tolerances(precision)[index]
            if float(np.mean(np.abs(exact - guess) <= tolerance.allowed(exact))) < 0.99:
                return False
    return True


def _same(case: Case, other: Case, precision: str) -> bool:
    """Whether the outputs of one case would pass for those of another."""
    if len(case.exact) != len(other.exact):
        return False
    tolerances = other.tolerances(precision)
    return all(compare(a, b, t).ok for a, b, t in zip(case.exact, other.exact, tolerances, strict=True))


def _is_input(case: Case, index: int, precision: str) -> bool:
    """Whether the first output is one of the inputs."""
    value = case.inputs[index] if index < len(case.inputs) else None
    if not isinstance(value, HostTensor) or value.shape != case.exact[0].shape:
        return False
    array = value.array()
    if not np.issubdtype(case.exact[0].dtype, np.floating) or not value.is_float:
        return np.array_equal(array, case.exact[0])
    return compare(array, case.exact[0], case.tolerances(precision)[0]).ok
