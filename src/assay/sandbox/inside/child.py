"""What runs inside the walls: map the buffers of the job, hand the candidate to its harness, leave.

Everything here shares its memory with the candidate and can be rewritten by it. That costs nothing: a child can only
fill output buffers, and ask for its next inputs.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import json
import mmap
import os
import random
import struct
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from assay.sandbox.base import REPORT_BYTES, STDERR_BYTES, Buffer
from assay.sandbox.inside.channel import ASK_BYTE, EXIT_FAILED, EXIT_MEMORY, GO_BYTE, STARTED, Span, spans
from assay.sandbox.inside.jail import DOWN_FD, INPUT_FD, JOB_FD, OUTPUT_FD, UP_FD

PRINT_BYTES = STDERR_BYTES // 2
"""Of stderr for what the candidate prints; the rest is kept for the traceback, which comes last."""


class _Print(io.TextIOBase):
    """Standard output and error of a candidate: the beginning is kept, the rest is dropped without an error."""

    def __init__(self, room: int) -> None:
        self._room = room

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._room > 0:
            data = text[: self._room].encode("utf-8", "replace")[: self._room]
            self._room -= len(data)
            os.write(2, data)
        return len(text)


class _Exchange:
    """The child's side of the rounds."""

    def __init__(self, inputs: list[list[int]], outputs: list[list[int]]) -> None:
        self._inputs, _ = spans(inputs)
        self._outputs, length = spans(outputs)
        self.file = mmap.mmap(OUTPUT_FD, length + REPORT_BYTES)
        self._next = 0

    def read_inputs(self) -> list[memoryview] | None:
        """The inputs of the next round as private writable memory, once the parent has taken the last outputs."""
        os.write(UP_FD, ASK_BYTE)
        if os.read(DOWN_FD, 1) != GO_BYTE:
            return None
        span = self._inputs[self._next]
        self._next += 1
        private = mmap.mmap(
            INPUT_FD, span.length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=span.start
        )
        return _views(memoryview(private), Span(0, span.length, span.parts))

    def write_outputs(self, outputs: Sequence[Buffer], short: bool = False) -> None:
        """Fill the buffers of the round that was read last, or with `short` their beginnings."""
        if self._next == 0:
            raise ValueError("outputs were written before any inputs were read")
        views = _views(memoryview(self.file), self._outputs[self._next - 1])
        if len(outputs) != len(views):
            raise ValueError(f"{len(outputs)} outputs were written, {len(views)} are expected")
        for place, (view, output) in enumerate(zip(views, outputs, strict=True)):
            data = memoryview(output).cast("B")
            if len(data) > len(view) or (len(data) < len(view) and not short):
                raise ValueError(f"output {place} has {len(data)} bytes, {len(view)} are expected")
            view[: len(data)] = data


def _views(whole: memoryview, span: Span) -> list[memoryview]:
    return [whole[span.start + offset : span.start + offset + size] for offset, size in span.parts]


def write_report(file: mmap.mmap, report: Any) -> None:
    """Leave a report behind the outputs, if it is JSON and short enough."""
    data = json.dumps(report).encode()
    start = len(file) - REPORT_BYTES
    if len(data) > REPORT_BYTES - 4:
        data = json.dumps({"error": f"a report of {len(data)} bytes is longer than {REPORT_BYTES - 4}"}).encode()
    file[start : start + 4 + len(data)] = struct.pack("<I", len(data)) + data


def _traceback(error: BaseException) -> str:
    """The traceback without the frames of this module."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames, limit=-12))


def _run() -> None:
    with open(JOB_FD, "rb", closefd=False) as file:
        job = json.load(file)
    random.seed(job["seed"])
    exchange = _Exchange(job["inputs"], job["outputs"])
    harness = importlib.import_module(job["harness"])
    report = harness.execute(job["source"], job["header"], exchange.read_inputs, exchange.write_outputs)
    if report is not None:
        write_report(exchange.file, report)


def main() -> NoReturn:
    """Run the job whose descriptors lie at their fixed numbers, behind walls that already stand; never returns."""
    status = EXIT_FAILED
    try:
        os.write(UP_FD, STARTED)
        sys.stdin = io.StringIO()
        sys.stdout = sys.stderr = _Print(PRINT_BYTES)
        faulthandler.enable(file=2, all_threads=False)
        _run()
        status = 0
    except MemoryError:
        status = EXIT_MEMORY
        os.write(2, b"MemoryError\n")
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else EXIT_FAILED * (leaving.code is not None)
    except BaseException as error:  # noqa: BLE001 - whatever a candidate raises is its crash
        os.write(2, _traceback(error).encode("utf-8", "replace")[-PRINT_BYTES:])
    finally:
        os._exit(status & 0xFF)
