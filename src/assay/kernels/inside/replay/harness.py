"""The sandbox harness that replays a program in Triton's interpreter. The `source` of its job is the program; no host
code of anyone's runs. `device_harness` does the same on a GPU.

The header is that of `calls`, which says what the rounds are, and `max_programs`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import torch

from assay.kernels.inside.replay.calls import play
from assay.kernels.inside.replay.interpreted import Interpreted
from assay.kernels.inside.triton import interpreter
from assay.kernels.program.sizes.turns import told_of
from assay.types import Json

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs

WARM_UPS, WARM_UP_CALLS = 12, 2
"""After so many programs and calls Python has specialised the bytecode of all that replays, which children inherit."""
_KERNEL = """@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, tl.exp(v - tl.max(v, 0)) / tl.sum(v, 0), mask=i < n)
"""


def preload() -> None:
    """Import PyTorch and Triton, and replay one program: what a first call sets up, every child then shares."""
    torch.set_num_threads(1)
    interpreter.install()
    program = json.dumps(_warm_up_program())
    header: Json = {"init_inputs": [], "inputs": [{"dtype": "float32", "shape": [4], "blob": 0}], "parameters": []}
    header |= {"outputs": [["float32", [4]]], "weight_seed": 0, "max_programs": 64}
    control = memoryview(json.dumps([{"weights": {}, "needed": True, "blobs": 1}]).encode())
    for _ in range(WARM_UPS):
        calls = ([memoryview(bytearray(16)), control] for _ in range(WARM_UP_CALLS))
        rounds = iter([[], *calls, None])
        report = execute(program, header, rounds.__next__, lambda outputs, short=False: None)
        if "fault" in report:
            raise RuntimeError(f"a program of ours cannot be replayed: {report['fault']}")


def _warm_up_program() -> Json:
    inputs, made = [0, "float32", [4], [1], 0], [1, "float32", [4], [1], 0]
    arguments = {"x": {"window": inputs}, "y": {"window": made}, "n": 4, "BLOCK": 4}
    kernel = {"name": "kernel", "source": _KERNEL, "names": {"tl": {"module": "triton.language"}}}
    launch = {"launch": 0, "line": 1, "variants": [{"grid": [2], "args": arguments, "options": {}, "before": []}]}
    return {
        **{"version": 1, "storages": [16, 16], "constants": [], "inputs": [inputs], "init_inputs": [], "params": []},
        **{
            "buffers": [],
            "outputs": [made],
            "module": [],
            "init": [],
            "forward": [launch],
            "differs": "",
            "kept": [],
            "once": [],
            "unchanged": [],
        },
        "kernels": [kernel | {"line": 1}],
    }


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Replay one program, call by call; the report is that of `calls.play`, and `narrow` (`running.widths`). With
    `turns` in the header, tell how often loops of several programs turn (`program.sizes.turns`), and replay none."""
    if header.get("turns"):
        read_inputs()
        write_outputs([])
        read_inputs()
        return {"turns": told_of(source)}
    machine = Interpreted(header["max_programs"])
    return play(source, header, read_inputs, write_outputs, machine) | {"narrow": machine.widths.told()}
