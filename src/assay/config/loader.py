"""Layers of settings become a config: class defaults < environment < presets and YAML files, in order < `key=value`.

A chosen class may have `run_settings`, defaults of the whole config that suit it; they outrank class defaults alone.

Each key is checked against the config tree as it stands at its layer, so that a misspelt key or a wrong type names the
layer it came from. A key that holds one of several config classes (`dataset_builder`) takes the name of one, or
`package.module:Name` or `path/to/file.py:Name`, and the keys below it are those of that class:

    dataset_builder: chess                  or      dataset_builder:
    dataset_builder.batch_size: 8                     type: chess
                                                      batch_size: 8
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import chz

from assay import plugins
from assay.config.checks import SettingsError
from assay.config.idle import IdleSetting, names_of, unresolved
from assay.config.schema import Setting, settings
from assay.config.sources import COMMAND_LINE, Layer, flatten, read_overrides, read_source
from assay.config.unknown import unknown_key
from assay.config.values import as_json, entry_type, is_null, is_optional, node_class, parse, shown, type_name
from assay.errors import ConfigError
from assay.types import Json

logger = logging.getLogger(__name__)

ENVIRONMENT = "the environment"
"""Name of the layer of settings that come from environment variables."""
TYPE_KEY = "type"
"""Key that names the class of a node which can be one of several."""
FILES_KEY, CHANGES_KEY = "files", "changes"
"""Keys of a run's record that are no settings: the hashes of files with code, and what resumes changed."""

_C = TypeVar("_C")


def load(root: type[_C], sources: str | Sequence[str] | None, overrides: str | Sequence[str] = ()) -> _C:
    """Build a config from presets or YAML paths (later wins) and `key=value` overrides (which win over both).

    What a chosen class reads from environment variables, and its `run_settings`, win over defaults alone.

    Raises:
        ConfigError: an unknown key, a wrong type, an unreadable or malformed file, or settings that cannot go together.
    """
    names = [sources] if isinstance(sources, str) else list(sources or ())
    written = [overrides] if isinstance(overrides, str) else overrides
    draft = Draft(root, [*map(read_source, names), read_overrides(written)])
    for layer in (_environment(draft), *_suggestions(draft)):
        if taken := draft.fill_in(layer):
            logger.info("Taken from %s: %s.", layer.name, ", ".join(taken))
    draft.check_rules("", ())
    return draft.construct()


def build(root: type[_C], layers: Sequence[Layer], unknown: str = "") -> _C:
    """Build a config from layers; of equal keys the last wins.

    Args:
        unknown: what else to say of a key that does not exist.

    Raises:
        ConfigError: see `load`.
    """
    return Draft(root, layers, unknown).construct()


def choices_of(setting: Setting) -> Mapping[str, str]:
    """The short names that a node with a choice takes, and where their classes are; `null` where it may be null."""
    base = node_class(setting.annotation)
    if setting.code is not None:
        known = dict(setting.code.kind.known)
    else:
        known = {base.__name__: f"{base.__module__}:{base.__qualname__}"} if base is not None else {}
    return {**known, "null": ""} if is_optional(setting.annotation) else known


def is_choice(setting: Setting) -> bool:
    """Whether a setting holds one of several config classes, or a config class or null."""
    cls = node_class(setting.annotation)
    return cls is not None and (setting.code is not None or is_optional(setting.annotation))


class _Given(NamedTuple):
    """A value as written, and the layer that gave it, by its name and its rank."""

    value: Json
    layer: str
    rank: int


class Draft(Generic[_C]):
    """What the layers read so far have set in the tree below a root class."""

    def __init__(self, root: type[_C], layers: Sequence[Layer] = (), unknown: str = "") -> None:
        self.root = root
        self.unknown = unknown
        self.values: dict[str, _Given] = {}
        self.classes: dict[str, type | None] = {}
        """The class chosen for a key that holds one of several; None for null."""
        self._chosen_by: dict[str, _Given] = {}
        self._emptied: set[str] = set()
        """Mappings whose default entries are gone: `{}` was given, or all entries there are."""
        self._dropped: dict[str, _Given] = {}
        """What a later layer has made unused, with that layer as its source."""
        self._given_whole: set[int] = set()
        """Ranks of the layers that are whole configs."""
        self._rank = 0
        for layer in layers:
            self.apply(layer)

    def apply(self, layer: Layer) -> None:
        """Add one layer: classes first, since they decide which other keys exist."""
        self._rank += 1
        rest: dict[str, Json] = {}
        for written, value in sorted(layer.values.items(), key=_classes_first):
            if (first := written.partition(".")[0]) in (FILES_KEY, CHANGES_KEY) and first not in settings(self.root):
                continue
            key = written.removesuffix(f".{TYPE_KEY}")
            setting = self.find(key)
            if setting is not None and is_choice(setting) and value != {}:
                self.classes[key] = _chosen(key, value, setting, layer.name)
                self._chosen_by[key] = _Given(value, layer.name, self._rank)
            else:
                rest[written] = value
        self._drop_foreign(layer.name)
        for key, value in rest.items():
            setting = self.find(key)
            if setting is None and layer.whole and value is None:
                logger.warning("%s has %s=null, a setting of another version that was not used.", layer.name, key)
                continue
            if setting is None:
                raise ConfigError(unknown_key(key, layer.name, list(self.keys()), self.unknown))
            self._put(key, value, setting, layer.name)
        if layer.whole:
            self._given_whole.add(self._rank)
            self._emptied |= {key for key in self.keys() if entry_type(self._setting(key).annotation) is not None}

    def _setting(self, key: str) -> Setting:
        found = self.find(key)
        assert found is not None, key
        return found

    def fill_in(self, layer: Layer) -> list[str]:
        """Add those settings of a layer that no other has set; returns them as written on the command line."""
        rest = {
            key: value
            for key, value in layer.values.items()
            if key not in self.values and not any(key.startswith(f"{empty}.") for empty in self._emptied)
        }
        rank, self._rank = self._rank, -1  # below all others
        self.apply(Layer(layer.name, rest))
        self._rank = rank
        return [f"{key}={shown(value)}" for key, value in rest.items()]

    def _put(self, key: str, value: Json, setting: Setting, layer: str) -> None:
        given = f"{key}={shown(value)} ({layer})"
        if node_class(setting.annotation) is not None:
            if value != {}:
                example = next(iter(self.settings_at(key)), "...")
                raise ConfigError(f"{given}: {key} is a group of settings. Set them one by one: {key}.{example}=...")
        elif entry_type(setting.annotation) is not None:
            if value not in ({}, "{}"):
                raise ConfigError(f"{given}: {key} holds entries. Set them one by one: {key}.NAME=VALUE.")
            self._emptied.add(key)
            for entry in [k for k in self.values if k.startswith(f"{key}.")]:
                del self.values[entry]
        else:
            if layer == COMMAND_LINE and setting.annotation is Any:
                value = as_json(value)
            try:
                read = parse(value, setting.annotation)
            except ValueError:
                default = "" if setting.default is None else f" The default is {shown(setting.default)}."
                raise ConfigError(f"{given}: expected {type_name(setting.annotation)}.{default}") from None
            if setting.code is not None and read is not None:
                value = setting.code.kind.recorded(read)
            self.values[key] = _Given(value, layer, self._rank)

    def _drop_foreign(self, layer: str) -> None:
        """Forget what earlier layers set for a class that `layer` has replaced by one without such a setting."""
        for key in [k for k in self.values if self.find(k) is None]:
            message = "%s=%s (%s) is dropped: the %s chose a class that has no such setting."
            logger.warning(message, key, shown(self.values[key].value), self.values[key].layer, layer)
            del self.values[key]

    def find(self, key: str) -> Setting | None:
        """The setting that a dotted key names, given the classes chosen so far; None if it does not exist."""
        parent, _, name = key.rpartition(".")
        above = self.find(parent) if parent else None
        if above is not None and (entry := entry_type(above.annotation)) is not None:
            return Setting(name, entry, above.doc)
        if above is not None and above.annotation is Any:  # an entry that is itself a mapping
            return Setting(name, Any, above.doc)
        return self.settings_at(parent).get(name)

    def settings_at(self, key: str) -> Mapping[str, Setting]:
        """The settings of the node at `key` (the root for the empty string); empty if it is null or not a node."""
        if not key:
            return settings(self.root)
        setting = self.find(key)
        cls = self.class_at(key, setting) if setting is not None else None
        return settings(cls) if cls is not None else {}

    def class_at(self, key: str, setting: Setting) -> type | None:
        """The class of the node at `key`; None for null and for plain values."""
        base = node_class(setting.annotation)
        if base is None or key in self.classes:
            return self.classes.get(key)
        if setting.like is not None:
            parent, _, _ = key.rpartition(".")
            other = f"{parent}.{setting.like}" if parent else setting.like
            found = self.class_at(other, self.settings_at(parent)[setting.like])
            return getattr(found, setting.like_by)() if found is not None and setting.like_by else found
        if setting.code is not None and setting.code.default:
            return plugins.find(setting.code.default, setting.code.kind, key)  # type: ignore[no-any-return]
        return type(setting.default) if setting.default is not None else base

    def is_choice_at(self, key: str) -> bool:
        """Whether the key holds one of several classes."""
        setting = self.find(key) if key else None
        return setting is not None and is_choice(setting)

    def keys(self, parent: str = "") -> Iterator[str]:
        """Every key that exists, given the classes chosen so far."""
        for name in self.settings_at(parent):
            key = f"{parent}.{name}" if parent else name
            yield key
            yield from self.keys(key)

    def construct(self) -> _C:
        """The config.

        Raises:
            ConfigError: a value is missing, out of bounds, or cannot go together with others.
        """
        while True:
            try:
                made: _C = self._construct(self.root, None, "")
                return made
            except SettingsError as error:
                idle = [problem for problem in error.problems if isinstance(problem, IdleSetting)]
                if sum(self._drop_idle(found) for found in idle) == 0:
                    raise

    def check_rules(self, key: str, around: tuple[frozenset[str], ...]) -> None:
        """Refuse a class below `key` with a field whose `UsedWhen` names nothing.

        Raises:
            ConfigError: as said.
        """
        cls = self.class_at(key, self._setting(key)) if key else self.root
        if cls is None:
            return
        if wrong := list(unresolved(cls, around)):
            raise ConfigError("\n".join(wrong))
        for name in settings(cls):
            self.check_rules(f"{key}.{name}" if key else name, (*around, names_of(cls)))

    def _drop_idle(self, idle: IdleSetting) -> bool:
        """Forget a setting that nothing reads where whoever gave it could not know: a later layer made it unused, it
        is part of a whole config, or it comes from the environment. Returns whether anything was forgotten."""
        deciding = [given for key in idle.deciders for given in self._all_given(key)]
        by = max(deciding, key=lambda given: given.rank, default=None)
        dropped = False
        for key in [k for k in (*self.values, *self._chosen_by) if f"{k}.".startswith(f"{idle.key}.")]:
            given = self.values.get(key) or self._chosen_by[key]
            later = by is not None and by.rank > given.rank
            if not later and given.rank not in self._given_whole and given.rank >= 0:
                continue
            under = " and ".join(f"{k}={shown(value)}" for k, value in idle.deciders.items())
            whose = f" ({by.layer})" if by is not None and later else ""
            message = "%s=%s (%s) is dropped: under %s%s nothing reads it."
            logger.warning(message, key, shown(given.value), given.layer, under, whose)
            dropper = by if by is not None and later else given
            self._dropped[key] = _Given(None, dropper.layer, dropper.rank)
            self.values.pop(key, None)
            self._chosen_by.pop(key, None)
            self.classes.pop(key, None)
            dropped = True
        return dropped

    def _all_given(self, key: str) -> Iterator[_Given]:
        """What was given for a key or below it, or dropped there."""
        for given in (self.values, self._chosen_by, self._dropped):
            yield from (value for k, value in given.items() if f"{k}.".startswith(f"{key}."))

    def _construct(self, cls: type, default: Any, key: str) -> Any:
        """The node at `key`: `default`, or one of `cls` where that is None, with everything that is set below."""
        changes: dict[str, Any] = {}
        for name, setting in settings(cls).items():
            inner = f"{key}.{name}" if key else name
            below = [k for k in self.values if k.startswith(f"{inner}.")]
            if node_class(setting.annotation) is not None:
                if below or any(f"{k}.".startswith(f"{inner}.") for k in (*self.classes, *self._emptied)):
                    changes[name] = self._construct_node(default, inner, setting)
            elif entry_type(setting.annotation) is not None:
                if below or inner in self._emptied:
                    start = setting.default if default is None else getattr(default, name)
                    changes[name] = {**({} if inner in self._emptied else start), **self._entries(inner, below)}
            elif inner in self.values:
                changes[name] = parse(self.values[inner].value, setting.annotation)
            elif default is None and setting.make_default is None:
                raise ConfigError(f"{inner} is not set, and {cls.__name__} has no default for it. Set {inner}=...")
        try:
            return cls(**changes) if default is None else chz.replace(default, **changes)
        except SettingsError as error:
            raise error.below(key, settings(cls)) if key else error from None

    def _construct_node(self, above: Any, key: str, setting: Setting) -> Any:
        """The node at `key`; `above` is the default of the node above it, None for that node's class alone."""
        cls = self.class_at(key, setting)
        if cls is None:
            return None
        if setting.code is not None and key in self.classes:
            return self._construct(cls, None, key)  # the default may be of a class whose packages are not installed
        start = setting.default if above is None else getattr(above, setting.name)
        return self._construct(cls, start if type(start) is cls else None, key)

    def _entries(self, key: str, below: Sequence[str]) -> dict[str, Json]:
        """The entries of the mapping at `key`, nested where their keys are."""
        entries: dict[str, Json] = {}
        for dotted in sorted(below, key=lambda k: k.count(".")):
            setting = self.find(dotted)
            assert setting is not None, dotted
            *path, name = dotted.removeprefix(f"{key}.").split(".")
            place = entries
            for part in path:
                place = place.setdefault(part, {})
                if not isinstance(place, dict):
                    raise ConfigError(f"{dotted} is given, and so is {part} above it as a value. Keep one of them.")
            place[name] = parse(self.values[dotted].value, setting.annotation)
        return entries


def _classes_first(item: tuple[str, Json]) -> tuple[int, bool]:
    """Parents before what is below them, and of one depth the keys that choose a class before all others."""
    return item[0].count("."), not item[0].endswith(f".{TYPE_KEY}")


def _environment(draft: Draft[Any]) -> Layer:
    """The settings that environment variables give to the chosen classes."""
    values: dict[str, Json] = {}
    given = [key.rpartition(".")[0] for key in draft.values]
    for key in dict.fromkeys([*draft.classes, *(k for k in given if draft.is_choice_at(k))]):
        setting = draft.find(key)
        cls = draft.class_at(key, setting) if setting is not None else None
        read = getattr(cls, "environment", None)
        if read is not None:
            values |= {f"{key}.{name}": value for name, value in read(os.environ).items()}
    return Layer(ENVIRONMENT, values)


def _suggestions(draft: Draft[Any]) -> Iterator[Layer]:
    """The settings of the whole config that the chosen classes give (`run_settings`)."""
    for key, cls in draft.classes.items():
        values = getattr(cls, "run_settings", None)
        if cls is None or not values:
            continue
        name = f"{cls.__name__}.run_settings"
        if not isinstance(values, Mapping):
            raise ConfigError(f"{name} is {values!r} and not a mapping of settings of the run to values.")
        flat = flatten(values, name)
        if below := [k for k in flat if k.partition(".")[0] == key.partition(".")[0]]:
            raise ConfigError(
                f"{name} sets {below[0]}, which is a setting of the class itself. Give it as a default there."
            )
        yield Layer(name, flat)


def _chosen(key: str, value: Json, setting: Setting, layer: str) -> type | None:
    """The class that `value` names for the node at `key`: a short name, its class's own, or a reference."""
    choices = choices_of(setting)
    by_class = {reference.rpartition(":")[2]: short for short, reference in choices.items() if reference}
    name = "null" if is_null(value) else str(value)
    name = by_class.get(name, name)
    if name == "null" and name in choices:
        return None
    base = node_class(setting.annotation)
    if setting.code is not None:
        found: type = plugins.find(name, setting.code.kind, key)
        if TYPE_KEY in settings(found):
            raise ConfigError(
                f"{key}={shown(value)}: {found.__name__} has a field {TYPE_KEY}, which is the key that "
                f"names the class itself. Rename the field."
            )
        return found
    if name not in choices:
        near = difflib.get_close_matches(name, choices, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{key}={shown(value)} ({layer}): expected one of {', '.join(choices)}.{hint}")
    return base
