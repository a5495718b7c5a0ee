"""Run as a program: how often instructions stand in what Triton's compiler makes of kernels.

Reads a JSON object of name -> [lines, n, instruction] from standard input; prints the counts by name.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from types import ModuleType

os.environ.pop("TRITON_INTERPRET", None)

from triton import knobs

from assay.kernels.inside.triton import ahead_of_time
from assay.kernels.inside.triton.stand_ins import tensor
from assay.kernels.program.form import Window

HEAD = """import triton
import triton.language as tl
@triton.jit
def f(a):
    if a > 3:
        return 1
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
"""


def count(name: str, lines: str, n: int, instruction: str) -> int:
    """How often an instruction stands in the text for sm_90."""
    source = HEAD + "".join(f"    {line}\n" for line in lines.splitlines())
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    given, made = (tensor(Window(place, "float32", (16,), (1,), 0)) for place in range(2))
    kernel = ahead_of_time.compiled(module.kernel, {"x": given, "out": made, "n": n, "BLOCK": 16}, {})
    return str(kernel.asm["ptx"]).count(instruction)


if __name__ == "__main__":
    ahead_of_time.do_without_torch()
    ahead_of_time.install(90, 232448)
    knobs.compilation.store_binary_only = False
    given = json.load(sys.stdin)
    print(json.dumps({name: count(name, *case) for name, case in given.items()}))
