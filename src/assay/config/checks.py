"""What a config node must be: its values of the right types and within bounds, and nothing set that nothing reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import chz

from assay.config.fields import Condition, UsedWhen
from assay.config.schema import complete, settings
from assay.config.values import choices, is_of, is_optional, members, shown, type_name
from assay.errors import ConfigError


class SettingsError(ConfigError):
    """Invalid settings of one config node; each problem begins with the key it is about."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[SettingsError], tuple[tuple[str, ...]]]:
        return SettingsError, (self.problems,)

    def below(self, key: str) -> SettingsError:
        """The same problems seen from above a node that stands at `key`."""
        return SettingsError([f"{key}.{problem}" for problem in self.problems])


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


def idle(node: object) -> Iterator[str]:
    """One message for each setting, of a node or below it, that is set although the node says that nothing reads it.

    A setting is set where it differs from its default. The nearest enclosing node that has the setting named in its
    `UsedWhen` decides; each node speaks for those that it decides.
    """
    return _idle(node, node, "", frozenset())


def _idle(judge: object, node: object, parent: str, nearer: frozenset[str]) -> Iterator[str]:
    """See `idle`; `nearer` are the settings of the nodes between the judge and what is looked at."""
    known = settings(type(judge))
    for name, setting in settings(type(node)).items():
        key, value = f"{parent}{name}", getattr(node, name)
        rules = [rule for rule in setting.used_when if rule.name in known and rule.name not in nearer]
        broken = [rule for rule in rules if not rule.holds(getattr(judge, rule.name))]
        if broken and value != setting.default:
            yield _would_do_nothing(judge, key, value, broken[0])
        elif chz.is_chz(value):
            yield from _idle(judge, value, f"{key}.", nearer | settings(type(value)).keys())


def _would_do_nothing(judge: object, key: str, value: object, rule: UsedWhen) -> str:
    current = getattr(judge, rule.name)
    wanted = " or ".join(v.words if isinstance(v, Condition) else shown(v) for v in rule.values)
    exact = next((v for v in rule.values if not isinstance(v, Condition)), None)
    cure = f"Set {rule.name}={shown(exact)}" if exact is not None else f"Set {rule.name} so"
    said = f"{key}.* is set" if chz.is_chz(value) else f"{key}={shown(value)} is set"
    return (
        f"{said}, but it is read only when {rule.name} is {wanted}, and {rule.name}={shown(current)}: it would have no "
        f"effect. {cure}, or remove {key}."
    )


def refuse(problems: Iterable[str]) -> None:
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
