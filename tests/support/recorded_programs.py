"""Programs as the recorder writes them, for tests that put them to something else than a trial."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.kernels.arrays import host_tensor
from assay.kernels.frames import Frame
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.program.jobs import RECORD, Recorded, record_job, recorded
from assay.kernels.program.limits import Limits as ProgramLimits
from assay.sandbox import Job, Round
from support.kernel_graders import LIMITS, Bench

MODULE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    BODY
    tl.store(out + i, v, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        HOST
        kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out
"""
BODY_LINE = 14
"""Of the module: where the body of the kernel begins."""
LAUNCH_LINE = 23


def module(body: str = "pass", host: str = "pass", launch: str = "", head: str = "") -> str:
    """A submission with its own lines in the kernel and before the launch, another launch, and more kernels."""
    text = MODULE.replace("BODY", body.replace("\n", "\n    ")).replace("HOST", host.replace("\n", "\n        "))
    text = text.replace("class ModelNew", f"{head.strip()}\n\n\nclass ModelNew") if head else text
    return text.replace("kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)", launch) if launch else text


def recorded_text(bench: Bench, code: str, shape: tuple[int, ...] = (8, 64)) -> str:
    """The program of a submission whose model takes one tensor of float32 and no arguments."""
    return _text(bench, recording(code, shape))


def recording(code: str, shape: tuple[int, ...] = (8, 64), reads: int = 0) -> Job:
    """The job that records it. `reads`: what Triton reads in its kernels for a GPU of that capability is told, too."""
    room = ProgramLimits().json_bytes
    given = [Frame({}).add(host_tensor(np.ones(shape), "float32"))]
    header: Any = {"init_inputs": [], "inputs": given, "precision": "float32", "program_bytes": room}
    header |= {"text_checks": True, "reads": reads}
    return Job(code, RECORD, (Round((), (room,)),), header, LIMITS)


def drawn_text(bench: Bench, code: str, draw: InputSet) -> str:
    """The program of a submission for a problem's draw."""
    return _text(bench, record_job(code, draw, LIMITS, "float32"))


def _text(bench: Bench, job: Job) -> str:
    found = recorded(bench.wait(bench.sandbox.run(job)))
    assert isinstance(found, Recorded), found
    return found.text
