"""The sandbox harness that replays a program on a GPU, in the rounds of `calls`.

A round of its own comes first, in which CUDA is started and nothing of the program was read: a device that is not
there, or not to be had, is told apart from a fault of the program by that round alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported

import torch

from assay.kernels.inside.precision import set_torch_precision
from assay.kernels.inside.replay.calls import play
from assay.kernels.inside.replay.on_device import OnDevice, wait_for_gpu
from assay.kernels.inside.submission import fault
from assay.kernels.program.limits import ON_DEVICE
from assay.types import Json

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs


def preload() -> None:
    """Import PyTorch and Triton, with one thread and no device."""
    torch.set_num_threads(1)
    torch.ones(2).add_(1)


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Start CUDA, then replay one program; the report is that of `calls.play`."""
    read_inputs()
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        wait_for_gpu()
        set_torch_precision(tf32=False)
    except Exception as error:  # noqa: BLE001  whatever the driver or PyTorch says of the device is data
        return {"fault": fault("device", error, "unsupported")}
    write_outputs([])
    return play(source, header, read_inputs, write_outputs, OnDevice(), ON_DEVICE)
