"""A transformer forward pass in which sequences share their prompt, for sampling and for training.

Hugging Face modules hold the weights; this file only replaces the plumbing around them. A batch is P prompts with G
continuations each: prompts run once, and a continuation attends to its prompt's keys and values where they lie, so a
group of 16 pays for one prompt. The same code decodes token by token and trains on whole continuations, so sampled and
trained log-probabilities agree.

Covers pre-norm decoders with full attention: GPT-2 and the Llama family (Llama, Mistral, Qwen2, Qwen3). `fused_decoder`
checks itself against the module's own forward and returns None for anything else.

Shapes: P prompts, L prompt length (right padded), G continuations per prompt, T new tokens, S cached continuation
tokens, H query heads, K key heads, R = H / K, D head width, E residual width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

Projection = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layer:
    """One pre-norm block as four maps; `qkv` returns q [*, H, D], k [*, K, D] and v [*, K, D]."""

    attention_norm: Projection
    qkv: Callable[[Tensor, tuple[Tensor, Tensor] | None], tuple[Tensor, Tensor, Tensor]]
    attention_out: Projection
    mlp_norm: Projection
    mlp: Projection


@dataclass(frozen=True)
class Decoder:
    """The weights of a causal LM, seen as embed -> layers -> norm -> head."""

    embed: Callable[[Tensor, Tensor], Tensor]
    """(token ids [*], positions [*]) -> residual stream [*, E]."""
    rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None
    """(residual stream, positions [*]) -> cos and sin [*, 1, D], or None without rotary positions."""
    layers: tuple[Layer, ...]
    final_norm: Projection
    head: Projection
    key_heads: int
    head_dim: int

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
    bias: Tensor | None

    def select(self, rows: Tensor) -> Prefix:
        """The prefix of the prompts `rows` [P'] alone."""
        return Prefix(
            tuple(k.index_select(0, rows) for k in self.keys),
            tuple(v.index_select(0, rows) for v in self.values),
            self.lengths.index_select(0, rows),
            None if self.bias is None else self.bias.index_select(0, rows),
        )


def prefill(decoder: Decoder, tokens: Tensor, lengths: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Prefix]:
    """Run prompts.

    Args:
        tokens: [P, L] token ids, right padded.
        lengths: [P] true lengths.
        rows: [N] positions, numbered through [P, L], whose hidden states are wanted; None means all P * L.

    Returns:
        Final hidden states [N, E] (after the last norm; garbage on padding), and the prompts' keys and values.
    """
    width = tokens.shape[1]
    positions = torch.arange(width, device=tokens.device).expand_as(tokens)
    x = decoder.embed(tokens, positions)
    rotary = decoder.rotary(x, positions) if decoder.rotary else None
    keys, values = [], []
    for layer in decoder.layers:
        q, k, v = (t.transpose(1, 2) for t in layer.qkv(layer.attention_norm(x), rotary))
        # Padding is on the right, so the causal mask alone keeps it out of every real position.
        with torch.autocast(x.device.type, enabled=False):
            out = F.scaled_dot_product_attention(
                q.float(),
                k.float(),
                v.float(),
                is_causal=True,
                scale=decoder.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        # Both are read at every later step, so they are laid out once as the products want them.
        keys.append(k.float().transpose(2, 3).contiguous())
        values.append(v.float().contiguous())
        out = out.transpose(1, 2).flatten(2).to(q.dtype)
        if layer is decoder.layers[-1]:
            # Beyond its keys and values, the last layer serves nothing but the states that are wanted.
            x, out = x.flatten(0, 1), out.flatten(0, 1)
            if rows is not None:
                x, out = x.index_select(0, rows), out.index_select(0, rows)
        x = x + layer.attention_out(out)
        x = x + layer.mlp(layer.mlp_norm(x))
    padded = torch.arange(width, device=tokens.device) >= lengths[:, None]
    bias = torch.zeros(padded.shape, device=tokens.device).masked_fill_(padded, -torch.inf)[:, None, None, :]
    any_padding = bool(padded.any())
    return decoder.final_norm(x), Prefix(tuple(keys), tuple(values), lengths, bias if any_padding else None)


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

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [P, K, G, D, T] of `layer` behind the cached tokens; returns all [P, K, G, D, S + T]."""
        end = self.length + k.shape[4]
        for store, new in ((self.keys, k), (self.values, v)):
            store[layer][..., self.length : end, :] = new.transpose(3, 4)
        return self.keys[layer][..., :end, :].transpose(3, 4), self.values[layer][..., :end, :].transpose(3, 4)


def extend(decoder: Decoder, prefix: Prefix, tokens: Tensor, cache: ContinuationCache | None = None) -> Tensor:
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
    bias = _bias(prefix, start, new)
    for index, layer in enumerate(decoder.layers):
        q, k, v = layer.qkv(layer.attention_norm(x), rotary)
        k, v = (t.permute(0, 3, 1, 4, 2).float() for t in (k, v))
        if cache is not None:
            k, v = cache.append(index, k, v)
        with torch.autocast(x.device.type, enabled=False):
            out = _attend(q.float() * decoder.scale, prefix.keys[index], prefix.values[index], k, v, bias)
        x = x + layer.attention_out(out.to(q.dtype))
        x = x + layer.mlp(layer.mlp_norm(x))
    if cache is not None:
        cache.length += new
    return decoder.final_norm(x)


def _bias(prefix: Prefix, start: int, new: int) -> Tensor | None:
    """What to add to attention scores: -inf on prompt padding and on later tokens. [P or 1, 1, 1, T, 1, L + S + T].

    None where nothing is hidden.
    """
    if new == 1:
        return None if prefix.bias is None else F.pad(prefix.bias, (0, start + 1))[:, :, None, None]
    length, device = prefix.keys[0].shape[3], prefix.lengths.device
    reach = length + start + torch.arange(new, device=device)[:, None]
    hidden = torch.arange(length + start + new, device=device) > reach
    causal = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)[:, None]
    return causal if prefix.bias is None else causal + F.pad(prefix.bias, (0, start + new))[:, :, None, None]


def _attend(q: Tensor, prefix_k: Tensor, prefix_v: Tensor, own_k: Tensor, own_v: Tensor, bias: Tensor | None) -> Tensor:
    """One softmax over the shared prompt and the own continuation, without copying the prompt per continuation.

    q [P, G, T, H, D], scaled; prefix_k [P, K, D, L]; prefix_v [P, K, L, D]; own_k, own_v [P, K, G, D, S + T]; returns
    [P, G, T, H * D]. Own keys and values come transposed: on CPUs a product of small matrices is several times slower,
    forward or backward, where it has to transpose its second one. Runs in float32: half-precision attention is slow on
    CPUs and loses accuracy everywhere.
    """
    prompts, group, new, heads, width = q.shape
    key_heads, length = prefix_k.shape[1], prefix_k.shape[3]
    repeat, span = heads // key_heads, own_k.shape[4]
    # Queries of all continuations of a prompt stand side by side; each continuation's are a block of them.
    shape = (prompts, key_heads, group, new, repeat)
    rows = q.view(prompts, group, new, key_heads, repeat, width).permute(0, 3, 1, 2, 4, 5).contiguous()
    blocks = (prompts * key_heads * group, new * repeat)
    own_k, own_v = (t.reshape(-1, width, span) for t in (own_k, own_v))
    shared = torch.matmul(rows.view(prompts, key_heads, -1, width), prefix_k)
    own = torch.bmm(rows.view(*blocks, width), own_k)
    scores = torch.cat([shared, own.view(prompts, key_heads, -1, span)], dim=-1)
    if bias is not None:
        scores = scores.view(*shape, -1) + bias
    weights = torch.softmax(scores, dim=-1).view(prompts, key_heads, -1, length + span)
    out = torch.matmul(weights[..., :length], prefix_v)
    own_weights = weights[..., length:].view(*blocks, span)
    out = torch.baddbmm(out.view(*blocks, width), own_weights, own_v.transpose(1, 2))
    return out.view(*shape, width).permute(0, 2, 3, 1, 4, 5).reshape(prompts, group, new, heads * width)


def fused_decoder(model: Any, config: Any) -> Decoder | None:
    """A `Decoder` over the weights of a Hugging Face causal LM (bare or wrapped by peft), or None if it does not fit.

    The result is checked on random tokens against the module's own forward pass; a difference that is more than
    rounding also gives None, so that an unknown variant is slow rather than wrong.
    """
    builders = {"gpt2": _gpt2, "llama": _llama, "mistral": _llama, "qwen2": _llama, "qwen3": _llama}
    build = builders.get(config.model_type)
    if build is None or not _full_attention(config):
        return None
    if type(model.get_input_embeddings()) is not nn.Embedding:
        return None  # an adapter on the embedding would be passed by, and cannot be seen while it is still zero
    decoder = build(model, config)
    return decoder if _agrees(decoder, model, config) else None


def _full_attention(config: Any) -> bool:
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return set(layer_types) == {"full_attention"} and not windowed


@torch.no_grad()
def _agrees(decoder: Decoder, model: nn.Module, config: Any) -> bool:
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (2, 9), generator=generator).to(device)
    want = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[:, 4:].float()
    _, prefix = prefill(decoder, tokens[:, :5], torch.full((2,), 5, device=device))
    last, _ = prefill(decoder, tokens[:, :5], torch.full((2,), 5, device=device), torch.tensor([4, 9], device=device))
    hidden = extend(decoder, prefix, tokens[:, None, 5:])[:, 0]
    got = decoder.head(torch.cat([last[:, None], hidden], dim=1)).float()
    tolerance = 1e-3 if next(model.parameters()).dtype == torch.float32 else 5e-2
    return bool((got - want).abs().max() <= tolerance * (1 + want.abs().max()))


def _projection(module: nn.Module) -> Projection:
    """The map of a linear layer; plain layers skip the module machinery, adapters keep it."""
    if type(module) is nn.Linear:
        return lambda x: F.linear(x, module.weight, module.bias)
    if type(module) is Conv1D:
        return lambda x: torch.addmm(module.bias, x.reshape(-1, x.shape[-1]), module.weight).view(*x.shape[:-1], -1)
    return module


def _gpt2(model: Any, config: Any) -> Decoder:
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    trunk, heads = body.transformer, config.n_head
    width = config.n_embd // heads

    def layer(block: Any) -> Layer:
        attention_in, mlp_in, mlp_out = (_projection(m) for m in (block.attn.c_attn, block.mlp.c_fc, block.mlp.c_proj))
        activation = block.mlp.act
        if config.activation_function == "gelu_new":
            activation = _gelu_tanh

        def qkv(x: Tensor, _: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = attention_in(x).view(*x.shape[:-1], 3, heads, width).unbind(-3)
            return q, k, v

        return Layer(
            attention_norm=block.ln_1,
            qkv=qkv,
            attention_out=_projection(block.attn.c_proj),
            mlp_norm=block.ln_2,
            mlp=lambda x: mlp_out(activation(mlp_in(x))),
        )

    def embed(tokens: Tensor, positions: Tensor) -> Tensor:
        # Padding and finished rows may lie past the last position; what is computed for them is never read.
        positions = positions.clamp(max=len(trunk.wpe.weight) - 1)
        return F.embedding(tokens, trunk.wte.weight) + F.embedding(positions, trunk.wpe.weight)

    return Decoder(
        embed=embed,
        rotary=None,
        layers=tuple(layer(block) for block in trunk.h),
        final_norm=trunk.ln_f,
        head=_projection(body.lm_head),
        key_heads=heads,
        head_dim=width,
    )


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _llama(model: Any, config: Any) -> Decoder:
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    trunk = body.model
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def rotary(x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = trunk.rotary_emb(x, positions.reshape(1, -1))
        shape = (*positions.shape, 1, width)
        return cos.view(shape), sin.view(shape)

    def layer(block: Any) -> Layer:
        attention = block.self_attn
        to_q, to_k, to_v = (_projection(m) for m in (attention.q_proj, attention.k_proj, attention.v_proj))
        gate, up, down = (_projection(m) for m in (block.mlp.gate_proj, block.mlp.up_proj, block.mlp.down_proj))
        activation = block.mlp.act_fn
        q_norm, k_norm = getattr(attention, "q_norm", _identity), getattr(attention, "k_norm", _identity)

        def qkv(x: Tensor, angles: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
            assert angles is not None
            q, k, v = (project(x).view(*x.shape[:-1], -1, width) for project in (to_q, to_k, to_v))
            return _rotate(q_norm(q), *angles), _rotate(k_norm(k), *angles), v

        return Layer(
            attention_norm=block.input_layernorm,
            qkv=qkv,
            attention_out=_projection(attention.o_proj),
            mlp_norm=block.post_attention_layernorm,
            mlp=lambda x: down(activation(gate(x)) * up(x)),
        )

    return Decoder(
        embed=lambda tokens, _: F.embedding(tokens, trunk.embed_tokens.weight),
        rotary=rotary,
        layers=tuple(layer(block) for block in trunk.layers),
        final_norm=trunk.norm,
        head=_projection(body.lm_head),
        key_heads=config.num_key_value_heads,
        head_dim=width,
    )


def _identity(x: Tensor) -> Tensor:
    return x


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
