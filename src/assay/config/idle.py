"""Settings that nothing reads as the others are: which they are, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import chz

from assay.config.fields import NOT_NULL, Bound, Condition, UsedWhen
from assay.config.schema import facts, settings
from assay.config.values import shown

_SAID_BEFORE = re.compile(r"(?:\b(?:[Ss]et|[Rr]emove|[Rr]aise|[Ll]ower|[Gg]ive|[Cc]hange|and|or) |^)$")
"""What stands before a key that is a word of English too."""


_NAMES: dict[type, frozenset[str]] = {}


@dataclass(frozen=True)
class IdleSetting:
    """A setting that is set although nothing reads it; its text says so, and what to do."""

    key: str
    value: object
    deciders: Mapping[str, object]
    """The settings because of which nothing reads it, by key, with their values."""
    needs: str
    """When it is read: `read only when lora_rank is above 0`."""
    cure: str

    def __str__(self) -> str:
        """The message."""
        below = ".*" if chz.is_chz(self.value) else ""
        said = f"{self.key}.* is set" if below else f"{self.key}={shown(self.value)} is set"
        found = "".join(f", and {key}={shown(value)}" for key, value in self.deciders.items())
        return (
            f"{said}, but it is read only when {self.needs}{found}: it would have no effect. {self.cure}, or remove "
            f"{self.key}{below}."
        )

    def below(self, parent: str, names: Iterable[str]) -> IdleSetting:
        """The same seen from above the node at `parent`, whose settings have these names."""
        return IdleSetting(
            f"{parent}.{self.key}",
            self.value,
            {f"{parent}.{key}": value for key, value in self.deciders.items()},
            qualified(self.needs, parent, names),
            qualified(self.cure, parent, names),
        )


def qualified(text: str, parent: str, names: Iterable[str]) -> str:
    """A message about a node as it reads from above: the node's settings, where it names them, by their whole keys.

    A name that is a word of English too (`task`) is one only where `=` or what is below it follows, at the beginning,
    and after words such as `Set` and `remove`. One in single quotes is a value.
    """
    listed = "|".join(sorted(map(re.escape, names), key=len, reverse=True))

    def whole(found: re.Match[str]) -> str:
        key, before = found[0], text[: found.start()]
        plain = "_" not in key and "." not in key and text[found.end() : found.end() + 1] != "="
        return key if plain and not _SAID_BEFORE.search(before) else f"{parent}.{key}"

    return re.sub(rf"(?<![\w./='-])(?:{listed})(?:\.(?:\w+|\*))*(?![\w/-])", whole, text) if listed else text


def idle(node: object) -> Iterator[IdleSetting]:
    """The settings, of a node or below it, that are set although the node says that nothing reads them.

    A setting is set where it differs from its default. The nearest enclosing node that has what its `UsedWhen` names
    decides; each node speaks for those that it decides.
    """
    for key, setting_default, value, rule in _unread(node, node, "", frozenset()):
        if value != setting_default:
            yield _would_do_nothing(node, key, value, rule)


def unread(node: object, parent: str = "") -> Iterator[str]:
    """The keys of all settings, of a config and below it, that nothing reads as the others are, set or not."""
    for key, *_ in _unread(node, node, "", frozenset()):
        yield f"{parent}{key}"
    for name in settings(type(node)):
        if chz.is_chz(value := getattr(node, name)):
            yield from unread(value, f"{parent}{name}.")


def names_of(cls: type) -> frozenset[str]:
    """What a `UsedWhen` can find in a config class: its settings and its facts."""
    if cls not in _NAMES:
        _NAMES[cls] = frozenset((*settings(cls), *facts(cls)))
    return _NAMES[cls]


def unresolved(cls: type, around: Iterable[frozenset[str]]) -> Iterator[str]:
    """One message for each field of a class whose `UsedWhen` names nothing in it nor in what encloses it.

    Args:
        around: the `names_of` the classes that enclose it.
    """
    known = frozenset().union(names_of(cls), *around)
    for name, setting in settings(cls).items():
        for rule in setting.used_when:
            if rule.name.partition(".")[0] not in known:
                yield (
                    f"The field {cls.__qualname__}.{name} is marked as used when {rule.name!r} has some value, and "
                    "neither its class nor one around it has a setting of that name. Correct the name in UsedWhen."
                )


def _unread(
    judge: object, node: object, parent: str, nearer: frozenset[str]
) -> Iterator[tuple[str, Any, Any, UsedWhen]]:
    """The key, default and value of what the judge says nothing reads, and the rule by which it says so; `nearer` are
    the names that nodes between the judge and what is looked at have."""
    known = names_of(type(judge))
    for name, setting in settings(type(node)).items():
        key, value = f"{parent}{name}", getattr(node, name)
        rules = [r for r in setting.used_when if (first := r.name.partition(".")[0]) in known and first not in nearer]
        broken = next((rule for rule in rules if not rule.holds(_value_of(judge, rule.name))), None)
        if broken is not None:
            yield key, setting.default, value, broken
        elif chz.is_chz(value):
            yield from _unread(judge, value, f"{key}.", nearer | names_of(type(value)))


def _value_of(node: Any, dotted: str) -> Any:
    """The setting at a dotted key below a node; None where a node on the way is null or has none of that name."""
    for name in dotted.split("."):
        node = getattr(node, name, None)
    return node


def _would_do_nothing(judge: object, key: str, value: object, rule: UsedWhen) -> IdleSetting:
    found = facts(type(judge)).get(rule.name)
    if found is not None:
        reasons = found.of if found.why is None else (found.why(judge),)
        values = {name: _value_of(judge, name) for name in reasons}
        given = {name: given for name, given in values.items() if given is not None} or values  # null decides nothing
        return IdleSetting(key, value, given, found.words, found.cure)
    return IdleSetting(key, value, {rule.name: _value_of(judge, rule.name)}, _needs(rule), _cure(rule))


def _needs(rule: UsedWhen) -> str:
    wanted = " or ".join(v.words if isinstance(v, Condition) else shown(v) for v in rule.values)
    return f"{rule.name} is {wanted}"


def _cure(rule: UsedWhen) -> str:
    first = rule.values[0]
    if not isinstance(first, Condition):
        return f"Set {rule.name}={shown(first)}"
    if isinstance(first, Bound):
        return f"{'Raise' if first.relation in ('above', 'at least') else 'Lower'} {rule.name}"
    return f"{'Set' if first == NOT_NULL else 'Change'} {rule.name}"
