"""Tries a policy for some seconds, on any backend: how fast it samples and trains, and whether the two agree.

A probe leaves a gradient behind but takes no step: discard the policy after it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from assay.backends.base import Backend, LossSpec
from assay.types import Check, Completion, Datum, SamplingParams

MOST_ROLLOUTS, MOST_TOKENS = 64, 32
"""Completions of a probe, and tokens of each."""
LIMITS = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest difference (nats) of a token's log-probability between sampling and training that rounding explains."""


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


async def check_agreement(backend: Backend, prompt: Sequence[int], params: SamplingParams, precision: str) -> Check:
    """Whether the log-probabilities that tokens were sampled with are those that training computes for them.

    Where they are not, the ratio of every loss is wrong from the first step on.

    Args:
        precision: `float32` or `bfloat16`; says how much rounding explains.
    """
    short = replace(params, max_tokens=min(params.max_tokens, MOST_TOKENS))
    found = await backend.sample([prompt] * 4, short, list(range(4)))
    data = [sampled_datum(prompt, completion) for completion in found]
    again = await backend.logprobs(data, temperature=params.temperature)
    gap = max(float(np.abs((now - d.logprobs) * d.mask).max()) for now, d in zip(again, data, strict=True))
    limit, count = LIMITS[precision], sum(len(c.tokens) for c in found)
    cure = (
        "set local.cuda_graphs=false and local.compile=false to see which path differs, and report it with the model's "
        "name and the versions"
    )
    words = f"log-probabilities of {count} tokens differ by at most {gap:.1e} nats (limit {limit:g} at {precision})"
    return Check("sampler against trainer", gap <= limit, words, cure)


def sampled_datum(prompt: Sequence[int], completion: Completion) -> Datum:
    """A training sequence of one completion, with an advantage of 1."""
    ids = np.array([*prompt, *completion.tokens], np.int64)
    mask = np.zeros(len(ids) - 1, np.float32)
    mask[len(prompt) - 1 :] = 1
    logprobs = np.zeros_like(mask)
    logprobs[len(prompt) - 1 :] = completion.logprobs
    return Datum(ids[:-1], ids[1:], logprobs, mask.copy(), mask, weights=mask.copy())
