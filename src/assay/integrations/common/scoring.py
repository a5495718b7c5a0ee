"""What every host shares: one engine per process and settings, arguments turned to samples, scores to plain numbers.

    host arguments -> Sample -> RewardEngine -> Score -> {"score": 0.7, "format": 1.0, ..., "assay_errored": 0.0}

Rows of one batch have equal keys and finite values, and are as many as the samples. A sample that could not be scored
never gets an invented reward: the failure policy decides, and `assay_errored` marks replaced rewards.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import ConfigError, DataError, RewardError
from assay.integrations.common.settings import (
    OPTIONS,
    HostConfig,
    plain,
    read_from_environment,
    read_settings,
    shared_name,
    version_of,
)
from assay.plugins import source_file
from assay.rewards import Client, RewardEngine, Sample
from assay.rewards.base import Caller
from assay.rewards.client.reply_cache import default_cache_path
from assay.rewards.client.resources import api_key
from assay.rewards.combined import AnyReward, CombinedReward, asks_judge, is_reward
from assay.rewards.failures import rewards_of
from assay.rewards.functions.reward import FunctionReward
from assay.rewards.named import REWARD, find_rewards, of_function
from assay.rewards.shared.hub import SharedCaller
from assay.terminal import shown
from assay.types import Json, Message, Score

logger = logging.getLogger(__name__)

Row = dict[str, float]
"""The row of one sample for a host: `score`, the parts, and how it was scored."""
FLAGS = ("assay_errored", "assay_invalid", "assay_cached")
"""1 where the reward stands in for a score that is missing; where the model's answer was at fault; where every reply
was in the cache."""
_RESERVED = frozenset({"score", "reward", "acc", *FLAGS})

CANNOT_DROP = (
    "This host takes a reward for every sample of a batch and cannot leave one out. Set engine.on_failure=group_mean "
    "where its group is known (group_by) and has scores, or engine.on_failure=constant with engine.failure_value."
)


class HostScorer:
    """One reward in one process, with its engine."""

    def __init__(self, config: HostConfig, reward: AnyReward | None = None, caller: Caller | None = None) -> None:
        self.config = config
        self.reward = reward if reward is not None else find_rewards(config.reward, config.options, config.judge)
        self.parts = _parts(self.reward, config)
        if caller is None and asks_judge(self.reward):
            caller = _shared_caller(config)
        self.engine = RewardEngine(self.reward, config.judge, config.engine, caller=caller)

    def rewards(self, scores: Sequence[Score], groups: Sequence[Hashable] | None = None) -> list[float | None]:
        """One reward per score under the failure policy; None leaves the sample out. See `rewards_of`."""
        return rewards_of(scores, self.config.engine, groups)

    def row(self, score: Score, reward: float, parts: Sequence[str] | None = None) -> Row:
        """The row of one score for a host; `parts` are those of its batch, if the reward declares none."""
        return {
            "score": float(reward),
            **{name: float(score.parts.get(name, 0.0)) for name in (parts if parts is not None else self.parts or ())},
            "assay_errored": float(score.status == "errored"),
            "assay_invalid": float(score.status == "invalid"),
            "assay_cached": float(score.cached),
        }

    def rows(self, scores: Sequence[Score], groups: Sequence[Hashable] | None = None) -> list[Row]:
        """Rows with equal keys for a host that cannot leave a sample out.

        Raises:
            RewardError: a sample has no score, and the failure policy has no value for it.
        """
        failed = next((score for score in scores if score.value is None), None)
        if failed is not None and groups is None and self.config.engine.on_failure == "group_mean":
            raise missing(failed, f"{CANNOT_DROP} extra_info has no {self.config.group_by!r} to know groups by.")
        rewards = self.rewards(scores, groups)
        parts = self.parts if self.parts is not None else _occurring(scores)
        rows = []
        for score, reward in zip(scores, rewards, strict=True):
            if reward is None:
                raise missing(score, CANNOT_DROP)
            rows.append(self.row(score, reward, parts))
        return rows

    def groups(self, samples: Sequence[Sample]) -> list[Hashable] | None:
        """The group of each sample by `group_by`; None where a sample lacks that key."""
        key = self.config.group_by
        if not all(sample.extra.get(key) is not None for sample in samples):
            return None
        return [(sample.data_source, json.dumps(sample.extra[key], default=str)) for sample in samples]

    def close(self) -> None:
        """End the engine."""
        self.engine.close()


def missing(score: Score, host: str) -> RewardError:
    """The error for a sample without a reward; `host` says what happens to it there."""
    failure, message = score.evidence.get("failure", "unknown"), score.evidence.get("message", "no message")
    return RewardError(
        f"A sample could not be scored ({failure}: {message}). {host} A made-up reward would be trained on. What was "
        "answered is cached and will not be paid for again."
    )


def sample_of(
    response: object,
    ground_truth: object = None,
    data_source: object = "",
    extra_info: object = None,
    prompt: Sequence[Message] = (),
) -> Sample:
    """One sample of a host's arguments, which are copied and never changed.

    Raises:
        DataError: the response is not text, or the extras are not a mapping: most likely arguments in another order.
    """
    if not isinstance(response, str) or not isinstance(data_source, str | None):
        raise DataError(
            f"response={shown(response, 80)} and data source {shown(data_source, 80)} must be text. Positional "
            "arguments are read as (response, ground_truth, dataset_name, extra_info); verl's own order (data_source, "
            "solution_str, ground_truth, extra_info) must be declared: order=verl."
        )
    if not isinstance(extra_info, Mapping | None):
        raise DataError(
            f"extra_info={shown(extra_info, 80)} must be a mapping or None, not a {type(extra_info).__name__}."
        )
    extra: dict[str, Json] = plain(extra_info) if extra_info is not None else {}
    return Sample(str(response), plain(ground_truth), str(data_source or ""), tuple(prompt), extra)


def samples_of(
    responses: Sequence[Any],
    ground_truths: Sequence[Any] | None = None,
    data_sources: Sequence[Any] | None = None,
    extra_infos: Sequence[Any] | None = None,
) -> list[Sample]:
    """One sample per response; what a host does not have may be None, as a whole or per sample.

    Raises:
        DataError: the sequences differ in length, or a member is of the wrong kind.
    """
    given = {
        "solution_strs": responses,
        "ground_truths": ground_truths,
        "data_sources": data_sources,
        "extra_infos": extra_infos,
    }
    lengths = {name: len(values) for name, values in given.items() if values is not None}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise DataError(f"A batch must have one entry per sample in everything, but {listed}. Nothing was scored.")
    columns = [values if values is not None else [None] * len(responses) for values in given.values()]
    return [sample_of(*fields) for fields in zip(*columns, strict=True)]


def scorer(given: Mapping[str, object], defaults: Mapping[str, Json] | None = None) -> HostScorer:
    """The scorer of this process for settings as a host passes them; equal settings share one.

    Environment variables (the API key among them), the file of `ASSAY_REWARDS_CONFIG` and that of the reward are part
    of the settings: if they change, the next call is scored by a new one.
    """
    said = json.dumps([plain(given), dict(defaults or {}), read_from_environment()], sort_keys=True, default=str)
    found = _SCORERS.get((said, _outside(said)))
    if found is not None:
        return found
    with _MAKING:
        config = read_settings(given, defaults)
        files = tuple(file for name in config.reward if (file := source_file(name, REWARD)) is not None)
        _READ_OUTSIDE[said] = config.judge.api_key_env, files
        key = said, _outside(said)
        if key not in _SCORERS:
            _SCORERS[key] = HostScorer(config)
        return _SCORERS[key]


def scorer_of(reward: object, settings: Mapping[str, object]) -> HostScorer:
    """The scorer for a reward as a user passes it in Python: named, one or several, made already, or a plain function.

    Raises:
        ConfigError: impossible settings, or options of a reward that is made already.
    """
    if isinstance(reward, str) or (isinstance(reward, Sequence) and all(isinstance(name, str) for name in reward)):
        return scorer({"reward": reward, **settings})
    dotted = {key.removeprefix(OPTIONS): value for key, value in settings.items() if key.startswith(OPTIONS)}
    options = plain({**(settings.get("options") or {}), **dotted})  # type: ignore[dict-item]
    if options and is_reward(reward):
        raise ConfigError(
            "options are for a function or a reward that is given by name; this reward is already an object."
        )
    made: AnyReward = reward if is_reward(reward) else of_function(reward, options)
    # Under a name of its own: the monitor's environment variables do not concern another reward.
    others = {key: value for key, value in settings.items() if not f"{key}.".startswith(OPTIONS)}
    return HostScorer(read_settings({**others, "reward": f"given:{made.name}"}), made)


def asks_for_truth(reward: AnyReward) -> bool:
    """Whether a host must have a ground truth for each sample. A function takes it by its name, or another column."""
    members = [member for member, _ in reward.members] if isinstance(reward, CombinedReward) else [reward]
    return not all(isinstance(member, FunctionReward) for member in members)


def _outside(said: str) -> int:
    """A hash of what the settings refer to, as it is now: the API key, and the rewards' files."""
    variable, files = _READ_OUTSIDE.get(said, ("", ()))
    return hash((os.environ.get(variable, ""), *(version_of(file) for file in files)))


def close_all() -> None:
    """End the engines of this process."""
    with _MAKING:
        while _SCORERS:
            _SCORERS.popitem()[1].close()


_SCORERS: dict[tuple[str, int], HostScorer] = {}
_READ_OUTSIDE: dict[str, tuple[str, tuple[Path, ...]]] = {}
"""Settings as given -> the environment variable that holds their API key, and the files of their rewards."""
_MAKING = threading.Lock()


def _forget_after_fork() -> None:
    """A forked child has no engine thread: it makes engines of its own."""
    global _MAKING
    _SCORERS.clear()
    _MAKING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _parts(reward: AnyReward, config: HostConfig) -> tuple[str, ...] | None:
    """The names of the parts that every row has; None where neither settings nor reward say."""
    declared: Sequence[str] | None = config.parts or getattr(reward, "parts", None)
    if declared is None:
        return None
    if clash := _RESERVED & set(declared):
        raise ConfigError(
            f"Parts of {reward.name} are called {', '.join(sorted(clash))}, names that hosts use for something else."
        )
    return tuple(declared)


def _occurring(scores: Sequence[Score]) -> tuple[str, ...]:
    names = dict.fromkeys(name for score in scores for name in score.parts)
    return tuple(name for name in names if name not in _RESERVED)


def _shared_caller(config: HostConfig) -> Caller | None:
    """The shared caller of several processes, if there should be one; None calls from this process."""
    if config.engine.offline or config.share == "process":
        return None
    if config.share == "hub":
        api_key(config.judge)  # this process may become the hub
        folder = (config.engine.cache_path or default_cache_path()).parent
        return SharedCaller(folder / f"{shared_name(config)}.hub", lambda: Client(config.judge, config.engine))
    from assay.integrations.common import ray_actor

    if config.share == "auto" and not ray_actor.is_running():
        return None
    return ray_actor.RayCaller(config)
