"""Tiny real models: every architecture that the fused decoder covers, and one that it does not."""

from __future__ import annotations

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTBigCodeConfig,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from assay.types import Completion, Datum

VOCAB = 97
CONTEXT = 64
WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": VOCAB}
CONFIGS = {
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, initializer_range=0.2, **SPECIAL),
    "llama": lambda: LlamaConfig(**WIDE, num_key_value_heads=2, initializer_range=0.2, **SPECIAL),
    "qwen2": lambda: Qwen2Config(**WIDE, num_key_value_heads=2, initializer_range=0.2, **SPECIAL),
    "qwen3": lambda: Qwen3Config(**WIDE, num_key_value_heads=1, head_dim=8, initializer_range=0.2, **SPECIAL),
    "gpt_bigcode": lambda: GPTBigCodeConfig(
        n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, initializer_range=0.2, **SPECIAL
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**WIDE, initializer_range=0.2, **SPECIAL),
}
FUSED = [name for name in CONFIGS if name not in ("gpt_bigcode", "gpt_neox")]


def tiny_model(name: str) -> PreTrainedModel:
    """A model with random weights, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


def prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Random prompts of different lengths."""
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(1, VOCAB, int(rng.integers(3, 12))).tolist()) for _ in range(count)]


def rollout_datum(prompt: tuple[int, ...], completion: Completion, advantage: float) -> Datum:
    """What one sampled completion becomes in training."""
    ids = np.array([*prompt, *completion.tokens])
    start = len(prompt) - 1
    logprobs, mask = np.zeros(len(ids) - 1, np.float32), np.zeros(len(ids) - 1, np.float32)
    logprobs[start:], mask[start:] = completion.logprobs, 1
    return Datum(ids[:-1], ids[1:], logprobs, (mask * advantage).astype(np.float32), mask)
