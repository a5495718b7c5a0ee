"""One normaliser for a whole optimizer step: it turns a sum over tokens into the mean that the settings ask for.

    token      1 / N                       N trained tokens in the step
    sequence   1 / (S * n_i)               S trained sequences, n_i trained tokens in the token's own
    constant   1 / (S * L)                 L a fixed length: long answers weigh more, as they should (arXiv 2503.20783)

A sequence is a training sequence: a whole rollout, or one of its parts where a template rewrote history between turns.
The weights depend on the step alone, never on padding, on order, or on how the step is cut into micro-batches.

Sequences of groups with equal rewards, which have no gradient, may count in N and S without being there: the policy's
loss is then a mean over all that was sampled. KL penalty and entropy bonus are means over the tokens that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from assay.grpo.recipes import Aggregation
from assay.types import Datum


def normalise(
    data: Sequence[Datum],
    aggregation: Aggregation = "token",
    constant_length: int | None = None,
    counted: Sequence[int] = (),
) -> list[Datum]:
    """The data of one optimizer step with their advantages multiplied by each token's weight, and with `weights`.

    Importance weights are multiplied in as well; they do not change the normaliser.

    Args:
        data: all sequences of the step. Those without a trained token count for nothing.
        constant_length: L, for `constant`.
        counted: trained tokens of each sequence that is not in `data` and counts for the policy's loss.
    """
    counts = [float(d.mask.sum()) for d in data]
    tokens = int(sum(counts))
    sequences = sum(1 for count in counts if count)

    def divisor(count: float, more: Sequence[int]) -> float:
        if aggregation == "token":
            return float(max(1, tokens + sum(more)))
        if aggregation == "sequence":
            return max(1, sequences + len(more)) * max(1.0, count)
        assert constant_length is not None, "the config refuses aggregation=constant without a length"
        return float(max(1, sequences + len(more)) * constant_length)

    out = []
    for datum, count in zip(data, counts, strict=True):
        # Divided, not multiplied by a reciprocal: equal to the last bit with a plain mean.
        weighted = datum.advantages if datum.importance is None else datum.advantages * datum.importance
        advantages = (weighted / divisor(count, counted)).astype(np.float32, copy=False)
        weights = (datum.mask / divisor(count, ())).astype(np.float32, copy=False)
        out.append(replace(datum, advantages=advantages, weights=weights, importance=None))
    return out
