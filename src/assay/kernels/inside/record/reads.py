"""What happens where host code asks for a value: there are none, so recording ends there and says which call it was."""

from __future__ import annotations

from assay.kernels.inside import submission

_noted: list[Exception] = []
"""Refusals of the recording under way, in their order: host code may catch what is raised, and a GPU raises nothing."""

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
        _note(self)


class NotRecordableError(Exception):
    """Host code did something that a program has no form for."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        _note(self)


def _note(error: Exception) -> None:
    vars(error)[submission.LINE] = submission.line()
    _noted.append(error)


def begin() -> None:
    """A recording begins, in which nothing was refused yet."""
    _noted.clear()


def refused() -> Exception | None:
    """The first refusal of this recording, raised or caught; None where there was none."""
    return _noted[0] if _noted else None
