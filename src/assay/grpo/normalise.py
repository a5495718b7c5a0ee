"""One normaliser for a whole optimizer step: it turns a sum over tokens into the mean that the settings ask for.

    token      1 / N                       N trained tokens in the step
    sequence   1 / (S * n_i)               S trained sequences, n_i trained tokens in the token's own
    constant   1 / (S * L)                 L a fixed length: long answers weigh more, as they should (arXiv 2503.20783)

A sequence is a training sequence: a whole rollout, or one of its parts where a template rewrote history between turns.
The weights depend on the step alone, never on padding, on order, or on how the step is cut into micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from assay.grpo.datum import trained_tokens
from assay.grpo.recipes import Aggregation
from assay.types import Datum


def normalise(
    data: Sequence[Datum], aggregation: Aggregation = "token", constant_length: int | None = None
) -> list[Datum]:
    """The data of one optimizer step with their advantages multiplied by each token's weight, and with `weights`.

    Importance weights are multiplied in as well; they do not change the normaliser.

    Args:
        data: all sequences of the step. Those without a trained token count for nothing.
        constant_length: L, for `constant`.
    """
    tokens = max(1, trained_tokens(data))
    sequences = max(1, sum(1 for d in data if d.mask.any()))
    out = []
    for datum in data:
        if aggregation == "token":
            divisor = float(tokens)
        elif aggregation == "sequence":
            divisor = sequences * max(1.0, float(datum.mask.sum()))
        else:
            assert constant_length is not None, "the config refuses aggregation=constant without a length"
            divisor = float(sequences * constant_length)
        # Divided, not multiplied by a reciprocal: equal to the last bit with a plain mean.
        weighted = datum.advantages if datum.importance is None else datum.advantages * datum.importance
        advantages, weights = ((stream / divisor).astype(np.float32) for stream in (weighted, datum.mask))
        out.append(replace(datum, advantages=advantages, weights=weights, importance=None))
    return out
