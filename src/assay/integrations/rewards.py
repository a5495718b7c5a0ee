"""Finds the reward that a setting names: one of Assay's own, or whatever a `path.py:name` or `module:name` leads to."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.config.schema import parse, settings
from assay.envs.monitor.rewards import ClassBalance, MonitorReward, MonitorRewardConfig
from assay.envs.monitor.rows import read_source
from assay.errors import ConfigError
from assay.rewards.base import Reward
from assay.rewards.config import JudgeConfig
from assay.types import Json

NAMED: Mapping[str, str] = {
    "judge": "assay.rewards.judge.reward:JudgeReward",
    "monitor": "assay.integrations.rewards:monitor",
}
"""Rewards by name, and where they are."""


def find_reward(name: str, options: Mapping[str, Json], judge: JudgeConfig) -> Reward:
    """The reward that `name` leads to: a reward as it stands, or what a class or function makes of `options`.

    What is called is also given the judge's settings, where it has a parameter `judge`.

    Raises:
        ConfigError: there is no such thing, it is no reward, or it does not take these options.
    """
    found = _find(name)
    if _is_reward(found):
        if options:
            raise ConfigError(f"reward={name} is made already, so options ({', '.join(options)}) would have no effect.")
        return found  # type: ignore[no-any-return]
    if not callable(found):
        raise ConfigError(
            f"reward={name} is a {type(found).__name__}, and neither a reward nor something that makes one."
        )
    arguments = {**options, **({"judge": judge} if _takes_judge(found) and "judge" not in options else {})}
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"reward={name} with options {dict(options)}: {error}. It is {name}{_signature(found)}."
        ) from None
    made = found(**arguments)
    if not _is_reward(made):
        raise ConfigError(
            f"reward={name} made a {type(made).__name__}, which is no reward: a reward has `name`, `fingerprint`, "
            "`requests(sample)` and `score(sample, replies)`."
        )
    return made  # type: ignore[no-any-return]


def monitor(
    judge: JudgeConfig,
    train_data: str | None = None,
    dataset_name: str = "function_correctness",
    share_true: float | None = None,
    **options: Json,
) -> Reward:
    """The monitor's reward (`assay.envs.monitor`): `options` are the fields of its `MonitorRewardConfig`.

    With `rebalance_monitor_reward` it must know how often the latent variable is true in the training data.

    Args:
        train_data: where the data are, to count it in: a path, or `huggingface` (`monitor.rows.read_source`).
        dataset_name: their name on the hub.
        share_true: how often it is true, where the data are not at hand.

    Raises:
        ConfigError: impossible options.  DataError: the data cannot be read.
    """
    known = settings(MonitorRewardConfig)
    if unknown := options.keys() - known:
        listed = ", ".join(sorted(unknown))
        own = "train_data, dataset_name, share_true"
        raise ConfigError(f"The monitor reward has no options {listed}. It has {own}, {', '.join(known)}.")
    try:
        config = MonitorRewardConfig(**{name: parse(value, known[name].annotation) for name, value in options.items()})
    except ValueError as error:
        raise ConfigError(f"Options of the monitor reward, {dict(options)}: {error}") from error
    return MonitorReward(config, judge, _balance(config, train_data, dataset_name, share_true))


def _balance(
    config: MonitorRewardConfig, train_data: str | None, dataset_name: str, share_true: float | None
) -> ClassBalance | None:
    if not config.rebalance_monitor_reward:
        return None
    if (train_data is None) == (share_true is None):
        raise ConfigError(
            "rebalance_monitor_reward=true needs to know how often the latent variable is true in the training data. "
            "Set either options.train_data, to count it there, or options.share_true."
        )
    if train_data is not None:
        return ClassBalance.of(row.is_correct for row in read_source(train_data, dataset_name).rows("train"))
    assert share_true is not None
    return ClassBalance(share_true)


def _find(name: str) -> Any:
    place, colon, attribute = NAMED.get(name, name).rpartition(":")
    if not colon:
        raise ConfigError(f"reward={name!r} is none of {', '.join(NAMED)}, and no path.py:name or package.module:name.")
    module = _load_file(Path(place).expanduser()) if place.endswith(".py") else _import(place)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"reward={name}: {place} has no {attribute}.") from None


def _import(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(
                f"There is no module {place} here. Install it, or put its folder in PYTHONPATH."
            ) from error
        raise


def _load_file(path: Path) -> ModuleType:
    """The module in a file, loaded once in a process, under a name of its own."""
    resolved = path.resolve()
    name = f"assay_reward_{path.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not resolved.is_file():
        raise ConfigError(f"There is no file {path} (looked in {Path.cwd()}), so no reward in it.")
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_reward(found: object) -> bool:
    wanted = ("name", "fingerprint", "requests", "score")
    return not inspect.isclass(found) and all(hasattr(found, attribute) for attribute in wanted)


def _takes_judge(found: Any) -> bool:
    return "judge" in inspect.signature(found).parameters


def _signature(found: Any) -> str:
    return str(inspect.signature(found))
