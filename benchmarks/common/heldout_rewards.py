"""What a Hugging Face model is worth on the held-out tasks of an environment, which is played by Assay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.integrations.environments import Budget, Sampled, hosted_task, play_tasks, prepared, tasks_of
from assay.types import SamplingParams


class ModelPolicy:
    """See `HostPolicy`."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.no_grad()
    def _sampled(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> list[int]:
        draw = torch.Generator().manual_seed(seed)
        tokens: list[int] = []
        while len(tokens) < params.max_tokens and not set(tokens[-1:]) & set(params.stop):
            logits = self._model(torch.tensor([[*prompt_ids, *tokens]])).logits[0, -1].double()
            tokens.append(int(torch.multinomial((logits / params.temperature).softmax(-1), 1, generator=draw)))
        return tokens

    async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
        return Sampled(self._sampled(prompt_ids, params, seed))


def heldout_rewards(model: Path, adapter: Path | None, settings: Sequence[str], samples: int) -> list[float]:
    """The mean reward of each held-out task, at the environment's temperature, in the order of the tasks' keys.

    Args:
        adapter: a folder in peft's format, on top of the model; None for the model alone.
    """
    one = AutoModelForCausalLM.from_pretrained(model).eval()
    policy = ModelPolicy(PeftModel.from_pretrained(one, adapter).eval() if adapter else one)
    return asyncio.run(_rewards(policy, AutoTokenizer.from_pretrained(model), settings, samples))


async def _rewards(policy: ModelPolicy, tokenizer: Any, settings: Sequence[str], samples: int) -> list[float]:
    env = prepared(None, settings, tokenizer)
    listed = await asyncio.to_thread(tasks_of, env.environment, "heldout", "process")
    references = sorted((reference for reference, _ in listed), key=lambda reference: reference.key)
    tasks = [await hosted_task(reference, "process") for reference in references]
    room = Budget(1 << 20, 1 << 20)
    played = await play_tasks(tasks, samples, env.playing, env.renderer(tokenizer), policy, room)
    rollouts = [[group.rollout(member) for member in range(samples)] for group in played]
    failed = [rollout.failure for group in rollouts for rollout in group if rollout.reward is None]
    if failed:
        raise SystemExit(f"{len(failed)} held-out rollouts could not be scored: {failed[0]}")
    return [fmean(rollout.reward for rollout in group if rollout.reward is not None) for group in rollouts]
