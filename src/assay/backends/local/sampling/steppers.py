"""A model in the middle of decoding: prompts are run, branch into continuations, and go on token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

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
    """Decodes through the module's own forward pass, for architectures that have no fused decoder.

    Attention windows, chunks and ALiBi count places in the cache, and recurrent states take in whatever they are fed,
    so nothing may lie between a prompt and its continuation. Prompts of one length stand side by side as they are.
    Those of different lengths are padded on the left where the architecture is known to ignore that, and otherwise go
    through the model one length after the other.
    """

    def __init__(self, module: Module, head: Callable[[Tensor], Tensor], context_length: int) -> None:
        self._module = module
        self._head = head
        self._context = context_length
        self._parts: list[tuple[Tensor, _Rows]] = []
        """Which of the batch's prompts they are, and their rows."""

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """See `Stepper`."""
        sizes = [[*range(len(lengths))]] if self._module.pads_left else _by_length(lengths)
        self._parts, parts = [], []
        for places in sizes:
            rows = _Rows(self._module, self._context)
            parts.append(rows.prefill(tokens[places], lengths[places]))
            self._parts.append((torch.tensor(places, device=tokens.device), rows))
        return self._head(self._together(parts))

    def branch(self, group: int) -> None:
        """See `Stepper`."""
        for _, rows in self._parts:
            rows.branch(group)

    def step(self, tokens: Tensor) -> Tensor:
        """See `Stepper`."""
        return self._head(self._together([rows.step(tokens[places]) for places, rows in self._parts]))

    def select(self, prompts: Tensor, columns: Tensor) -> None:
        """See `Stepper`."""
        kept = []
        for places, rows in self._parts:
            new, old = torch.nonzero(prompts[:, None] == places, as_tuple=True)
            if len(new):
                rows.select(old, columns[new])
                kept.append((new, rows))
        self._parts = kept

    def _together(self, parts: list[Tensor]) -> Tensor:
        """States [p, ..., E] of the parts' prompts as those [P, ..., E] of the batch."""
        if len(parts) == 1:
            return parts[0]
        order = torch.cat([places for places, _ in self._parts])
        return torch.cat(parts).index_select(0, torch.argsort(order))


def _by_length(lengths: Tensor) -> list[list[int]]:
    """The places of equal lengths."""
    places: dict[int, list[int]] = {}
    for place, length in enumerate(lengths.tolist()):
        places.setdefault(length, []).append(place)
    return list(places.values())


class _Rows:
    """Rows that go through the module in one pass."""

    def __init__(self, module: Module, context_length: int) -> None:
        self._module = module
        self._context = context_length
        self._past: Any = None
        self._mask: Tensor | None = None
        """[rows, tokens so far]: 0 on the padding; None without padding, where the model needs to be told nothing."""
        self._lengths = torch.empty(0)
        self._width = self._group = self._fed = 0
        self._last = torch.empty(0)

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Run prompts [p, L] (right padded, true lengths [p] on the CPU); states [p, E] at their last tokens."""
        width = self._width = int(lengths.max())
        self._lengths = lengths.to(tokens.device)
        if int(lengths.min()) == width:
            return self._advance(tokens[:, :width])
        columns = torch.arange(width, device=tokens.device) - (width - self._lengths)[:, None]
        self._mask = (columns >= 0).long()
        return self._advance(tokens.gather(1, columns.clamp(min=0)), columns.clamp(min=0))

    def branch(self, group: int) -> None:
        """Start `group` continuations behind every prompt."""
        self._group = group
        self._take(torch.arange(len(self._lengths), device=self._lengths.device).repeat_interleave(group))

    def step(self, tokens: Tensor) -> Tensor:
        """Feed the last tokens [p, G]; states [p, G, E] at them."""
        rows = tokens.reshape(-1, 1)
        positions = self._lengths[:, None] + self._fed
        self._fed += 1
        if self._mask is None:
            # Rows of one length fill the context at the same time; what is drawn behind it is never read.
            full = self._width + self._fed > self._context
            return (self._last if full else self._advance(rows)).view(*tokens.shape, -1)
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(rows), 1)], dim=1)
        # Finished rows may lie past the last position; what is computed for them is never read.
        return self._advance(rows, positions.clamp(max=self._context - 1)).view(*tokens.shape, -1)

    def select(self, prompts: Tensor, columns: Tensor) -> None:
        """Keep prompts [p'] and, of the G continuations of each, those in `columns` [p', G']."""
        self._take((prompts[:, None] * self._group + columns).reshape(-1))
        self._group = columns.shape[1]

    def _take(self, rows: Tensor) -> None:
        # Recurrent states know `reorder_cache` alone; a cache of an architecture's own may know the other alone.
        own = vars(type(self._past))
        only_selects = "batch_select_indices" in own and "reorder_cache" not in own
        (self._past.batch_select_indices if only_selects else self._past.reorder_cache)(rows)
        self._lengths = self._lengths.index_select(0, rows)
        self._last = self._last.index_select(0, rows)
        self._mask = None if self._mask is None else self._mask.index_select(0, rows)

    def _advance(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        inputs: dict[str, Tensor] = {}
        if self._mask is not None:
            inputs["attention_mask"] = self._mask
            if self._module.positioned and positions is not None:
                inputs["position_ids"] = positions
        self._last, self._past = self._module.advance(tokens, self._past, **inputs)
        return self._last
