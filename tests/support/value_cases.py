"""Run as a program: small kernels in the interpreter, under secrets of their own. Reads cases as JSON from standard
input, prints what came of each.

A case has `lines` of a kernel, which computes `found`; `inputs`, each a dtype and numbers, that it finds in `a`, `b`
and `c`, with more of them up to a power of two; `out`, the dtype of what comes out; `names` of helpers with their text;
`secret` of the call, `products`: whether it moves all products; `device`: the secret of one GPU instead; `options` of
the launch. The answer is the bits of `found`, as whole numbers, or what was raised.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from assay.kernels.inside.triton import interpreter, ledger
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


def outcome(case: dict[str, Any]) -> Any:
    """Bits, or the error."""
    length = len(case["inputs"][0][1])
    size = 1 << (length - 1).bit_length()
    inputs = [tensor(dtype, [*numbers, *numbers[:1] * (size - len(numbers))]) for dtype, numbers in case["inputs"]]
    parameters = [f"{name}_ptr" for name, _ in zip("abc", inputs, strict=False)]
    loads = "".join(f"    {name[0]} = tl.load({name} + i)\n" for name in parameters)
    body = textwrap.indent(textwrap.dedent(case["lines"]).strip(), "    ")
    source = (
        f"def kernel({', '.join([*parameters, 'out', 'N: tl.constexpr'])}):\n    i = tl.arange(0, N)\n{loads}{body}\n"
        "    tl.store(out + i, found)\n"
    )
    helpers = case.get("names", {})
    names = {**MODULES, **{name: {"function": name} for name in helpers}}
    table = {name: {"source": text, "names": MODULES} for name, text in helpers.items()}
    kernels = parse({"kernel": {"source": source, "names": names}, **table})
    if not isinstance(kernels, Kernels):
        return f"Refused: {kernels}"
    out = torch.zeros(size, dtype=getattr(torch, case["out"]))
    secret = case.get("secret", 0)
    device = case.get("device", 0)
    account = ledger.Ledger(rounding=secret, products=case.get("products", bool(secret)), device=device)
    try:
        with ledger.recording(account):
            rebuild(kernels)["kernel"][(1,)](*inputs, out, size, **case.get("options", {}))
    except Exception as error:  # noqa: BLE001  whatever it was is reported
        return f"{type(error).__name__}: {error}"
    return out.view(BITS[out.itemsize]).tolist()[:length]


if __name__ == "__main__":
    torch.set_num_threads(1)
    interpreter.install()
    print(json.dumps([outcome(case) for case in json.load(sys.stdin)]))
