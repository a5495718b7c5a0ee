"""Rollouts as a user of `GRPOTrainer` has them: token ids sampled by hand from a model of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import peft
import torch

from assay import Rollout, RolloutGroup, StepData
from support.tiny_models import VOCAB, tiny_model

GroupReward = Callable[[Sequence[int]], float]


def adapted(name: str) -> Any:
    """A tiny model with adapters that already do something."""
    return copy.deepcopy(_adapted(name))


@cache
def _adapted(name: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        lora = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        return peft.get_peft_model(tiny_model(name), lora)


def changed(model: Any, scale: float = 0.1) -> Any:
    """A copy of a model with other weights."""
    other = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        for parameter in other.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return other


@torch.no_grad()
def logprobs(model: Any, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0) -> list[float]:
    """What the model's own forward pass says of a completion."""
    ids = torch.tensor([[*prompt, *tokens]])
    logits = model.eval()(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    found = torch.log_softmax(logits.float() / temperature, -1)
    return [float(v) for v in found.gather(-1, ids[0, len(prompt) :, None])[:, 0]]


def share_low(tokens: Sequence[int]) -> float:
    """A reward that any policy can move: the share of low token ids."""
    return sum(t < VOCAB // 2 for t in tokens) / max(1, len(tokens))


def made_up(
    model: Any = None,
    *,
    groups: int = 4,
    size: int = 4,
    seed: int = 0,
    reward: GroupReward | None = None,
) -> StepData:
    """Random completions with random rewards; with `model`, as if that had sampled them."""
    rng = np.random.default_rng(seed)
    made = []
    for g in range(groups):
        prompt = rng.integers(1, VOCAB, int(rng.integers(1, 6))).tolist()
        rollouts = []
        for _ in range(size):
            tokens = rng.integers(1, VOCAB, int(rng.integers(2, 7))).tolist()
            known = None if model is None else logprobs(model, prompt, tokens)
            value = float(rng.random()) if reward is None else reward(tokens)
            rollouts.append(Rollout(tokens, value, known, parts={"value": value}))
        made.append(RolloutGroup(prompt, rollouts, "P" if g % 2 else "A"))
    return StepData(made)


@torch.no_grad()
def sampled(model: Any, *, groups: int, size: int, length: int, seed: int, reward: GroupReward = share_low) -> StepData:
    """Completions that the model samples token by token, with their log-probabilities."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, VOCAB, (groups, 1, 3), generator=generator)
    ids = prompts.expand(groups, size, 3).reshape(groups * size, 3)
    said = []
    for _ in range(length):
        now = torch.log_softmax(model.eval()(input_ids=ids, use_cache=False).logits[:, -1].float(), -1)
        token = torch.multinomial(now.exp(), 1, generator=generator)
        said.append(now.gather(1, token))
        ids = torch.cat([ids, token], 1)
    tokens, known = ids[:, 3:].tolist(), torch.cat(said, 1).tolist()
    rollouts = [Rollout(t, reward(t), k) for t, k in zip(tokens, known, strict=True)]
    return StepData([RolloutGroup(prompts[g, 0].tolist(), rollouts[g * size : (g + 1) * size]) for g in range(groups)])


def pairs(data: StepData) -> Iterator[tuple[Sequence[int], Rollout]]:
    """Every rollout with its prompt."""
    return ((g.prompt, r) for g in data.groups for r in g.rollouts if r is not None)


def snapshot(model: Any) -> dict[str, torch.Tensor]:
    """The weights, trained or not."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two snapshots are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
