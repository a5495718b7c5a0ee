"""What a config class says about itself: its settings with type, default and documentation, and how to read a value.

A config node is a `chz` class; the string literal right under a field documents it. Everything that talks about
settings (the loader, `assay train --help`, the generated reference) asks here, so they cannot disagree.

    settings(LocalBackend)["torch_threads"]  ->  Setting(name, annotation=int, default=1, doc="CPU threads ...")
    parse("1e-4", float)                     ->  0.0001
    parse("two", int)                        ->  ValueError("a whole number")
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import numbers
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import chz

_NULLS = ("null", "none")
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True)
class Setting:
    """One field of a config class."""

    name: str
    annotation: Any
    """The field's type, evaluated."""
    default: Any
    doc: str
    """The attribute docstring on one line; empty when there is none."""


_SETTINGS: dict[type, Mapping[str, Setting]] = {}


def settings(cls: type) -> Mapping[str, Setting]:
    """The settings of a config class by name, inherited ones first. The class must construct without arguments."""
    if cls not in _SETTINGS:
        docs = _attribute_docs(cls)
        defaults = cls()
        _SETTINGS[cls] = {
            name: Setting(name, field.final_type, getattr(defaults, name), docs.get(name, ""))
            for name, field in chz.chz_fields(cls).items()
        }
    return _SETTINGS[cls]


def _attribute_docs(cls: type) -> dict[str, str]:
    """Field name -> the string literal under it, read from the source of the class and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not chz.is_chz(base):
            continue
        node = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(node, ast.ClassDef)
        for field, below in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = below.value if isinstance(below, ast.Expr) else None
                is_doc = isinstance(text, ast.Constant) and isinstance(text.value, str)
                docs[field.target.id] = " ".join(str(text.value).split()) if is_doc else ""  # type: ignore[union-attr]
    return docs


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union without None; a type that is no union is its only member."""
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
    """Type of the values of a mapping-typed setting (such as `loss_fn_config`), or None when it is no mapping."""
    if typing.get_origin(annotation) in (Mapping, dict):
        return typing.get_args(annotation)[1]
    return None


def choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a Literal type, also inside an optional; empty for other types."""
    return tuple(v for m in members(annotation) if typing.get_origin(m) is Literal for v in typing.get_args(m))


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
        return f"entries NAME=VALUE ({_member_name(value)} each)"
    if isinstance(member, type) and chz.is_chz(member):
        return "a group of settings"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    return words.get(member) or f"a {member.__name__}"


def mistyped(node: object) -> list[str]:
    """What is wrong with the values of a config node made in Python, where nothing was read by `parse`.

    A whole number is a number; otherwise a value is of a type as written, and of a Literal one of its choices.
    """
    problems = []
    for name, field in chz.chz_fields(node).items():
        value, annotation = getattr(node, name), field.final_type
        if not (is_optional(annotation) and value is None) and not any(_is(value, m) for m in members(annotation)):
            near = difflib.get_close_matches(str(value), [str(c) for c in choices(annotation)], n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            problems.append(f"{name}={value!r}: expected {type_name(annotation)}.{hint}")
    return problems


def _is(value: object, member: Any) -> bool:
    if typing.get_origin(member) is Literal:
        return value in typing.get_args(member)
    if (entry := entry_type(member)) is not None:
        return isinstance(value, Mapping) and all(isinstance(k, str) and _is(v, entry) for k, v in value.items())
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
    `1e-4` as text. Nothing else is converted: 1.0 is no whole number, 1 is no text.

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


def _parse_member(value: object, member: Any) -> Any:
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


_READERS: Mapping[type, Callable[[object], Any]] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
    Path: _read_path,
}
