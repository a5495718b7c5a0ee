"""Draws of whole numbers that reach both ends of their range.

    with RangeEnds():
        torch.randint(0, 1000, (4,))      0 and 999 are among them

A kernel that is wrong for the first or the last class, token or length is wrong in most calls of a large batch, and in
hardly any of a small one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class RangeEnds(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts the least number first and the largest last into what `torch.randint` gives; the largest where there is
    one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.randint and found.numel():
            least, beyond = args[:2] if func._overloadname.startswith("low") else (0, args[0])
            found.view(-1)[0] = least
            found.view(-1)[-1] = beyond - 1
        return found
