"""The outputs of a replay, compared as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from assay.kernels.numerics.held_inputs import compare_left, held_in
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.tolerance import Comparison, compare_bytes
from assay.kernels.program.jobs import NO_KERNEL, Measured, Replay, rounds_of

LOOP_BYTES = 1 << 18
"""Larger outputs are compared in a thread."""


class Answers:
    """The outputs of each call, compared as they come. `exact`: the same call has the same bytes each time."""

    def __init__(self, draw: InputSet, calls: Sequence[Replay], precision: str, *, exact: bool = True) -> None:
        self.draw, self.calls, self.precision, self.exact = draw, calls, precision, exact
        self.rounds = rounds_of(draw, calls)
        self.outputs: dict[int, tuple[bytes, ...]] = {}
        self.comparisons: dict[int, Comparison] = {}

    async def after_round(self, number: int, outputs: tuple[bytes, ...]) -> bool:
        """Take the outputs of a round (0 is the construction); False if the other rounds need not be made."""
        if sum(map(len, outputs)) > LOOP_BYTES:
            return await asyncio.to_thread(self.take, number, outputs)
        return self.take(number, outputs)

    def take(self, number: int, outputs: tuple[bytes, ...]) -> bool:
        """The same, at once."""
        if number == 0:
            self.outputs.clear()
            self.comparisons.clear()
            return True
        each = len(self.draw.outputs) + len(self.draw.after)
        taken = [
            self._take_call(call, outputs[place * each : (place + 1) * each])
            for place, call in enumerate(self.rounds[number - 1])
        ]
        return all(taken)

    def _take_call(self, place: int, outputs: tuple[bytes, ...]) -> bool:
        call = self.calls[place]
        made, held = outputs[: len(self.draw.outputs)], outputs[len(self.draw.outputs) :]
        self.outputs[place] = (*made, *held_in(self.draw.after, call.case.after, held))
        if call.skip != NO_KERNEL:
            return True
        found = self.comparisons[place] = self._compare(call, outputs)
        return found.ok or bool(call.weights)

    def _compare(self, call: Replay, outputs: tuple[bytes, ...]) -> Comparison:
        worst = Comparison(True, 0.0, 0, 0)
        tolerances = call.case.tolerances(self.precision)
        for (dtype, shape), data, exact, allowed in zip(
            self.draw.outputs, outputs[: len(self.draw.outputs)], call.case.exact, tolerances, strict=True
        ):
            found = compare_bytes(dtype, shape, data, exact, allowed)
            if not found.ok:
                return found
            worst = found if found.worst >= worst.worst else worst
        held = outputs[len(self.draw.outputs) :]
        left = compare_left(self.draw.after, call.case.after, call.case.inputs, held, self.precision)
        return worst if left.ok and left.worst < worst.worst else left

    @property
    def passed(self) -> int:
        """Ordinary calls that were answered rightly."""
        return sum(found.ok and not self.calls[place].weights for place, found in self.comparisons.items())

    @property
    def total(self) -> int:
        """Ordinary calls in the plan."""
        return sum(call.skip == NO_KERNEL and not call.weights for call in self.calls)

    def worst(self, seen: Sequence[Measured]) -> float:
        """The worst error of all calls that count, in units of what is allowed; finite, since JSON has no infinity. One
        digit: a kernel may make its error of secret inputs."""
        found = max((each.worst for place, each in self.comparisons.items() if self.counts(place, seen)), default=0.0)
        return min(float(f"{found:.0e}"), 1e300) if found == found else 1e300

    def first_wrong(self, seen: Sequence[Measured]) -> int | None:
        """The first call that counts and was not answered rightly."""
        wrong = (place for place, found in self.comparisons.items() if not found.ok and self.counts(place, seen))
        return next(wrong, None)

    def counts(self, place: int, seen: Sequence[Measured]) -> bool:
        """Whether a call has to be right: not under weights that it could not be given."""
        return not self.calls[place].weights or weights_set(seen, place)


def weights_set(seen: Sequence[Measured], place: int) -> bool:
    """Whether a call was given the weights that its plan names."""
    return place < len(seen) and seen[place].weights_set
