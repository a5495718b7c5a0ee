"""Turns token by token: `tokens.jsonl`, which says what each sampled token was and what it trained with.

Numbers are float32 and written with as many digits as bring them back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from assay.grpo.group_data import TurnPlace, TurnTraining
from assay.types import FloatArray, Json, TrajectoryGroup

VERSION = 1
"""Format of the records of `tokens.jsonl`; a reader refuses a larger one."""
_UNFINISHED = "\ufffd"
"""What decoders write for bytes that make no character, as the first of a character that goes on in the next token."""
_LONGEST = 4
"""Tokens that one character may be spread over: its bytes in UTF-8."""
_WINDOW = 2 * _LONGEST
"""Tokens without a whole character at which some are written out, so that no decoding is long."""


def token_records(
    groups: Sequence[TrajectoryGroup],
    *,
    step: int,
    turns: Mapping[TurnPlace, TurnTraining] | None,
    text: Callable[[Sequence[int]], str],
) -> list[dict[str, Json]]:
    """One record per turn of the given groups of a training batch, which are the batch's first.

    Args:
        turns: what the batch's turns trained with; None where the training step failed.
        text: text of sampled tokens, without the stop token.
    """
    return [
        {
            "version": VERSION,
            "step": step,
            "group": g,
            "sample": s,
            "turn": t,
            "tokens": pieces(turn.completion.tokens, text),
            "logprobs": _numbers(turn.completion.logprobs),
            "advantages": _numbers(training.advantages),
            "log_ratios": _numbers(training.log_ratios),
        }
        for g, group in enumerate(groups)
        for s, rollout in enumerate(group.trajectories)
        for t, turn in enumerate(rollout.transitions)
        for training in [(turns or {}).get((g, s, t), TurnTraining("failed"))]
    ]


def pieces(tokens: Sequence[int], text: Callable[[Sequence[int]], str]) -> list[str]:
    """The text of each token, such that together they are `text(tokens)`; the stop token's piece is empty.

    A tokenizer may write a token otherwise after others than at a beginning, and spread a character over several
    tokens. So each token is decoded behind the one before it, and the last token of a character has all of it. Where a
    tokenizer looks back further than that, pieces may differ from the text.
    """
    found: list[str] = []
    before, read = 0, 0  # tokens[before:read] are decoded already, and what comes next is decoded behind them
    for end in range(1, len(tokens) + 1):
        found.append("")
        old, new = text(tokens[before:read]), text(tokens[before:end])
        stop = end
        if new.endswith(_UNFINISHED) and end < len(tokens):
            if end - read < _WINDOW:
                continue
            # Bytes that never make a character: what lies more than a character back is decided.
            ahead = ((p, text(tokens[before:p])) for p in range(end - _LONGEST, read, -1))
            stop, new = next(((p, known) for p, known in ahead if new.startswith(known)), (end, new))
        found[stop - 1] = new[len(old) :]
        before, read = read, stop
    return found


def mean_of(values: FloatArray) -> float | None:
    """Mean over the tokens of a turn; None where no token has a value."""
    # In double precision the mean of equal float32 numbers is that number.
    total, count = np.add.reduce(values, dtype=np.float64), len(values)
    if not math.isfinite(total):
        known = values[np.isfinite(values)]
        total, count = np.add.reduce(known, dtype=np.float64), len(known)
    return shortest(total / count) if count else None


def shortest(value: np.float32 | float) -> float:
    """A float32 as the double with the fewest digits that gives it back: 0.1, and not 0.10000000149011612."""
    return float(str(np.float32(value)))


def _numbers(values: Sequence[float] | FloatArray | None) -> list[float | None] | None:
    """As JSON numbers; null for NaN."""
    return None if values is None else [None if value != value else shortest(value) for value in values]
