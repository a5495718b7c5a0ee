"""Where settings come from: a preset, a YAML file, the command line. Each becomes a flat layer of dotted keys.

local:                            {"local.torch_threads": 2,
  torch_threads: 2        ->       "dataset_builder.batch_size": 8}
dataset_builder.batch_size: 8
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from assay.errors import ConfigError
from assay.presets import preset_path, presets
from assay.types import Json

logger = logging.getLogger(__name__)

COMMAND_LINE = "command line"
_ASSIGNMENT = re.compile(r"(?:--)?([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Layer:
    """One source of settings: dotted key -> value as written. Messages call it by its name."""

    name: str
    values: Mapping[str, Json]
    whole: bool = False
    """Whether it is a whole config, whose entries of a mapping are all there are."""


def read_overrides(overrides: Sequence[str], *, said: bool = True) -> Layer:
    """Arguments `key=value` or `--key=value` as a layer; of equal keys the last wins, and that is `said`.

    Values stay text.
    """
    values: dict[str, Json] = {}
    for text in overrides:
        match = _ASSIGNMENT.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text!r} is not a setting. Settings are written key=value, such as learning_rate=3e-4.")
        key, value = match[1], match[2].strip()
        if said and values.get(key, value) != value:
            logger.warning("%s=%s holds, the last of its values; %s=%s is ignored.", key, value, key, values[key])
        values[key] = value
    return Layer(COMMAND_LINE, values)


def read_source(source: str) -> Layer:
    """A preset by its name, or a YAML file by its path."""
    known = presets()
    path = preset_path(source) if source in known else Path(source).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = difflib.get_close_matches(path.stem, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{source!r} is neither a preset nor a file.{hint} Presets: {', '.join(known)}.") from error
    except OSError as error:
        raise ConfigError(f"Cannot read the config file {source}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    return parse_json(text, source) if path.suffix == ".json" else parse_yaml(text, name=source)


def parse_json(text: str, name: str) -> Layer:
    """A config that was written as JSON (`assay config`, a run's `config.json`) as a layer; it is a whole one.

    Raises:
        ConfigError: malformed JSON, or a document that is not an object.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}: malformed JSON: {error}.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{name} holds a {type(data).__name__}, but a config is an object of keys and values.")
    return Layer(name, flatten(data, name), whole=True)


def parse_yaml(text: str, name: str) -> Layer:
    """A YAML document as a layer.

    Raises:
        ConfigError: malformed YAML (with its line), a key given twice, or a document that is not a mapping.
    """
    try:
        data = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: malformed YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: malformed YAML: {error}") from error
    if not isinstance(data, dict | None):
        raise ConfigError(f"{name} holds a {type(data).__name__}, but a config is a mapping of keys to values.")
    return Layer(name, flatten(data or {}, name))


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, which also refuses a key given twice instead of dropping the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node whose keys are all different."""
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def flatten(data: Mapping[Any, Json], name: str) -> dict[str, Json]:
    """Nested mappings as dotted keys; an empty mapping stays a value. `name` stands for the source in messages."""
    flat: dict[str, Json] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            below = {f"{key}.{k}": v for k, v in flatten(value, name).items()}
        else:
            below = {str(key): value}
        for path, leaf in below.items():
            if path in flat:
                raise ConfigError(f"{name}: {path} is given twice, once nested and once with dots. Keep one.")
            flat[path] = leaf
    return flat
