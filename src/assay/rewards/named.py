"""Finds and makes the rewards that a setting names: built-in ones, functions, or rewards in any module or file.

math                             one of Assay's own
rewards.py:correct               a reward function, a reward, or a class or function that makes one
rewards.py:correct,math*0.5      several, with weights: their weighted sum
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.errors import ConfigError
from assay.plugins import Kind, find, signature, split_weight
from assay.rewards.combined import AnyReward, CombinedReward, is_reward
from assay.rewards.config import JudgeConfig
from assay.rewards.functions.arguments import takes_completion
from assay.rewards.functions.options import is_marked, options_of
from assay.rewards.functions.reward import FunctionReward
from assay.types import Json

REWARD = Kind(
    "reward",
    {
        "math": "assay.rewards.math_answers:math",
        "judge": "assay.rewards.judge.reward:JudgeReward",
        "chess": "assay.envs.chess.position_reward:ChessReward",
        "kernelbench": "assay.envs.kernelbench.named_reward:KernelReward",
        "monitor": "assay.envs.monitor.rewards:monitor_reward",
    },
    lambda found: is_reward(found) or callable(found),
    weighted=True,
)
"""What `reward` may name: a function that takes a completion, a reward, or a factory that makes one from options."""
_OF_FUNCTIONS = ("timeout_s", "on_timeout", "processes")
"""Options of any reward function, beside its own keyword parameters."""


def find_rewards(names: Sequence[str], options: Mapping[str, Json], judge: JudgeConfig) -> AnyReward:
    """The reward that `names` lead to: one, or the weighted sum of several.

    Args:
        names: each may end in `*WEIGHT`.
        options: keyword arguments of the one reward; of several, a mapping of name to such arguments, where the name is
            what follows the colon (`rewards.py:correct` is `correct`).

    Raises:
        ConfigError: it does not exist, is not a reward, or does not take these options.
    """
    if not names:
        known = ", ".join(REWARD.known)
        raise ConfigError(f"reward names nothing to score with: give path.py:function, module:name, or {known}.")
    if len(names) == 1 and split_weight(names[0])[1] == 1.0:
        return find_reward(split_weight(names[0])[0], options, judge)
    keys = {split_weight(name)[0].rpartition(":")[2] for name in names}
    if len(names) > 1:
        wrong = [key for key, value in options.items() if key not in keys or not isinstance(value, Mapping)]
        if wrong:
            raise ConfigError(
                f"options.{wrong[0]}: with several rewards, say whose option it is: options.NAME.{wrong[0]}, where "
                f"NAME is one of {', '.join(sorted(keys))}."
            )
    members = []
    for name in names:
        reference, weight = split_weight(name)
        own = options.get(reference.rpartition(":")[2], {}) if len(names) > 1 else options
        member = find_reward(reference, own, judge)
        members.append((member, weight))
    return CombinedReward(members)  # type: ignore[arg-type]


def find_reward(name: str, options: Mapping[str, Json], judge: JudgeConfig) -> AnyReward:
    """The reward that `name` leads to: a reward as it stands, a reward function, or what a class or function makes.

    `options` are bound to the further parameters of a reward function (`timeout_s`, `on_timeout` and `processes` say
    how it runs), and to those of what makes a reward, which is also given the judge's settings where it has a parameter
    `judge`.

    Raises:
        ConfigError: it does not exist, is not a reward, or does not take these options.
    """
    found = find(name, REWARD, "reward")
    if is_reward(found):
        if options:
            raise ConfigError(
                f"reward={name} is already an object, so options ({', '.join(options)}) would have no effect."
            )
        return found
    if is_marked(found) or takes_completion(found):
        return of_function(found, options)
    arguments = {**options, **({"judge": judge} if _takes_judge(found) and "judge" not in options else {})}
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"reward={name} with options {dict(options)}: {error}. It is {name}{signature(found)}. A reward function "
            "takes `completion` (or `completions`); anything else is called with the options and must return a reward."
        ) from None
    made = found(**arguments)
    if takes_completion(made) and not is_reward(made):
        return FunctionReward(made)
    if not is_reward(made):
        raise ConfigError(
            f"reward={name} made a {type(made).__name__}, which is not a reward: a reward is a function that takes "
            "`completion`, or has `name`, `fingerprint`, and `requests` with `score` or `evaluate`. It was called with "
            "the options, because it takes no `completion` itself."
        )
    return made


def of_function(function: Any, options: Mapping[str, Json] | None = None) -> FunctionReward:
    """A reward of a plain function; `options` as in `find_reward`.

    Raises:
        ConfigError: the function takes no completion, or not these options.
    """
    own = set(inspect.signature(function).parameters)
    how = {name: value for name, value in (options or {}).items() if name in _OF_FUNCTIONS and name not in own}
    fixed = {name: value for name, value in (options or {}).items() if name not in how}
    return FunctionReward(function, fixed, options=replace(options_of(function), **how))


def _takes_judge(found: Any) -> bool:
    return "judge" in inspect.signature(found).parameters
