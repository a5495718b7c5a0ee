"""The simplest harness: a candidate defines `run(inputs: list[bytes], header) -> list[bytes]`, called every round."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs
    from assay.types import Json


def preload() -> None:
    """Nothing to warm: standard library only."""


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Run the candidate; the report says how many rounds it was called for."""
    module = ModuleType("candidate")
    exec(compile(source, "candidate.py", "exec"), module.__dict__)
    rounds = 0
    while (inputs := read_inputs()) is not None:
        write_outputs(module.run([bytes(view) for view in inputs], header))
        rounds += 1
    return {"rounds": rounds}
