"""Passes over training data by micro-batches: the summed loss and its gradient, or log-probabilities alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from assay.backends.base import LOSS_TERMS, ForwardBackwardOutput, LossSpec, LossTerm
from assay.backends.local import forward
from assay.backends.local.losses import nan_of_finite, token_losses
from assay.backends.local.network import Network
from assay.types import Datum, FloatArray


def accumulate(
    network: Network, data: Sequence[Datum], loss: LossSpec, *, backward: bool = True
) -> ForwardBackwardOutput:
    """The loss over `data`; with `backward` its gradient is added to that of the weights which require one.

    Raises:
        ConfigError: the loss is not valid.
        ModelError: data that the model cannot take.
        TrainingError: a loss of the caller's own returned NaN for finite numbers.
    """
    done: list[tuple[forward.Packed, Tensor, Tensor]] = []
    names: list[LossTerm] = []
    for packed in network.micro_batches(data):
        streams = forward.streams(data, packed, network.device)
        now, entropies = network.targets(
            packed, streams.targets, loss.temperature, entropy_gradient=loss.entropy_coef != 0
        )
        terms = token_losses(loss, now, entropies, streams)
        names = list(terms)
        summed = torch.stack([values.sum() for values in (*terms.values(), entropies)])
        if backward:
            summed[: len(names)].sum().backward()  # type: ignore[no-untyped-call]
        done.append((packed, now.detach(), summed.detach()))
    # The device is read only here, so that it never waits for the host between micro-batches.
    logprobs = [np.zeros(len(d), np.float32) for d in data]
    sums, entropy, count = dict.fromkeys(LOSS_TERMS, 0.0), 0.0, 0
    for packed, now, summed in done:
        *values, nats = summed.tolist()
        for name, value in zip(names, values, strict=True):
            sums[name] += value
        entropy, count = entropy + nats, count + len(now)
        forward.scatter(packed, now, logprobs)
    if callable(loss.surrogate) and math.isnan(sums["policy"]) and (error := nan_of_finite(loss, logprobs, data)):
        raise error
    metrics = {"loss:sum": sum(sums.values()), "kl:sum": sums["kl"], "entropy:mean": entropy / max(1, count)}
    return ForwardBackwardOutput(logprobs, metrics)


def logprobs_of(network: Network, data: Sequence[Datum], temperature: float) -> list[FloatArray]:
    """Log-probability of every target whose mask is 1; 0 elsewhere."""
    logprobs = [np.zeros(len(d), np.float32) for d in data]
    for packed in network.micro_batches(data):
        targets = forward.streams(data, packed, network.device).targets
        found, _ = network.targets(packed, targets, temperature)
        forward.scatter(packed, found, logprobs)
    return logprobs
