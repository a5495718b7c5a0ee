"""What stands in a TensorBoard file."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.layout_pb2 import Layout
from tensorboardX.record_writer import masked_crc32c


def read_events(path: Path) -> list[Any]:
    """The events of a TensorBoard file, by the rules of the format: every length and checksum must be right."""
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked_crc32c(data[:8])
        body = data[12 : 12 + length]
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked_crc32c(body)
        events.append(Event.FromString(body))
        data = data[16 + length :]
    return events


def laid_out(path: Path) -> dict[str, list[str]]:
    """Name of each chart of several scalars in a TensorBoard file -> the tags that it shows."""
    (config,) = (
        value for event in read_events(path) for value in event.summary.value if value.tag == "custom_scalars__config__"
    )
    layout = Layout.FromString(config.tensor.string_val[0])
    charts = [chart for category in layout.category for chart in category.chart]
    return {chart.title: [re.sub(r"\\(.)|\$$", r"\1", tag) for tag in chart.multiline.tag] for chart in charts}


def scalars(path: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of each scalar of a TensorBoard file."""
    return [
        (e.step, v.tag, v.simple_value) for e in read_events(path) for v in e.summary.value if not v.HasField("histo")
    ]
