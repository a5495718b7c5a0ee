"""A model in the middle of decoding: prompts are run, branch into continuations, and go on token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache

from assay.backends.local.decoder import ContinuationCache, Decoder, Prefix, extend, prefill
from assay.backends.local.module import Module

FIRST_CAPACITY = 16
"""Continuation tokens that the cache has room for at first; it doubles when full."""


class Stepper(Protocol):
    """A model in the middle of decoding P prompts with G continuations each."""

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Run prompts [P, L] (right padded, true lengths [P], on the CPU); logits [P, V] of the first token."""
        ...

    def branch(self, group: int) -> None:
        """Start `group` continuations behind every prompt."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Feed the last tokens [P, G]; logits [P, G, V] of the next ones."""
        ...

    def select(self, prompts: Tensor, columns: Tensor) -> None:
        """Keep prompts [P'] and, of the G continuations of each, those in `columns` [P', G']."""
        ...


class FusedStepper:
    """Decodes with prompts shared inside attention."""

    def __init__(self, decoder: Decoder, head: Callable[[Tensor], Tensor]) -> None:
        self._decoder = decoder
        self._head = head
        self._prefix: Prefix | None = None
        self._cache: ContinuationCache | None = None

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """See `Stepper`."""
        ends = lengths.to(tokens.device)
        last = torch.arange(len(tokens), device=tokens.device) * tokens.shape[1] + ends - 1
        hidden, self._prefix = prefill(self._decoder, tokens, lengths, last)
        return self._head(hidden)

    def branch(self, group: int) -> None:
        """See `Stepper`."""
        assert self._prefix is not None
        self._cache = ContinuationCache(self._prefix, group, FIRST_CAPACITY)

    def step(self, tokens: Tensor) -> Tensor:
        """See `Stepper`."""
        assert self._prefix is not None and self._cache is not None
        if self._cache.length == self._cache.capacity:
            self._cache.grow(2 * self._cache.capacity)
        hidden = extend(self._decoder, self._prefix, tokens[:, :, None], self._cache)
        return self._head(hidden[:, :, 0])

    def select(self, prompts: Tensor, columns: Tensor) -> None:
        """See `Stepper`."""
        assert self._prefix is not None and self._cache is not None
        self._prefix = self._prefix.select(prompts)
        self._cache.select(prompts, columns)


class ModuleStepper:
    """Decodes through the module's own forward pass, for architectures that `fused_decoder` does not cover."""

    def __init__(self, module: Module, head: Callable[[Tensor], Tensor], context_length: int) -> None:
        self._module = module
        self._head = head
        self._context = context_length
        self._cache: Any = None
        self._mask = torch.empty(0)
        self._lengths = torch.empty(0)
        self._group = self._fed = 0

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """See `Stepper`."""
        width, lengths = tokens.shape[1], lengths.to(tokens.device)
        positions = torch.arange(width, device=tokens.device)
        # Padding stays on the right as masked holes in the cache; explicit positions step over them.
        self._mask, self._lengths, self._fed = (positions < lengths[:, None]).long(), lengths, 0
        self._cache = DynamicCache()
        last = torch.arange(len(tokens), device=tokens.device) * width + lengths - 1
        return self._forward(tokens, positions.expand_as(tokens), last)

    def branch(self, group: int) -> None:
        """See `Stepper`."""
        self._group = group
        self._cache.batch_repeat_interleave(group)
        self._mask = self._mask.repeat_interleave(group, 0)
        self._lengths = self._lengths.repeat_interleave(group, 0)

    def step(self, tokens: Tensor) -> Tensor:
        """See `Stepper`."""
        rows = tokens.reshape(-1, 1)
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(rows), 1)], dim=1)
        # Finished rows may lie past the last position; what is computed for them is never read.
        positions = (self._lengths[:, None] + self._fed).clamp(max=self._context - 1)
        self._fed += 1
        return self._forward(rows, positions, torch.arange(len(rows), device=rows.device)).view(*tokens.shape, -1)

    def select(self, prompts: Tensor, columns: Tensor) -> None:
        """See `Stepper`."""
        rows = (prompts[:, None] * self._group + columns).reshape(-1)
        self._group = columns.shape[1]
        self._cache.batch_select_indices(rows)
        self._mask, self._lengths = self._mask.index_select(0, rows), self._lengths.index_select(0, rows)

    def _forward(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        states = self._module.states(
            rows,
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        return self._head(states)
