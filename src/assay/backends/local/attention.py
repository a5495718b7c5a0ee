"""Attention of continuations to a prompt that they share, in two ways with one result.

`shared` reads the prompt's keys in place and writes all scores out: best for decoding and for short sequences,
quadratic in memory. `streamed` lays the prompt's keys before each continuation's own and leaves the rest to
`scaled_dot_product_attention`, whose kernels on CUDA write no scores; it copies keys and values, which is linear.

Shapes: P prompts, L prompt length (right padded), G continuations per prompt, T new tokens, S cached continuation
tokens, H query heads, K key heads, R = H / K, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

SCORE_BUDGET = 2**24
"""Most attention scores that one layer may write out in training; above it, `streamed` is used."""


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention in which the last query sees every key: q [B, H, T, D], k and v [B, K, S, D] -> [B, H, T, D]."""
    if k.shape[1] != q.shape[1] and q.is_cuda and q.dtype == torch.float32:
        # The only kernel for float32 that writes no scores has no grouped heads.
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    square = q.shape[2] == k.shape[2]
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if square else causal_lower_right(q.shape[2], k.shape[2]),
        is_causal=square,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def streamed(
    q: Tensor, prefix_k: Tensor, prefix_v: Tensor, k: Tensor, v: Tensor, sizes: Sequence[int], scale: float
) -> Tensor:
    """Attention to the prompt and to the own continuation, which begins behind it, without writing scores.

    Args:
        q: [P, G, T, H, D].
        prefix_k: [P, K, D, L].
        prefix_v: [P, K, L, D].
        k: [P, G, T, K, D], like v.
        sizes: true length of each prompt. Each runs by itself, so that padding between it and the continuations
            neither needs a mask (for which the fast kernels have no place) nor costs anything.

    Returns:
        [P, G, T, H * D].
    """
    group = q.shape[1]
    rows = (t.transpose(2, 3).unbind(0) for t in (q, k, v))
    out = []
    for size, own_q, own_k, own_v, shared_k, shared_v in zip(
        sizes, *rows, prefix_k.transpose(2, 3).unbind(0), prefix_v.unbind(0), strict=True
    ):
        keys, values = (
            torch.cat([shared[:, :size].expand(group, -1, -1, -1), own], dim=2)
            for shared, own in ((shared_k, own_k), (shared_v, own_v))
        )
        out.append(causal(own_q, keys, values, scale).transpose(1, 2).flatten(2))
    return torch.stack(out)


def shared(q: Tensor, prefix_k: Tensor, prefix_v: Tensor, own_k: Tensor, own_v: Tensor, bias: Tensor | None) -> Tensor:
    """One softmax over the shared prompt and the own continuation, without copying the prompt per continuation.

    q [P, G, T, H, D], scaled; prefix_k [P, K, D, L]; prefix_v [P, K, L, D]; own_k, own_v [P, K, G, D, S + T]; all of
    one dtype; returns [P, G, T, H * D]. Own keys and values come transposed: on CPUs a product of small matrices is
    several times slower, forward or backward, where it has to transpose its second one. Scores and softmax are float32.
    """
    prompts, group, new, heads, width = q.shape
    key_heads, length = prefix_k.shape[1], prefix_k.shape[3]
    repeat, span = heads // key_heads, own_k.shape[4]
    # Queries of all continuations of a prompt stand side by side; each continuation's are a block of them.
    shape = (prompts, key_heads, group, new, repeat)
    rows = q.view(prompts, group, new, key_heads, repeat, width).permute(0, 3, 1, 2, 4, 5).contiguous()
    blocks, queries = (prompts * key_heads * group, new * repeat), group * new * repeat
    own_k, own_v = (t.reshape(-1, width, span) for t in (own_k, own_v))
    to_prompt = _scores(rows.view(prompts * key_heads, queries, width), prefix_k.flatten(0, 1))
    to_own = _scores(rows.view(*blocks, width), own_k)
    parts = to_prompt.view(prompts, key_heads, queries, length), to_own.view(prompts, key_heads, queries, span)
    scores = torch.cat(parts, -1)
    if bias is not None:
        scores = scores.view(*shape, -1) + bias
    weights = torch.softmax(scores, dim=-1).view(prompts, key_heads, queries, length + span).to(q.dtype)
    out = torch.matmul(weights[..., :length], prefix_v)
    own_weights = weights[..., length:].view(*blocks, span)
    out = torch.baddbmm(out.view(*blocks, width), own_weights, own_v.transpose(1, 2))
    return out.view(*shape, width).permute(0, 2, 3, 1, 4, 5).reshape(prompts, group, new, heads * width)


def _scores(a: Tensor, b: Tensor) -> Tensor:
    """Batched product [B, M, N] in float32: scores rounded to half precision would distort the softmax."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    if a.is_cuda and not torch.is_grad_enabled():
        return torch.bmm(a, b, out_dtype=torch.float32)  # has no gradient and no CPU kernel
    return torch.bmm(a.float(), b.float())
