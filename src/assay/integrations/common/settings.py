"""What a host's reward is made of: the YAML file that `ASSAY_REWARDS_CONFIG` names, then the host's own keywords.

    reward: monitor                  name of a reward, or path.py:name, or package.module:name
    options: {verbosity: 0.1}        what the reward itself takes
    judge: {base_url: ..., model: ...}
    engine: {max_in_flight: 512, on_failure: raise}

Keywords may be nested or dotted, and win over the file. The reward `monitor` is also set by its environment variables
(`assay.envs.monitor.variables`), which rank below both. An unknown key is an error: it would do nothing.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import chz

from assay.config.schema import node_class, parse, settings, type_name
from assay.config.sources import Layer, flatten, parse_yaml
from assay.envs.monitor.variables import announce, monitor_settings
from assay.errors import ConfigError
from assay.rewards.config import EngineConfig, JudgeConfig
from assay.types import Json

CONFIG_ENV = "ASSAY_REWARDS_CONFIG"
"""Environment variable that names a YAML file of these settings."""
_OPTIONS = "options."
_NOT_THE_CLIENTS = ("on_failure", "failure_value", "max_failure_rate", "batch_deadline_s", "reread_limit")
"""Settings of an engine that are no matter of whoever makes its calls."""


@chz.chz
class HostConfig:
    """A reward as a host runs it."""

    reward: str = "monitor"
    """Name of a reward, or where its class, factory or object is: `path.py:name`, `package.module:name`."""
    options: Mapping[str, Json] = chz.field(default_factory=dict)
    """Keyword arguments of the reward."""
    parts: tuple[str, ...] = ()
    """Parts of the score that a host is given beside it, always all of them. Empty takes the names that the reward
    declares (`parts`), and else, where a host passes a whole batch, those that occur in it."""
    order: Literal["specification", "verl"] = "specification"
    """Order of positional arguments: (response, ground_truth, dataset_name, extra_info), or verl's own
    (data_source, solution_str, ground_truth, extra_info). The two cannot be told apart by looking."""
    group_by: str = "index"
    """Key of `extra_info` whose equal values, within a data source, are the rollouts of one prompt: where the mean of a
    group stands in for a failed score and the host does not say which samples are a group."""
    share: Literal["auto", "ray", "hub", "process"] = "auto"
    """Who makes the calls, and so has limit and budget: one Ray actor for all workers (`ray`), one process of this
    machine for all (`hub`), or each for itself (`process`). `auto` takes the actor wherever Ray is running."""
    shared_name: str = "judge"
    """Beginning of the actor's or the hub's name; the rest follows from endpoint and limits: equal ones are shared."""
    judge: JudgeConfig = chz.field(default_factory=JudgeConfig)
    """Whom to ask."""
    engine: EngineConfig = chz.field(default_factory=EngineConfig)
    """How fast, how long, how much, and what a failure means."""


def read_settings(given: Mapping[str, object], defaults: Mapping[str, Json] | None = None) -> HostConfig:
    """The settings of this process: `defaults` (a host's own), below the file of `ASSAY_REWARDS_CONFIG`, below `given`.

    Raises:
        ConfigError: an unknown key, a wrong type, an unreadable file, or settings that cannot go together.
    """
    said = [Layer("reward keywords", flatten(plain(given), "reward keywords"))]
    if path := os.environ.get(CONFIG_ENV):
        said.insert(0, _read_file(path))
    layers = [Layer("the host's defaults", dict(defaults or {})), *said]
    if [HostConfig().reward, *(layer.values["reward"] for layer in said if "reward" in layer.values)][-1] == "monitor":
        layers.insert(1, _monitor_layer())
    return build(layers)


def _monitor_layer() -> Layer:
    """What the monitor's environment variables set, where no file and no keyword says otherwise."""
    found = monitor_settings(os.environ)
    announce(tuple(f"{key}={value}" for key, value in found.items()))
    renamed = {key.replace("reward.", _OPTIONS, 1) if key.startswith("reward.") else key: found[key] for key in found}
    return Layer("environment", renamed)


def build(layers: Sequence[Layer]) -> HostConfig:
    """The settings that layers give; of equal keys the last wins."""
    values: dict[str, dict[str, Json]] = {"": {}, "judge": {}, "engine": {}}
    options: dict[str, Json] = {}
    for layer in layers:
        for key, value in layer.values.items():
            if key.startswith(_OPTIONS):
                _put(options, key.removeprefix(_OPTIONS).split("."), value)
            elif (key, value) != ("options", {}):
                parent, name, read = _read(key, value, layer.name)
                values[parent][name] = read
    judge, engine = JudgeConfig(**values["judge"]), EngineConfig(**values["engine"])
    return HostConfig(**values[""], options=options, judge=judge, engine=engine)


def flat(config: HostConfig) -> dict[str, Json]:
    """Every setting that decides what a score is or how calls are made, as dotted keys and JSON-ready values."""
    keys: dict[str, Json] = {}
    for parent, node in (("", config), ("judge.", config.judge), ("engine.", config.engine)):
        for name, setting in settings(type(node)).items():
            if node_class(setting.annotation) is None:
                keys[parent + name] = _json(getattr(node, name))
    return keys


def shared_name(config: HostConfig) -> str:
    """The actor or hub that calls go to: one for each endpoint, and each set of limits, prices and cache."""
    keys = {
        key: value
        for key, value in flat(config).items()
        if key.startswith(("judge.base_url", "judge.api_key_env", "judge.usd", "engine."))
        and key.removeprefix("engine.") not in _NOT_THE_CLIENTS
    }
    digest = hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:12]
    return f"{config.shared_name}-{digest}"


def plain(value: Any) -> Any:
    """A copy of what a host passed in which containers are dicts and lists and numbers are Python's own.

    Hosts pass numpy arrays and scalars, and OmegaConf containers; anything else stays the object that it is.
    """
    if isinstance(value, str | bytes):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        # An object array hands out its members as they are, and one without dimensions a bare one.
        return plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [plain(v) for v in value]
    return value


def _json(value: object) -> Json:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _json(v) for k, v in value.items()}
    return [_json(v) for v in value] if isinstance(value, tuple | list) else value


def _put(options: dict[str, Json], path: Sequence[str], value: Json) -> None:
    for name in path[:-1]:
        below = options.get(name)
        options[name] = below if isinstance(below, dict) else {}
        options = options[name]
    options[path[-1]] = value


def _read(key: str, value: Json, layer: str) -> tuple[str, str, Json]:
    """The node, the name and the value that a dotted key sets."""
    nodes: Mapping[str, type] = {"": HostConfig, "judge": JudgeConfig, "engine": EngineConfig}
    parent, _, name = key.rpartition(".")
    setting = settings(nodes[parent]).get(name) if parent in nodes else None
    if setting is None or key in nodes:
        raise ConfigError(_unknown(key, layer, nodes))
    try:
        return parent, name, parse(value, setting.annotation)
    except ValueError as error:
        raise ConfigError(f"{key}={value!r} ({layer}): expected {type_name(setting.annotation)}.") from error


def _unknown(key: str, layer: str, nodes: Mapping[str, type]) -> str:
    known = [f"{p}.{n}" if p else n for p, cls in nodes.items() for n in settings(cls) if n not in nodes]
    leaf = key.rpartition(".")[2]
    like = difflib.get_close_matches(leaf, [k.rpartition(".")[2] for k in known], n=2)
    near = [k for name in (leaf, *like) for k in known if k.rpartition(".")[2] == name]
    hint = f" Did you mean {' or '.join(dict.fromkeys(near))}?" if near else f" Settings: {', '.join(known)}."
    return (
        f"{key} ({layer}): there is no such setting, so it would have no effect.{hint} What the reward itself takes "
        f"goes under options: options.{key}=..."
    )


def _read_file(path: str) -> Layer:
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read {path}, which {CONFIG_ENV} names: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}, which {CONFIG_ENV} names, is not UTF-8 text, so no YAML.") from error
    return parse_yaml(text, name=path)
