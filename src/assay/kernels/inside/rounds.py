"""What the numerics harnesses share: a candidate's `ModelNew` built once and called on one set of inputs a round.

The first round that this reads has the tensors of `get_init_inputs`. Each later one brings one set of inputs and, last,
a control record: which value fresh memory is filled with, whether launches are left out, and weights to be set. All
calls look alike to the candidate. The report is untrusted; it can only speak against it. What differs between Triton's
interpreter and a GPU is a `Machine`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay.kernels.inside.submission import fault, load
from assay.kernels.inside.tensors import WrongOutputError, output_bytes, tensors_of
from assay.kernels.inside.work import HostReads, WorkTrace

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs
    from assay.types import Json

FaultKind = Literal["error", "unsupported", "compile"]

_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})


class Ledger(Protocol):
    """What kernels did in one call of forward."""

    refusal: Exception | None
    """The first refusal, kept because a candidate may catch it and go on."""

    def to_json(self) -> dict[str, object]:
        """Plain data for a report."""
        ...


class Machine(Protocol):
    """Where kernels run."""

    device: str
    """PyTorch's name of the device that inputs, weights and outputs are on."""

    def seed(self, value: int) -> None:
        """Seed PyTorch's generators."""
        ...

    def recording(self, header: Json, control: Json) -> AbstractContextManager[Ledger]:
        """Account for the launches of one call, or leave them out, as the control record says."""
        ...

    def acting(self) -> AbstractContextManager[object]:
        """What code of the candidate's has to run in."""
        ...

    def settle(self) -> None:
        """Wait for what was launched. Raises what went wrong on the device."""
        ...

    def kind_of(self, error: Exception) -> FaultKind:
        """What an error of the candidate's means."""
        ...


class Poison(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills uninitialised memory with a value, so that it is never right by chance: on any device, and also what native
    code allocates through PyTorch."""

    def __init__(self, value: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.value = value

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import the compiler, which takes longer than PyTorch itself, to keep it away from this class.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and fill what it allocated."""
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _EMPTY and type(result) is torch.Tensor:
            poison(result, self.value)
        return result


def poison(tensor: torch.Tensor, value: float) -> None:
    """Fill a tensor with a value, or with a whole number of its own where the type has none such."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(value)
    elif tensor.dtype is not torch.bool:
        tensor.fill_(97 if math.isnan(value) else int(abs(value)) % 97)


def run_rounds(
    source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs, machine: Machine
) -> Json:
    """Run one candidate; the report has what its kernels did in each round, or the fault that ended it."""
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
    with machine.acting():
        module = load(source)
        machine.seed(header["weight_seed"])
        model = module.ModelNew(*tensors_of(header["init_inputs"], blobs, "cpu"))
        if isinstance(model, torch.nn.Module) and (header["precision"] != "float32" or machine.device != "cpu"):
            model = model.to(machine.device, getattr(torch, header["precision"]))
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
    trace, reads = WorkTrace(), HostReads()
    with machine.recording(header, control) as ledger:
        try:
            with torch.no_grad(), Poison(control["poison"]), trace, machine.acting(), reads:
                value = model(*inputs)
            machine.settle()
            if ledger.refusal is not None:
                raise ledger.refusal
            outputs = output_bytes(value, header["outputs"], machine.device)
        except Exception as error:  # noqa: BLE001  as above
            if control["skip"]:  # host code that ran on what no kernel had written; bytes that are never right
                return entry | ledger.to_json(), [_all_ones(dtype, shape) for dtype, shape in header["outputs"]]
            return entry | {"fault": _fault_of(error, ledger.refusal, machine)}, None
    seen: dict[str, Json] = {"work": trace.operations, "moved": trace.moved, "host_bytes": reads.bytes}
    return entry | ledger.to_json() | seen, outputs


def _fault_of(error: Exception, refusal: Exception | None, machine: Machine) -> Json:
    if isinstance(error, WrongOutputError):
        return fault("forward", error, "wrong_output")
    kind = machine.kind_of(error)
    return fault("forward", error if kind == "unsupported" else refusal or error, kind)


def _all_ones(dtype: str, shape: Sequence[int]) -> memoryview:
    """An output of NaN, or of minus ones."""
    return memoryview(b"\xff" * (math.prod(shape) * getattr(torch, dtype).itemsize))


def set_weights(model: Any, names: Sequence[Json], weights: dict[str, Json], blobs: Sequence[memoryview]) -> bool:
    """Give the model the weights of a round, found by name, or else by order and shape; False where neither fits.

    Args:
        model: The candidate's model.
        names: `[name, shape]` of every parameter of the reference, in its order.
        weights: Name -> entry of those to be set.
        blobs: The buffers of the round.
    """
    own = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
    by_name = all(name in own and list(own[name].shape) == shape for name, shape in names if name in weights)
    if not by_name:
        if [list(parameter.shape) for parameter in own.values()] != [shape for _, shape in names]:
            return False
        own = dict(zip((name for name, _ in names), own.values(), strict=True))
    with torch.no_grad():
        for name, entry in weights.items():
            own[name].copy_(tensors_of([entry], blobs, "cpu")[0])
    return True
