"""Continuous sampling: requests of any clients, adapters and settings join and leave one running batch.

A sample depends on its prompt, its seed and its adapter, and on nothing else but rounding: randomness is counter based
(`sampling.draw_token`). Log-probabilities are those of the distribution that was sampled, as everywhere in Assay; at
temperature 0, where that has one token, those at temperature 1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from assay.backends.local.adapters.bank import AdapterBank
from assay.backends.local.adapters.board import Board
from assay.backends.local.adapters.layers import Rows, Stacks, Weights, rows_through
from assay.backends.local.adapters.scoring import top_of
from assay.backends.local.decoder import Decoder, prefill
from assay.backends.local.sampling.draw_token import draw, truncate, uniform
from assay.errors import ModelError
from assay.types import FloatArray, IntArray, SamplingParams, StopReason

COMPACT_BELOW = 0.75
"""Compact the batch when the rows still needed fall under this share of the rows held."""
PREFILL_TOKENS = 8192
"""Most prompt positions (padding included) that are run in one pass before the batch goes on."""

EndsText = Callable[[Sequence[int]], bool]
"""Whether the tokens so far end with what stops a completion, where that is text."""
Prompt = tuple[int, tuple[int, ...]]
"""The identity of the weights, and the tokens: what is equal in both is run once for all that are admitted together."""


@dataclass(frozen=True)
class Call:
    """What is asked for one prompt: a sample for each seed."""

    prompt: tuple[int, ...]
    seeds: tuple[int, ...]
    params: SamplingParams
    weights: Weights | None
    """The adapter; None for the base model."""
    ends_text: EndsText | None = None
    top: int = 0
    """How many of the likeliest tokens to report for each token."""


@dataclass
class Sampled:
    """One sample, while it grows."""

    call: Call
    seed: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[IntArray] = field(default_factory=list)
    top_logprobs: list[FloatArray] = field(default_factory=list)
    stop_reason: StopReason | None = None
    """Why it ended; None while it goes on."""
    failed: bool = False
    """Whether it ended because its weights give no finite probabilities."""


class Engine:
    """A batch that is always running; use from one thread."""

    def __init__(self, bank: AdapterBank, batch_tokens: int) -> None:
        """`batch_tokens` bounds the cached token positions that the rows may come to.

        Raises:
            ModelError: the model has no fused decoder.
        """
        source = bank.network.source
        if not isinstance(source, Decoder):
            raise ModelError(
                f"{type(bank.network.model).__name__} runs through its own forward pass, in which rows cannot join a "
                "running batch. Serve a GPT-2, Llama, Mistral, Qwen2 or Qwen3 model."
            )
        self._bank, self._decoder, self._network = bank, source, bank.network
        self._batch_tokens = batch_tokens
        self._board = Board(source, bank.device)
        self._waiting: deque[Sampled] = deque()
        self._rows: list[Sampled] = []
        self._dropped: set[int] = set()
        self._route: Rows | None = None
        self._stacks: Stacks | None = None
        self._last = torch.zeros(0, dtype=torch.long, device=bank.device)
        self.peak = 0
        """Most rows at a time so far."""
        self.drawn = 0
        """Tokens drawn so far."""

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._rows or self._waiting)

    @property
    def load(self) -> tuple[int, int]:
        """Samples in the batch, and those that wait."""
        return len(self._rows), len(self._waiting)

    def add(self, call: Call) -> list[Sampled]:
        """Queue the samples of a call; they are filled as `advance` is called."""
        limit = min(call.params.max_tokens, max(1, self._network.context_length - len(call.prompt)))
        samples = [Sampled(call, seed % 2**64, limit) for seed in call.seeds]
        self._waiting.extend(samples)
        return samples

    def drop(self, samples: Sequence[Sampled]) -> None:
        """Take samples out that nobody waits for any more."""
        gone = {id(s) for s in samples}
        self._waiting = deque(s for s in self._waiting if id(s) not in gone)
        self._dropped |= gone & {id(s) for s in self._rows}

    def reset(self) -> list[Sampled]:
        """Forget everything, after an error; returns what was under way."""
        lost = [*self._rows, *self._waiting]
        self._rows, self._waiting = [], deque()
        self._dropped.clear()
        self._board = Board(self._decoder, self._bank.device)
        self._route, self._stacks, self._last = None, None, self._last[:0]
        return lost

    @torch.no_grad()
    def advance(self, steps: int) -> None:
        """Go on by at most some tokens each; samples that ended have their `stop_reason`."""
        with self._network.evaluating(), self._network.autocast():
            for _ in range(steps):
                self._leave()
                self._admit()
                if not self._rows:
                    self._route = self._stacks = None  # whose adapters may have gone by the next sample
                    return
                with self._bank.router.through(self._routed()):
                    hidden = self._board.advance(self._last)
                    logits = self._network.head(hidden)
                self._last = self._take(self._rows, logits)
            self._leave()

    def _leave(self) -> None:
        """Take rows out that have ended, once they are enough for that to pay, or are in others' way."""
        living = [i for i, s in enumerate(self._rows) if s.stop_reason is None and id(s) not in self._dropped]
        if len(living) == len(self._rows):
            return
        failed = any(s.failed for s in self._rows)
        if living and not failed and not self._waiting and len(living) > COMPACT_BELOW * len(self._rows):
            return
        living = filled(living)
        self._rows = [self._rows[i] for i in living]
        self._dropped &= {id(s) for s in self._rows}
        self._board.keep(living)
        if failed:
            self._board.scrub()
        self._last = self._last[torch.tensor(living, dtype=torch.long, device=self._last.device)]
        self._route = None

    def _admit(self) -> None:
        """Run the prompts of samples that wait, as far as there is room, and let them join behind their first token."""
        if not self._waiting:
            return
        chosen: list[Sampled] = []
        held = sum(len(s.call.prompt) + s.limit for s in self._rows)
        width, prompts = 0, set[Prompt]()
        while self._waiting:
            sample = self._waiting[0]
            held += len(sample.call.prompt) + sample.limit
            width = max(width, len(sample.call.prompt))
            prompts.add(_key(sample))
            full = held > self._batch_tokens or (chosen and width * len(prompts) > PREFILL_TOKENS)
            if full and (self._rows or chosen):
                break
            chosen.append(self._waiting.popleft())
        if chosen:
            self._join(chosen)

    def _join(self, samples: Sequence[Sampled]) -> None:
        calls, places = _distinct(samples)
        lengths = torch.tensor([len(c.prompt) for c in calls])
        tokens = torch.zeros(len(calls), int(lengths.max()), dtype=torch.long)
        for row, call in enumerate(calls):
            tokens[row, : len(call.prompt)] = torch.tensor(call.prompt)
        last = torch.arange(len(calls)) * tokens.shape[1] + lengths - 1
        device = self._bank.device
        with self._bank.router.through(self._through([c.weights for c in calls])):
            hidden, prefix = prefill(self._decoder, tokens.to(device), lengths, last.to(device))
            logits = self._network.head(hidden)
        drawn = self._take(samples, logits.index_select(0, torch.tensor(places, device=device)))
        going = [i for i, s in enumerate(samples) if s.stop_reason is None]
        if not going:
            return
        self._board.join(prefix, [places[i] for i in going])
        self._rows += [samples[i] for i in going]
        self._last = torch.cat([self._last, drawn[torch.tensor(going, device=device)]])
        self._route = None
        self.peak = max(self.peak, len(self._rows))

    def _routed(self) -> Rows:
        if self._route is None:
            self._route = self._through([s.call.weights for s in self._rows])
        return self._route

    def _through(self, weights: Sequence[Weights | None]) -> Rows:
        route = rows_through(weights, self._bank.device, self._stacks)
        if self._stacks is None or len(route.stacks.adapters) > 1:
            self._stacks = route.stacks
        return route

    def _take(self, samples: Sequence[Sampled], logits: Tensor) -> Tensor:
        """Draw the next token of each sample from logits [N, V], and note which have ended; returns the tokens [N]."""
        groups = _by_params(samples)
        if len(groups) == 1:
            return self._drawn(samples, logits, samples[0].call.params)
        tokens = torch.zeros(len(samples), dtype=torch.long, device=logits.device)
        for params, rows in groups.items():
            places = torch.tensor(rows, device=logits.device)
            tokens[places] = self._drawn([samples[r] for r in rows], logits[places], params)
        return tokens

    def _drawn(self, samples: Sequence[Sampled], logits: Tensor, params: SamplingParams) -> Tensor:
        """As `_take`, of samples that are drawn in the same way."""
        tokens, logprobs = _draw(logits, samples, params)
        self._record(samples, tokens.tolist(), logprobs.tolist(), logits, params)
        return tokens

    def _record(
        self,
        samples: Sequence[Sampled],
        tokens: list[int],
        logprobs: list[float],
        logits: Tensor,
        params: SamplingParams,
    ) -> None:
        for sample, token, logprob in zip(samples, tokens, logprobs, strict=True):
            if sample.stop_reason is not None:
                continue
            if not math.isfinite(logprob):
                sample.failed, sample.stop_reason = True, "stop"
                continue
            sample.tokens.append(token)
            sample.logprobs.append(logprob)
            self.drawn += 1
            if token in params.stop or (sample.call.ends_text is not None and sample.call.ends_text(sample.tokens)):
                sample.stop_reason = "stop"
            elif len(sample.tokens) >= sample.limit:
                sample.stop_reason = "length"
        if any(s.call.top for s in samples):
            _record_top(samples, logits, params)


def filled(living: Sequence[int]) -> list[int]:
    """The rows that live on, in an order in which as many as possible keep their places: the last fill the gaps."""
    count, there = len(living), set(living)
    last = (row for row in living if row >= count)
    return [place if place in there else next(last) for place in range(count)]


def _key(sample: Sampled) -> Prompt:
    return id(sample.call.weights), sample.call.prompt


def _distinct(samples: Sequence[Sampled]) -> tuple[list[Call], list[int]]:
    """One call for each prompt under an adapter, and the place among them of each sample."""
    places: dict[Prompt, int] = {}
    calls: list[Call] = []
    found = []
    for sample in samples:
        key = _key(sample)
        if key not in places:
            places[key] = len(calls)
            calls.append(sample.call)
        found.append(places[key])
    return calls, found


def _by_params(samples: Sequence[Sampled]) -> dict[SamplingParams, list[int]]:
    """Rows that are drawn in the same way."""
    groups: dict[SamplingParams, list[int]] = {}
    for row, sample in enumerate(samples):
        groups.setdefault(sample.call.params, []).append(row)
    return groups


def _draw(logits: Tensor, samples: Sequence[Sampled], params: SamplingParams) -> tuple[Tensor, Tensor]:
    if params.temperature == 0:
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        best = logprobs.max(dim=-1)
        return best.indices, best.values
    uniforms = torch.from_numpy(_uniforms(samples)).to(logits.device)
    return draw(logits, uniforms, params)


def _uniforms(samples: Sequence[Sampled]) -> npt.NDArray[np.float64]:
    """[N]: that of each sample's next token."""
    seeds = np.array([s.seed for s in samples], np.uint64)
    return uniform(seeds, np.array([len(s.tokens) for s in samples], np.uint64))


def _record_top(samples: Sequence[Sampled], logits: Tensor, params: SamplingParams) -> None:
    scaled = logits.float() / (params.temperature or 1.0)
    logprobs = torch.log_softmax(truncate(scaled, params.top_k, params.top_p), dim=-1)
    ids, values = top_of(logprobs, max(s.call.top for s in samples))
    for row, sample in enumerate(samples):
        if sample.call.top and len(sample.top_ids) < len(sample.tokens):
            sample.top_ids.append(ids[row, : sample.call.top])
            sample.top_logprobs.append(values[row, : sample.call.top])
