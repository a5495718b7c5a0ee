"""What a submission is given at the sizes of its problem."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from assay.kernels.arrays import host_tensors
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.program.operations import reference_arithmetic

LONG_TRIALS = 2
"""Calls where one size is as large as published: on the given inputs, and on those of another family."""


@dataclass(frozen=True, slots=True)
class Size:
    """A problem at one size, with a draw of its inputs."""

    scaled: ScaledProblem
    draw: InputSet
    constant_families: tuple[str, ...] = ()
    """Families of inputs on which a constant is right."""

    @property
    def shapes(self) -> tuple[object, ...]:
        """Those of all tensors that a submission is given, and of its outputs."""
        given = (*self.draw.init_inputs, *self.draw.cases[0].inputs)
        return tuple(tensor.shape for tensor in host_tensors(given)), self.draw.outputs, self.draw.weights

    @property
    def work(self) -> int:
        """How much a kernel has to do: the reference's arithmetic, or elements where it only moves them."""
        outputs = sum(math.prod(shape) for _, shape in self.draw.outputs)
        return max(reference_arithmetic(self.draw.work), outputs, 1)


@dataclass(frozen=True, slots=True)
class OtherSizes:
    """Where a submission is looked at once it is right at the first size."""

    other: Callable[[], Awaitable[Size | None]]
    """Gives the other size; None where a problem has only one."""
    grown: Callable[[], Awaitable[Size | None]]
    """Gives one without smaller integers than at the first size, where the other one has some and a submission is not
    right there: blocks may be larger than they are."""
    published: Callable[[], Awaitable[Shapes | str | None]]
    """Gives what a submission is given at the published size; a text that says why it cannot, or None where it was
    graded there."""
    shapes: Callable[[ScaledProblem], Awaitable[Shapes | None]]
    """Gives what a submission is given at any size; None where the reference does not run."""
    fits: Callable[..., Awaitable[bool]]
    """Whether a size (`ScaledProblem`) is as little work as a replay has time for, of at most so many `elements`."""
    stretched: Callable[[ScaledProblem], Awaitable[Size | None]]
    """Gives such a size, with a draw; None where the reference does not run or the problem is not worth a reward."""
    long: Callable[[ScaledProblem], Awaitable[Size | None]]
    """Gives a size of which one published size alone is large, with a draw of `LONG_TRIALS` families; None where the
    reference does not run or gives nothing to compare."""
