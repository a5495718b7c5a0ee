"""How large a program may be, and what its launches may tell the compiler. A program is untrusted data, and whoever
runs it pays for its numbers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

GRID = (2**31 - 1, 65535, 65535)
"""The most programs along each axis that a GPU takes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Most of each. The largest of 155 honest programs had 6 kB of JSON, 40 storages and 14 launches."""

    json_bytes: int = 1 << 18
    storage_bytes: int = 1 << 30
    """All storages together."""
    storages: int = 4096
    tensors: int = 1024
    """Inputs, parameters and outputs, each."""
    steps: int = 8192
    """Operations and launches together, those of hooks included."""
    kernels: int = 64
    names: int = 256
    """Names outside a kernel that its text uses."""
    source_characters: int = 1 << 16
    """The texts of all kernels together."""
    variants: int = 64
    args: int = 256
    nesting: int = 6
    rank: int = 12
    elements: int = 1 << 28
    """Of one window."""
    literal_bytes: int = 1 << 16
    """Of all constants together."""
    string_characters: int = 256


ON_DEVICE = Limits(storage_bytes=1 << 36, elements=1 << 32)
"""On a GPU, at the sizes that problems are published with."""

UNALLOCATED = Limits(storage_bytes=1 << 40, elements=1 << 40)
"""Where a program is looked at and never run."""

OPTIONS: dict[str, Collection[int]] = {
    "num_warps": range(1, 33),
    "num_stages": range(33),
    "num_ctas": (1,),
    "maxnreg": range(16, 257),
    "enable_fp_fusion": (False, True),
    **dict.fromkeys(("launch_cooperative_grid", "launch_pdl", "debug"), (False,)),
}
"""What a launch may tell the compiler: the values with which a kernel means the same on a GPU as in the interpreter.
Options that name files, pass text to a tool or choose another target are not among them."""
_MEANING = {
    "num_ctas": "several blocks run one program then, and a barrier holds back only one of them",
    "launch_cooperative_grid": "a GPU refuses a grid that does not fit it as a whole, which only a GPU can tell",
    "launch_pdl": "a kernel may then begin before the one before it has written its results",
    "debug": "whole numbers that exceed their type then end the kernel, instead of wrapping around",
}


def option_fault(name: str, value: object) -> str:
    """Why a launch may not tell the compiler this; empty where it may. None stands for the default."""
    values = OPTIONS.get(name)
    if values is None:
        return f"the compiler's option {name:.40} is not taken: a launch may have {', '.join(OPTIONS)}"
    flag = set(values) <= {False, True} and name != "num_ctas"
    if value is None or (type(value) in ((bool, int) if flag else (int,)) and value in values):
        return ""
    if name in _MEANING and type(value) in (bool, int):
        return f"{name}={value} is not taken: {_MEANING[name]}. Leave it out"
    allowed = f"{values[0]} to {values[-1]}" if isinstance(values, range) else " or ".join(map(str, values))
    return f"{name} of a launch is {allowed}, not {value!r:.40}"
