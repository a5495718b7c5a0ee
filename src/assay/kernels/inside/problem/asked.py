"""What a reference may ask of its precision, answered in float64 as in the working precision.

with AskedAs(torch.float32):
    output = model(*inputs)        # in float64, with `torch.finfo(x.dtype).eps` of float32

`eps` and `tiny` are part of a function. With those of float64 it is another one, and no more exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64}
_finfo = torch.finfo
_ENDS = {"rms_norm": {"eps": "eps"}, "nan_to_num": {"posinf": "max", "neginf": "min"}}
"""Functions that take numbers of their operand's type where they are given none: argument -> which."""
_FIRST = {"rms_norm": 3, "nan_to_num": 2}
"""The place of the first of those arguments, behind which there are no others."""


class AskedAs(TorchFunctionMode):
    """Answers for float64, and for complex128, as for another precision."""

    def __init__(self, precision: torch.dtype) -> None:
        super().__init__()
        self._stands = {torch.float64: precision, torch.complex128: _COMPLEX.get(precision, torch.complex64)}

    def __enter__(self) -> Any:
        torch.finfo = self._info  # type: ignore[assignment,misc]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        torch.finfo = _finfo  # type: ignore[misc]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _info(self, dtype: torch.dtype | None = None) -> Any:
        dtype = torch.get_default_dtype() if dtype is None else dtype
        return _finfo(self._stands.get(dtype, dtype))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        name = getattr(func, "__name__", "").rstrip("_")
        given = args[0] if args else named.get("input")
        if name in _ENDS and isinstance(given, torch.Tensor) and given.dtype in self._stands:
            info, first = self._info(given.dtype), _FIRST[name]
            for place, (argument, end) in enumerate(_ENDS[name].items(), first):
                if (args[place] if place < len(args) else named.get(argument)) is None:
                    named[argument] = getattr(info, end)
                elif place < len(args):
                    named[argument] = args[place]
            args = args[:first]
        return func(*args, **named)
