"""From trajectories to training sequences.

Turns whose prompt extends the previous turn's tokens become one sequence; where a template rewrote history, the
trajectory is split. Streams come from the tokens that were sampled, never from text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from assay.types import Completion, Datum, Trajectory, Transition


def trajectory_data(
    trajectory: Trajectory, advantages: Sequence[float], *, mask_truncated: bool = False
) -> list[Datum]:
    """Training sequences of one trajectory.

    Args:
        advantages: one per turn, given to every sampled token of that turn.
        mask_truncated: train no token of a turn that ran into the length limit.

    Returns:
        One datum per run of prefix-extending turns, with `ref_logprobs` where all its completions have them.
    """
    data: list[Datum] = []
    part = _Sequence()
    for transition, advantage, span in zip(trajectory.transitions, advantages, turn_spans(trajectory), strict=True):
        if span.datum != len(data):
            data.append(part.datum())
            part = _Sequence()
        part.see(transition.prompt_tokens[len(part.tokens) :])
        masked = is_masked(transition, mask_truncated)
        part.say(transition.completion, 0.0 if masked else advantage, 0.0 if masked else 1.0)
    data.append(part.datum())
    return data


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """Where a turn's sampled tokens are: `targets[start:stop]` of a datum, by its place in `trajectory_data`.

    `start` is -1 where a turn has no prompt: its first token is then no target.
    """

    datum: int
    start: int
    stop: int


def turn_spans(trajectory: Trajectory) -> list[TurnSpan]:
    """Where each turn of a trajectory is in its training sequences."""
    spans: list[TurnSpan] = []
    datum = 0
    seen: tuple[int, ...] = ()
    for transition in trajectory.transitions:
        prompt, said = transition.prompt_tokens, transition.completion.tokens
        datum += prompt[: len(seen)] != seen
        spans.append(TurnSpan(datum, len(prompt) - 1, len(prompt) - 1 + len(said)))
        seen = (*prompt, *said)
    return spans


def is_masked(transition: Transition, mask_truncated: bool) -> bool:
    """Whether no token of a turn is trained, since it ran into the length limit."""
    return mask_truncated and transition.completion.stop_reason == "length"


def example_datum(prompt: Sequence[int], completion: Sequence[int]) -> Datum:
    """A supervised sequence: weight 1 on every token of `completion`, 0 on the prompt."""
    part = _Sequence()
    part.see(prompt)
    part.say(Completion(tuple(completion), (0.0,) * len(completion), "stop", 0), 1.0, 1.0)
    return part.datum()


@dataclass
class _Sequence:
    """A training sequence while it is built, one entry per token."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    reference: list[float] | None = field(default_factory=list)

    def see(self, tokens: Sequence[int]) -> None:
        """Add tokens of the prompt."""
        zeros = [0.0] * len(tokens)
        self._add(tokens, zeros, zeros, zeros, zeros)

    def say(self, completion: Completion, advantage: float, mask: float) -> None:
        """Add tokens that the policy sampled."""
        count = len(completion.tokens)
        reference = completion.ref_logprobs
        self._add(completion.tokens, completion.logprobs, [advantage] * count, [mask] * count, reference)

    def _add(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        advantages: Sequence[float],
        mask: Sequence[float],
        reference: Sequence[float] | None,
    ) -> None:
        self.tokens += tokens
        self.logprobs += logprobs
        self.advantages += advantages
        self.mask += mask
        self.reference = None if self.reference is None or reference is None else [*self.reference, *reference]

    def datum(self) -> Datum:
        """Shift the streams so that position t holds what concerns its target, token t + 1."""
        ids = np.array(self.tokens, np.int64)
        mask = np.array(self.mask[1:], np.float32)
        logprobs, advantages = (np.array(s[1:], np.float32) * mask for s in (self.logprobs, self.advantages))
        reference = None if self.reference is None else np.array(self.reference[1:], np.float32) * mask
        return Datum(ids[:-1], ids[1:], logprobs, advantages, mask, reference)


def trained_tokens(data: Sequence[Datum]) -> int:
    """Number of targets that are trained."""
    return int(sum(d.mask.sum() for d in data))
