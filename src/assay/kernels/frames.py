"""Frames between the reference process and its parent: a header in JSON and tensors as raw bytes behind it. No pickle.

    length of the header (8 bytes, little endian) | header | blob 0 | blob 1 | ...

In the header a tensor stands as `{"dtype", "shape", "blob"}`, with its `layout` (`arrays.Layout`) where it has one, a
tuple as `{"tuple": [...]}`, a list and any other value as itself: an entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import IO, Any

from assay.kernels.arrays import HostTensor, Listed, Value, layout_of, size_in_bytes
from assay.types import Json

_BLOBS = "_blobs"
_TUPLE = "tuple"


def entry_of(value: Any, tensor: Callable[[Any], Json | None]) -> Json:
    """What stands for a value in a header. `tensor`: what stands for one; None for what is none."""
    if (found := tensor(value)) is not None:
        return found
    if isinstance(value, tuple | list):
        parts = [entry_of(part, tensor) for part in value]
        return parts if isinstance(value, list | Listed) else {_TUPLE: parts}
    return value


def parts_of(entry: Json) -> list[Json] | None:
    """The entries in that of a list or a tuple; None for any other one."""
    if isinstance(entry, Mapping):
        return entry.get(_TUPLE)
    return entry if isinstance(entry, list) else None


def value_of(entry: Json, tensor: Callable[[Mapping[str, Json]], Any]) -> Any:
    """The value that an entry stands for. `tensor`: that of one of a tensor."""
    if isinstance(entry, Mapping) and _TUPLE in entry:
        return tuple(value_of(part, tensor) for part in entry[_TUPLE])
    if isinstance(entry, Mapping):
        return tensor(entry)
    return [value_of(part, tensor) for part in entry] if isinstance(entry, list) else entry


class Frame:
    """A header and the blobs that it names."""

    def __init__(self, header: dict[str, Any], blobs: list[bytes] | None = None) -> None:
        self.header = header
        self.blobs = [] if blobs is None else blobs

    def add(self, value: Value) -> Json:
        """Take in a value; what is returned stands for it in the header."""
        return entry_of(value, self._added)

    def _added(self, value: Value) -> Json | None:
        if not isinstance(value, HostTensor):
            return None
        self.blobs.append(value.data)
        layout = {} if value.layout is None else {"layout": value.layout.to_json()}
        return {"dtype": value.dtype, "shape": list(value.shape), "blob": len(self.blobs) - 1, **layout}

    def value(self, entry: Json) -> Value:
        """The value that an entry of the header stands for."""
        return _listed(value_of(entry, self.tensor))

    def tensor(self, entry: Json) -> HostTensor:
        """The tensor that an entry of the header stands for."""
        shape = tuple(entry["shape"])
        data = self.blobs[entry["blob"]]
        if len(data) != size_in_bytes(entry["dtype"], shape):
            raise ValueError(f"a frame has {len(data)} bytes for {entry}")
        return HostTensor(entry["dtype"], shape, data, layout_of(entry.get("layout")))


def _listed(value: Any) -> Value:
    if isinstance(value, list | tuple):
        return (Listed if isinstance(value, list) else tuple)(map(_listed, value))
    return value  # type: ignore[no-any-return]


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
