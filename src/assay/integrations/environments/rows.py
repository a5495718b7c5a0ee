"""Training rows for any host: a rollout's tokens with mask, rewards and advantages token by token. Pure.

Turns whose prompt extends what came before share a row, as in Assay's own trainer (`assay.grpo.datum`); where a prompt
is written anew, a row begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from assay.grpo.datum import turn_spans
from assay.types import Json, Trajectory, Transition


@dataclass(frozen=True, slots=True)
class HostRow:
    """One training sequence. All streams but `prompt_ids` have the length of `response_ids`.

    A row ends with a sampled token; one in which none was sampled does not exist.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    """What was sampled, and what the environment said between turns."""
    mask: tuple[int, ...]
    """1 where the policy sampled the token, 0 where the environment said it."""
    logprobs: tuple[float, ...] | None
    """Nats, of the policy that sampled; 0 where `mask` is. None where the host does not know them all."""
    rewards: tuple[float, ...]
    """A turn's reward on its last sampled token, else 0. That of a turn in which nothing was sampled is on the token
    sampled before it in the row. Their sum over a rollout is its reward, where each row has a sampled token."""
    advantages: tuple[float, ...]
    """The turn's advantage on each of its sampled tokens, 0 elsewhere."""
    turns: tuple[int, ...]
    """The turns of the rollout that are in the row, from 0."""

    def to_json(self) -> dict[str, Json]:
        """The row as plain data."""
        return asdict(self)


def host_rows(trajectory: Trajectory, advantages: Sequence[float]) -> list[HostRow]:
    """The rows of a rollout; none of an errored one.

    Args:
        advantages: one per turn; empty where the rollout is errored.
    """
    if trajectory.errored:
        return []
    turns = list(zip(trajectory.transitions, advantages, strict=True))
    spans = enumerate(turn_spans(trajectory))
    parts = [[turn for turn, _ in part] for _, part in groupby(spans, key=lambda one: one[1].datum)]
    rows = (_row([turns[t] for t in part], part) for part in parts)
    return [row for row in rows if any(row.mask)]


def _row(turns: Sequence[tuple[Transition, float]], numbers: Sequence[int]) -> HostRow:
    first, begun = turns[0][0], len(turns[0][0].prompt_tokens)
    tokens: list[int] = list(first.prompt_tokens)
    mask: list[int] = []
    logprobs: list[float] = []
    rewards: list[float] = []
    advantages: list[float] = []
    last_sampled = -1
    for transition, advantage in turns:
        told = transition.prompt_tokens[len(tokens) :]
        said, count = transition.completion.tokens, len(transition.completion.tokens)
        tokens += (*told, *said)
        mask += (*(0,) * len(told), *(1,) * count)
        logprobs += (*(0.0,) * len(told), *transition.completion.logprobs)
        rewards += (0.0,) * (len(told) + count)
        advantages += (*(0.0,) * len(told), *(advantage,) * count)
        last_sampled = len(mask) - 1 if count else last_sampled
        if last_sampled >= 0:
            assert transition.score.value is not None, "errored rollouts have no rows"
            rewards[last_sampled] += transition.score.value
    end = last_sampled + 1
    known = not any(map(math.isnan, logprobs))
    return HostRow(
        first.prompt_tokens,
        tuple(tokens[begun : begun + end]),
        tuple(mask[:end]),
        tuple(logprobs[:end]) if known else None,
        tuple(rewards[:end]),
        tuple(advantages[:end]),
        tuple(numbers),
    )
