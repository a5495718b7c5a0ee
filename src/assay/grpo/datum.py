"""From trajectories to training sequences.

Turns whose prompt extends the previous turn's tokens become one sequence; where a template rewrote history, the
trajectory is split. Streams come from the tokens that were sampled, never from text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assay.types import Datum, Trajectory


def trajectory_data(trajectory: Trajectory, advantages: Sequence[float]) -> list[Datum]:
    """Training sequences of one trajectory.

    Args:
        advantages: one per turn, given to every sampled token of that turn.

    Returns:
        One datum per run of prefix-extending turns.
    """
    data: list[Datum] = []
    tokens: list[int] = []
    logprobs: list[float] = []
    weights: list[float] = []
    mask: list[float] = []
    for transition, advantage in zip(trajectory.transitions, advantages, strict=True):
        prompt, completion = transition.prompt_tokens, transition.completion
        if tokens and prompt[: len(tokens)] != tuple(tokens):
            data.append(_datum(tokens, logprobs, weights, mask))
            tokens, logprobs, weights, mask = [], [], [], []
        seen = len(prompt) - len(tokens)
        tokens += [*prompt[len(tokens) :], *completion.tokens]
        logprobs += [*[0.0] * seen, *completion.logprobs]
        weights += [*[0.0] * seen, *[advantage] * len(completion.tokens)]
        mask += [*[0.0] * seen, *[1.0] * len(completion.tokens)]
    data.append(_datum(tokens, logprobs, weights, mask))
    return data


def example_datum(prompt: Sequence[int], completion: Sequence[int]) -> Datum:
    """A supervised sequence: weight 1 on every token of `completion`, 0 on the prompt."""
    ones = [*[0.0] * len(prompt), *[1.0] * len(completion)]
    return _datum([*prompt, *completion], [0.0] * len(ones), ones, ones)


def _datum(tokens: list[int], logprobs: list[float], weights: list[float], mask: list[float]) -> Datum:
    """Shift the per-token streams so that position t holds what concerns its target, token t + 1."""
    ids = np.array(tokens, np.int64)
    streams = (np.array(stream[1:], np.float32) for stream in (logprobs, weights, mask))
    return Datum(ids[:-1], ids[1:], *streams)


def trained_tokens(data: Sequence[Datum]) -> int:
    """Number of targets that are trained."""
    return int(sum(d.mask.sum() for d in data))
