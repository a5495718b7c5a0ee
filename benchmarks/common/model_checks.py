"""One model against transformers' own forward pass: what is sampled, what training computes again, and the gradient."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.backends.base import LossSpec
from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.backends.local.decoder import Decoder
from assay.backends.local.models import add_lora
from assay.backends.local.module import Module
from assay.errors import ModelError
from assay.types import Completion, Datum, SamplingParams

PROMPTS, GROUP, NEW = (3, 15, 9, 4, 9), 2, 10
"""Lengths of the prompts, samples of each, tokens of a sample: all end beyond windows and chunks of 6 tokens."""
NATS = 1e-4
"""Most that a log-probability may be off in float32."""
GRADIENT = 1e-3
"""Most that the gradient may be off in float32, relative to its norm."""
NOISE = 2.0
"""Most that the mean error in bfloat16 may be, in those of transformers' own pass in bfloat16."""
NOISE_FLOOR = 2e-3
"""Nats that are added to it, since the mean over a few tokens scatters."""


SURPRISE = 0.1
"""Least mean surprise (nats) of a model's tokens at which a comparison says something."""


@dataclass(frozen=True)
class Outcome:
    """How one model fares; errors are in nats, of the gradient relative to its norm."""

    how: str
    """As `how` says it, or `refused`."""
    right: bool
    reason: str = ""
    sampled: float = 0.0
    trained: float = 0.0
    gradient: float = 0.0
    noise: float = 0.0
    """Mean error of transformers' own pass in bfloat16; 0 in float32."""


def measure(make: Callable[[], Any], dtype: str, lora: bool) -> Outcome:
    """Sample, compute again and train the model that `make` gives, and hold all three against its own forward pass.

    Args:
        make: a causal LM with random weights, the same each time.
        dtype: `float32` or `bfloat16`, the compute precision.
        lora: train adapters that are not zero, over a base in `dtype`.
    """
    local = LocalBackend(dtype=dtype, device="cpu")  # type: ignore[arg-type]
    model = make()
    enliven(model)
    try:
        if lora:
            if dtype == "bfloat16":
                model = model.to(torch.bfloat16)
            model = add_lora(model, 4, local, seed=0)
            enliven(model, "lora_B", 0.05)
        truth = copy.deepcopy(model).float().eval()
        backend = TorchBackend(model, None, local)
    except ModelError as error:
        return Outcome("refused", True, str(error))
    prompts = _prompts(backend.vocab_size, model.config)
    asked = [(prompt, seed) for prompt in prompts for seed in range(GROUP)]
    completions = asyncio.run(backend.sample([p for p, _ in asked], SamplingParams(NEW), [s for _, s in asked]))
    data = [_datum(prompt, c, (-1.0) ** i) for i, ((prompt, _), c) in enumerate(zip(asked, completions, strict=True))]
    again = asyncio.run(backend.logprobs(data))
    want = _logprobs(truth, data)
    if -np.concatenate(want).mean() < SURPRISE:
        return Outcome(how(backend._policy.source), False, "the model is certain of every token: nothing is compared")
    sampled = [abs(d.logprobs - w)[d.mask > 0] for d, w in zip(data, want, strict=True)]
    trained = [abs(a - w)[d.mask > 0] for a, d, w in zip(again, data, want, strict=True)]
    if dtype == "float32":
        worst = [float(np.concatenate(part).max()) for part in (sampled, trained)]
        gradient = _gradient_error(backend, truth, data)
        right = max(worst) <= NATS and gradient <= GRADIENT
        return Outcome(how(backend._policy.source), right, _why(right), *worst, gradient)
    with torch.autocast("cpu", torch.bfloat16):
        half = _logprobs(model, data)
    noise = float(np.concatenate([abs(h - w)[d.mask > 0] for h, d, w in zip(half, data, want, strict=True)]).mean())
    mean = [float(np.concatenate(part).mean()) for part in (sampled, trained)]
    right = max(mean) <= NOISE * noise + NOISE_FLOOR
    return Outcome(how(backend._policy.source), right, _why(right), *mean, 0.0, noise)


def _why(right: bool) -> str:
    return "" if right else "numbers differ from transformers' own forward pass"


def how(source: Decoder | Module) -> str:
    """How a model runs, in words."""
    if isinstance(source, Decoder):
        return "fused"
    if source.cache is None:
        return "own forward pass, without a cache"
    return f"own forward pass, {'batched' if source.pads_left else 'by length'}"


@torch.no_grad()
def enliven(model: Any, only: str = "", size: float = 0.0) -> None:
    """Give matrices the size of trained ones (or `size`) and move vectors, so that every part matters."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if only in name and parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter.add_(0.2 * noise)
            elif parameter.std() < (wanted := size or 1.5 / min(parameter.shape[-2:]) ** 0.5):
                parameter.copy_(noise * wanted)


def _prompts(vocab_size: int, config: Any) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    return [tuple(rng.integers(5, min(vocab_size, 60), length).tolist()) for length in PROMPTS]


def _datum(prompt: tuple[int, ...], completion: Completion, advantage: float) -> Datum:
    ids = np.array([*prompt, *completion.tokens])
    logprobs, mask = np.zeros(len(ids) - 1, np.float32), np.zeros(len(ids) - 1, np.float32)
    logprobs[len(prompt) - 1 :], mask[len(prompt) - 1 :] = completion.logprobs, 1
    return Datum(ids[:-1], ids[1:], logprobs, (mask * advantage).astype(np.float32), mask)


def _of_one(model: Any, datum: Datum) -> Tensor:
    """Log-probabilities [L] of one sequence by itself, through the model's own forward pass: no padding, no cache."""
    logits = model(input_ids=torch.from_numpy(datum.tokens)[None], use_cache=False).logits[0].float()
    return torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(datum.targets)[:, None])[:, 0]


@torch.no_grad()
def _logprobs(model: Any, data: list[Datum]) -> list[np.ndarray[Any, Any]]:
    return [_of_one(model, datum).numpy() for datum in data]


def _gradient_error(backend: TorchBackend, truth: Any, data: list[Datum]) -> float:
    asyncio.run(backend.forward_backward(data, LossSpec("importance_sampling")))
    got = {n: p.grad for n, p in backend._model.named_parameters() if p.grad is not None}
    for datum in data:
        now = _of_one(truth, datum)
        ratio = torch.exp(now - torch.from_numpy(datum.logprobs))
        (-(ratio * torch.from_numpy(datum.advantages))).sum().backward()
    want = {n: p.grad for n, p in truth.named_parameters() if p.grad is not None}
    zero = torch.zeros(())
    apart = sum(float((got.get(n, zero) - want.get(n, zero)).square().sum()) for n in got.keys() | want.keys())
    return float((apart / sum(float(g.square().sum()) for g in want.values())) ** 0.5)
