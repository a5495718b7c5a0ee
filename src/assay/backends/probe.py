"""Tries a policy for some seconds, on any backend: how fast it samples and trains, and whether the two agree.

A probe leaves a gradient behind but takes no step: discard the policy after it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from assay.backends.base import Backend, LossSpec
from assay.backends.parity import LIMITS, compare, in_words, sampled_datum
from assay.types import Check, SamplingParams

MOST_ROLLOUTS, MOST_TOKENS = 64, 32
"""Completions of a probe, and tokens of each."""
MOST_PROMPTS = 8
"""Prompts on which sampler and trainer are compared: some of different lengths, since padding is where faults hide."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a probe measured."""

    rollouts: int
    """Completions that were sampled side by side."""
    tokens: float
    """Mean tokens of a completion."""
    whole: bool
    """Whether completions ended by themselves, before the probe's limit."""
    sampled_per_s: float
    """Completion tokens sampled per second, over all completions."""
    trained_per_s: float
    """Token positions (prompts and completions) per second of a forward and backward pass."""


async def measure_speed(
    backend: Backend, prompts: Sequence[Sequence[int]], group_size: int, params: SamplingParams, loss: LossSpec
) -> Speed:
    """Sample and train on a part of a batch.

    Args:
        prompts: tokens of the batch's prompts.
        params: as in the run; at most `MOST_TOKENS` are sampled.

    Raises:
        ModelError: the policy cannot answer.
    """
    wide = [prompt for prompt in prompts for _ in range(group_size)][:MOST_ROLLOUTS]
    short = replace(params, max_tokens=min(params.max_tokens, MOST_TOKENS))
    await backend.sample(wide[:1], replace(params, max_tokens=1), [0])  # what is done once is not speed
    started = time.monotonic()
    found = await backend.sample(wide, short, list(range(len(wide))))
    sampled_s = time.monotonic() - started
    data = [sampled_datum(prompt, completion) for prompt, completion in zip(wide, found, strict=True)]
    await backend.forward_backward(data[:1], loss)
    started = time.monotonic()
    await backend.forward_backward(data, loss)
    trained_s = time.monotonic() - started
    counts = [len(completion.tokens) for completion in found]
    whole = short.max_tokens == params.max_tokens or all(c.stop_reason == "stop" for c in found)
    return Speed(
        rollouts=len(wide),
        tokens=float(np.mean(counts)),
        whole=whole,
        sampled_per_s=sum(counts) / max(sampled_s, 1e-9),
        trained_per_s=sum(len(d) for d in data) / max(trained_s, 1e-9),
    )


async def check_agreement(backend: Backend, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Check:
    """Whether the log-probabilities that tokens were sampled with are those that training computes for them.

    Where they are not, the ratio of every loss is wrong from the first step on.
    """
    short = replace(params, max_tokens=min(params.max_tokens, MOST_TOKENS))
    by_length = sorted({tuple(prompt) for prompt in prompts}, key=lambda p: (len(p), p))
    places = np.linspace(0, len(by_length) - 1, min(len(by_length), MOST_PROMPTS)).round().astype(int)
    wide = [by_length[i] for i in places for _ in range(4)]
    found = await backend.sample(wide, short, list(range(len(wide))))
    data = [sampled_datum(prompt, completion) for prompt, completion in zip(wide, found, strict=True)]
    precision = backend.capabilities.precision
    limits = LIMITS[precision]
    compared = compare(data, await backend.logprobs(data, temperature=params.temperature))
    cure = (
        "set local.cuda_graphs=false and local.compile=false to see which path differs, and report it with the model's "
        "name and the versions"
    )
    if compared is None:
        return Check("sampler against trainer", False, "the policy answered without a token", cure)
    if not compared.agrees(limits):
        words = f"they disagree at {precision} {in_words(compared, limits, backend.tokenizer)}"
        return Check("sampler against trainer", False, words, cure)
    words = f"{compared.tokens} tokens differ by a KL of {compared.kl:.1e} nats (limit {limits.kl:g} at {precision})"
    return Check("sampler against trainer", True, words, cure)
