"""Training of one adapter: gradients that add up until a step, and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from assay.backends.base import AdamParams, ForwardBackwardOutput, LossSpec
from assay.backends.local.adapters.bank import Adapter, AdapterBank
from assay.backends.local.gradient import accumulate
from assay.backends.local.optimizer import take_step
from assay.types import Datum


@dataclass(frozen=True)
class WholeDatum(Datum):
    """A datum of which every target is scored, those of its prompt too; equal prompts still run once."""

    prompt: int = 0
    """Number of leading positions that train nothing."""

    @property
    def prompt_length(self) -> int:
        """See `Datum.prompt_length`."""
        return max(0, min(self.prompt, len(self.tokens) - 1))


def forward_backward(
    bank: AdapterBank, adapter: Adapter, data: Sequence[Datum], loss: LossSpec, *, backward: bool
) -> ForwardBackwardOutput:
    """The loss over `data` under an adapter; with `backward` its gradient is added to the adapter's.

    With `backward` an error leaves no gradient, not even one of earlier calls.

    Raises:
        ModelError, ConfigError: as `accumulate`.
    """
    try:
        with torch.set_grad_enabled(backward), bank.router.through(adapter.weights), bank.network.evaluating():
            return accumulate(bank.network, data, loss, backward=backward)
    except BaseException:
        if backward:
            adapter.optimizer.zero_grad(set_to_none=True)
        raise


def step(adapter: Adapter, params: AdamParams) -> float:
    """Apply and clear the accumulated gradient; returns its norm before clipping.

    Raises:
        NonFiniteGradientError: the gradient was cleared, and nothing else changed.
    """
    norm = take_step(adapter.optimizer, adapter.trained.values(), params, adapter.steps + 1)
    adapter.steps += 1
    return norm
