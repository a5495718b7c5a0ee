"""A reward function for TRL's trainers: `GRPOTrainer(reward_funcs=reward_func("judge", ...), ...)`.

TRL gathers asynchronous reward functions on a loop of its own and takes `None` for "no reward": the completion then
moves nothing, which is what `on_failure=drop` (the default) means here. Only where every reward function says `None`,
though: beside another one that has a number it counts as 0, so that with several functions `on_failure=group_mean` is
the honest choice. Each process of a distributed run calls the function on its own slice; `share=hub` joins them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol

from assay.errors import DataError
from assay.integrations.common.scoring import HostScorer, asks_for_truth, sample_of, scorer_of
from assay.integrations.common.settings import plain
from assay.rewards import AnyReward, Sample
from assay.types import Message, Score

TOTALS = ("calls", "cache_hits", "shared", "refusals", "failures", "usd")
"""Counters of the engine that are logged as what a batch added to them."""
TRUTH, ANSWER = "ground_truth", "answer"
"""Columns that hold the ground truth unless another one is named: the second where the first is missing."""
_TRAINERS_OWN = ("trainer_state", "environments", "log_extra", "log_metric")


class RewardFunction(Protocol):
    """What TRL calls."""

    __name__: str

    async def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        """One reward per completion; None where there is none."""
        ...


def reward_func(
    reward: str | Sequence[str] | AnyReward | Callable[..., Any] = "monitor",
    *,
    ground_truth: str | None = TRUTH,
    data_source: str | None = None,
    name: str | None = None,
    **settings: Any,
) -> RewardFunction:
    """A reward function, named as TRL logs it.

    Args:
        reward: where to find one or several (`assay.integrations.common.settings`), a reward, or a plain function.
        ground_truth: column of the data set that holds it (`ground_truth`, or `answer` where there is no such column);
            None where the reward wants none. A function takes any column by its name, and does not need this one.
        data_source: column that says where a sample is from; None leaves it empty.
        name: name in TRL's logs; the reward's own by default.
        settings: see `assay.integrations.common.settings`, nested or dotted: `judge={"model": ...}, engine={...}`.

    Raises:
        ConfigError: impossible settings, or no API key.
    """
    one = scorer_of(reward, settings)
    columns_read = {"ground_truth": ground_truth, "data_source": data_source}
    optional = frozenset(() if asks_for_truth(one.reward) else ("ground_truth",))
    last: dict[str, float] = {}

    async def assay_reward(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        samples = _samples(prompts, completions, columns, columns_read, optional)
        scores = await one.engine.score_many(samples)
        rewards = one.rewards(scores, [json.dumps(plain(prompt), default=str) for prompt in prompts])
        _log(one, scores, columns.get("log_metric"), columns.get("log_extra"), assay_reward.__name__)
        if (log_metric := columns.get("log_metric")) is not None:
            counters = await asyncio.to_thread(one.engine.counters)
            _log_counters(counters, last, log_metric)
        return rewards

    assay_reward.__name__ = assay_reward.__qualname__ = name or one.reward.name
    return assay_reward


def _samples(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Any],
    read: Mapping[str, str | None],
    optional: Set[str],
) -> list[Sample]:
    data = {name: values for name, values in columns.items() if name not in (*_TRAINERS_OWN, "completion_ids")}
    if read["ground_truth"] == TRUTH and TRUTH not in data and ANSWER in data:
        read = {**read, "ground_truth": ANSWER}
    for purpose, column in read.items():
        if column is not None and column not in data and column not in optional:
            raise DataError(
                f"The data set has no column {column!r}, which reward_func takes for the {purpose}. Columns: "
                f"{', '.join(data) or 'none'}. Name another ({purpose}=...), or None where the reward needs none."
            )
    lengths = {"prompts": len(prompts), "completions": len(completions), **{k: len(v) for k, v in data.items()}}
    if len(set(lengths.values())) > 1:
        raise DataError(f"TRL passed columns of different lengths: {lengths}. Nothing was scored.")
    samples = []
    for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        row = {name: values[index] for name, values in data.items()}
        # A function takes this column by its name anyway; as the ground truth it would also stand for `answer`.
        by_name = "ground_truth" in optional and read["ground_truth"] == "ground_truth"
        truth = None if by_name else row.get(read["ground_truth"] or "")
        source = row.get(read["data_source"] or "", "")
        samples.append(sample_of(text_of(completion), truth, source, row, messages_of(prompt)))
    return samples


def text_of(completion: Any) -> str:
    """The text of a completion: as it is, or what the assistant says in its messages.

    Raises:
        DataError: it is neither text nor messages.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and all(isinstance(message, Mapping) for message in completion):
        said = [content_of(message) for message in completion if message.get("role") == "assistant"]
        return "\n\n".join(text for text in said if text)
    raise DataError(f"A completion is text or a list of messages, not {type(completion).__name__}.")


def messages_of(prompt: Any) -> tuple[Message, ...]:
    """The messages of a prompt; text is what the user says."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    roles = ("system", "user", "assistant")
    return tuple(Message(m["role"], content_of(m)) for m in prompt or () if m.get("role") in roles)


def content_of(message: Mapping[str, Any]) -> str:
    """The text of a message; of content in blocks, the text blocks."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(str(block.get("text", "")) for block in content if isinstance(block, Mapping))
    return content if isinstance(content, str) else ""


def _log(
    one: HostScorer,
    scores: Sequence[Score],
    log_metric: Callable[[str, float], None] | None,
    log_extra: Callable[[str, list[Any]], None] | None,
    name: str,
) -> None:
    """Means of the parts over what was scored, and how many were not; one status per completion."""
    if log_extra is not None:
        log_extra(f"{name}_status", [score.status for score in scores])
    if log_metric is None or not scores:
        return
    judged = [score for score in scores if score.value is not None]
    parts = one.parts if one.parts is not None else dict.fromkeys(part for score in judged for part in score.parts)
    for part in parts:
        values = [score.parts[part] for score in judged if part in score.parts]
        if values:
            log_metric(f"rewards/{name}/{part}", sum(values) / len(values))
    for status in ("errored", "invalid"):
        log_metric(f"rewards/{name}/{status}", sum(score.status == status for score in scores) / len(scores))


def _log_counters(
    counters: Mapping[str, float], last: dict[str, float], log_metric: Callable[[str, float], None]
) -> None:
    """What the engine did since the last batch; `last` is brought up to date."""
    for key in TOTALS:
        if key in counters:
            log_metric(f"assay/{key}", counters[key] - last.get(key, 0.0))
            last[key] = counters[key]
    if "limit" in counters:
        log_metric("assay/limit", counters["limit"])
