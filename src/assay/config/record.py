"""A config as a run keeps it: nested JSON with every setting, and the hashes of the files of code or data it names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import chz

from assay import plugins
from assay.config.idle import unread
from assay.config.loader import FILES_KEY, TYPE_KEY, build, is_choice
from assay.config.schema import Setting, settings
from assay.config.sources import Layer, flatten
from assay.config.values import shown
from assay.types import Json

logger = logging.getLogger(__name__)

_C = TypeVar("_C")


def resolved(config: object) -> dict[str, Json]:
    """The whole config as nested JSON-ready data, nulls included; `type` names the class where there is a choice.

    Where settings name code outside Assay, `files` has its files, and those of their folders that they import, with
    their SHA-256 (hex); where they name data, those files too.
    """
    data = _plain_node(config)
    files = {str(path): plugins.digest(path) for path in _files(config)}
    return {**data, FILES_KEY: files} if files else data


def from_resolved(root: type[_C], data: Mapping[str, Json], source: str = "config.json") -> _C:
    """The config that `resolved` wrote. Settings that `data` lacks (an older version wrote it) take their defaults."""
    config = build(root, [Layer(source, flatten(data, source), whole=True)])
    missing = flatten(resolved(config), source).keys() - flatten(data, source).keys()
    if missing:
        logger.warning("%s lacks %s; using the defaults.", source, ", ".join(sorted(missing)))
    return config


def changed_files(record: Mapping[str, Json]) -> list[str]:
    """The files with code or data that have changed since `resolved` wrote `record`."""
    files = record.get(FILES_KEY) or {}
    return [path for path, known in sorted(files.items()) if plugins.digest(Path(path)) != known]


def may_change(config: object) -> Callable[[str], bool]:
    """Whether a resumed run may change the setting at a dotted key: the field says so, or a node above it does, or
    nothing reads it."""
    free = {key for key, setting, _ in _walk(config) if setting.may_change} | set(unread(config))

    def allowed(key: str) -> bool:
        parts = key.split(".")
        return any(".".join(parts[:end]) in free for end in range(1, len(parts) + 1))

    return allowed


def rounding_changes(before: Mapping[str, Json], config: object) -> list[str]:
    """What differs between a record and a config in settings that decide how sums are rounded: `key: old -> new`."""
    found = []
    for key, setting, value in _walk(config):
        old: Any = before
        for name in key.split("."):
            old = old.get(name, value) if isinstance(old, Mapping) else value
        if setting.changes_rounding and old != value:
            found.append(f"{key}: {_brief(old)} -> {_brief(value)}")
    return found


def diff(a: object, b: object) -> list[str]:
    """What differs between two configs, one line per setting: `learning_rate: 0.0001 -> 0.001`."""
    return list(_differences("", resolved(a), resolved(b)))


def _walk(node: object, parent: str = "") -> Iterator[tuple[str, Setting, Any]]:
    """Every setting of a config with its dotted key and its value, parents first."""
    for name, setting in settings(type(node)).items():
        key, value = f"{parent}{name}", getattr(node, name)
        yield key, setting, value
        if chz.is_chz(value):
            yield from _walk(value, f"{key}.")


def _files(config: object) -> Iterator[Path]:
    """The files of data and of code outside Assay that a config names, with the code of their own folders that it
    imports."""
    for _, setting, value in _walk(config):
        if setting.names_data and value:
            yield from _data_files(Path(str(value)).expanduser().resolve())
        if setting.code is not None and value is not None:
            kind = setting.code.kind
            named = plugins.reference_to(type(value), kind) if chz.is_chz(value) else value
            for reference in named if isinstance(named, tuple) else (str(named),):
                yield from plugins.source_files(reference, kind)


def _data_files(path: Path) -> Iterator[Path]:
    """The file; of a folder, those in it and in its folder `data`, where the hub's tables are."""
    if path.is_file():
        yield path
    for folder in (path, path / "data"):
        if folder.is_dir():
            yield from sorted(file for file in folder.iterdir() if file.is_file())


def _plain_node(node: Any) -> dict[str, Json]:
    data: dict[str, Json] = {}
    for name, setting in settings(type(node)).items():
        value = getattr(node, name)
        if setting.code is not None and isinstance(value, str | tuple):
            data[name] = setting.code.kind.recorded(value)
        elif not chz.is_chz(value):
            data[name] = _plain(value)
        elif is_choice(setting):
            data[name] = {TYPE_KEY: _type_of(value, setting), **_plain_node(value)}
        else:
            data[name] = _plain_node(value)
    return data


def _type_of(value: object, setting: Setting) -> str:
    if setting.code is None:
        return type(value).__name__
    return plugins.reference_to(type(value), setting.code.kind)


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
            yield f"{key}: {_brief(old)} -> {_brief(new)}"


def _brief(value: Json) -> str:
    return str(value.get(TYPE_KEY, value)) if isinstance(value, dict) else shown(value)
