"""A module's `ModelNew` built once and called on one set of inputs a round, its host code beside real values.

The first round that this reads has the tensors of `get_init_inputs`. Each later one brings one set of inputs and, last,
a control record: weights to be set. All calls look alike to the candidate. The report is untrusted; it can only speak
against it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from assay.kernels.inside import extensions
from assay.kernels.inside.submission import fault, load
from assay.kernels.inside.tensors import WrongOutputError, check_structure, in_precision, output_bytes, tensors_of
from assay.kernels.inside.work import WorkTrace

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs
    from assay.types import Json

FaultKind = Literal["error", "unsupported", "compile"]


class Machine(Protocol):
    """Where kernels run."""

    device: str
    """PyTorch's name of the device that inputs, weights and outputs are on."""

    def seed(self, value: int) -> None:
        """Seed PyTorch's generators."""
        ...

    def settle(self) -> None:
        """Wait for what was launched. Raises what went wrong on the device."""
        ...

    def kind_of(self, error: Exception) -> FaultKind:
        """What an error of the candidate's means."""
        ...


def run_rounds(
    source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs, machine: Machine
) -> Json:
    """Run one candidate; the report has what extensions and PyTorch did in each round, or the fault that ended it."""
    blobs = read_inputs()
    assert blobs is not None, "a job has a round for the constructor"
    try:
        model = _construct(source, header, blobs, machine)
    except Exception as error:  # noqa: BLE001  whatever a candidate raises is its own fault, and data
        return {"fault": fault("construct", error, _construction_kind(machine, error))}
    write_outputs([])
    rounds: list[Json] = []
    while (blobs := read_inputs()) is not None:
        entry, outputs = _call(model, header, blobs, machine)
        rounds.append(entry)
        if outputs is None:
            return {"rounds": rounds, "fault": entry["fault"]}
        write_outputs(outputs)
    return {"rounds": rounds}


def _construct(source: str, header: Json, blobs: Sequence[memoryview], machine: Machine) -> Any:
    """The model, with weights from the seed as the reference has them: drawn on the host, then taken to the device."""
    module = load(source)
    machine.seed(header["weight_seed"])
    model = module.ModelNew(*tensors_of(header["init_inputs"], blobs, "cpu"))
    if isinstance(model, torch.nn.Module):
        model = in_precision(model, getattr(torch, header["precision"]), machine.device)
    machine.settle()
    return model


def _construction_kind(machine: Machine, error: Exception) -> FaultKind:
    """Nothing but a compiler is told apart before the first call."""
    return "compile" if machine.kind_of(error) == "compile" else "error"


def _call(
    model: Any, header: Json, blobs: Sequence[memoryview], machine: Machine
) -> tuple[dict[str, Json], list[memoryview] | None]:
    """One call of forward: what is known of it, and the bytes of its outputs unless it failed."""
    control = json.loads(bytes(blobs[-1]))
    entry: dict[str, Json] = {}
    if control["weights"]:
        entry["weights"] = set_weights(model, header["parameters"], control["weights"], blobs)
    inputs = tensors_of(header["inputs"], blobs, machine.device)
    machine.seed(header["weight_seed"])
    trace = WorkTrace()
    with extensions.counting() as calls:
        try:
            with torch.no_grad(), trace:
                value = model(*inputs)
            machine.settle()
            outputs = output_bytes(value, header["outputs"], machine.device)
            check_structure(value, header["structure"])
        except Exception as error:  # noqa: BLE001  as above
            kind = "wrong_output" if isinstance(error, WrongOutputError) else machine.kind_of(error)
            return entry | {"fault": fault("forward", error, kind)}, None
    return entry | {"launches": dict(calls), "work": trace.operations, "moved": trace.moved}, outputs


def set_weights(model: Any, names: Sequence[Json], weights: dict[str, Json], blobs: Sequence[memoryview]) -> bool:
    """Give the model the weights of a round, found by name, or else by order and shape; False where neither fits.

    Args:
        model: The candidate's model.
        names: `[name, shape]` of every parameter of the reference, in its order.
        weights: Name -> entry of those to be set.
        blobs: The buffers of the round.
    """
    is_model = isinstance(model, torch.nn.Module)
    parameters = dict(model.named_parameters()) if is_model else {}
    own = {**(dict(model.named_buffers()) if is_model else {}), **parameters}
    by_name = all(name in own and list(own[name].shape) == entry["shape"] for name, entry in weights.items())
    if not by_name:
        given = [name for name, _ in names]
        in_order = [list(parameter.shape) for parameter in parameters.values()] == [shape for _, shape in names]
        if not in_order or not weights.keys() <= set(given):
            return False
        own = dict(zip(given, parameters.values(), strict=True))
    with torch.no_grad():
        for name, entry in weights.items():
            own[name].copy_(tensors_of([entry], blobs, "cpu")[0])
    return True
