"""The trained model on a server, and what is done when the server loses it.

What a lost session held (a server that restarted, a request without a result) is restored in a new session from the
last saved state, but only where no optimizer step was taken since: gradients that were accumulated are then computed
again, and the old model is never asked again, so no step is taken twice. Where steps would be lost, the run stops, and
the same command resumes it from its last checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import tinker

from assay.backends.base import LossSpec
from assay.backends.config import PolicySpec
from assay.backends.seeds import SEEDS
from assay.backends.tinker import convert
from assay.backends.tinker.custom import custom_loss
from assay.backends.tinker.service import Service
from assay.errors import ServiceError, TrainingError
from assay.types import Datum

logger = logging.getLogger(__name__)

Submit = Callable[[tinker.TrainingClient], Any]
"""Sends requests and returns what can be awaited for their results."""
BY_NAME = frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"})
"""Losses that a server computes itself."""
AS_CUSTOM = frozenset({"gspo"})
"""Losses of Assay's own that go as custom ones."""


@dataclass(frozen=True)
class Origin:
    """What a lost session is restored from: new adapters, the weights of a state, or all of it."""

    kind: Literal["new", "weights", "state"]
    version: int
    """The policy version that it restores exactly."""
    path: str = ""


class Trained:
    """A LoRA model on a server, with the gradient that it has accumulated."""

    def __init__(self, service: Service, policy: PolicySpec) -> None:
        self.service = service
        self.policy = policy
        self.version = 0
        """Optimizer steps since the start of the run."""
        self.session = 0
        """Number of the session; clients of an earlier one are dead."""
        self.origin = Origin("new", 0)
        self._client: tinker.TrainingClient | None = None
        self._gradient: list[tuple[Sequence[Datum], LossSpec]] = []
        """What the gradient on the server is of."""
        self._rebuilds = 0
        self._one_at_a_time = asyncio.Lock()

    async def open(self, origin: Origin, version: int) -> tinker.TrainingClient:
        """Begin, or begin again, with a model of its own on the server.

        Raises:
            ServiceError: the server cannot make it.
        """
        self.origin, self.version = origin, version
        self.abandon()
        self._client = await self._made()
        return self._client

    async def ask(self, submit: Submit, what: str, *, settles: bool = True) -> Any:
        """The result of requests, in another session if this one is lost.

        Args:
            settles: whether an answer ends a row of losses; not where it only prepares what may be lost.

        Raises:
            ServiceError: the server refuses, or loses too many sessions in a row.
            TrainingError: optimizer steps would be lost.
            AssayError: a loss of the caller's own raised it.
        """
        while True:
            session = self.session
            try:
                client = await self._ready()
                answered = False
                try:
                    found = await self.service.wait(submit(client), what, self.policy.tinker.train_timeout_s)
                    answered = True
                finally:
                    if not answered:  # cancelled, too: the server may wait for ever for what was not sent
                        self._client = None
                if settles:
                    self.went_well()
                return found
            except ServiceError as error:
                await self.recover(error, session)

    async def recover(self, error: ServiceError, session: int) -> None:
        """Begin a new session after `session` lost something; nothing where that was done already.

        Raises:
            ServiceError: there is no sense in it.
            TrainingError: optimizer steps would be lost.
        """
        async with self._one_at_a_time:
            if session != self.session:
                return
            most = self.policy.tinker.max_rebuilds
            if not error.lost or self._rebuilds >= most:
                raise error
            self._check_restorable(str(error))
            self._rebuilds += 1
            source = self.origin.path or "new adapters"
            logger.warning("%s A new session goes on from %s (%d of %d).", error, source, self._rebuilds, most)
            settings, old = self.policy.tinker, self.service
            patience = settings.connect_timeout_s
            self.service = await Service.connect(self.policy.base_url, settings, patience_s=patience)
            self._client = None
            self.session += 1
            await old.close()

    async def tokenizer(self) -> Any:
        """The model's tokenizer.

        Raises:
            ServiceError: it cannot be loaded.
        """
        return await self.service.tokenizer(await self._ready())

    def went_well(self) -> None:
        """A request was answered: losses are no longer in a row."""
        self._rebuilds = 0

    def accumulated(self, data: Sequence[Datum], loss: LossSpec) -> None:
        """Note what the gradient on the server is also of."""
        self._gradient.append((data, loss))

    def stepped(self) -> None:
        """Note that the optimizer has taken a step."""
        self._gradient.clear()
        self.version += 1

    def saved(self, path: str) -> None:
        """Note that the server keeps the present weights and optimizer under a name."""
        self.origin = Origin("state", self.version, path)

    def abandon(self) -> None:
        """Leave the model with its gradient behind; the next request restores it without."""
        self._gradient.clear()
        self._client = None

    async def _ready(self) -> tinker.TrainingClient:
        if self._client is None:
            self._check_restorable("The model on the server was left behind with its gradient.")
            client = await self._made()
            for data, loss in self._gradient:
                timeout = self.policy.tinker.train_timeout_s
                await self.service.wait(gradient(client, data, loss), "forward_backward, again", timeout)
            self._client = client
        return self._client

    async def _made(self) -> tinker.TrainingClient:
        origin, policy = self.origin, self.policy
        if origin.kind == "new":
            return await self.service.create(policy.model_name, policy.lora_rank, policy.seed % SEEDS)
        return await self.service.restore(origin.path, policy.lora_rank, optimizer=origin.kind == "state")

    def _check_restorable(self, cause: str) -> None:
        if lost := self.version - self.origin.version:
            steps = f"{lost} optimizer steps" if lost > 1 else "an optimizer step"
            raise TrainingError(
                f"{cause} The last state that the server saved is {steps} old, so going on would train another policy. "
                "Run the same command again: it resumes from the last checkpoint."
            )


def gradient(client: tinker.TrainingClient, data: Sequence[Datum], loss: LossSpec) -> Any:
    """Ask for a gradient; the SDK numbers requests in the order in which they are submitted."""
    if callable(loss.surrogate) or loss.surrogate not in BY_NAME or loss.kl is not None:
        inputs = convert.supervised(data, [datum.mask for datum in data])
        return client.forward_backward_custom(inputs, custom_loss(loss, data))
    if loss.surrogate == "cross_entropy":
        inputs = convert.supervised(data, [datum.advantages * datum.mask for datum in data])
        return client.forward_backward(inputs, "cross_entropy")
    thresholds = {name: float(value) for name, value in loss.config.items()}
    return client.forward_backward(convert.rollouts(data), cast(Any, loss.surrogate), thresholds or None)
