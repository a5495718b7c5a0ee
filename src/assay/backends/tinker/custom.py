"""Losses that a server does not know by name, computed here from its log-probabilities (`forward_backward_custom`).

The server then needs two passes: one for the log-probabilities, one for the gradient through them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.backends.base import LossSpec
from assay.types import Datum

CustomLoss = Callable[[Sequence[Any], list[Any]], tuple[Any, dict[str, float]]]
"""What the SDK calls: `(data, log-probabilities of each) -> (loss, metrics)`."""


def custom_loss(spec: LossSpec, data: Sequence[Datum]) -> CustomLoss:
    """The loss of `spec` over the trained tokens of `data`, summed, with its parts as metrics.

    Raises (when called):
        ConfigError: a surrogate of the caller's own returned something else than a loss for each token.
        TrainingError: or NaN for finite numbers.
    """
    from assay.backends.local.losses import nan_of_finite, streams_of, token_losses, trained

    def loss(_: Sequence[Any], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        now = trained(logprobs, data)
        terms = token_losses(spec, now, now.detach(), streams_of(data))
        sums = {name: values.sum() for name, values in terms.items()}
        total = sum(sums.values())
        shown = {name: float(value.detach()) for name, value in sums.items()}
        if shown["policy"] != shown["policy"]:
            arrays = [x.detach().numpy() for x in logprobs]
            if (error := nan_of_finite(spec, arrays, data)) is not None:
                raise error
        return total, {f"{name}:sum": value for name, value in shown.items()}

    return loss
