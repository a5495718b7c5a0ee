"""Values of settings: the types that they may have, their names for people, and how text becomes one.

parse("1e-4", float)                     ->  0.0001
parse("two", int)                        ->  ValueError("a whole number")
"""

from __future__ import annotations

import json
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import chz

from assay.config.fields import same
from assay.config.urls import without_secrets

_NULLS = ("null", "none")
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union without None; a type that is not a union is its own only member."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(a for a in typing.get_args(annotation) if a is not type(None))
    return (annotation,)


def is_optional(annotation: Any) -> bool:
    """Whether null is a value of the type."""
    return type(None) in typing.get_args(annotation)


def is_null(value: object) -> bool:
    """Whether a value as written means null: None itself, `null` or `none`."""
    return value is None or (isinstance(value, str) and value.lower() in _NULLS)


def node_class(annotation: Any) -> type | None:
    """The config class that a key of this type opens, or None for a plain value."""
    for member in members(annotation):
        if isinstance(member, type) and chz.is_chz(member):
            return member
    return None


def entry_type(annotation: Any) -> Any:
    """Type of the values of a mapping-typed setting (such as `loss_fn_config`), or None if it is not a mapping."""
    if typing.get_origin(annotation) in (Mapping, dict):
        return typing.get_args(annotation)[1]
    return None


def choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a Literal type, also inside an optional; empty for other types."""
    return tuple(v for m in members(annotation) if typing.get_origin(m) is Literal for v in typing.get_args(m))


def is_readable(annotation: Any) -> bool:
    """Whether some value of the type can be written as text."""
    for member in members(annotation):
        inner = _element_type(member) if _element_type(member) is not None else entry_type(member)
        if inner is not None and is_readable(inner):
            return True
        if member in _WORDS or typing.get_origin(member) is Literal or node_class(member) is not None:
            return True
    return False


def type_name(annotation: Any) -> str:
    """The type in words for people: `a whole number`, `one of local, tinker`, `a number or null`."""
    words = " or ".join(_member_name(m) for m in members(annotation))
    return f"{words} or null" if is_optional(annotation) else words


def _member_name(member: Any) -> str:
    if typing.get_origin(member) is Literal:
        return "one of " + ", ".join(str(v) for v in typing.get_args(member))
    if (element := _element_type(member)) is not None:
        return f"a list ({_member_name(element)} each)"
    if (value := entry_type(member)) is not None:
        return f"entries NAME=VALUE ({type_name(value)} each)"
    if isinstance(member, type) and chz.is_chz(member):
        return "a group of settings"
    return _WORDS.get(member) or f"a {member.__name__}"


def is_of(value: object, member: Any) -> bool:
    """Whether a value is of a type that is not a union."""
    if member is Any:
        return True
    if typing.get_origin(member) is Literal:
        return any(same(choice, value) for choice in typing.get_args(member))
    if (entry := entry_type(member)) is not None:
        return isinstance(value, Mapping) and all(isinstance(k, str) and is_of(v, entry) for k, v in value.items())
    if (element := _element_type(member)) is not None:
        return isinstance(value, tuple | list) and all(is_of(v, element) for v in value)
    if len(members(member)) > 1:  # the entries of a mapping may be of several types
        return any(is_of(value, one) for one in members(member))
    if isinstance(value, bool):
        return member is bool
    if member is int:
        return isinstance(value, numbers.Integral)
    if member is float:
        return isinstance(value, numbers.Real) and math.isfinite(value)
    return isinstance(value, member)


def parse(value: object, annotation: Any) -> Any:
    """Read a value given as text (command line) or as plain data (YAML, JSON) as what `annotation` says.

    Text that spells a number, a truth value or null is read as such where the type asks for one: YAML itself reads
    `1e-4` as text. Nothing else is converted: 1.0 is not a whole number, 1 is not text.

    Raises:
        ValueError: with the expected type in words as its message.
    """
    if is_optional(annotation) and is_null(value):
        return None
    for member in members(annotation):
        try:
            return _parse_member(value, member)
        except ValueError:
            continue
    raise ValueError(type_name(annotation))


def as_json(value: object) -> Any:
    """The value of text that is JSON (`2`, `true`, `[1, 2]`), and other text as it is.

    For the command line, where nothing else says what an entry of any type is: `options.within=2` is a number.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _parse_member(value: object, member: Any) -> Any:
    if member is Any:
        return value
    if typing.get_origin(member) is Literal:
        by_name = {str(v): v for v in typing.get_args(member)}
        if str(value) not in by_name:
            raise ValueError
        return by_name[str(value)]
    if (element := _element_type(member)) is not None:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, Sequence):
            raise ValueError
        return tuple(parse(v.strip() if isinstance(v, str) else v, element) for v in items if v != "")
    reader = _READERS.get(member)
    if reader is None:
        raise ValueError
    return reader(value)


def _element_type(member: Any) -> Any:
    """Element type of `tuple[T, ...]` or `Sequence[T]`, else None."""
    return typing.get_args(member)[0] if typing.get_origin(member) in (tuple, Sequence) else None


def _read_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise ValueError


def _read_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _read_str(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _read_path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError
    return Path(value)


def shown(value: object) -> str:
    """A value as a person would write it on the command line; a node is shown as its class, a URL without what may be
    a key."""
    if chz.is_chz(value):
        return type(value).__name__
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return without_secrets(value) if isinstance(value, str) and "://" in value else str(value)


_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    Any: "any value",
}
_READERS: Mapping[type, Callable[[object], Any]] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
    Path: _read_path,
}
