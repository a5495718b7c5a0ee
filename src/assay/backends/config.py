"""Config nodes of the local backend; imports no torch."""

from __future__ import annotations

from typing import Literal

import chz

from assay.errors import ConfigError


@chz.chz
class ScratchModel:
    """A small transformer built from a config, with a tokenizer trained on the data set's corpus (`model_name=scratch`)."""

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
    def _heads_divide(self) -> None:
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
    lora_alpha: int = 32
    """LoRA scale numerator; the update is scaled by `lora_alpha / lora_rank`."""
    lora_targets: str = "all-linear"
    """Modules that get adapters: `all-linear`, or names separated by commas."""

    @chz.validate
    def _positive(self) -> None:
        for name in ("torch_threads", "micro_batch_tokens", "sample_batch_tokens", "lora_alpha"):
            if getattr(self, name) < 1:
                raise ConfigError(f"local.{name}={getattr(self, name)} must be at least 1.")
