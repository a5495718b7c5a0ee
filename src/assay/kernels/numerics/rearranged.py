"""Whether a problem does no more than to move elements: its outputs are elements of its inputs at fixed places, and
constants. Values decide, not operators: a product with a mask of zeros and ones moves, whatever it is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from assay.kernels.arrays import Array, host_tensors
from assay.kernels.numerics.screening import Case

SAMPLE = 4096
"""Elements of each output that are looked at; a problem that computes does so in far more than one of them."""
FEWEST = 2
"""Cases, of which two with other values show that places are fixed."""
Keys = npt.NDArray[np.uint64]


def moved_outputs(cases: Sequence[Case]) -> tuple[int, ...]:
    """Places of the outputs that only have elements of inputs, and are no input as it is; `cases` as below."""
    if not cases:
        return ()
    alone = [
        [replace(case, rounded=(case.rounded[place],)) for case in cases]
        for place in range(min(len(case.rounded) for case in cases))
    ]
    return tuple(
        place for place, each in enumerate(alone) if only_moves(each) and not all(_is_given(case) for case in each)
    )


def _is_given(case: Case) -> bool:
    """Whether the only output is an input as it is."""
    (output,) = case.rounded
    return any(np.array_equal(_bits(output.ravel()), _bits(array.ravel())) for array in _given(case))


def only_moves(cases: Sequence[Case]) -> bool:
    """Whether all elements of all outputs are in every case what an input has at one place, or one constant.

    Args:
        cases: On inputs of several families, under the same weights, which count as constants.
    """
    if len(cases) < FEWEST or any(_forms(case) != _forms(cases[0]) for case in cases):
        return False
    if any(not _is_real(array) for case in cases for array in (*_given(case), *case.rounded)):
        return False
    sampled = [[_sample(array) for array in case.rounded] for case in cases]
    found = [np.concatenate(each) if each else np.zeros(0) for each in sampled]
    constant = np.logical_and.reduce([_bits(each) == _bits(found[0]) for each in found])
    if constant.all():
        return False  # it depends on no input
    rest = [each[~constant] for each in found]
    few = rest[0][:: max(1, len(rest[0]) // 16)]
    given = [np.concatenate([array.ravel() for array in _given(case)] or [np.zeros(0)]) for case in cases]
    if not np.isin(_bits(few), _bits(given[0])).all():  # as in most problems, without a look at all of it
        return False
    return bool(np.isin(_keys(rest), _keys(given)).all())


def _forms(case: Case) -> list[tuple[int, ...]]:
    return [array.shape for array in (*_given(case), *case.rounded)]


def _given(case: Case) -> list[Array]:
    return [tensor.array() for tensor in host_tensors(case.inputs)]


def _is_real(array: Array) -> bool:
    return array.dtype.kind in "fiub"


def _sample(array: Array) -> npt.NDArray[np.float64]:
    flat = array.ravel()
    return flat[:: max(1, len(flat) // SAMPLE)].astype(np.float64)


def _bits(values: Array) -> Keys:
    """The bits of numbers as float64, of which zeros have one sign."""
    return (values.astype(np.float64) + 0.0).view(np.uint64)


def _keys(cases: Sequence[Array]) -> Keys:
    """One number for each place, of what is there in all cases."""
    found = np.zeros(len(cases[0]), np.uint64)
    with np.errstate(over="ignore"):
        for values in cases:
            found = (found ^ _bits(values)) * np.uint64(0x9E3779B97F4A7C15)
            found ^= found >> np.uint64(29)
    return found
