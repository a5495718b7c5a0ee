"""Run as a program: small kernels in the interpreter. Reads cases as JSON from standard input, prints what came of
each.

A case has `lines` of a kernel, which computes `found`; `inputs`, each a dtype and numbers, that it finds in `a`, `b`
and `c`, with more of them up to a power of two; `out`, the dtype of what comes out; `names` of helpers with their text;
`options` of the launch; `bounded`: whether values have error bounds. The answer is the bits of `found` as whole
numbers, with bounds a pair of those and of the bounds, or what was raised.
"""

from __future__ import annotations

import json
import os
import random
import sys
import textwrap
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from assay.kernels.inside.triton import interpreter, ledger
from assay.kernels.inside.triton.error_bounds.memory import Bounds
from assay.kernels.inside.triton.rebuilt import rebuild
from assay.kernels.language import Kernels, parse

MODULES = {
    "tl": {"module": "triton.language"},
    "libdevice": {"module": "triton.language.extra.libdevice"},
}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensor(dtype: str, numbers: list[Any]) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if kind.itemsize == 1 and kind.is_floating_point:
        return torch.tensor(numbers, dtype=torch.uint8).view(kind)
    return torch.tensor(numbers, dtype=torch.float64 if kind == torch.float64 else None).to(kind)


class Built:
    """A case's kernel, and what it is given."""

    def __init__(self, case: dict[str, Any]) -> None:
        """Raises ValueError where it is not in the language."""
        self.case, self.length = case, len(case["inputs"][0][1])
        self.size = 1 << (self.length - 1).bit_length()
        parameters = [f"{name}_ptr" for name, _ in zip("abc", case["inputs"], strict=False)]
        loads = "".join(f"    {name[0]} = tl.load({name} + i)\n" for name in parameters)
        source = (
            f"def kernel({', '.join([*parameters, 'out', 'N: tl.constexpr'])}):\n    i = tl.arange(0, N)\n{loads}"
            f"{textwrap.indent(textwrap.dedent(case['lines']).strip(), '    ')}\n    tl.store(out + i, found)\n"
        )
        helpers = case.get("names", {})
        names = {**MODULES, **{name: {"function": name} for name in helpers}}
        table = {name: {"source": text, "names": MODULES} for name, text in helpers.items()}
        kernels = parse({"kernel": {"source": source, "names": names}, **table})
        if not isinstance(kernels, Kernels):
            raise ValueError(f"{kernels}")
        self.kernel = rebuild(kernels)["kernel"]

    def run(self, bounded: bool = False, order: random.Random | None = None) -> tuple[torch.Tensor, list[float]]:
        """What it computes, and the error bounds. Raises whatever it raises."""
        filled = [(dtype, [*given, *given[:1] * (self.size - len(given))]) for dtype, given in self.case["inputs"]]
        tensors = [*(tensor(*each) for each in filled), torch.zeros(self.size, dtype=getattr(torch, self.case["out"]))]
        bounds = Bounds([each.data_ptr() for each in tensors], [each.nbytes for each in tensors])
        with ledger.recording(ledger.Ledger(bounds=bounds if bounded else None, order=order)):
            self.kernel[(1,)](*tensors, self.size, **self.case.get("options", {}))
        return tensors[-1][: self.length], limits_of(tensors[-1], bounds, len(tensors) - 1)[: self.length]


def outcome(case: dict[str, Any]) -> Any:
    """Bits, or the error."""
    bounded = case.get("bounded", False)
    try:
        out, limits = Built(case).run(bounded)
    except Exception as error:  # noqa: BLE001  whatever it was is reported
        return f"{type(error).__name__}: {error}"
    bits = out.view(BITS[out.itemsize]).tolist()
    return (bits, limits) if bounded else bits


def limits_of(out: torch.Tensor, bounds: Bounds, place: int) -> list[float]:
    """The error bounds of the elements of a tensor, which is the storage of that number."""
    if place not in bounds.noted:
        return [0.0] * len(out)
    limits = bounds.noted[place].limits.reshape(-1, out.itemsize)
    assert (limits == limits[:, :1]).all(), "all bytes of an element have its bound"
    return [float(limit) for limit in np.maximum(limits[:, 0], 0.0)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    interpreter.install()
    print(json.dumps([outcome(case) for case in json.load(sys.stdin)]))
