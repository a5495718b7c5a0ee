"""A throw-away model on a server, and the one measurement that most findings rest on: how far a step moves it.

With betas of 0 and an `eps` far above the gradient, Adam takes the step `rate * gradient`. Such a step changes the
log-probability of a sequence by `rate * |gradient|^2`, so that twice the gradient shows as twice the change, whatever
the server reports about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tinker

from assay.backends.config import TinkerService
from assay.backends.tinker import convert
from assay.backends.tinker.service import Service
from assay.errors import ServiceError
from assay.types import Datum, FloatArray

EPS = 1e3
"""Far above any gradient, so that steps are proportional to it."""
TRAINED = 8
"""Targets of the probe's sequence that are trained."""
LENGTH = 14
"""Tokens of the sequence."""
AIM = (0.05, 0.6)
"""Nats by which a step should move the sequence: far above rounding, and still in proportion to the step."""
CALIBRATIONS = 24

Ask = Callable[[tinker.TrainingClient], Any]


def probe_tokens(vocab_size: int, begin: int | None) -> list[int]:
    """A sequence of tokens, some of them twice, that any model has."""
    tokens = [(3 + 5 * i) % max(4, min(vocab_size, 200)) for i in range(LENGTH)]
    return tokens if begin is None else [begin, *tokens[1:]]


def probe_datum(tokens: Sequence[int], trained: int = TRAINED, after: int = 0) -> Datum:
    """The sequence with its `trained` targets marked, before the last `after`."""
    ids = np.array(tokens, np.int64)
    mask = np.zeros(len(ids) - 1, np.float32)
    mask[len(mask) - after - trained : len(mask) - after] = 1
    zeros = np.zeros_like(mask)
    return Datum(ids[:-1], ids[1:], zeros, mask.copy(), mask, weights=mask.copy())


class Bench:
    """One throw-away model. `lost` is set where a request failed, after which the model is not asked again."""

    def __init__(self, service: Service, client: tinker.TrainingClient, tokens: Sequence[int]) -> None:
        self.service = service
        self.client = client
        self.tokens = list(tokens)
        self.datum = probe_datum(tokens)
        self.rate = 1e-4
        """Of the step `rate * gradient`."""
        self._sign = 1.0

    @property
    def settings(self) -> TinkerService:
        """The deadlines."""
        return self.service.settings

    async def wait(self, pending: Any, what: str) -> Any:
        """The result of a request."""
        return await self.service.wait(pending, what, self.settings.train_timeout_s)

    async def forward(self, datum: Datum | None = None) -> FloatArray:
        """The trainer's log-probabilities of a sequence's targets, [T], 0 where masked."""
        datum = datum or self.datum
        inputs = convert.supervised([datum], [datum.mask])
        output = await self.wait(self.client.forward(inputs, "cross_entropy"), "forward")
        return convert.target_logprobs(output.loss_fn_outputs, [datum])[0]

    def supervised(self, weight: float, datum: Datum | None = None) -> list[tinker.Datum]:
        """The sequence as supervised data."""
        datum = datum or self.datum
        return convert.supervised([datum], [datum.mask * np.float32(weight)])

    def next_sign(self) -> float:
        """1 and -1 in turn: what one measurement moves, the next one moves back."""
        self._sign = -self._sign
        return self._sign

    async def step(self, rate: float | None = None, beta1: float = 0.0, beta2: float = 0.0) -> Any:
        """One optimizer step in proportion to the gradient."""
        adam = tinker.AdamParams(
            learning_rate=(self.rate if rate is None else rate) * EPS,
            beta1=beta1,
            beta2=beta2,
            eps=EPS,
            weight_decay=0.0,
            grad_clip_norm=0.0,
        )
        return await self.wait(self.client.optim_step(adam), "optim_step")

    async def effect(self, *asks: Ask) -> float:
        """By how many nats a step on these gradients lifts the sequence."""
        before = float((await self.forward()).sum())
        for pending in [ask(self.client) for ask in asks]:
            await self.wait(pending, "forward_backward")
        await self.step()
        return float((await self.forward()).sum()) - before

    def ascent(self, weight: float, count: int = 1, datum: Datum | None = None) -> Ask:
        """A gradient that lifts the sequence, `weight` times, `count` times in one batch."""
        data = self.supervised(weight, datum) * count
        return lambda client: client.forward_backward(data, "cross_entropy")

    async def calibrate(self) -> float:
        """Choose the rate; returns the effect of a step at it.

        Raises:
            ServiceError: no rate moves the model as a gradient step should.
        """
        low, high = AIM
        for _ in range(CALIBRATIONS):
            moved = await self.effect(self.ascent(1.0))
            if low <= moved <= high:
                return moved
            if not np.isfinite(moved) or abs(moved) > high:
                self.rate /= 4 if moved > 0 and abs(moved) < 4 * high else 30
                self.client = await self.service.create(*self.service_model)
            else:
                self.rate *= min(30.0, 0.2 / moved) if moved > 1e-3 else 30.0
        raise ServiceError(
            f"No step of any size between 1e-4 and {self.rate:.0e} times the gradient lifted the log-probability of a "
            "sequence that was trained on by a fraction of a nat, so the server does not train."
        )

    base: float = 0.0
    """The effect of a step at `rate`, in nats; 0 before it is known."""
    service_model: tuple[str, int, int] = ("", 0, 0)
    """Name, rank and seed with which the model was made."""


async def new_bench(service: Service, model: str, rank: int, seed: int) -> Bench:
    """A bench over a new model, with its tokenizer's tokens."""
    client = await service.create(model, rank, seed)
    tokenizer = await service.tokenizer(client)
    begin = getattr(tokenizer, "bos_token_id", None)
    bench = Bench(service, client, probe_tokens(len(tokenizer), begin))
    bench.service_model = (model, rank, seed)
    return bench
