"""Runs CUDA sources on a GPU: a module's `ModelNew` with `load_inline`, one set of inputs a round.

A round of its own comes first, in which CUDA is started and nothing of the candidate has run: a device that is not
there, or not to be had, is told apart from a candidate's fault by that round alone. See `rounds` for the rest. Host
code sees real values here: that an answer is right is proven, not who computed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from assay.kernels.inside import extensions
from assay.kernels.inside.precision import set_torch_precision
from assay.kernels.inside.problem import truncated
from assay.kernels.inside.rounds import FaultKind, run_rounds
from assay.kernels.inside.submission import fault

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs
    from assay.types import Json

_synchronize, _ones = torch.cuda.synchronize, torch.ones


class OnGpu:
    """The current GPU of this process."""

    device = "cuda"

    def seed(self, value: int) -> None:
        """Seed the generators of host and device."""
        torch.default_generator.manual_seed(value)
        torch.cuda.manual_seed(value)

    def settle(self) -> None:
        """Wait for every stream. A launch of our own first: PyTorch asks CUDA after each whether the one before it was
        refused (too many threads, say), which waiting alone does not tell."""
        _ones(1, device=self.device)
        _synchronize()

    def kind_of(self, error: Exception) -> FaultKind:
        """Whether a compiler refused a source, or an extension cannot be followed."""
        if isinstance(error, extensions.ForeignError):
            return "unsupported"
        return "compile" if isinstance(error, extensions.BuildError) else "error"


def preload() -> None:
    """Import PyTorch, with one thread and no device."""
    torch.set_num_threads(1)
    truncated.install()
    torch.nn.Linear(2, 2)(torch.zeros(1, 2))


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Start CUDA, then run one candidate; the report has what `run_rounds` says."""
    read_inputs()
    machine = OnGpu()
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        machine.settle()
        set_torch_precision(tf32=False)
        extensions.install()
    except Exception as error:  # noqa: BLE001  whatever the driver or PyTorch says of the device is data
        return {"fault": fault("device", error, "unsupported")}
    write_outputs([])
    return run_rounds(source, header, read_inputs, write_outputs, machine)
