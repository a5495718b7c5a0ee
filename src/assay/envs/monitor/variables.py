"""The one place that reads environment variables of the monitor setting, and what each of them sets.

They rank above the defaults and below everything that is said explicitly (presets, YAML files, the command line,
arguments in Python). `OPENAI_API_KEY` sets nothing: the engine reads the key where it is, so that no copy of it can
reach a file.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from assay.config.values import parse
from assay.errors import ConfigError
from assay.types import Json

logger = logging.getLogger(__name__)

DEFAULT_K = 0.01
"""Reward per word that `VERBOSE_REWARDS=true` stands for."""
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def _flag(text: str) -> Json:
    return parse(text, bool)


def _number(text: str) -> Json:
    return parse(text, float)


def _per_word(text: str) -> Json:
    """K, or a switch. A bare 1 could be either, and as K it would drown every other reward."""
    if text.lower() in _TRUE + _FALSE:
        return DEFAULT_K if text.lower() in _TRUE else 0.0
    if text == "1":
        raise ValueError("true, false, or K with a decimal point (1.0), since 1 could be the switch or a K")
    try:
        return parse(text, float)
    except ValueError:
        raise ValueError(f"true (K={DEFAULT_K}), false, or K itself") from None


@dataclass(frozen=True)
class Variable:
    """What an environment variable sets."""

    setting: str
    """Dotted key below the builder's node."""
    read: Callable[[str], Json]
    """Its value; raises ValueError that says in words what was expected."""


VARIABLES: Mapping[str, Variable] = {
    "TRAIN_WITH_MONITOR": Variable("reward.train_with_monitor", _flag),
    "MONITOR_CORRECT_REWARD": Variable("reward.monitor_correct_reward", _number),
    "MONITOR_WRONG_REWARD": Variable("reward.monitor_wrong_reward", _number),
    "REBALANCE_MONITOR_REWARD": Variable("reward.rebalance_monitor_reward", _flag),
    "VERBOSE_REWARDS": Variable("reward.verbose_rewards", _per_word),
    "MONITOR_MODEL_NAME": Variable("judge.model", str),
    "MONITOR_CACHE": Variable("engine.cache", _flag),
}
"""Environment variable -> what it sets. An empty one counts as not set."""


def monitor_settings(environ: Mapping[str, str]) -> dict[str, Json]:
    """Settings that the environment gives, by dotted key below the builder's node.

    Raises:
        ConfigError: a value cannot be read.
    """
    _warn_of_unknown(tuple(sorted(name for name in environ if name.startswith("MONITOR_") and name not in VARIABLES)))
    found: dict[str, Json] = {}
    for name, variable in VARIABLES.items():
        text = environ.get(name, "").strip()
        if not text:
            continue
        try:
            found[variable.setting] = variable.read(text)
        except ValueError as error:
            raise ConfigError(
                f"The environment variable {name}={text!r} cannot be read: expected {error}. Correct it, or unset it "
                f"and set dataset_builder.{variable.setting} instead."
            ) from error
    return found


@cache
def announce(taken: tuple[str, ...]) -> None:
    """Log what was taken from the environment; the same things once per process."""
    if taken:
        logger.info("Taken from the environment: %s.", ", ".join(taken))


@cache
def _warn_of_unknown(names: tuple[str, ...]) -> None:
    for name in names:
        near = difflib.get_close_matches(name, VARIABLES, n=1)
        hint = f" Did you mean {near[0]}?" if near else f" Known: {', '.join(VARIABLES)}."
        logger.warning("The environment variable %s is set, and nothing reads it.%s", name, hint)
