"""The settings of a config class: type, default, documentation and marks.

A config node is a `chz` class; the string literal right under a field documents it, and `assay.config.fields` has what
else a field can say. The loader, `assay settings` and the generated reference all read settings here, so they cannot
disagree.

    settings(LocalBackend)["torch_threads"]  ->  Setting("torch_threads", int, "CPU threads of torch ...", ...)
"""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import chz
from chz.util import MISSING

from assay.config.fields import DATA, MAY_CHANGE, MAY_CHANGE_ROUNDING, Bound, Code, Fact, Like, UsedWhen
from assay.config.values import is_readable, members, type_name
from assay.errors import ConfigError
from assay.syntax import parsed_class


@dataclass(frozen=True)
class Setting:
    """One field of a config class."""

    name: str
    annotation: Any
    """The field's type, evaluated."""
    doc: str
    """The attribute docstring on one line; empty if there is none."""
    make_default: Callable[[], Any] | None = None
    """Makes the default; None if a value must be given."""
    marks: tuple[object, ...] = ()
    """What else the field says about itself (`assay.config.fields`)."""

    @cached_property
    def default(self) -> Any:
        """The default, made on first use; None if there is none."""
        return self.make_default() if self.make_default is not None else None

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """Conditions on its number."""
        return tuple(mark for mark in self.marks if isinstance(mark, Bound))

    @cached_property
    def used_when(self) -> tuple[UsedWhen, ...]:
        """Under which other settings it is read: under all of these."""
        return tuple(mark for mark in self.marks if isinstance(mark, UsedWhen))

    @property
    def may_change(self) -> bool:
        """Whether a resumed run may change it."""
        return MAY_CHANGE in self.marks or self.changes_rounding

    @property
    def changes_rounding(self) -> bool:
        """Whether a resumed run that changes it is no longer equal to an uninterrupted one bit for bit."""
        return MAY_CHANGE_ROUNDING in self.marks

    @property
    def names_data(self) -> bool:
        """Whether its value may be a file or folder whose content decides what a run computes."""
        return DATA in self.marks

    @property
    def code(self) -> Code | None:
        """What code it names, if it does."""
        return next((mark for mark in self.marks if isinstance(mark, Code)), None)

    @property
    def like(self) -> str | None:
        """The field whose class it takes by default."""
        return next((mark.name for mark in self.marks if isinstance(mark, Like)), None)

    @property
    def like_by(self) -> str:
        """The class method by which that class says which one it takes instead; empty where it takes that one."""
        return next((mark.by for mark in self.marks if isinstance(mark, Like)), "")


_SETTINGS: dict[type, Mapping[str, Setting]] = {}
_FACTS: dict[type, Mapping[str, Fact]] = {}
_COMPLETE: set[type] = set()


def settings(cls: type) -> Mapping[str, Setting]:
    """The settings of a config class by name, inherited ones first.

    Raises:
        ConfigError: the class is not a config class, or has a field of a type that cannot be written as text.
    """
    if cls not in _SETTINGS:
        complete(cls)
        docs = _attribute_docs(cls)
        above = [settings(base) for base in cls.__mro__[1:] if "__chz_fields__" in vars(base)]
        _SETTINGS[cls] = {name: _setting(cls, name, field, docs, above) for name, field in chz.chz_fields(cls).items()}
    return _SETTINGS[cls]


def facts(cls: type) -> Mapping[str, Fact]:
    """What a config class says of its settings taken together, for `UsedWhen`, by name."""
    if cls not in _FACTS:
        found = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        _FACTS[cls] = {name: value for name, value in found.items() if isinstance(value, Fact)}
    return _FACTS[cls]


def complete(cls: type) -> None:
    """Make `cls`, and what it derives from, config classes where their source does not say `@chz.chz`.

    A value that such a class gives to an inherited setting needs no type there: `batch_size = 16` is a new default.

    Raises:
        ConfigError: one of them cannot be a config class.
    """
    if not chz.is_chz(cls):
        raise ConfigError(
            f"The class {cls.__qualname__} ({_file_of(cls)}) is not a config class (assay.config.Settings)."
        )
    for base in reversed(cls.__mro__):
        if chz.is_chz(base) and "__chz_fields__" not in vars(base):
            _decorate(base)
    known = set(chz.chz_fields(cls))
    for base in cls.__mro__:
        if chz.is_chz(base) and (lost := [name for name in chz.chz_fields(base) if name not in known]):
            raise ConfigError(
                f"{cls.__qualname__} ({_file_of(cls)}) has the decorator @chz.chz and {base.__qualname__} above it has "
                f"not, so the settings {', '.join(lost)} would be lost. Put @chz.chz above both classes, or above "
                "neither."
            )
    _COMPLETE.add(cls)


def _decorate(cls: type) -> None:
    own = dict(inspect.get_annotations(cls))
    for name, value in vars(cls).items():
        if name in own and isinstance(value, list | dict | set):
            raise ConfigError(
                f"The setting {name} of {cls.__qualname__} ({_file_of(cls)}) has a {type(value).__name__} as its "
                "default, which all its users would share and could change by accident. Write a tuple, or leave out "
                "the type: then it is a constant of the class and not a setting."
            )
    inherited = chz.chz_fields(cls)
    cls.__annotations__ = {n: field.final_type for n, field in inherited.items() if n in vars(cls)} | own
    try:
        chz.chz(cls)
    except (TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"The class {cls.__qualname__} ({_file_of(cls)}) cannot hold settings: {said}") from error


def _file_of(cls: type) -> str:
    return str(getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__)


def _setting(
    cls: type, name: str, field: Any, docs: Mapping[str, str], above: Sequence[Mapping[str, Setting]]
) -> Setting:
    """A field's setting; what a base class says about it (such as bounds) holds unless the class says otherwise."""
    annotation: Any = field.final_type
    marks: tuple[object, ...] = ()
    if typing.get_origin(annotation) is Annotated:
        annotation, marks = annotation.__origin__, annotation.__metadata__
    place = f"{cls.__qualname__}.{name} ({_file_of(cls)})"
    _check_type(place, annotation)
    inherited = next((base[name].marks for base in above if name in base), ())
    marks = (*marks, *(mark for mark in inherited if type(mark) not in {type(own) for own in marks}))
    if any(isinstance(mark, Bound) for mark in marks) and not {int, float} & set(members(annotation)):
        raise ConfigError(f"The field {place} has bounds, which are for numbers, and is {type_name(annotation)}.")
    return Setting(name, annotation, docs.get(name, ""), _default_of(field), marks)


def _default_of(field: Any) -> Callable[[], Any] | None:
    if field._default is not MISSING:
        return lambda: field._default
    return None if field._default_factory is MISSING else field._default_factory


def _check_type(place: str, annotation: Any) -> None:
    """Refuse a type that cannot be read from text."""
    if not is_readable(annotation):
        plain = isinstance(annotation, type) and not typing.get_args(annotation)
        shown = annotation.__name__ if plain else str(annotation)
        raise ConfigError(
            f"The field {place} is of type {shown}, which cannot be read from text. A setting is a bool, int, float, "
            "str, Path, Literal, tuple[T, ...], Mapping[str, T], one of these or None, or a config class; without a "
            "type it is a constant of the class and not a setting."
        )


def _attribute_docs(cls: type) -> dict[str, str]:
    """Field name -> the string literal under it, read from the source of the class and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not chz.is_chz(base):
            continue
        try:
            node = parsed_class(base)
        except OSError:  # a class that was typed into an interpreter has no source
            continue
        for field, below in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = below.value if isinstance(below, ast.Expr) else None
                is_doc = isinstance(text, ast.Constant) and isinstance(text.value, str)
                docs[field.target.id] = " ".join(str(text.value).split()) if is_doc else ""  # type: ignore[union-attr]
    return docs
