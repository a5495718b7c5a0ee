"""Which calls a candidate is put to in the numerics stage, and the job that makes them.

Calls come in an order that only the parent knows: inputs of every family, one set twice, one with the launches left
out, one under other weights. Each starts from memory filled with another value.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.kernels.arrays import HostTensor, size_in_bytes
from assay.kernels.frames import Frame
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.sandbox.base import Buffer, Job, Limits, Round
from assay.types import Json

HARNESS = "assay.kernels.inside.numerics"

POISONS = (float("nan"), 17408.0, -331.5, 0.625)
"""What uninitialised memory is filled with."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of forward."""

    case: Case
    poison: float
    skip: bool = False
    """Whether launches are left out: a right answer then proves that they do nothing."""
    moved: bool = False
    """Whether the weights of `InputSet.moved_weights` are set first; they stay for the calls after it."""
    repeats: int | None = None
    """The number of an earlier call with the same inputs, whose answer must be the same."""


def plan_calls(
    draw: InputSet, trials: int, rng: random.Random, constant_families: Sequence[str] = ()
) -> tuple[Call, ...]:
    """The calls for one candidate: `trials` with inputs of all families in turn, one repeated, one without launches.

    Args:
        draw: Inputs and expected outputs; at least one case.
        trials: Calls that must be right, besides the special ones.
        rng: The parent's own.
        constant_families: Families in which a constant would pass, and which prove nothing about launches left out.
    """
    cases = [draw.cases[index % len(draw.cases)] for index in range(max(trials, 1))]
    rng.shuffle(cases)
    calls = [Call(case, rng.choice(POISONS)) for case in cases]
    first = Call(cases[0], POISONS[0])
    calls[0] = first
    again = rng.randrange(len(calls))
    other = rng.choice([poison for poison in POISONS[1:] if poison != calls[again].poison])
    calls.append(Call(calls[again].case, other, repeats=again))
    telling = [case for case in draw.cases if case.family not in constant_families and not shows_answer(case)]
    telling = telling or list(draw.cases)
    places = range(again + 1, len(calls) + 1)
    # A kernel that writes into a buffer of its own leaves there what it answered last.
    fresh = [(place, case) for place in places for case in telling if case is not calls[place - 1].case]
    place, case = rng.choice(fresh) if fresh else (len(calls), rng.choice(telling))
    calls.insert(place, Call(case, rng.choice(POISONS[1:]), skip=True))
    if draw.moved is not None:
        calls.append(Call(draw.moved, rng.choice(POISONS), moved=True))
    return tuple(calls)


def shows_answer(case: Case) -> bool:
    """Whether an input is the output already: then a kernel that works in place, left out, leaves a right answer."""
    for value in case.inputs:
        for exact in case.exact:
            if isinstance(value, HostTensor) and value.shape == exact.shape and np.array_equal(value.array(), exact):
                return True
    return False


def numerics_job(
    code: str, draw: InputSet, calls: Sequence[Call], limits: Limits, max_programs: int, precision: str
) -> Job:
    """The job that puts a candidate to some calls."""
    header, (init, _) = job_inputs(draw, calls[0].case)
    header |= {"precision": precision, "max_programs": max_programs}
    sizes = tuple(size_in_bytes(dtype, shape) for dtype, shape in draw.outputs)
    rounds = (Round(init), *(Round(_buffers(draw, call), sizes) for call in calls))
    return Job(code, HARNESS, rounds, header, limits)


def job_inputs(draw: InputSet, case: Case) -> tuple[dict[str, Json], tuple[tuple[Buffer, ...], tuple[Buffer, ...]]]:
    """The header that any job on a draw has, and the buffers of the constructor's arguments and of one call's."""
    init, inputs = Frame({}), Frame({})
    header: dict[str, Json] = {
        "weight_seed": draw.weight_seed,
        "init_inputs": [init.add(value) for value in draw.init_inputs],
        "inputs": [inputs.add(value) for value in case.inputs],
        "outputs": [[dtype, list(shape)] for dtype, shape in draw.outputs],
        "parameters": [[name, list(shape)] for name, shape in draw.weights],
    }
    return header, (tuple(init.blobs), tuple(inputs.blobs))


def _buffers(draw: InputSet, call: Call) -> tuple[Buffer, ...]:
    frame = Frame({})
    for value in call.case.inputs:
        frame.add(value)
    weights = {name: frame.add(tensor) for name, tensor in draw.moved_weights.items()} if call.moved else {}
    control = {"skip": call.skip, "poison": call.poison, "weights": weights}
    return (*frame.blobs, json.dumps(control).encode())
