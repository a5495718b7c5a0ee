"""The parent's side of a job's memory: sealed files whose sizes the parent fixed, and what can be read from them.

Inputs lie in a file that only the parent's own mapping can write; a round's stretch stays zero until it is delivered.
Outputs lie in a file that cannot shrink, so reading it cannot fault. Whatever is read is a copy: a child that is still
alive cannot change it afterwards.
"""

from __future__ import annotations

import json
import mmap
import os
from typing import TYPE_CHECKING

from assay.errors import ConfigError
from assay.sandbox.base import REPORT_BYTES, STDERR_BYTES, Job
from assay.sandbox.inside import linux
from assay.sandbox.inside.channel import spans

if TYPE_CHECKING:
    from assay.types import Json

STDERR_FILE_BYTES = 4 * STDERR_BYTES


class Buffers:
    """The four files of one attempt at a job. `close` gives them back."""

    def __init__(self, job: Job) -> None:
        sizes = [[_view(buffer).nbytes for buffer in item.inputs] for item in job.rounds]
        self._job = job
        self._inputs, self._input_bytes = spans(sizes)
        self._outputs, self._report_at = spans([item.outputs for item in job.rounds])
        text = _job_text(job, sizes)
        self._files: list[int] = []
        try:
            self._order = self._make("assay-job", len(text), 0)
            os.pwrite(self._order, text, 0)
            self._input = self._make("assay-inputs", self._input_bytes, 0)
            self._mapping = mmap.mmap(self._input, self._input_bytes)
            linux.seal(self._order, linux.SEAL_WRITE | linux.SEAL_SEAL)
            linux.seal(self._input, linux.SEAL_FUTURE_WRITE | linux.SEAL_SEAL)
            self._output = self._make("assay-outputs", self._report_at + REPORT_BYTES, linux.SEAL_SEAL)
            self._stderr = self._make("assay-stderr", STDERR_FILE_BYTES, linux.SEAL_SEAL)
        except OSError:
            self.close()
            raise

    def _make(self, name: str, size: int, seals: int) -> int:
        descriptor = linux.sealed_file(name, size, seals)
        self._files.append(descriptor)
        return descriptor

    @property
    def descriptors(self) -> list[int]:
        """Job, inputs, outputs, stderr."""
        return [self._order, self._input, self._output, self._stderr]

    @property
    def size(self) -> int:
        """Bytes of inputs and outputs together."""
        return self._input_bytes + self._report_at + REPORT_BYTES

    def deliver(self, index: int) -> None:
        """Put the inputs of a round where the child will look for them."""
        span = self._inputs[index]
        for (offset, size), buffer in zip(span.parts, self._job.rounds[index].inputs, strict=True):
            self._mapping[span.start + offset : span.start + offset + size] = _view(buffer)

    def take(self, index: int) -> tuple[bytes, ...]:
        """A copy of the outputs of a round, as they are now."""
        span = self._outputs[index]
        return tuple(_read(self._output, size, span.start + offset) for offset, size in span.parts)

    def stderr(self) -> str:
        """What the child wrote, its beginning and its end."""
        data = _read(self._stderr, STDERR_FILE_BYTES, 0).rstrip(b"\0")
        if len(data) > STDERR_BYTES:
            data = data[: STDERR_BYTES // 2] + data[-STDERR_BYTES // 2 :]
        return data.decode("utf-8", "replace").replace("\0", "")

    def report(self) -> Json:
        """What the child left as its report; None if that is not JSON. Text in it can be encoded."""
        length = int.from_bytes(_read(self._output, 4, self._report_at), "little")
        if not 0 < length <= REPORT_BYTES - 4:
            return None
        data = _read(self._output, length, self._report_at + 4)
        try:
            found = json.loads(data)
            if b"\\ud" in data.lower():
                # Half of a surrogate pair is legal in JSON, and would break code that prints or stores it.
                found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
            return found
        except (ValueError, RecursionError):
            return None

    def close(self) -> None:
        """Unmap and close everything; safe to call twice."""
        if hasattr(self, "_mapping"):
            self._mapping.close()
        while self._files:
            os.close(self._files.pop())


def _view(buffer: bytes | bytearray | memoryview) -> memoryview:
    """The bytes of a buffer. Raises ConfigError where they do not lie side by side."""
    view = memoryview(buffer)
    if not view.contiguous:
        raise ConfigError("an input of a Round is not contiguous in memory: make it so (numpy.ascontiguousarray).")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _job_text(job: Job, sizes: list[list[int]]) -> bytes:
    """What the child reads: the candidate, the header, and the sizes of all buffers."""
    fields = {
        "source": job.source,
        "harness": job.harness,
        "header": job.header,
        "seed": job.seed,
        "inputs": sizes,
        "outputs": [list(item.outputs) for item in job.rounds],
    }
    try:
        return json.dumps(fields).encode("ascii")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Job.header cannot be written as JSON ({error}): the child could not read it.") from error


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Exactly `size` bytes; the kernel gives at most 2 GiB at a time."""
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    parts = [data]
    while (got := sum(map(len, parts))) < size:
        parts.append(os.pread(descriptor, size - got, offset + got))
    return b"".join(parts)
