"""Harness of the compile stage for Triton: the candidate's model is built and called once, and its kernels compiled.

Two rounds are read: the constructor's arguments, then one set of inputs. Their values do not matter, but shapes,
dtypes and divisibility do, since kernels are specialised on them. The report names the kernels compiled and the first
failure. It is the child's word: it can refuse an honest mistake and cannot vouch for a liar. Numerics decides.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported: its interpreter compiles nothing

import torch
import triton
import triton.language as tl

from assay.kernels.inside import pretend_cuda, submission
from assay.kernels.inside.tensors import tensors_of
from assay.kernels.inside.triton import ahead_of_time
from assay.types import Json

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs

MAX_KERNELS = 64
TEXT_CHARACTERS = 8000
_NO_DEVICE = ("torch not compiled with cuda", "no nvidia driver", "cuda driver", "no cuda gpus", "torch._c' has no")
"""Errors of PyTorch that mean a missing GPU, where pretending one was not enough."""


@triton.jit  # type: ignore[untyped-decorator]
def _warm_softmax(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=0.0)
    row = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * n + i, row / tl.sum(row, 0), mask=i < n)


@triton.jit  # type: ignore[untyped-decorator]
def _warm_dot(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    place = i[:, None] * n + i[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, n, BLOCK):
        total = tl.dot(tl.load(x + place), tl.load(x + place), total)
    tl.store(out + place, total)


def preload() -> None:
    """Import, and compile two small kernels, so that what the compiler reads once is shared by every child."""
    torch.set_num_threads(1)
    ahead_of_time.install()
    ahead_of_time.begin(90, 232448)
    x = torch.zeros(16, 16)
    _warm_softmax[(1,)](x, x, 16, BLOCK=16)
    _warm_dot[(1,)](x, x, 16, BLOCK=16)
    with pretend_cuda.OnCpu():
        torch.nn.Linear(1, 1)(torch.zeros(1, 1, device="cuda"))
    shutil.rmtree(os.path.expanduser("~/.triton"), ignore_errors=True)


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Build the candidate's model, call it, and report what was compiled on the way."""
    rounds = []
    while (blobs := read_inputs()) is not None:
        rounds.append(blobs)
    session = ahead_of_time.begin(header["capability"], header["shared_limit"])
    pretend_cuda.install(session.shared_limit, session.capability)
    failure: dict[str, Json] | None = None
    try:
        with pretend_cuda.OnCpu(zeroed=True), torch.no_grad():
            _forward(source, header, rounds)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a candidate raises is data
        if session.error is None:
            failure = {"kind": _kind(error, session.launches), "text": _told(error)}
    if session.failed and session.error is not None:
        text = f"{_told(session.error)}\n{session.diagnostics}".strip()
        failure = {"kind": "kernel", "kernel": session.failed, "text": text}
    if failure is not None:
        failure["text"] = _cut(failure["text"])
    kernels = list(session.kernels.values())[:MAX_KERNELS]
    return {"kernels": kernels, "launches": session.launches, "failure": failure}


def _forward(source: str, header: Json, rounds: Sequence[Sequence[memoryview]]) -> None:
    module = submission.load(source)
    torch.manual_seed(header["weight_seed"])
    model = module.ModelNew(*tensors_of(header["init_inputs"], rounds[0], "cpu"))
    if header.get("precision", "float32") != "float32" and isinstance(model, torch.nn.Module):
        model = model.to(getattr(torch, header["precision"]))
    model(*tensors_of(header["inputs"], rounds[1], "cpu"))


def _kind(error: BaseException, launches: int) -> str:
    """`late`: kernels had been launched, whose results, never computed, host code may have tripped over."""
    said = str(error).lower()
    if any(sign in said for sign in _NO_DEVICE):
        return "device"
    return "late" if launches else "host"


def _told(error: BaseException) -> str:
    """An error as a model should read it: the innermost line of the candidate, then the error and its causes."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 4:
        parts.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == submission.FILE]
    where = f"line {lines[-1]}: " if lines else ""
    return where + "\ncaused by ".join(parts)


def _cut(text: str) -> str:
    text = text.replace(tempfile.gettempdir() + os.sep, "")
    half = TEXT_CHARACTERS // 2
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:half]}\n...\n{text[-half:]}"
