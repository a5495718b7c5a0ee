"""Reading a verdict from a judge's reply: strictly: a reply is read as the judge meant it, or not at all.

A reply without a verdict, with one that is out of range, or with two that contradict each other raises
`UnreadableReplyError`; the judge is then asked again. Verdicts lie between 0 and 1.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from assay.errors import ConfigError, UnreadableReplyError
from assay.terminal import quoted
from assay.types import Json

_SHOWN = 160
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
_CODE_BLOCK = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


class VerdictParser(Protocol):
    """Reads one reply."""

    @property
    def verdict_tags(self) -> tuple[str, ...]:
        """Tags that must not reach the judge inside a judged text, because the judge may repeat them."""
        ...

    @property
    def content(self) -> Json:
        """The parser and its options as plain data, for fingerprints."""
        ...

    def read(self, text: str) -> float:
        """The verdict, from 0 to 1.

        Raises:
            UnreadableReplyError: the reply has no verdict, or not exactly one.
        """
        ...


@dataclass(frozen=True)
class BooleanTag:
    """`<answer>True</answer>` is 1 and `<answer>False</answer>` is 0, in any case."""

    tag: str = "answer"

    @property
    def verdict_tags(self) -> tuple[str, ...]:
        """See `VerdictParser`."""
        return (self.tag,)

    @property
    def content(self) -> Json:
        """See `VerdictParser`."""
        return ["boolean_tag", self.tag]

    def read(self, text: str) -> float:
        """See `VerdictParser`."""
        return _only({_boolean(body, text) for body in _bodies(self.tag, text)}, text)


@dataclass(frozen=True)
class NumberTag:
    """`<score>7</score>`: a number from `low` to `high`, mapped to 0 to 1."""

    tag: str = "score"
    low: float = 0.0
    high: float = 10.0

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    @property
    def verdict_tags(self) -> tuple[str, ...]:
        """See `VerdictParser`."""
        return (self.tag,)

    @property
    def content(self) -> Json:
        """See `VerdictParser`."""
        return ["number_tag", self.tag, self.low, self.high]

    def read(self, text: str) -> float:
        """See `VerdictParser`."""
        return _only({_number(body, self.low, self.high, text) for body in _bodies(self.tag, text)}, text)


@dataclass(frozen=True)
class JsonField:
    """A reply that is one JSON object (bare, or alone in a code block), whose `field` is the verdict.

    true and false are 1 and 0. With `low` and `high`, it must be a number between them, mapped to 0 to 1.
    """

    field: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ConfigError(
                f"A JSON verdict needs both ends of its range, or neither: low={self.low}, high={self.high}."
            )
        if self.low is not None and self.high is not None:
            _check_range(self.low, self.high)

    @property
    def verdict_tags(self) -> tuple[str, ...]:
        """See `VerdictParser`; none, since quoted text inside a JSON object is a string and never its field."""
        return ()

    @property
    def content(self) -> Json:
        """See `VerdictParser`."""
        return ["json_field", self.field, self.low, self.high]

    def read(self, text: str) -> float:
        """See `VerdictParser`."""
        block = _CODE_BLOCK.fullmatch(text.strip())
        try:
            pairs = json.loads(block[1] if block else text, object_pairs_hook=_Pairs, parse_constant=_no_number)
        except ValueError as error:
            raise _unreadable(f"it is not a JSON object ({error})", text) from error
        if not isinstance(pairs, _Pairs):
            raise _unreadable("it is JSON, but not an object", text)
        return _only({self._value(value, text) for name, value in pairs if name == self.field}, text)

    def _value(self, value: Json, text: str) -> float:
        if self.low is None or self.high is None:
            if not isinstance(value, bool):
                raise _unreadable(f"{self.field} is {value!r} and not true or false", text)
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _unreadable(f"{self.field} is {value!r} and not a number", text)
        return _in_range(float(value), self.low, self.high, text)


PARSERS: Mapping[str, Callable[..., VerdictParser]] = {
    "boolean_tag": BooleanTag,
    "number_tag": NumberTag,
    "json_field": JsonField,
}
"""Parsers by the name that plain data call them."""


def parser_of(data: Json) -> VerdictParser:
    """A parser from plain data: its name, or its options with the name under `type`.

        number_tag      {"type": "json_field", "field": "grade", "low": 0, "high": 5}

    Raises:
        ConfigError: the parser does not exist, or it does not take these options.
    """
    options = {"type": data} if isinstance(data, str) else dict(data)
    name = options.pop("type", None)
    if name not in PARSERS:
        raise ConfigError(f"The judge's parser {data!r} is not one of {', '.join(PARSERS)}. Name one, under `type`.")
    try:
        return PARSERS[name](**options)
    except TypeError as error:
        raise ConfigError(f"The judge's parser {data!r}: {error}.") from error


class _Pairs(list[tuple[str, Json]]):
    """A JSON object as its pairs, so that a field given twice is seen."""


def _no_number(constant: str) -> Json:
    raise ValueError(f"{constant} is not a number in JSON")


def _bodies(tag: str, text: str) -> list[str]:
    """The text between the opening and closing tags; an opening tag without its end makes the reply unreadable."""
    name = re.escape(tag)
    found: list[str] = re.findall(rf"<{name}>(.*?)</{name}>", text, flags=re.IGNORECASE | re.DOTALL)
    if len(re.findall(rf"<{name}>", text, flags=re.IGNORECASE)) != len(found):
        raise _unreadable(f"a <{tag}> in it is not closed", text)
    return found


def _boolean(body: str, text: str) -> float:
    word = body.strip().lower()
    if word not in ("true", "false"):
        raise _unreadable(f"its verdict is {quoted(body.strip(), _SHOWN)} and not True or False", text)
    return float(word == "true")


def _number(body: str, low: float, high: float, text: str) -> float:
    if not _NUMBER.fullmatch(body.strip()):
        raise _unreadable(f"its verdict is {quoted(body.strip(), _SHOWN)} and not a number", text)
    return _in_range(float(body), low, high, text)


def _in_range(value: float, low: float, high: float, text: str) -> float:
    if not low <= value <= high:
        raise _unreadable(f"its verdict {value:g} is not between {low:g} and {high:g}", text)
    return (value - low) / (high - low)


def _check_range(low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"The range of verdicts from {low} to {high} is empty. Give low < high.")


def _only(values: set[float], text: str) -> float:
    if not values:
        raise _unreadable("it has no verdict", text)
    if len(values) > 1:
        raise _unreadable("its verdicts contradict each other", text)
    return values.pop()


def _unreadable(why: str, text: str) -> UnreadableReplyError:
    return UnreadableReplyError(f"A judge's reply cannot be read: {why}. The reply: {quoted(text.strip(), _SHOWN)}")
