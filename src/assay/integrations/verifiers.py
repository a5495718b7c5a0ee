"""A reward for tasks of verifiers 0.4: `quality = reward("judge", ground_truth="answer")` in the body of a `vf.Task`.

A failed judge raises, which verifiers records as an error of the rollout with its reward left `None`: it is never
scored against the model. That is what `on_failure=drop` (the default) means here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from assay.errors import DataError, MissingDependencyError
from assay.integrations.common.scoring import HostScorer, asks_for_truth, missing, sample_of, scorer_of
from assay.types import Message

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise MissingDependencyError(
        f"assay.integrations.verifiers needs verifiers 0.4 or newer ({error}): pip install 'verifiers>=0.4'."
    ) from error

ROLLOUT_FAILS = "verifiers records it as an error of this rollout, whose reward stays None."


def reward(
    reward: str | Sequence[str] | Callable[..., Any] = "monitor",
    *,
    ground_truth: str | None = "answer",
    name: str | None = None,
    weight: float = 1.0,
    whole_trace: bool = False,
    **settings: Any,
) -> Callable[[Any, Any], Awaitable[float]]:
    """A `@vf.reward` method to assign in a `vf.Task`.

    Args:
        reward: where to find the reward (`assay.integrations.common.settings`), or a plain function.
        ground_truth: field of the task's data that holds it; None if the reward needs none. A function takes any field
            by its name, and does not need this one.
        name: key of the reward on the trace; the reward's own name by default.
        weight: verifiers' weight of this reward.
        whole_trace: score the transcript instead of the last reply.
        settings: see `assay.integrations.common.settings`.
    """
    made: list[HostScorer] = []

    def scorer_here() -> HostScorer:
        if not callable(reward):
            return scorer_of(reward, settings)  # a new one where a key or a file has changed
        if not made:
            made.append(scorer_of(reward, settings))
        return made[0]

    async def assay_reward(self: Any, trace: Any) -> float:
        one = scorer_here()
        score = await one.engine.score(_sample(self.data, trace, ground_truth, asks_for_truth(one.reward), whole_trace))
        value = one.rewards([score], [0])[0]
        if value is None:
            raise missing(score, ROLLOUT_FAILS)
        _record(one, one.row(score, value), trace, assay_reward.__name__)
        return value

    assay_reward.__name__ = assay_reward.__qualname__ = name or _own_name(reward)
    marked: Callable[[Any, Any], Awaitable[float]] = vf.reward(assay_reward, weight=weight)
    return marked


def _own_name(reward: str | Sequence[str] | Callable[..., Any]) -> str:
    """A name that can be had without making the reward: tasks are defined before keys are set."""
    if callable(reward):
        return str(getattr(reward, "__name__", type(reward).__name__))
    return reward.rpartition(":")[2] if isinstance(reward, str) else "reward"


def _sample(data: Any, trace: Any, ground_truth: str | None, required: bool, whole_trace: bool) -> Any:
    fields = data.model_dump(mode="json", exclude_none=True)
    if required and ground_truth is not None and ground_truth not in fields:
        raise DataError(
            f"This task's data has no field {ground_truth!r}, which the reward takes for the ground truth. Fields: "
            f"{', '.join(fields)}. Name another (ground_truth=...), or None if the reward does not need it."
        )
    truth = fields.get(ground_truth or "")
    system = (Message("system", data.system_prompt),) if data.system_prompt else ()
    prompt = (*system, Message("user", data.prompt_text))
    response = trace.transcript if whole_trace else trace.last_reply
    return sample_of(response, truth, data.name or "", fields, prompt)


def _record(one: HostScorer, row: dict[str, float], trace: Any, name: str) -> None:
    """The parts beside the reward, as metrics of the trace."""
    names = one.parts if one.parts is not None else ()
    trace.record_metrics({f"{name}/{part}": row[part] for part in names} | {f"{name}/cached": row["assay_cached"]})
