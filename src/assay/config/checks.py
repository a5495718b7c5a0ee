"""What a config node must be: its values of the right types and within bounds, and nothing set that nothing reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import chz

from assay.config.idle import IdleSetting, idle, qualified
from assay.config.schema import complete, settings
from assay.config.values import choices, is_of, is_optional, members, type_name
from assay.errors import ConfigError


class SettingsError(ConfigError):
    """Invalid settings of one config node; each problem begins with the key it is about."""

    def __init__(self, problems: Sequence[str | IdleSetting]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[SettingsError], tuple[tuple[str | IdleSetting, ...]]]:
        return SettingsError, (self.problems,)

    def below(self, key: str, names: Iterable[str]) -> SettingsError:
        """The same problems seen from above a node that stands at `key` and has settings of these names."""
        known = list(names)
        return SettingsError(
            [p.below(key, known) if isinstance(p, IdleSetting) else qualified(p, key, known) for p in self.problems]
        )


def mistyped(node: object) -> list[str]:
    """What is wrong with the values of a config node made in Python, where nothing was read by `parse`.

    A whole number is a number; otherwise a value is of a type as written, and of a Literal one of its choices.
    """
    problems = []
    for name, setting in settings(type(node)).items():
        value, annotation = getattr(node, name), setting.annotation
        if not (is_optional(annotation) and value is None) and not any(is_of(value, m) for m in members(annotation)):
            near = difflib.get_close_matches(str(value), [str(c) for c in choices(annotation)], n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            if isinstance(value, str) and Path in members(annotation):
                hint = f" In Python, write Path({value!r})."
            problems.append(f"{name}={value!r}: expected {type_name(annotation)}.{hint}")
    return problems


def out_of_bounds(node: object) -> list[str]:
    """One message for each setting of a node whose number is out of bounds."""
    return [
        f"{name}={getattr(node, name)} must be {bound.words}."
        for name, setting in settings(type(node)).items()
        for bound in setting.bounds
        if not bound.holds(getattr(node, name))
    ]


def refuse(problems: Iterable[str | IdleSetting]) -> None:
    """Raise `SettingsError` when there are problems; each begins with the key it is about, as seen from its node."""
    if found := list(problems):
        raise SettingsError(found)


@chz.chz
class Settings:
    """Base of every config class: types, bounds and idle settings are checked whenever one is made.

    A class over it is a config class with and without the decorator `@chz.chz`.
    """

    def __new__(cls, **values: object) -> Self:
        """A new one; its class is completed where it lacks the decorator."""
        complete(cls)
        return super().__new__(cls)

    @chz.validate
    def _sound(self) -> None:
        refuse(mistyped(self))
        refuse([*out_of_bounds(self), *idle(self)])
