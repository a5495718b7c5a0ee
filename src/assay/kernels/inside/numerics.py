"""The sandbox harness that runs a candidate's `ModelNew` in Triton's interpreter, one set of inputs a round.

See `assay.kernels.inside.rounds` for what the rounds are; `numerics_gpu` is the same on a GPU.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from assay.kernels.inside import pretend_cuda
from assay.kernels.inside.rounds import FaultKind, run_rounds
from assay.kernels.inside.triton import interpreter

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


_WARM_UP_HEADER: Json = {
    **{"weight_seed": 0, "precision": "float32", "max_programs": 1, "init_inputs": [], "parameters": []},
    **{"inputs": [{"dtype": "float32", "shape": [4], "blob": 0}], "outputs": [["float32", [4]]]},
}


class Interpreted:
    """Triton's interpreter, on CPU tensors."""

    device = "cpu"

    def seed(self, value: int) -> None:
        """Seed the only generator there is; `torch.manual_seed` would look for devices first."""
        torch.default_generator.manual_seed(value)

    @contextlib.contextmanager
    def recording(self, header: Json, control: Json) -> Iterator[interpreter.Ledger]:
        """Account for the launches of one call."""
        ledger = interpreter.Ledger(header["max_programs"], control["skip"])
        with interpreter.recording(ledger):
            yield ledger

    def acting(self) -> pretend_cuda.OnCpu:
        """Let code that asks for a GPU find one."""
        return pretend_cuda.OnCpu()

    def settle(self) -> None:
        """A launch is over when it returns."""

    def kind_of(self, error: Exception) -> FaultKind:
        """Whether the interpreter lacks what the kernel needs."""
        return "unsupported" if isinstance(error, interpreter.UnsupportedError) else "error"


def preload() -> None:
    """Import PyTorch and Triton, and run one kernel: what a first call sets up, every child then shares."""
    torch.set_num_threads(1)
    interpreter.install()
    pretend_cuda.install(pretend_cuda.SHARED_LIMIT, pretend_cuda.CAPABILITY)
    control = json.dumps({"skip": False, "poison": 0.0, "weights": {}}).encode()
    for _ in range(WARM_UP_CALLS):
        rounds = iter(([], [memoryview(bytearray(16)), memoryview(control)], None))
        report = execute(_WARM_UP, _WARM_UP_HEADER, rounds.__next__, lambda outputs: None)
        if "fault" in report:
            raise RuntimeError(f"the interpreter cannot run a kernel of ours: {report['fault']}")


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Run one candidate; the report has what its kernels did in each round, or the fault that ended it."""
    return run_rounds(source, header, read_inputs, write_outputs, Interpreted())
