"""The model behind the server: one thread that trains, saves and loads adapters, and samples all of them in between.

Everything that touches the model runs on one thread, in turns: a piece of training, then a few tokens of the running
batch of samples. So neither waits for all of the other, and no state is shared between threads.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.backends.base import AdamParams, ForwardBackwardOutput, LossSpec
from assay.backends.local import hardware, models
from assay.backends.local.adapters import files, scoring, training
from assay.backends.local.adapters.bank import PARTS, Adapter, AdapterBank, Part, Shape
from assay.backends.local.adapters.engine import Call, Engine, Sampled
from assay.backends.local.adapters.layers import Weights
from assay.backends.local.backend import DTYPES, device_of
from assay.backends.local.worker import Worker
from assay.server.tinker.config import ServeConfig
from assay.types import Datum

logger = logging.getLogger(__name__)

SLICE = 8
"""Tokens by which the running batch goes on before other work has its turn."""


Scoring = tuple[Sequence[int], scoring.Asked, asyncio.Future[scoring.Scores]]


class ModelHost:
    """The base model with its adapters; every method may be called side by side from the event loop."""

    def __init__(self, config: ServeConfig) -> None:
        """Load the model.

        Raises:
            ModelError: it cannot be loaded, or not be served.
        """
        assert config.model is not None
        local = config.local
        hardware.prepare_process(local)
        model, self.tokenizer = models.load_pretrained(config.model, DTYPES[local.dtype])
        self._bank = AdapterBank(model, local, device_of(local.device))
        self._engine = Engine(self._bank, local.sample_batch_tokens)
        self._worker = Worker(local.torch_threads)
        self.name = config.name or config.model
        folder = Path(config.model).expanduser()
        self.tokenizer_id = str(folder.resolve()) if folder.is_dir() else config.model
        self.context_length = self._bank.network.context_length
        self.vocab_size = self._bank.network.vocab_size
        self.stop_ids = _stop_ids(model, self.tokenizer)
        self._arrived: list[tuple[Call, asyncio.Future[list[Sampled]]]] = []
        self._waiters: list[tuple[list[Sampled], asyncio.Future[list[Sampled]]]] = []
        self._pump: asyncio.Task[None] | None = None
        self._score_lock = threading.Lock()
        self._scoring: set[asyncio.Task[None]] = set()
        self._to_score: dict[int, tuple[Weights | None, list[Scoring]]] = {}
        """By the identity of the weights, which are held here: prompts that wait to be scored."""

    @property
    def load(self) -> dict[str, float]:
        """What the running batch does, for metrics."""
        rows, waiting = self._engine.load
        return {
            "sampling_rows": rows,
            "sampling_waiting": waiting,
            "sampling_rows_peak": self._engine.peak,
            "sampled_tokens_total": self._engine.drawn,
        }

    async def create(self, shape: Shape) -> Adapter:
        """A new adapter."""
        return await self._worker.run(lambda: self._bank.create(shape))

    async def train(
        self, adapter: Adapter, data: Sequence[Datum], loss: LossSpec, backward: bool
    ) -> ForwardBackwardOutput:
        """See `training.forward_backward`."""
        return await self._worker.run(
            lambda: training.forward_backward(self._bank, adapter, data, loss, backward=backward)
        )

    async def step(self, adapter: Adapter, params: AdamParams) -> float:
        """See `training.step`."""
        return await self._worker.run(lambda: training.step(adapter, params))

    async def discard(self, adapter: Adapter) -> None:
        """Clear an adapter's gradient."""
        await self._worker.run(lambda: adapter.optimizer.zero_grad(set_to_none=True))

    async def snapshot(self, adapter: Adapter) -> Weights:
        """A copy of an adapter's weights, to sample from."""
        return await self._worker.run(adapter.snapshot)

    async def write(self, path: Path, adapter: Adapter, optimizer: bool) -> None:
        """Write an adapter into a folder that exists."""
        work = functools.partial(files.write, path, self._bank, adapter, self.name, optimizer=optimizer)
        await self._worker.run(work)

    async def read(self, path: Path, adapter: Adapter, optimizer: bool) -> None:
        """Read an adapter from its folder."""
        await self._worker.run(lambda: files.read(path, adapter, optimizer=optimizer))

    async def read_weights(self, path: Path, rank: int) -> Weights:
        """Read what to sample from, from its folder."""
        return await self._worker.run(lambda: files.read_weights(path, self._bank, rank))

    async def score(self, weights: Weights | None, prompt: Sequence[int], asked: scoring.Asked) -> scoring.Scores:
        """The log-probabilities of a prompt's tokens."""
        future: asyncio.Future[scoring.Scores] = asyncio.get_running_loop().create_future()
        with self._score_lock:
            waiting = self._to_score.setdefault(id(weights), (weights, []))[1]
            waiting.append((prompt, asked, future))
            first = len(waiting) == 1
        if first:
            # A task of its own: the others are scored even where this caller gives up.
            task = asyncio.get_running_loop().create_task(self._score_together(id(weights)))
            self._scoring.add(task)
            task.add_done_callback(self._scoring.discard)
        return await future

    async def _score_together(self, key: int) -> None:
        """Score the prompts that come in under some weights until the thread has time for them, in one go."""
        taken: list[Scoring] = []

        def work() -> list[scoring.Scores]:
            with self._score_lock:
                weights, waiting = self._to_score.pop(key)
            taken.extend(waiting)
            return scoring.score(self._bank, weights, [(prompt, asked) for prompt, asked, _ in taken])

        try:
            found = await self._worker.run(work)
        except Exception as error:  # noqa: BLE001 - each of those who wait is told
            for _, _, future in taken:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, _, future), scores in zip(taken, found, strict=True):
            if not future.done():
                future.set_result(scores)

    async def sample(self, call: Call) -> list[Sampled]:
        """All samples of a call. They join the batch that is running; a caller that is cancelled takes them out.

        Raises:
            ModelError: the weights give no finite probabilities.
        """
        future: asyncio.Future[list[Sampled]] = asyncio.get_running_loop().create_future()
        self._arrived.append((call, future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._go_on())
        return await future

    async def _go_on(self) -> None:
        """Keep the batch running while it has rows."""
        while self._arrived or self._waiters or self._engine.busy:
            arrived, self._arrived = self._arrived, []
            gone = [samples for samples, future in self._waiters if future.cancelled()]
            try:
                added = await self._worker.run(functools.partial(self._slice, [c for c, _ in arrived], gone))
            except Exception as error:  # of the batch as a whole, such as no memory: its callers are told
                logger.exception("The running batch failed")
                await self._worker.run(self._engine.reset)
                for future in (*(f for _, f in arrived), *(f for _, f in self._waiters)):
                    if not future.done():
                        future.set_exception(error)
                self._waiters = []
                continue
            self._waiters += [(samples, future) for samples, (_, future) in zip(added, arrived, strict=True)]
            self._deliver()

    def _slice(self, calls: Sequence[Call], gone: Sequence[list[Sampled]]) -> list[list[Sampled]]:
        added = [self._engine.add(call) for call in calls]
        for samples in gone:
            self._engine.drop(samples)
        self._engine.advance(SLICE)
        return added

    def _deliver(self) -> None:
        waiting = []
        for samples, future in self._waiters:
            if future.cancelled():
                continue
            if all(s.stop_reason is not None for s in samples):
                future.set_result(samples)
            else:
                waiting.append((samples, future))
        self._waiters = waiting

    async def close(self) -> None:
        """Stop sampling, and wait for the piece of work that is under way."""
        if self._pump is not None:
            self._pump.cancel()
        await self._worker.run(self._engine.reset)


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """What ends a completion where a client names nothing: the tokenizer's end, and those of the model's settings."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = named if isinstance(named, list) else [named]
    return tuple(sorted({int(i) for i in (*ids, tokenizer.eos_token_id) if i is not None}))


def parts_of(attn: bool, mlp: bool, unembed: bool) -> frozenset[Part]:
    """The parts of a model that a client asks to train."""
    return frozenset(part for part, wanted in zip(PARTS, (attn, mlp, unembed), strict=True) if wanted)
