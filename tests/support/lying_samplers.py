"""Samplers that are not the policy they claim to be: a local backend whose completions are wrong in one known way."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from assay.backends.base import AdamParams
from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.types import Completion, SamplingParams

Lie = Callable[["Liar", Sequence[int], Completion], Sequence[float]]
"""(backend, prompt, completion) -> the log-probabilities that the sampler reports."""


class Liar(TorchBackend):
    """Trains like the local backend. `lie` rewrites what it reports, and `sampler` is who samples, if not itself."""

    lie: Lie | None = None
    sampler: TorchBackend | None = None
    temperature: float | None = None
    drop_first = False
    """Sample without the first token of the prompt."""
    after_step: Callable[[Liar], None] | None = None
    """Called before each optimizer step, with the weights that were sampled."""
    steps_tried = 0

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        if self.temperature is not None:
            params = replace(params, temperature=self.temperature)
        seen = [p[1:] if self.drop_first and len(p) > 1 else p for p in prompts]
        source = self.sampler.sample_stream if self.sampler is not None else super().sample_stream
        async for place, completion in source(seen, params, seeds):
            found = replace(completion, policy_version=self.policy_version)
            if self.lie is not None:
                found = replace(found, logprobs=tuple(self.lie(self, prompts[place], found)))
            yield place, found

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        self.steps_tried += 1
        if self.after_step is not None:
            self.after_step(self)
        return await super().optim_step(params)


def liar(honest: TorchBackend, **lies: Any) -> Liar:
    """A liar with the model of `honest`."""
    backend = Liar(honest._model, honest.tokenizer, honest._local, "start")
    for name, value in lies.items():
        setattr(backend, name, value)
    return backend


def stale(honest: TorchBackend) -> Liar:
    """Samples with the weights of one step before: the hand-over after each step is late."""
    other = TorchBackend(copy.deepcopy(honest._model), honest.tokenizer, honest._local, None)

    def hand_over(backend: Liar) -> None:
        with torch.no_grad():
            for to, of in zip(other._model.parameters(), backend._model.parameters(), strict=True):
                to.copy_(of)

    return liar(honest, sampler=other, after_step=hand_over)


def half(honest: TorchBackend) -> Liar:
    """Samples in bfloat16 with the weights of the trainer, which computes in float32."""
    return liar(honest, sampler=TorchBackend(honest._model, honest.tokenizer, LocalBackend(dtype="bfloat16"), None))


def below_adapters(honest: TorchBackend) -> Liar:
    """Samples without the adapters that are trained."""
    other = copy.deepcopy(honest._model)
    for name, parameter in other.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()
    return liar(honest, sampler=TorchBackend(other, honest.tokenizer, honest._local, None))


def short_prompts(shift: float, longest: int) -> Lie:
    """Right only for the longest prompts, as where padding is attended to."""
    return lambda _, prompt, found: [p - shift * (len(prompt) < longest) for p in found.logprobs]


def late(shift: float, after: int) -> Lie:
    """Wrong only from a place on, as where a window is counted wrongly."""
    return lambda _, prompt, found: [p - shift * (i >= after) for i, p in enumerate(found.logprobs)]


def off_by_one(_: Liar, prompt: Sequence[int], found: Completion) -> Sequence[float]:
    """Each token with the log-probability of the one before it."""
    return [*found.logprobs[:1], *found.logprobs[:-1]]
