"""The step's model work in bare PyTorch: what it costs with no framework round it.

Samples with a cache, takes the log-probabilities and entropies of what was sampled, and makes one clipped, averaged and
norm-limited AdamW step, by the same formulas as both trainers. Nothing else: no text, no tokenizer, no environment, no
per-completion object, no check, no metric. Rewards are computed on token ids. Equal prompts are run once in sampling,
and finished rows are carried on to the end.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.whole_steps import LEARNING_RATE, Work

CLIP, GRAD_NORM = 0.2, 1.0


class PlainSteps:
    """A GPT-2 of Hugging Face, whose weights are used directly (its activation is GELU's tanh form)."""

    def __init__(self, model: Any, work: Work) -> None:
        self._body, self._work = model.transformer, work
        self._heads = model.config.n_head
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def steps(self, first: int, count: int) -> None:
        """Steps `first` to `first + count`."""
        work = self._work
        for index in range(first, first + count):
            torch.manual_seed(index)
            words = [[int(word[1:]) for word in text.split()] for text in work.texts(index)]
            prompts = torch.tensor(words).repeat_interleave(work.group_size, 0)
            with torch.no_grad():
                completions, behaviour = self._sample(prompts)
            ended = (completions == 0).cumsum(1)
            mask = (ended - (completions == 0).long() == 0).float()
            rewards = ((completions % 2 == 0) * mask).sum(1) / mask.sum(1)
            self._train(torch.cat([prompts, completions], 1), behaviour, mask, self._advantages(rewards))

    def _advantages(self, rewards: Tensor) -> Tensor:
        groups = rewards.view(-1, self._work.group_size)
        centred = groups - groups.mean(1, keepdim=True)
        return (centred / groups.std(1, unbiased=False, keepdim=True).clamp(min=1e-6)).flatten()

    def _sample(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, both [B, max_tokens]."""
        width, new = prompts.shape[1], self._work.max_tokens
        distinct, places = torch.unique(prompts, dim=0, return_inverse=True)
        cache: list[tuple[Tensor, Tensor]] = []
        for k, v in self._prefill(distinct):
            room = [x.new_empty(len(prompts), self._heads, width + new, x.shape[-1]) for x in (k, v)]
            for store, x in zip(room, (k, v), strict=True):
                store[:, :, :width] = x[places]
            cache.append((room[0], room[1]))
        tokens, logprobs = [], []
        hidden = self._last[places]
        for step in range(new):
            found = torch.log_softmax(hidden @ self._body.wte.weight.T, -1)
            sums = found.exp().cumsum(-1)  # multinomial draws the same way, and takes longer
            drawn = torch.searchsorted(sums, torch.rand(len(sums), 1) * sums[:, -1:]).clamp(max=sums.shape[1] - 1)
            tokens.append(drawn)
            logprobs.append(found.gather(1, drawn))
            if step + 1 < new:
                hidden = self._decode(drawn[:, 0], width + step, cache)
        return torch.cat(tokens, 1), torch.cat(logprobs, 1)

    def _prefill(self, prompts: Tensor) -> list[tuple[Tensor, Tensor]]:
        found: list[tuple[Tensor, Tensor]] = []
        self._last = self._forward(prompts, found)[:, -1]
        return found

    def _forward(self, tokens: Tensor, keep: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Hidden states [B, T, E] behind the last norm; `keep` gets each layer's keys and values."""
        body = self._body
        x = F.embedding(tokens, body.wte.weight) + body.wpe.weight[: tokens.shape[1]]
        for block in body.h:
            q, k, v = self._heads_of(block, x)
            if keep is not None:
                keep.append((k, v))
            x = self._behind(block, x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return _norm(body.ln_f, x)

    def _decode(self, tokens: Tensor, place: int, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Hidden states [B, E] of tokens [B] at one place."""
        body = self._body
        x = (F.embedding(tokens, body.wte.weight) + body.wpe.weight[place])[:, None]
        for block, (keys, values) in zip(body.h, cache, strict=True):
            q, keys[:, :, place : place + 1], values[:, :, place : place + 1] = self._heads_of(block, x)
            seen = keys[:, :, : place + 1], values[:, :, : place + 1]
            x = self._behind(block, x, F.scaled_dot_product_attention(q, *seen))
        return _norm(body.ln_f, x)[:, 0]

    def _heads_of(self, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [B, H, T, D]."""
        parts = _product(block.attn.c_attn, _norm(block.ln_1, x)).view(*x.shape[:2], 3, self._heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def _behind(self, block: Any, x: Tensor, attended: Tensor) -> Tensor:
        x = x + _product(block.attn.c_proj, attended.transpose(1, 2).flatten(2))
        inner = F.gelu(_product(block.mlp.c_fc, _norm(block.ln_2, x)), approximate="tanh")
        return x + _product(block.mlp.c_proj, inner)

    def _train(self, rows: Tensor, behaviour: Tensor, mask: Tensor, advantages: Tensor) -> None:
        """One optimizer step on rows [B, L + T] with their completions' streams [B, T]."""
        new = behaviour.shape[1]
        hidden = self._forward(rows[:, :-1])[:, -new:]
        found = torch.log_softmax(hidden @ self._body.wte.weight.T, -1)
        with torch.no_grad():
            self.entropy = -(found.exp() * found).sum(-1)[mask > 0].mean()
        logprobs = found.gather(-1, rows[:, -new:, None])[..., 0]
        ratio, scale = torch.exp(logprobs - behaviour), advantages[:, None]
        kept = torch.minimum(ratio * scale, ratio.clamp(1 - CLIP, 1 + CLIP) * scale)
        (-(kept * mask).sum() / mask.sum()).backward()
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], module.weight, module.bias, module.eps)


def _product(module: Any, x: Tensor) -> Tensor:
    return torch.addmm(module.bias, x.flatten(0, -2), module.weight).view(*x.shape[:-1], -1)
