"""What happens where host code asks for a value: there are none, so recording ends there and says which call it was."""

from __future__ import annotations

from typing import Any

from assay.kernels.inside import submission
from assay.kernels.inside.tensors import kept_by

_raised: list[str] = []
"""What PyTorch raised where host code was recorded, in which host code may have caught it."""
_VIEWED = "_assay_of_a_view"
_noted: list[Exception] = []
"""Refusals of the recording under way, in their order: host code may catch what is raised, and a GPU raises nothing."""

RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError),
    *(RuntimeError, TypeError, ValueError),
)
"""What Python, PyTorch and Triton raise of code that is wrong. Memory that ran out and files that cannot be read are
not among it, nor are reads of values and what a program has no form for."""


_NO_VALUES = "host code is graded without any: shapes, dtypes and strides are all that it can branch on"
_IN_A_KERNEL = "Compute what depends on values in a kernel"
_NO_TEXT = "Remove what prints the tensor or makes a text of it"
_TEXTS = ("__repr__()", "__format__()", "__str__()")
"""Ends of the names of calls that make a text of a tensor."""


class HostReadError(Exception):
    """Host code read a value of a tensor, which a recording does not have. `call` names how."""

    def __init__(self, call: str) -> None:
        self.call = call
        advice = _NO_TEXT if call.endswith(_TEXTS) else _IN_A_KERNEL
        super().__init__(f"{call} reads a value of a tensor on the host, and {_NO_VALUES}. {advice}.")
        _note(self)


class NotRecordableError(Exception):
    """Host code did something that a program has no form for."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        _note(self)


def plain_dict(thing: Any, what: str) -> dict[str, Any]:
    """The attributes that an object keeps, as Python finds them.

    Raises:
        NotRecordableError: its dict is of a derived class, which may show others.
    """
    own = kept_by(thing)
    if type(own) is not dict:
        raise NotRecordableError(f"the __dict__ of {what} is a {type(own).__name__:.80}: leave it as Python makes it")
    return own


def _note(error: Exception) -> None:
    vars(error)[submission.LINE] = submission.line()
    _noted.append(error)


def begin() -> None:
    """A recording begins, in which nothing was refused yet."""
    _noted.clear()
    _raised.clear()


def raised(name: str, error: Exception, *, view: bool = False) -> None:
    """Note that PyTorch raises at a function, unless it is a view: what can be viewed follows from strides."""
    if view:
        vars(error)[_VIEWED] = True
    elif _VIEWED not in vars(error):
        _raised.append(f"{name} raises {type(error).__name__}")


def check_caught() -> None:
    """Raises NotRecordableError at the end of a recording in which host code caught what PyTorch raised."""
    if _raised:
        raise NotRecordableError(
            f"host code catches what PyTorch raises ({_raised[0][:200]}): on a GPU it may raise something else, or "
            "nothing. Decide by shapes, strides and dtypes"
        )


def refused() -> Exception | None:
    """The first refusal of this recording, raised or caught; None where there was none."""
    return _noted[0] if _noted else None
