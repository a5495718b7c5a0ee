"""The sandbox harness that runs a candidate's `ModelNew` in Triton's interpreter, one set of inputs a round.

Round 0 constructs the model; its buffers are the tensors of `get_init_inputs`. Each later round brings one set of
inputs and, last, a control record: which value fresh memory is filled with, whether launches are left out, and weights
to be set. All calls look alike to the candidate. The report is untrusted; it can only speak against it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay.envs.kernelbench.inside import interpreter, pretend_cuda
from assay.envs.kernelbench.inside.submission import fault, load
from assay.envs.kernelbench.inside.tensors import WrongOutputError, output_bytes, tensors_of
from assay.envs.kernelbench.inside.work import HostReads, WorkTrace

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs
    from assay.types import Json

WARM_UP_CALLS = 20
"""After so many calls Python has specialised the bytecode of the interpreter, which children inherit."""
_WARM_UP = """
import torch, triton
import triton.language as tl
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, tl.exp(v - tl.max(v, 0)) / tl.sum(v, 0), mask=i < n)
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, 4, BLOCK=4)
        return y
"""

_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})


class Poison(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills memory that nobody has written with a value, so that it never happens to be right."""

    def __init__(self, value: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.value = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _EMPTY and type(result) is torch.Tensor:
            if result.is_floating_point() or result.is_complex():
                result.fill_(self.value)
            elif result.dtype is not torch.bool:
                result.fill_(min(int(abs(self.value)) if self.value == self.value else 97, 97))
        return result


def preload() -> None:
    """Import PyTorch and Triton, and run one kernel: what a first call sets up, every child then shares."""
    torch.set_num_threads(1)
    interpreter.install()
    pretend_cuda.install(pretend_cuda.SHARED_LIMIT, pretend_cuda.CAPABILITY)
    for _ in range(WARM_UP_CALLS):
        with pretend_cuda.OnCpu():
            model = load(_WARM_UP).ModelNew()
            with torch.no_grad(), interpreter.recording(interpreter.Ledger()), Poison(0.0), WorkTrace(), HostReads():
                model(torch.zeros(4))


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Run one candidate; the report has what its kernels did in each round, or the fault that ended it."""
    blobs = read_inputs()
    assert blobs is not None, "a job has a first round"
    try:
        model = _construct(source, header, blobs)
    except Exception as error:  # noqa: BLE001  whatever a candidate raises is its own fault, and data
        return {"fault": fault("construct", error)}
    write_outputs([])
    rounds: list[Json] = []
    while (blobs := read_inputs()) is not None:
        entry, outputs = _call(model, header, blobs)
        rounds.append(entry)
        if outputs is None:
            return {"rounds": rounds, "fault": entry["fault"]}
        write_outputs(outputs)
    return {"rounds": rounds}


def _construct(source: str, header: Json, blobs: Sequence[memoryview]) -> Any:
    with pretend_cuda.OnCpu():
        module = load(source)
        torch.default_generator.manual_seed(header["weight_seed"])
        model = module.ModelNew(*tensors_of(header["init_inputs"], blobs, "cpu"))
        if header["precision"] != "float32" and isinstance(model, torch.nn.Module):
            model = model.to(getattr(torch, header["precision"]))
    return model


def _call(model: Any, header: Json, blobs: Sequence[memoryview]) -> tuple[dict[str, Json], list[memoryview] | None]:
    """One call of forward: what is known of it, and the bytes of its outputs unless it failed."""
    control = json.loads(bytes(blobs[-1]))
    ledger = interpreter.Ledger(header["max_programs"], control["skip"])
    entry: dict[str, Json] = {}
    if control["weights"]:
        entry["weights"] = set_weights(model, header["parameters"], control["weights"], blobs)
    inputs = tensors_of(header["inputs"], blobs, "cpu")
    torch.default_generator.manual_seed(header["weight_seed"])
    trace, reads = WorkTrace(), HostReads()
    try:
        with (
            torch.no_grad(),
            interpreter.recording(ledger),
            Poison(control["poison"]),
            trace,
            pretend_cuda.OnCpu(),
            reads,
        ):
            value = model(*inputs)
        if ledger.refusal is not None:
            raise ledger.refusal
        outputs = output_bytes(value, header["outputs"], "cpu")
    except interpreter.UnsupportedError as error:
        return entry | {"fault": fault("forward", error, "unsupported")}, None
    except WrongOutputError as error:
        return entry | {"fault": fault("forward", error, "wrong_output")}, None
    except Exception as error:  # noqa: BLE001  as above
        return entry | {"fault": fault("forward", ledger.refusal or error)}, None
    seen: dict[str, Json] = {"work": trace.operations, "moved": trace.moved, "host_bytes": reads.bytes}
    return entry | ledger.to_json() | seen, outputs


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
