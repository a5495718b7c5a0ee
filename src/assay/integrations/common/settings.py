"""What a host's reward is made of: the YAML file that `ASSAY_REWARDS_CONFIG` names, then the host's own keywords.

    reward: monitor                  name of a reward, or path.py:name, or package.module:name, or a list of these
    options: {verbosity: 0.1}        arguments of the reward itself
    judge: {base_url: ..., model: ...}
    engine: {max_in_flight: 512, on_failure: raise}

Keywords may be nested or dotted, and win over the file. The reward `monitor` is also set by its environment variables
(`assay.envs.monitor.variables`), which rank below both. An unknown key is an error: it would do nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import chz

from assay.config import Code, Layer, Not, Settings, UsedWhen, build, resolved
from assay.config.schema import settings
from assay.config.sources import flatten, parse_yaml
from assay.config.values import parse
from assay.envs.monitor.rewards import MonitorRewardConfig
from assay.envs.monitor.variables import VARIABLES, announce, monitor_settings
from assay.errors import ConfigError
from assay.rewards.config import EngineConfig, JudgeConfig
from assay.rewards.named import REWARD
from assay.types import Json

logger = logging.getLogger(__name__)

CONFIG_ENV = "ASSAY_REWARDS_CONFIG"
"""Environment variable that names a YAML file of these settings."""
OPTIONS = "options."
"""What keys of the reward's own settings begin with."""
ASKED, ASKED_IN_A_RUN = "options.train_with_monitor", "reward.train_with_monitor"
"""Whether the monitor is asked: here, and as its environment variable sets it."""
_UNKNOWN = "Arguments of the reward itself go under options: options.NAME=..."
_NOT_THE_CLIENTS = ("on_failure", "failure_value", "max_failure_rate", "batch_deadline_s", "reread_limit")
"""Settings of an engine that its caller does not need."""


@chz.chz
class HostConfig(Settings):
    """A reward as a host runs it."""

    reward: Annotated[tuple[str, ...], Code(REWARD)] = ("monitor",)
    """Name of a reward, or where a function or another reward is: `path.py:name`, `package.module:name`. Several make a
    weighted sum: `rewards.py:correct,rewards.py:format*0.2`."""
    options: Mapping[str, Json] = chz.field(default_factory=dict)
    """Keyword arguments of the reward; of several rewards `NAME.KEY`, where NAME is what follows the colon."""
    parts: tuple[str, ...] = ()
    """Parts of the score that a host always gets beside it. Empty takes the names that the reward declares (`parts`),
    or else, if a host passes a whole batch, those that occur in it."""
    order: Literal["response_first", "verl"] = "response_first"
    """Order of positional arguments: (response, ground_truth, dataset_name, extra_info), or verl's own
    (data_source, solution_str, ground_truth, extra_info). The two cannot be told apart automatically."""
    details: bool | None = None
    """Answer verl's call for one sample with a dictionary (score, parts, how it was scored) instead of a number. null:
    `compute_score` gives the number, `acompute_score` the dictionary."""
    group_by: Annotated[str, UsedWhen("engine.on_failure", "group_mean")] = "index"
    """Key of `extra_info` whose equal values, within a data source, are the rollouts of one prompt: used if the mean of
    a group replaces a failed score and the host does not say which samples form a group."""
    share: Literal["auto", "ray", "hub", "process"] = "auto"
    """Who makes the calls, and so has limit and budget: one Ray actor for all workers (`ray`), one process of this
    machine for all (`hub`), or each for itself (`process`). `auto` takes the actor wherever Ray is running."""
    shared_name: Annotated[str, UsedWhen("share", Not("process"))] = "judge"
    """Beginning of the actor's or the hub's name; the rest follows from endpoint and limits: equal ones are shared."""
    judge: JudgeConfig = chz.field(default_factory=JudgeConfig)
    """The judge."""
    engine: EngineConfig = chz.field(default_factory=EngineConfig)
    """Speed, deadlines, budget, and how failures are handled."""


def read_settings(
    given: Mapping[str, object], defaults: Mapping[str, Json] | None = None, said: str = "reward keywords"
) -> HostConfig:
    """The settings of this process: `defaults` (a host's own), below the file of `ASSAY_REWARDS_CONFIG`, below `given`.

    Args:
        said: what `given` is, for messages.

    Raises:
        ConfigError: an unknown key, a wrong type, an unreadable file, or settings that cannot go together.
    """
    own = [Layer(said, flatten(plain(given), said))]
    if path := os.environ.get(CONFIG_ENV):
        own.insert(0, _read_file(path))
    layers = [Layer("the host's defaults", dict(defaults or {})), *own]
    named = [layer.values["reward"] for layer in own if "reward" in layer.values]
    if not named or named[-1] in ("monitor", ["monitor"]):
        layers.insert(1, _monitor_layer(own))
    return build(HostConfig, layers, unknown=_UNKNOWN)


def read_from_environment() -> tuple[object, ...]:
    """What `read_settings` reads beside its arguments, as it is now: settings read under equal values are equal."""
    path = os.environ.get(CONFIG_ENV, "")
    file = version_of(Path(path).expanduser()) if path else None
    return (path, file, *(os.environ.get(name, "") for name in VARIABLES))


def version_of(file: Path) -> tuple[int, ...] | None:
    """What changes when a file changes, without reading it; None if there is no file."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _monitor_layer(others: Sequence[Layer]) -> Layer:
    """What the monitor's environment variables set, where no file and no keyword (`others`) says otherwise.

    The rewards of a monitor that is not asked are dropped: the same variables serve runs that ask it.
    """
    found = monitor_settings(os.environ)
    asked = [layer.values[ASKED] for layer in others if ASKED in layer.values] or [found.get(ASKED_IN_A_RUN, False)]
    if not parse(asked[-1], bool):
        known = settings(MonitorRewardConfig)
        idle = [key for key in found if (name := key.removeprefix("reward.")) in known and known[name].used_when]
        for key in idle:
            logger.warning("%s=%s (environment) is dropped: the monitor is not asked.", key, found.pop(key))
    announce(tuple(f"{key}={value}" for key, value in found.items()))
    renamed = {key.replace("reward.", OPTIONS, 1) if key.startswith("reward.") else key: found[key] for key in found}
    return Layer("environment", renamed)


def shared_name(config: HostConfig) -> str:
    """The actor or hub that calls go to: one for each endpoint, and each set of limits, prices and cache."""
    keys = {
        key: value
        for key, value in flatten(resolved(config), "settings").items()
        if key.startswith(("judge.base_url", "judge.api_key_env", "judge.usd", "engine."))
        and key.removeprefix("engine.") not in _NOT_THE_CLIENTS
    }
    digest = hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:12]
    return f"{config.shared_name}-{digest}"


def plain(value: Any) -> Any:
    """A copy of what a host passed in which containers are dicts and lists and numbers are Python's own.

    Hosts pass numpy arrays and scalars, and OmegaConf containers; anything else stays the same object.
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


def _read_file(path: str) -> Layer:
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read {path}, which {CONFIG_ENV} names: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}, which {CONFIG_ENV} names, is not UTF-8 text, so it cannot be YAML.") from error
    return parse_yaml(text, name=path)
