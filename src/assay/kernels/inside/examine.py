"""The sandbox harness that examines the text of a submission. It imports neither PyTorch nor Triton, and runs nothing.

The header has `backend`. The one output is a length (8 bytes, little endian) and what was found as JSON
(`assay.kernels.text.examined`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from assay.kernels.text.examining import examine
from assay.types import Json

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs


def preload() -> None:
    """Examine a first text: what that sets up, every child then shares."""
    examine("import triton\nclass ModelNew:\n    pass\n")


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Examine one text."""
    read_inputs()
    found = examine(source, header["backend"]).to_json()
    data = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    write_outputs([len(data).to_bytes(8, "little") + data], short=True)
    read_inputs()  # there is no other round: this takes note that the last one is over
    return None
