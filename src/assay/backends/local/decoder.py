"""A transformer forward pass in which sequences share their prompt, for sampling and for training.

Hugging Face modules hold the weights; this file only replaces the plumbing around them. A batch is P prompts with G
continuations each: prompts run once, and a continuation attends to its prompt's keys and values in place, so a group of
16 computes one prompt. The same code decodes token by token and trains on whole continuations, so sampled and trained
log-probabilities agree.

`architectures` makes a `Decoder` of a Hugging Face model; `attention` holds what happens between its layers' halves.

Shapes: P prompts, L prompt length (right padded), G continuations per prompt, T new tokens, S cached continuation
tokens, H query heads, K key heads, R = H / K, D head width, E residual width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from assay.backends.local import attention

Projection = Callable[[Tensor], Tensor]
Angles = tuple[Tensor, Tensor]
"""Cosines and sines of rotary positions, each [*, 1, D]."""


@dataclass(frozen=True)
class Layer:
    """One pre-norm block, cut where attention happens."""

    enter: Callable[[Tensor, Angles | None], tuple[Tensor, Tensor, Tensor]]
    """(residual stream [*, E], angles) -> q [*, H, D], k [*, K, D] and v [*, K, D]."""
    leave: Callable[[Tensor, Tensor], Tensor]
    """(residual stream [*, E], output of the attention [*, H * D]) -> residual stream behind the block."""


@dataclass(frozen=True)
class Decoder:
    """The weights of a causal LM, seen as embed -> layers -> norm -> head."""

    embed: Callable[[Tensor, Tensor], Tensor]
    """(token ids [*], positions [*]) -> residual stream [*, E]."""
    rotary: Callable[[Tensor, Tensor], Angles] | None
    """(residual stream, positions [*]) -> angles, or None without rotary positions."""
    layers: tuple[Layer, ...]
    final_norm: Projection
    head: Projection
    query_heads: int
    key_heads: int
    head_dim: int
    attention_dtype: torch.dtype = torch.float32
    """Precision of attention. Half precision is faster on CUDA; on CPUs it is slow, especially in the backward pass."""
    checkpointing: bool = False
    """Keep only what enters each layer, and compute the rest again in the backward pass."""

    @property
    def scale(self) -> float:
        """Factor of the attention scores."""
        return 1.0 / math.sqrt(self.head_dim)


@dataclass(frozen=True)
class Prefix:
    """Per layer keys [P, K, D, L] and values [P, K, L, D] of the prompts; `bias` [P, 1, 1, L] is -inf on padding."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    lengths: Tensor
    sizes: tuple[int, ...]
    """`lengths`, on the host: they decide shapes."""
    bias: Tensor | None

    def select(self, rows: Tensor) -> Prefix:
        """The prefix of the prompts `rows` [P'] alone."""
        return Prefix(
            tuple(k.index_select(0, rows) for k in self.keys),
            tuple(v.index_select(0, rows) for v in self.values),
            self.lengths.index_select(0, rows),
            tuple(self.sizes[row] for row in rows.tolist()),
            None if self.bias is None else self.bias.index_select(0, rows),
        )


def prefill(decoder: Decoder, tokens: Tensor, lengths: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Prefix]:
    """Run prompts.

    Args:
        tokens: [P, L] token ids, right padded.
        lengths: [P] true lengths; on the CPU, so that nothing has to wait for another device.
        rows: [N] positions, numbered through [P, L], whose hidden states are wanted; None means all P * L.

    Returns:
        Final hidden states [N, E] (after the last norm; garbage on padding), and the prompts' keys and values.
    """
    width, device = tokens.shape[1], tokens.device
    sizes, lengths = tuple(lengths.tolist()), lengths.to(device)
    positions = torch.arange(width, device=device).expand_as(tokens)
    x = decoder.embed(tokens, positions)
    rotary = decoder.rotary(x, positions) if decoder.rotary else None
    keys, values = [], []
    for layer in decoder.layers:
        last = layer is decoder.layers[-1]
        x, k, v = _run(decoder, _prompt_layer, decoder, layer, x, rotary, last, rows if last else None)
        keys.append(k)
        values.append(v)
    bias = None
    if min(sizes) < width:
        padded = torch.arange(width, device=device) >= lengths[:, None]
        bias = torch.zeros(padded.shape, device=device).masked_fill_(padded, -torch.inf)[:, None, None, :]
    return decoder.final_norm(x), Prefix(tuple(keys), tuple(values), lengths, sizes, bias)


def _run(decoder: Decoder, part: Callable[..., Any], *inputs: Any) -> Any:
    """`part(*inputs)`, recomputed in the backward pass if the decoder is set so."""
    if decoder.checkpointing and torch.is_grad_enabled():
        return checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)
    return part(*inputs)


def _prompt_layer(
    decoder: Decoder, layer: Layer, x: Tensor, rotary: Angles | None, last: bool, rows: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over prompts [P, L, E]: residual stream, keys [P, K, D, L] and values [P, K, L, D].

    Beyond its keys and values, the last layer serves nothing but the states that are wanted: [N, E].
    """
    q, k, v = (t.transpose(1, 2) for t in layer.enter(x, rotary))
    dtype, kind = decoder.attention_dtype, q.dtype
    # Padding is on the right, so the causal mask alone keeps it out of every real position.
    with torch.autocast(x.device.type, enabled=False):
        out = attention.causal(q.to(dtype), k.to(dtype), v.to(dtype), decoder.scale)
    out = out.transpose(1, 2).flatten(2).to(kind)
    if last:
        x, out = x.flatten(0, 1), out.flatten(0, 1)
        if rows is not None:
            x, out = x.index_select(0, rows), out.index_select(0, rows)
    # Both are read at every later step, so they are laid out once as the products want them.
    return layer.leave(x, out), k.to(dtype).transpose(2, 3).contiguous(), v.to(dtype).contiguous()


class Cache(Protocol):
    """Keys and values of the continuations while they are sampled."""

    @property
    def length(self) -> int | Tensor:
        """Tokens cached so far: of each continuation the same number."""
        ...

    def bias(self, prefix: Prefix, new: int) -> Tensor | None:
        """What to add to the scores of `new` tokens: -inf on what they must not see; None where that is nothing."""
        ...

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [P, K, G, D, T] of `layer` behind the cached tokens; returns all [P, K, G, D, S + T]."""
        ...

    def advance(self, new: int) -> None:
        """Count `new` tokens as cached, once every layer has appended them."""
        ...


class ContinuationCache:
    """Keys and values of the continuations: per layer [P, K, G, capacity, D], written in place while sampling."""

    def __init__(self, prefix: Prefix, group: int, capacity: int) -> None:
        self.length = 0
        self.keys = [v.new_empty((*v.shape[:2], group, capacity, v.shape[3])) for v in prefix.values]
        self.values = [torch.empty_like(k) for k in self.keys]

    @property
    def capacity(self) -> int:
        """Number of tokens that fit."""
        return int(self.keys[0].shape[3])

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens, keeping what is there."""
        for store in (self.keys, self.values):
            for i, old in enumerate(store):
                store[i] = old.new_empty((*old.shape[:3], capacity, old.shape[4]))
                store[i][..., : self.length, :] = old[..., : self.length, :]

    def select(self, prompts: Tensor, columns: Tensor) -> None:
        """Keep prompts [P'] and, of each, continuations `columns` [P', G'], in that order."""
        heads = torch.arange(self.keys[0].shape[1], device=prompts.device)
        kept = prompts[:, None, None], heads[None, :, None], columns[:, None, :]
        for store in (self.keys, self.values):
            for i, old in enumerate(store):
                store[i] = old.new_empty((len(prompts), len(heads), columns.shape[1], *old.shape[3:]))
                store[i][..., : self.length, :] = old[..., : self.length, :][kept]

    def bias(self, prefix: Prefix, new: int) -> Tensor | None:
        """See `Cache`."""
        return causal_bias(prefix, self.length, new)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cache`."""
        end = self.length + k.shape[4]
        for store, new in ((self.keys, k), (self.values, v)):
            store[layer][..., self.length : end, :] = new.transpose(3, 4)
        return self.keys[layer][..., :end, :].transpose(3, 4), self.values[layer][..., :end, :].transpose(3, 4)

    def advance(self, new: int) -> None:
        """See `Cache`."""
        self.length += new


def extend(decoder: Decoder, prefix: Prefix, tokens: Tensor, cache: Cache | None = None) -> Tensor:
    """Run continuation tokens behind their prompts.

    Args:
        prefix: keys and values of the P prompts.
        tokens: [P, G, T] the next T tokens of every continuation.
        cache: earlier continuation tokens, all of one length S; extended in place. None means S = 0 (training).

    Returns:
        Final hidden states [P, G, T, E], after the last norm.
    """
    new = tokens.shape[2]
    start = cache.length if cache is not None else 0
    positions = (prefix.lengths[:, None, None] + start + torch.arange(new, device=tokens.device)).expand_as(tokens)
    x = decoder.embed(tokens, positions)
    rotary = decoder.rotary(x, positions) if decoder.rotary else None
    for index, attend in enumerate(_attentions(decoder, prefix, tokens, cache)):
        x = _run(decoder, _continuation_layer, decoder.layers[index], x, rotary, attend)
    if cache is not None:
        cache.advance(new)
    return decoder.final_norm(x)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of one layer: q [P, G, T, H, D], k and v [P, G, T, K, D] -> [P, G, T, H * D]."""


def _continuation_layer(layer: Layer, x: Tensor, rotary: Angles | None, attend: Attend) -> Tensor:
    """One layer over continuations [P, G, T, E]."""
    q, k, v = layer.enter(x, rotary)
    with torch.autocast(x.device.type, enabled=False):
        out = attend(q, k, v)
    return layer.leave(x, out.to(q.dtype))


def _attentions(decoder: Decoder, prefix: Prefix, tokens: Tensor, cache: Cache | None) -> list[Attend]:
    """How each layer attends: to a cache, with all scores written out, or (too many of them) in a stream."""
    prompts, group, new = tokens.shape
    count, scale, dtype = len(decoder.layers), decoder.scale, decoder.attention_dtype
    if cache is not None:
        bias = cache.bias(prefix, new)
        return [partial(_cached, cache, i, prefix, dtype, scale, bias) for i in range(count)]
    if prompts * group * new * decoder.query_heads * (prefix.keys[0].shape[3] + new) > attention.SCORE_BUDGET:
        return [partial(_streamed, i, prefix, dtype, scale) for i in range(count)]
    bias = causal_bias(prefix, 0, new)
    return [partial(_shared, i, prefix, scale, bias) for i in range(count)]


def _cached(
    cache: Cache,
    index: int,
    prefix: Prefix,
    dtype: torch.dtype,
    scale: float,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    own_k, own_v = cache.append(index, *(t.permute(0, 3, 1, 4, 2).to(dtype) for t in (k, v)))
    keys, values = prefix.keys[index], prefix.values[index]
    return attention.shared((q.float() * scale).to(dtype), keys, values, own_k, own_v, bias)


def _streamed(index: int, prefix: Prefix, dtype: torch.dtype, scale: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keys, values = prefix.keys[index], prefix.values[index]
    return attention.streamed(q.to(dtype), keys, values, k.to(dtype), v.to(dtype), prefix.sizes, scale)


def _shared(index: int, prefix: Prefix, scale: float, bias: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # Small by the budget, so float32 costs little also where attention is otherwise in half precision.
    own_k, own_v = (t.permute(0, 3, 1, 4, 2).float() for t in (k, v))
    keys, values = prefix.keys[index].float(), prefix.values[index].float()
    return attention.shared(q.float() * scale, keys, values, own_k, own_v, bias)


def causal_bias(prefix: Prefix, start: int, new: int) -> Tensor | None:
    """-inf on prompt padding and on later tokens, to add to scores: [P or 1, 1, 1, T, 1, L + S + T].

    None where nothing is hidden.
    """
    if new == 1:
        return None if prefix.bias is None else F.pad(prefix.bias, (0, start + 1))[:, :, None, None]
    length, device = prefix.keys[0].shape[3], prefix.lengths.device
    reach = length + start + torch.arange(new, device=device)[:, None]
    hidden = torch.arange(length + start + new, device=device) > reach
    causal = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)[:, None]
    return causal if prefix.bias is None else causal + F.pad(prefix.bias, (0, start + new))[:, :, None, None]
