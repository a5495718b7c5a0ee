"""Config nodes of the local backend, and the settings of its losses; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import chz

from assay.backends.base import LossSpec
from assay.errors import ConfigError

AdamWKind = Literal["auto", "fused", "foreach", "loop"]


@chz.chz
class ScratchModel:
    """A small transformer with random weights and a tokenizer trained on the corpus (`model_name=scratch`)."""

    architecture: Literal["gpt2", "llama", "qwen3"] = "gpt2"
    """Hugging Face architecture."""
    hidden_size: int = 128
    """Width of the residual stream."""
    num_layers: int = 3
    """Number of transformer blocks."""
    num_heads: int = 4
    """Attention heads; must divide `hidden_size`."""
    context_length: int = 256
    """Largest number of tokens of prompt and completion together."""
    vocab_size: int = 512
    """Upper bound on the tokenizer's vocabulary."""
    initializer_range: float = 0.1
    """Standard deviation of the initial weights. At small widths the usual 0.02 leaves a long plateau."""

    @chz.validate
    def _possible(self) -> None:
        least = {"hidden_size": 1, "num_layers": 1, "num_heads": 1, "context_length": 16, "vocab_size": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"scratch.{name}={getattr(self, name)} must be at least {bound}.")
        if self.initializer_range <= 0:
            raise ConfigError(f"scratch.initializer_range={self.initializer_range} must be above 0.")
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"scratch.num_heads={self.num_heads} does not divide scratch.hidden_size={self.hidden_size}, so heads "
                f"would have no whole width. Choose a divisor of {self.hidden_size}."
            )


@chz.chz
class LocalBackend:
    """How the local PyTorch backend computes (`backend=local`)."""

    device: str = "auto"
    """`auto` (CUDA when present, else CPU), or a torch device such as `cpu` or `cuda:0`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute precision. With `bfloat16`, trained weights and log-probabilities stay in float32."""
    torch_threads: int = 1
    """CPU threads of torch inside this process. More than 1 slows small models down on a busy machine."""
    micro_batch_tokens: int = 16384
    """Most tokens (padding included) in one forward pass of training. Bounds memory, never changes the gradient."""
    sample_batch_tokens: int = 65536
    """Most token positions of key-value cache held by one sampling batch."""
    cohort_tokens: int = 131072
    """Most completion tokens that a cohort may sample in a turn. From the second turn on, the rollouts of a batch are
    sampled in cohorts of `cohort_tokens / max_tokens`: while one waits for its verdicts, another is sampled. Smaller
    cohorts wait for fewer verdicts and make smaller sampling batches. Without effect on single turns."""
    lora_alpha: int = 32
    """LoRA scale numerator; the update is scaled by `lora_alpha / lora_rank`."""
    lora_targets: str = "all-linear"
    """Modules that get adapters: `all-linear`, or names separated by commas."""
    use_gradient_checkpointing: bool = False
    """Keep only what enters each layer and compute the rest again in the backward pass: less memory, more time."""
    adamw: AdamWKind = "auto"
    """Implementation of the optimizer: `fused` kernels, `foreach` tensor lists, a `loop`; `auto` takes the fastest."""
    head_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the output head under `dtype=bfloat16`. Half is faster, and rounds log-probabilities."""
    compile: bool = False
    """Run layers through `torch.compile`: a slow start, then fewer and larger kernels. Needs a compiler."""
    cuda_graphs: bool = True
    """Replay decoding steps as CUDA graphs, without a word to the host per token. Without effect on CPUs."""
    matmul_precision: Literal["highest", "high"] = "high"
    """Float32 matrix products on CUDA: `high` uses TF32, `highest` does not. Without effect on CPUs."""
    cudnn_benchmark: bool = True
    """Let cuDNN try its kernels and keep the fastest, on CUDA."""
    cuda_allocator: str = "max_split_size_mb:128"
    """Settings of the CUDA allocator unless the environment has some; empty leaves PyTorch's."""

    @chz.validate
    def _positive(self) -> None:
        for name in ("torch_threads", "micro_batch_tokens", "sample_batch_tokens", "cohort_tokens", "lora_alpha"):
            if getattr(self, name) < 1:
                raise ConfigError(f"local.{name}={getattr(self, name)} must be at least 1.")

    @chz.validate
    def _head_is_no_finer(self) -> None:
        if self.dtype == "float32" and self.head_dtype == "bfloat16":
            raise ConfigError(
                "local.head_dtype=bfloat16 has no effect under local.dtype=float32, where the head computes as all "
                "else. Set local.dtype=bfloat16, or leave local.head_dtype."
            )


LOSS_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
    "gspo": {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
}
"""Loss -> its settings with their defaults: Tinker's, and those of the paper for gspo."""


def loss_settings(spec: LossSpec) -> dict[str, float]:
    """The loss's settings with defaults filled in.

    Raises:
        ConfigError: an unknown loss, an unknown setting, or thresholds out of order.
    """
    if spec.name not in LOSS_DEFAULTS:
        raise ConfigError(f"loss {spec.name!r} is not one of {', '.join(LOSS_DEFAULTS)}.")
    known = LOSS_DEFAULTS[spec.name]
    unknown = sorted(set(spec.config) - set(known))
    if unknown:
        raise ConfigError(
            f"loss_fn_config sets {', '.join(unknown)}, which {spec.name} does not read, so it would do nothing. "
            f"{spec.name} reads: {', '.join(known) or 'no settings'}."
        )
    merged = {**known, **spec.config}
    if known and not 0 <= merged["clip_low_threshold"] <= merged["clip_high_threshold"]:
        raise ConfigError(f"loss_fn_config {merged} needs 0 <= clip_low_threshold <= clip_high_threshold.")
    return merged
