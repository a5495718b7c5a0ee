"""The config of a run: class defaults < environment < presets and YAML files, in the order given < `key=value`.

Each key is checked against the config tree as it stands at its layer, so that a misspelt key or a wrong type names the
layer it came from. A key that holds one of several config classes (`dataset_builder`) takes the name of one, and the
keys below it are those of that class:

    dataset_builder: chess                  or      dataset_builder:
    dataset_builder.batch_size: 8                     type: chess
                                                      batch_size: 8
"""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import chz

from assay.config.schema import Setting, entry_type, is_null, is_optional, node_class, parse, settings, type_name
from assay.config.sources import Layer, flatten, read_overrides, read_source
from assay.envs.base import DatasetBuilder
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.envs.monitor.dataset import MonitorDatasetBuilder
from assay.errors import ConfigError
from assay.training.config import TrainingConfig
from assay.types import Json

logger = logging.getLogger(__name__)

BUILDERS: Mapping[str, type[DatasetBuilder]] = {"chess": ChessDatasetBuilder, "monitor": MonitorDatasetBuilder}
"""Short name -> dataset builder; the class's own name works too."""

ENVIRONMENT = "environment"
"""Name of the layer of settings that come from environment variables."""
TYPE_KEY = "type"
"""Key that names the class of a node which can be one of several."""

_VARIANTS: Mapping[type | None, Mapping[str, type]] = {DatasetBuilder: BUILDERS}
"""Config base class -> the classes that may stand in its place, by name."""

_C = TypeVar("_C")


def load_config(sources: str | Sequence[str] | None, overrides: Sequence[str] = ()) -> TrainingConfig:
    """Build a config from presets or YAML paths (later wins) and `key=value` overrides (which win over both).

    Environment variables that the chosen dataset builder reads (`DatasetBuilder.environment`) win over defaults alone.

    Raises:
        ConfigError: an unknown key, a wrong type, an unreadable or malformed file, or settings that cannot go together.
    """
    names = [sources] if isinstance(sources, str) else list(sources or ())
    draft = _drafted([*map(read_source, names), read_overrides(overrides)])
    taken = draft.fill_in(_environment(draft))
    if taken:
        logger.info("Taken from the environment: %s.", ", ".join(taken))
    return draft.construct(TrainingConfig())


def resolved(config: TrainingConfig) -> dict[str, Json]:
    """The whole config as nested JSON-ready data, nulls included; `type` names the class where there is a choice."""
    return _plain_node(config)


def from_resolved(data: Mapping[str, Json], source: str = "config.json") -> TrainingConfig:
    """The config that `resolved` wrote. Settings that `data` lacks (an older version wrote it) take their defaults."""
    config = _drafted([Layer(source, flatten(data, source))]).construct(TrainingConfig())
    missing = flatten(resolved(config), source).keys() - flatten(data, source).keys()
    if missing:
        logger.warning("%s lacks %s; using the defaults.", source, ", ".join(sorted(missing)))
    return config


def diff(a: TrainingConfig, b: TrainingConfig) -> list[str]:
    """What differs between two configs, one line per setting: `learning_rate: 0.0001 -> 0.001`."""
    return list(_differences("", resolved(a), resolved(b)))


def is_choice(setting: Setting) -> bool:
    """Whether a setting holds one of several config classes, or a config class or null."""
    cls = node_class(setting.annotation)
    return cls in _VARIANTS or (cls is not None and is_optional(setting.annotation))


def nodes() -> Iterator[tuple[str, type]]:
    """Every config class with the key it stands at, parents first; where there is a choice, each of the classes.

    `multiturn_dataset_builder` is left out: it takes what `dataset_builder` takes.
    """
    yield from _nodes("", TrainingConfig)


def _nodes(key: str, cls: type) -> Iterator[tuple[str, type]]:
    yield key, cls
    for name, setting in settings(cls).items():
        base = node_class(setting.annotation)
        if base is not None and name != "multiturn_dataset_builder":
            for variant in _VARIANTS.get(base, {"": base}).values():
                yield from _nodes(f"{key}.{name}" if key else name, variant)


def listing(width: int, of: Iterable[tuple[str, type]] | None = None) -> str:
    """Every setting with its default, type and meaning, for a terminal of `width` columns.

    `of` are (dotted key, config class) pairs; those of a run by default.
    """
    parts = ["settings (key=default), in dot notation on the command line, nested or dotted in YAML:"]
    for key, cls in nodes() if of is None else of:
        heading = f"{key}={cls.__name__}" if key else cls.__name__
        parts.append(f"\n{heading}: {inspect.getdoc(cls)}")
        for name, setting in settings(cls).items():
            dotted = f"{key}.{name}" if key else name
            default = "" if node_class(setting.annotation) else f"={shown(setting.default)}"
            text = f"{setting.doc} ({type_words(setting)})"
            parts.append(f"  {dotted}{default}")
            parts.append(textwrap.fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join(parts)


def type_words(setting: Setting) -> str:
    """A setting's type in words; for a node with a choice, the names of its classes."""
    if not is_choice(setting):
        return type_name(setting.annotation)
    return "one of " + ", ".join(_choices(setting))


def _choices(setting: Setting) -> Mapping[str, type | None]:
    """The short names that a node with a choice takes, and their classes; `null` where it may be null."""
    base = node_class(setting.annotation)
    variants = _VARIANTS.get(base, {base.__name__: base} if base else {})
    return {**variants, "null": None} if is_optional(setting.annotation) else variants


class _Given(NamedTuple):
    """A value as written, and the name of the layer that gave it."""

    value: Json
    layer: str


class _Draft:
    """What the layers read so far have set."""

    def __init__(self) -> None:
        self.values: dict[str, _Given] = {}
        self.classes: dict[str, type | None] = {}
        """The class chosen for a key that holds one of several; None for null."""

    def apply(self, layer: Layer) -> None:
        """Add one layer: classes first, since they decide which other keys exist."""
        rest: dict[str, Json] = {}
        for written, value in sorted(layer.values.items(), key=lambda item: item[0].count(".")):
            key = written.removesuffix(f".{TYPE_KEY}")
            setting = self.find(key)
            if setting is not None and is_choice(setting) and value != {}:
                self.classes[key] = _chosen(key, value, setting, layer.name)
            else:
                rest[written] = value
        self._drop_foreign(layer.name)
        for key, value in rest.items():
            setting = self.find(key)
            if setting is None:
                raise ConfigError(_unknown_key(key, layer.name, list(self.keys())))
            self._put(key, value, setting, layer.name)

    def fill_in(self, layer: Layer) -> list[str]:
        """Add those settings of a layer that no other has set; returns them as written on the command line."""
        rest = {key: value for key, value in layer.values.items() if key not in self.values}
        self.apply(Layer(layer.name, rest))
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
            for entry in [k for k in self.values if k.startswith(f"{key}.")]:
                del self.values[entry]
        else:
            try:
                parse(value, setting.annotation)
            except ValueError:
                default = "" if setting.default is None else f" The default is {shown(setting.default)}."
                raise ConfigError(f"{given}: expected {type_name(setting.annotation)}.{default}") from None
            self.values[key] = _Given(value, layer)

    def _drop_foreign(self, layer: str) -> None:
        """Forget what earlier layers set for a class that `layer` has replaced by one without such a setting."""
        for key in [k for k in self.values if self.find(k) is None]:
            message = "%s=%s (%s) is dropped: the %s chose a class that has no such setting."
            logger.warning(message, key, shown(self.values[key].value), self.values[key].layer, layer)
            del self.values[key]

    def find(self, key: str) -> Setting | None:
        """The setting that a dotted key names, given the classes chosen so far; None when there is none."""
        parent, _, name = key.rpartition(".")
        above = self.find(parent) if parent else None
        if above is not None and (entry := entry_type(above.annotation)) is not None:
            return Setting(name, entry, above.default.get(name), above.doc)
        return self.settings_at(parent).get(name)

    def settings_at(self, key: str) -> Mapping[str, Setting]:
        """The settings of the node at `key` (the root for the empty string); empty when it is no node or null."""
        if not key:
            return settings(TrainingConfig)
        setting = self.find(key)
        cls = self.class_at(key, setting) if setting is not None else None
        return settings(cls) if cls is not None else {}

    def class_at(self, key: str, setting: Setting) -> type | None:
        """The class of the node at `key`; None for null and for plain values."""
        if node_class(setting.annotation) is None or key in self.classes:
            return self.classes.get(key)
        if setting.default is not None:
            return type(setting.default)
        if key == "multiturn_dataset_builder":  # of one kind with dataset_builder unless it says otherwise
            return self.class_at("dataset_builder", settings(TrainingConfig)["dataset_builder"])
        return node_class(setting.annotation)

    def keys(self, parent: str = "") -> Iterator[str]:
        """Every key that exists, given the classes chosen so far."""
        for name in self.settings_at(parent):
            key = f"{parent}.{name}" if parent else name
            yield key
            yield from self.keys(key)

    def construct(self, default: _C, parent: str = "") -> _C:
        """`default` with everything that is set below `parent`."""
        changes: dict[str, Any] = {}
        for name, setting in settings(type(default)).items():
            key = f"{parent}.{name}" if parent else name
            below = [k for k in self.values if k.startswith(f"{key}.")]
            value = getattr(default, name)
            if node_class(setting.annotation) is not None:
                if below or any(f"{k}.".startswith(f"{key}.") for k in self.classes):
                    changes[name] = self._construct_node(value, key, setting)
            elif (entry := entry_type(setting.annotation)) is not None:
                read = {k.removeprefix(f"{key}."): parse(self.values[k].value, entry) for k in below}
                changes[name] = {**value, **read}
            elif key in self.values:
                changes[name] = parse(self.values[key].value, setting.annotation)
        return chz.replace(default, **changes)

    def _construct_node(self, default: Any, key: str, setting: Setting) -> Any:
        cls = self.class_at(key, setting)
        if cls is None:
            return None
        return self.construct(default if type(default) is cls else cls(), key)


def _drafted(layers: Sequence[Layer]) -> _Draft:
    draft = _Draft()
    for layer in layers:
        draft.apply(layer)
    return draft


def _environment(draft: _Draft) -> Layer:
    """What environment variables say to the dataset builders that were chosen."""
    values: dict[str, Json] = {}
    for key, cls in draft.classes.items():
        if cls is not None and issubclass(cls, DatasetBuilder):
            values |= {f"{key}.{name}": value for name, value in cls.environment(os.environ).items()}
    return Layer(ENVIRONMENT, values)


def _chosen(key: str, value: Json, setting: Setting, layer: str) -> type | None:
    """The class that `value` names for the node at `key`."""
    choices = _choices(setting)
    by_name = {**choices, **{cls.__name__: cls for cls in choices.values() if cls is not None}}
    name = "null" if is_null(value) else str(value)
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{key}={shown(value)} ({layer}): expected one of {', '.join(choices)}.{hint}")
    return by_name[name]


def _unknown_key(key: str, layer: str, known: Sequence[str]) -> str:
    """Message for a key that does not exist: equal last parts elsewhere first, then like ones, then like keys."""
    parent, _, leaf = key.rpartition(".")
    near = [k for k in known if k.rpartition(".")[2] == leaf]
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == parent}
    near += [siblings[name] for name in difflib.get_close_matches(leaf, siblings, n=2)]
    near += [k for name, k in siblings.items() if leaf == "".join(word[0] for word in name.split("_"))]
    if parent in known and not siblings:
        near = [parent]
    near = list(dict.fromkeys(near or difflib.get_close_matches(key, known, n=2)))[:3]
    hint = f" Did you mean {' or '.join(near)}?" if near else " `assay train --help` lists all settings."
    return f"{key} ({layer}): there is no such setting, so it would have no effect.{hint}"


def _plain_node(node: Any) -> dict[str, Json]:
    data: dict[str, Json] = {}
    for name, setting in settings(type(node)).items():
        value = getattr(node, name)
        if not chz.is_chz(value):
            data[name] = _plain(value)
        elif is_choice(setting):
            data[name] = {TYPE_KEY: type(value).__name__, **_plain_node(value)}
        else:
            data[name] = _plain_node(value)
    return data


def _plain(value: Any) -> Json:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _differences(parent: str, a: Mapping[str, Json], b: Mapping[str, Json]) -> Iterator[str]:
    for name in dict.fromkeys([*a, *b]):
        key = f"{parent}.{name}" if parent else name
        old, new = a.get(name, "unset"), b.get(name, "unset")
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(key, old, new)
        elif old != new:
            yield f"{key}: {shown(old)} -> {shown(new)}"


def shown(value: object) -> str:
    """A value as a person would write it on the command line; a node is shown as its class."""
    if isinstance(value, dict):
        return str(value.get(TYPE_KEY, value))
    if chz.is_chz(value):
        return type(value).__name__
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
