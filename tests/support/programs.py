"""Programs made by hand, as the JSON that a recording gives, for tests that need one to bend."""

from __future__ import annotations

import json
from typing import Any

from assay.kernels.program.form import Program
from assay.kernels.program.reading import Refusal, read

N = 8
KERNEL = """@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, scaled(tl.load(x + i, mask=i < n)), mask=i < n)
"""
HELPER = """@triton.jit
def scaled(x):
    return x * FACTOR
"""


def window(storage: int, size: tuple[int, ...] = (N,), dtype: str = "float32", offset: int = 0) -> list[Any]:
    """A dense window."""
    strides = [1] * len(size)
    for axis in range(len(size) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * size[axis + 1]
    return [storage, dtype, list(size), strides, offset]


def operation(name: str, *args: Any, outs: tuple[Any, ...] = (), line: int = 7, **kwargs: Any) -> dict[str, Any]:
    """An operation; lists of five are windows."""
    return {
        "op": name,
        "args": [{"window": part} if isinstance(part, list) and len(part) == 5 else part for part in args],
        "kwargs": kwargs,
        "outs": list(outs),
        "line": line,
    }


def launch(kernel: int = 0, grid: tuple[int, ...] = (2,), **args: Any) -> dict[str, Any]:
    """A launch in one variant; `double` of storage 0 into storage 1 unless told otherwise."""
    given = args or {"x": {"window": window(0)}, "y": {"window": window(1)}, "n": N, "BLOCK": 4}
    return {
        "launch": kernel,
        "variants": [{"grid": list(grid), "args": given, "options": {"num_warps": 4}, "before": []}],
        "line": 9,
    }


def written(**changes: Any) -> dict[str, Any]:
    """A program that doubles its input, with some of its fields replaced."""
    program = {
        "version": 1,
        "storages": [4 * N, 4 * N, 4 * N],
        "constants": [],
        "inputs": [window(0)],
        "init_inputs": [],
        "params": [["scale", window(2)]],
        "buffers": [],
        "outputs": [window(1)],
        "module": [],
        "init": [operation("uniform_.default", window(2), 0.0, 1.0, outs=(window(2),))],
        "forward": [launch()],
        "kernels": [
            {
                "name": "double",
                "source": KERNEL,
                "names": {"tl": {"module": "triton.language"}, "scaled": {"function": "1"}},
                "line": 3,
            },
            {"name": "scaled", "source": HELPER, "names": {"FACTOR": {"constant": 2.0}}, "line": 8},
        ],
        "differs": "",
        "kept": [],
        "once": [],
        "unchanged": [],
    }
    return program | changes


def made(**changes: Any) -> Program:
    """The same, read."""
    program = read(json.dumps(written(**changes)).encode())
    assert not isinstance(program, Refusal), program
    return program
