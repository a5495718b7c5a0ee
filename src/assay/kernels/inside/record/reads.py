"""What happens where host code asks for a value: there are none, so recording ends there and says which call it was."""

from __future__ import annotations

from typing import NoReturn

RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError),
    *(RuntimeError, TypeError, ValueError),
)
"""What Python, PyTorch and Triton raise of code that is wrong. Memory that ran out and files that cannot be read are
not among it, nor are reads of values and what a program has no form for."""


class HostReadError(Exception):
    """Host code read a value of a tensor, which a recording does not have. `call` names how."""

    def __init__(self, call: str) -> None:
        self.call = call
        super().__init__(
            f"{call} reads a value of a tensor on the host. Kernels are graded by what they launch for given shapes, "
            "so host code that depends on values cannot be graded. Compute it in a kernel, or from shapes."
        )


class NotRecordableError(Exception):
    """Host code did something that a program has no form for."""


class Address(int):
    """What `data_ptr()` gives: good for comparing with another one and for asking after alignment, and nothing else."""

    _ALIGNED = frozenset({1, 2, 4, 8, 16, 32, 64, 128})

    def __mod__(self, other: int) -> int:
        return int(self) % other if type(other) is int and other in self._ALIGNED else _refuse()

    def __and__(self, other: int) -> int:
        return int(self) & other if type(other) is int and other + 1 in self._ALIGNED else _refuse()

    def _arithmetic(self, *_: object) -> NoReturn:
        _refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __truediv__ = _arithmetic
    __lshift__ = __rshift__ = __or__ = __ror__ = __xor__ = __rxor__ = __rand__ = __rmod__ = __index__ = _arithmetic
    __pow__ = __divmod__ = __neg__ = __invert__ = _arithmetic


def _refuse() -> NoReturn:
    raise HostReadError("arithmetic on data_ptr()")
