"""Frames between the reference process and its parent: a header in JSON and tensors as raw bytes behind it. No pickle.

    length of the header (8 bytes, little endian) | header | blob 0 | blob 1 | ...

In the header a tensor stands as `{"dtype", "shape", "blob"}`, with its `layout` (`arrays.Layout`) where it has one, a
tuple as a list, any other value as itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from assay.kernels.arrays import HostTensor, Value, layout_of, size_in_bytes
from assay.types import Json

_BLOBS = "_blobs"


class Frame:
    """A header and the blobs that it names."""

    def __init__(self, header: dict[str, Any], blobs: list[bytes] | None = None) -> None:
        self.header = header
        self.blobs = [] if blobs is None else blobs

    def add(self, value: Value) -> Json:
        """Take in a value; what is returned stands for it in the header."""
        if isinstance(value, HostTensor):
            self.blobs.append(value.data)
            layout = {} if value.layout is None else {"layout": value.layout.to_json()}
            return {"dtype": value.dtype, "shape": list(value.shape), "blob": len(self.blobs) - 1, **layout}
        return [self.add(part) for part in value] if isinstance(value, tuple) else value

    def value(self, entry: Json) -> Value:
        """The value that an entry of the header stands for."""
        if isinstance(entry, Mapping):
            return self.tensor(entry)
        return tuple(self.value(part) for part in entry) if isinstance(entry, list) else entry

    def tensor(self, entry: Json) -> HostTensor:
        """The tensor that an entry of the header stands for."""
        shape = tuple(entry["shape"])
        data = self.blobs[entry["blob"]]
        if len(data) != size_in_bytes(entry["dtype"], shape):
            raise ValueError(f"a frame has {len(data)} bytes for {entry}")
        return HostTensor(entry["dtype"], shape, data, layout_of(entry.get("layout")))


def write_frame(sink: IO[bytes], frame: Frame) -> None:
    """Write a frame."""
    header = json.dumps(frame.header | {_BLOBS: [len(blob) for blob in frame.blobs]}).encode()
    sink.write(len(header).to_bytes(8, "little"))
    sink.write(header)
    for blob in frame.blobs:
        sink.write(blob)


def read_frame(data: bytes) -> Frame:
    """The frame that some bytes are.

    Raises:
        ValueError: they are none.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
        sizes = header.pop(_BLOBS)
    except (RecursionError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"a frame has no header: {type(error).__name__}") from error
    if not (isinstance(sizes, list) and all(type(size) is int and 0 <= size <= len(data) for size in sizes)):
        raise ValueError("a frame has sizes that are none")
    blobs = []
    for size in sizes:
        blobs.append(data[start : start + size])
        start += size
    if start != len(data):
        raise ValueError(f"a frame of {len(data)} bytes ends at byte {start}")
    return Frame(header, blobs)
