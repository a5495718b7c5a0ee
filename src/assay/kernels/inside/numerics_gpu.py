"""The sandbox harness that runs a candidate's `ModelNew` on a GPU, one set of inputs a round.

A round of its own comes first, in which CUDA is started and nothing of the candidate has run: a device that is not
there, or not to be had, is told apart from a candidate's fault by that round alone. See `rounds` for the rest. No
interpreter: kernels are compiled and launched, and an error of the device ends the call that caused it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported

import torch
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from assay.kernels.inside import extensions
from assay.kernels.inside.precision import set_torch_precision
from assay.kernels.inside.rounds import FaultKind, run_rounds
from assay.kernels.inside.submission import fault
from assay.kernels.inside.triton import launches

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs
    from assay.types import Json

_COMPILERS = (CompilationError, OutOfResources, PTXASError, extensions.BuildError)
_synchronize, _ones = torch.cuda.synchronize, torch.ones


class OnGpu:
    """The current GPU of this process."""

    device = "cuda"

    def seed(self, value: int) -> None:
        """Seed the generators of host and device."""
        torch.default_generator.manual_seed(value)
        torch.cuda.manual_seed(value)

    @contextlib.contextmanager
    def recording(self, header: Json, control: Json) -> Iterator[launches.Launches]:
        """Account for the launches of one call."""
        with launches.recording(launches.Launches(control["skip"], control["poison"])) as account:
            yield account

    def acting(self) -> contextlib.nullcontext[None]:
        """There is a GPU: nothing to pretend."""
        return contextlib.nullcontext()

    def settle(self) -> None:
        """Wait for every stream. A launch of our own first: PyTorch asks CUDA after each whether the one before it was
        refused (too many threads, say), which waiting alone does not tell."""
        _ones(1, device=self.device)
        _synchronize()

    def kind_of(self, error: Exception) -> FaultKind:
        """Whether a compiler refused a kernel, or an extension cannot be followed."""
        if isinstance(error, extensions.ForeignError):
            return "unsupported"
        return "compile" if isinstance(error, _COMPILERS) else "error"


def preload() -> None:
    """Import PyTorch and Triton, with one thread and no device."""
    torch.set_num_threads(1)
    launches.install()
    torch.nn.Linear(2, 2)(torch.zeros(1, 2))
    assert triton.__version__, "Triton is imported for the children"


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Start CUDA, then run one candidate; the report has what `run_rounds` says."""
    read_inputs()
    machine = OnGpu()
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        machine.settle()
        set_torch_precision(tf32=False)
        if header["native"]:
            extensions.install()
    except Exception as error:  # noqa: BLE001  whatever the driver or PyTorch says of the device is data
        return {"fault": fault("device", error, "unsupported")}
    write_outputs([])
    return run_rounds(source, header, read_inputs, write_outputs, machine)
