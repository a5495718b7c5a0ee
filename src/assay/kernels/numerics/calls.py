"""Which calls CUDA sources are put to on a GPU, and the job that makes them; what jobs on a draw have in common.

Calls come in an order that only the parent knows: inputs of every family, and one call under other weights. Triton
candidates are put to those of `assay.kernels.program.trial`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from assay.kernels.arrays import size_in_bytes
from assay.kernels.config import GraderConfig
from assay.kernels.frames import Frame
from assay.kernels.numerics.on_gpu import limits_of, started_first
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.sandbox.base import Buffer, Job, Round
from assay.types import Json

HARNESS = "assay.kernels.inside.numerics_gpu"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of forward."""

    case: Case
    moved: bool = False
    """Whether the weights of `InputSet.moved_weights` are set first; they stay for the calls after it."""


def plan_calls(draw: InputSet, trials: int, rng: random.Random) -> tuple[Call, ...]:
    """The calls for one candidate: `trials` with inputs of all families in turn, one of each at least, and last one
    under other weights.

    Args:
        draw: Inputs and expected outputs; at least one case.
        trials: Calls that must be right, besides the special one.
        rng: The parent's own.
    """
    cases = [draw.cases[index % len(draw.cases)] for index in range(draw.trials(trials))]
    rng.shuffle(cases)
    moved = [Call(draw.moved, moved=True)] if draw.moved is not None else []
    return (*(Call(case) for case in cases), *moved)


def cuda_job(code: str, draw: InputSet, calls: Sequence[Call], config: GraderConfig) -> Job:
    """The job that puts CUDA sources to some calls on a GPU."""
    header, (init, _) = job_inputs(draw, calls[0].case)
    header |= {"precision": config.precision, "structure": draw.structure}
    sizes = tuple(size_in_bytes(dtype, shape) for dtype, shape in draw.outputs)
    rounds = (Round(init), *(Round(_buffers(draw, call), sizes) for call in calls))
    return started_first(Job(code, HARNESS, rounds, header, limits_of(config)), HARNESS, config)


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
    return (*frame.blobs, json.dumps({"weights": weights}).encode())
