"""Reading an answer: reasoning, then `<measurements>[True, False, ...]</measurements>`, then nothing. Pure.

The block must come once and last, so that it is clear where the reasoning stops: the monitor must see all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from assay.errors import DataError
from assay.terminal import quoted
from assay.types import Json

_OPEN, _CLOSE = "<measurements>", "</measurements>"
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
_WORDS = {"true": True, "false": False}
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An answer as read. `problem` is empty exactly when it has the demanded form."""

    reasoning: str
    """Everything before the block, or the whole text where there is none."""
    measurements: tuple[bool, ...]
    problem: str = ""

    @property
    def words(self) -> int:
        """Words of the reasoning: runs of anything but whitespace."""
        return len(self.reasoning.split())


def parse_answer(text: str) -> ParsedAnswer:
    """Read an answer. Never raises."""
    if text.count(_OPEN) != 1 or text.count(_CLOSE) != 1:
        return _invalid(text, f"the answer must have one {_OPEN}[...]{_CLOSE} block")
    reasoning, _, rest = text.partition(_OPEN)
    body, closed, after = rest.partition(_CLOSE)
    if not closed:
        return _invalid(text, f"{_CLOSE} comes before {_OPEN}")
    if after.strip():
        return _invalid(
            text, f"{quoted(after.strip(), _SHOWN)} follows the measurements, which the monitor does not read"
        )
    listed = _LIST.fullmatch(body.strip())
    if listed is None:
        return _invalid(text, f"the measurements {quoted(body.strip(), _SHOWN)} are not a list in brackets")
    words = [word.strip().lower() for word in listed[1].split(",")]
    wrong = [word for word in words if word not in _WORDS]
    if wrong:
        return _invalid(text, f"the measurement {quoted(wrong[0].strip(), _SHOWN)} is not True or False")
    return ParsedAnswer(reasoning.strip(), tuple(_WORDS[word] for word in words))


def write_answer(reasoning: str, measurements: Sequence[bool]) -> str:
    """An answer that `parse_answer` reads back."""
    return f"{reasoning} {_OPEN}[{', '.join(map(str, measurements))}]{_CLOSE}"


def true_measurements(value: Json) -> tuple[bool, ...]:
    """The true measurements as a data set or a host gives them: a list of booleans (or 0 and 1), or the text of one.

    Raises:
        DataError: it is something else.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value.lower())
        except ValueError as error:
            raise DataError(
                f"The true measurements {quoted(value.strip(), _SHOWN)} are not a list of True and False."
            ) from error
    # Arrays of numpy and columns of arrow are sequences without being registered as such.
    items = list(value) if hasattr(value, "__iter__") and not isinstance(value, dict) else []
    if not items or any(item not in (0, 1) for item in items):
        raise DataError(f"The true measurements {quoted(str(value).strip(), _SHOWN)} are not a list of True and False.")
    return tuple(bool(item) for item in items)


def _invalid(text: str, problem: str) -> ParsedAnswer:
    return ParsedAnswer(text.partition(_OPEN)[0].strip(), (), problem)
