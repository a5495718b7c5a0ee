"""Finds the reward that a setting names, and makes it: one of Assay's own, or one in any module or file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from assay.errors import ConfigError
from assay.plugins import Kind, find, signature
from assay.rewards.base import Reward
from assay.rewards.config import JudgeConfig
from assay.types import Json


def is_reward(found: object) -> bool:
    """Whether an object is a reward as it stands."""
    wanted = ("name", "fingerprint", "requests", "score")
    return not inspect.isclass(found) and all(hasattr(found, attribute) for attribute in wanted)


REWARD = Kind(
    "reward",
    {
        "judge": "assay.rewards.judge.reward:JudgeReward",
        "monitor": "assay.envs.monitor.rewards:monitor_reward",
    },
    lambda found: is_reward(found) or callable(found),
)
"""What `reward` may name: a reward, or a class or function that makes one of its options."""


def find_reward(name: str, options: Mapping[str, Json], judge: JudgeConfig) -> Reward:
    """The reward that `name` leads to: a reward as it stands, or what a class or function makes of `options`.

    What is called is also given the judge's settings, where it has a parameter `judge`.

    Raises:
        ConfigError: there is no such thing, it is no reward, or it does not take these options.
    """
    found = find(name, REWARD, "reward")
    if is_reward(found):
        if options:
            raise ConfigError(f"reward={name} is made already, so options ({', '.join(options)}) would have no effect.")
        return found  # type: ignore[no-any-return]
    arguments = {**options, **({"judge": judge} if _takes_judge(found) and "judge" not in options else {})}
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"reward={name} with options {dict(options)}: {error}. It is {name}{signature(found)}."
        ) from None
    made = found(**arguments)
    if not is_reward(made):
        raise ConfigError(
            f"reward={name} made a {type(made).__name__}, which is no reward: a reward has `name`, `fingerprint`, "
            "`requests(sample)` and `score(sample, replies)`."
        )
    return made  # type: ignore[no-any-return]


def _takes_judge(found: Any) -> bool:
    return "judge" in inspect.signature(found).parameters
