"""No operator that a replay runs reaches beyond the tensors that a program gives it, whatever their sizes are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.memory import Memory
from support.programs import launch, made, operation, window

TESTS = Path(__file__).parents[2]
ATTEMPTS = 12
"""For each overload; batch norms died within ten."""


def test_operators_check_sizes_indices_and_numbers() -> None:
    program = [sys.executable, "-m", "support.guarded_operators", str(ATTEMPTS)]
    done = subprocess.run(program, cwd=TESTS, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert found["died"] == []
    assert found["tried"] > 500


DTYPES = {"dtype": {"dtype": "float32"}}
FORGED: dict[str, dict[str, Any]] = {
    "an out that is too small": operation(
        "neg.out", window(0), outs=(window(1, (1,)),), out={"window": window(1, (1,))}
    ),
    "a dtype by its number": operation("zeros.default", [8], outs=(window(1),), dtype=-1),
    "a memory format by its number": operation("clone.default", window(0), outs=(window(1),), memory_format=4),
    "a layout by its number": operation("zeros.default", [8], outs=(window(1),), layout=0, **DTYPES),
    "an operator of numbers": operation("remainder.int", 1, 0, outs=()),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_is_never_run(what: str) -> None:
    program = made(forward=[FORGED[what], launch()])
    memory = Memory(program)
    held = [len(raw) for raw in memory.raw], [raw.untyped_storage().nbytes() for raw in memory.raw]
    with pytest.raises(operators.ForgedError):
        operators.run(memory, program.forward[0])  # type: ignore[arg-type]
    assert held == ([len(raw) for raw in memory.raw], [raw.untyped_storage().nbytes() for raw in memory.raw])


def test_an_out_of_the_right_size_is_written() -> None:
    step = operation("neg.out", window(0), outs=(window(1),), out={"window": window(1)})
    program = made(forward=[step, launch()])
    memory = Memory(program)
    memory.tensor(program.inputs[0]).fill_(3.0)
    operators.run(memory, program.forward[0])  # type: ignore[arg-type]
    assert memory.tensor(program.outputs[0]).tolist() == [-3.0] * 8
    assert bool(memory.is_known(program.outputs[0]).all())  # what the result held before was not read
