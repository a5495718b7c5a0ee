"""`compute_score` as verl calls it, in every convention that its managers have had.

    compute_score(response, ground_truth, dataset_name, extra_info)                  one sample, by position
    compute_score(data_source=, solution_str=, ground_truth=, extra_info=)           one sample: naive
    compute_score(data_sources=, solution_strs=, ground_truths=, extra_infos=)       a whole batch: batch
    await acompute_score(data_source=, solution_str=, ground_truth=, extra_info=)    one sample: reward loop

All other keywords are settings (`assay.integrations.common.settings`): verl passes its `reward_kwargs` here. One sample
gives a number from `compute_score` and, with `details=true`, a dictionary with `score` and its parts, which verl logs;
`acompute_score` gives the dictionary unless `details=false`. A batch gives a list of dictionaries. The positional order
of verl's `prime` manager cannot be told from the one above; it must be declared (`order=verl`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from assay.errors import DataError
from assay.integrations.common.scoring import HostScorer, Row, missing, sample_of, samples_of, scorer
from assay.rewards import Sample
from assay.types import Json, Score

BATCH = ("solution_strs", "ground_truths", "data_sources", "extra_infos")
ALIASES: Mapping[str, str] = {"solution_str": "response", "data_source": "dataset_name"}
"""verl's keyword -> Assay's."""
ORDERS: Mapping[str, Sequence[str]] = {
    "response_first": ("response", "ground_truth", "dataset_name", "extra_info"),
    "verl": ("dataset_name", "response", "ground_truth", "extra_info"),
}
_SERVED = ("reward_router_address", "reward_model_tokenizer")
"""What verl adds where it serves a reward model."""
BATCH_DEFAULTS: Mapping[str, Json] = {"engine.on_failure": "group_mean"}
"""A manager that scores a whole batch cannot leave a sample out; with the mean of its group its advantage is 0."""


REWARD_LOOP = (
    "verl's V1 trainer (trainer.use_v1=true) leaves this rollout out of its group; the V0 trainer ends the step here."
)
SINGLE = (
    "verl's V1 trainer leaves this rollout out of its group; other trainers end the step here. To go on instead, set "
    "engine.on_failure=constant with engine.failure_value, or score in batches, where a group's mean can stand in."
)
"""What happens to a sample without a score."""


class _Arguments(NamedTuple):
    """One call, sorted out."""

    samples: list[Sample]
    batch: bool
    settings: dict[str, object]


def compute_score(*args: Any, **kwargs: Any) -> Row | list[Row] | float:
    """Score one sample or a batch; blocks. See the module for the conventions.

    Raises:
        DataError: arguments of unequal length or of the wrong kind.  ConfigError: impossible settings.
        RewardError: a sample could not be scored and the failure policy has nothing to stand in for it.
    """
    samples, batch, settings = _sort(args, kwargs)
    one = scorer(settings, BATCH_DEFAULTS)
    scores = one.engine.score_many_sync(samples)
    if batch:
        return one.rows(scores, one.groups(samples))
    reward = _single_reward(one, scores[0], SINGLE)
    return one.row(scores[0], reward) if one.config.details else reward


async def acompute_score(*args: Any, **kwargs: Any) -> Row | list[Row] | float:
    """Score one sample or a batch on verl's own event loop: what its reward loop awaits, sample by sample.

    A plain `async def`, because verl looks at nothing else: it would send an object with an asynchronous `__call__` to
    a thread and take the coroutine for the reward.

    Raises:
        RewardError: a sample could not be scored. verl's V1 trainer then leaves that rollout out of its group, which is
            what `on_failure=drop` (the default here) means.
    """
    samples, batch, settings = _sort(args, kwargs)
    one = scorer(settings, BATCH_DEFAULTS if batch else None)
    if batch:
        return one.rows(await one.engine.score_many(samples), one.groups(samples))
    score = await one.engine.score(samples[0])
    reward = _single_reward(one, score, REWARD_LOOP)
    return reward if one.config.details is False else one.row(score, reward)


def _single_reward(one: HostScorer, score: Score, host: str) -> float:
    """The reward of a sample that comes alone, as a group of one."""
    reward = one.rewards([score], [0])[0]
    if reward is None:
        raise missing(score, host)
    return reward


def _sort(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Arguments:
    """Samples and settings of one call."""
    settings = {name: value for name, value in kwargs.items() if name not in _KNOWN}
    settings |= served_judge(kwargs.get("reward_router_address"), settings)
    if any(name in kwargs for name in BATCH):
        mixed = [name for name in _SINGLE if name in kwargs]
        if args or mixed:
            listed = ", ".join(mixed) or f"{len(args)} positional arguments"
            raise DataError(
                f"compute_score was given a batch ({', '.join(BATCH)}) together with {listed}. Pass one or the other."
            )
        responses = kwargs.get("solution_strs")
        if responses is None:
            raise DataError("compute_score was given a batch without solution_strs, so there is nothing to score.")
        columns = [kwargs.get(name) for name in BATCH[1:]]
        return _Arguments(samples_of(responses, *columns), True, settings)
    fields = _named(args, kwargs, str(settings.get("order", "response_first")))
    sample = sample_of(
        fields["response"], fields.get("ground_truth"), fields.get("dataset_name", ""), fields.get("extra_info")
    )
    return _Arguments([sample], False, settings)


def _named(args: Sequence[Any], kwargs: Mapping[str, Any], order: str) -> dict[str, Any]:
    """The fields of a single sample by Assay's names."""
    names = ORDERS.get(order, ORDERS["response_first"])  # a wrong order is refused with the other settings
    if len(args) > len(names):
        raise DataError(
            f"compute_score takes up to {len(names)} positional arguments ({', '.join(names)}), not {len(args)}."
        )
    fields = dict(zip(names, args, strict=False))
    for name in _SINGLE:
        if name in kwargs:
            field = ALIASES.get(name, name)
            if field in fields:
                raise DataError(f"compute_score was given {field} twice, once as {name}.")
            fields[field] = kwargs[name]
    if "response" not in fields:
        raise DataError(
            "compute_score was not given a response (response, solution_str, or solution_strs for a batch)."
        )
    return fields


def served_judge(address: object, settings: Mapping[str, object]) -> dict[str, object]:
    """The reward model that verl serves is the judge, unless the settings name another."""
    if not address or any(str(key) == "judge.base_url" for key in settings):
        return {}
    judge = settings.get("judge")
    if isinstance(judge, Mapping) and "base_url" in judge:
        return {}
    return {"judge.base_url": f"http://{address}/v1", "judge.api_key_env": ""}


_SINGLE = ("response", "solution_str", "ground_truth", "dataset_name", "data_source", "extra_info")
_KNOWN = frozenset({*_SINGLE, *BATCH, *_SERVED})
