"""Config nodes of the backends, and what a run gives to any backend; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import chz

from assay.config import MAY_CHANGE, MAY_CHANGE_ROUNDING, Above, AtLeast, Not, Settings, UsedWhen, refuse

AdamWKind = Literal["auto", "fused", "foreach", "loop"]


@chz.chz
class ScratchModel(Settings):
    """A small transformer with random weights and a tokenizer trained on the corpus (`model_name=scratch`)."""

    architecture: Literal["gpt2", "llama", "qwen3"] = "gpt2"
    """Hugging Face architecture."""
    hidden_size: Annotated[int, AtLeast(1)] = 128
    """Width of the residual stream."""
    num_layers: Annotated[int, AtLeast(1)] = 3
    """Number of transformer blocks."""
    num_heads: Annotated[int, AtLeast(1)] = 4
    """Attention heads; must divide `hidden_size`."""
    context_length: Annotated[int, AtLeast(16)] = 256
    """Largest number of tokens of prompt and completion together."""
    vocab_size: Annotated[int, AtLeast(1)] = 512
    """Upper bound on the tokenizer's vocabulary."""
    initializer_range: Annotated[float, Above(0)] = 0.1
    """Standard deviation of the initial weights. At small widths the usual 0.02 causes a long plateau."""

    @chz.validate
    def _possible(self) -> None:
        if self.hidden_size % self.num_heads:
            refuse(
                [
                    f"num_heads={self.num_heads} does not divide hidden_size={self.hidden_size}, so the width of a "
                    f"head would not be a whole number. Choose a divisor of {self.hidden_size}."
                ]
            )


@chz.chz
class LocalBackend(Settings):
    """How the local PyTorch backend computes (`backend=local`)."""

    device: str = "auto"
    """`auto` (CUDA when present, else CPU), or a torch device such as `cpu` or `cuda:0`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute precision. With `bfloat16`, trained weights and log-probabilities stay in float32."""
    torch_threads: Annotated[int, AtLeast(1), MAY_CHANGE_ROUNDING] = 1
    """CPU threads of torch inside this process. More than 1 slows small models down on a busy machine. Sums are rounded
    in another way under another number, so figures differ in their last digits."""
    micro_batch_tokens: Annotated[int, AtLeast(1)] = 16384
    """Most tokens (padding included) in one forward pass of training. Bounds memory, never changes the gradient."""
    sample_batch_tokens: Annotated[int, AtLeast(1)] = 65536
    """Most token positions of key-value cache held by one sampling batch."""
    cohort_tokens: Annotated[int, AtLeast(1), UsedWhen("plays_turns")] = 131072
    """Most completion tokens that a cohort may sample in a turn. From the second turn on, the rollouts of a batch are
    sampled in cohorts of `cohort_tokens / max_tokens`: while one waits for its verdicts, another is sampled. Smaller
    cohorts wait for fewer verdicts and make smaller sampling batches. Without effect on single turns."""
    lora_alpha: Annotated[int, AtLeast(1), UsedWhen("lora_rank", Above(0))] = 32
    """LoRA scale numerator; the update is scaled by `lora_alpha / lora_rank`."""
    lora_targets: Annotated[str, UsedWhen("lora_rank", Above(0))] = "all-linear"
    """Modules that get adapters: `all-linear`, or names separated by commas."""
    use_gradient_checkpointing: bool = False
    """Store only the inputs of each layer and recompute the rest in the backward pass: less memory, more time."""
    adamw: AdamWKind = "auto"
    """Implementation of the optimizer: `fused` kernels, `foreach` tensor lists, a `loop`; `auto` takes the fastest."""
    head_dtype: Annotated[Literal["float32", "bfloat16"], UsedWhen("dtype", "bfloat16")] = "float32"
    """Precision of the output head under `dtype=bfloat16`. `bfloat16` is faster but rounds log-probabilities."""
    compile: bool = False
    """Run layers through `torch.compile`: slower to start, then fewer and larger kernels. Needs a compiler."""
    cuda_graphs: Annotated[bool, UsedWhen("device", Not("cpu"))] = True
    """Replay decoding steps as CUDA graphs, without contacting the host for each token. Without effect on CPUs."""
    matmul_precision: Annotated[Literal["highest", "high"], UsedWhen("device", Not("cpu"))] = "high"
    """Float32 matrix products on CUDA: `high` uses TF32, `highest` does not. Without effect on CPUs."""
    cudnn_benchmark: Annotated[bool, UsedWhen("device", Not("cpu"))] = True
    """Let cuDNN try its kernels and keep the fastest, on CUDA."""
    cuda_allocator: Annotated[str, UsedWhen("device", Not("cpu"))] = "max_split_size_mb:128"
    """Settings of the CUDA allocator, unless the environment sets them; empty keeps PyTorch's."""


@chz.chz
class TinkerService(Settings):
    """How a service that speaks the Tinker API is used (`backend=tinker`)."""

    probe: Annotated[bool, MAY_CHANGE] = True
    """Try a server out before the run where nobody vouches for it (any but the official one), and refuse to start on
    what would train wrongly. A server that passed is not tried again for a week."""
    connect_timeout_s: Annotated[float, Above(0), MAY_CHANGE] = 60.0
    """Longest wait for the server's first answer, in seconds."""
    train_timeout_s: Annotated[float, Above(0), MAY_CHANGE] = 1800.0
    """Longest wait for the result of one training request, in seconds; then it counts as lost."""
    sample_timeout_s: Annotated[float, Above(0), MAY_CHANGE] = 3600.0
    """Longest wait for the completions of one prompt or the log-probabilities of one sequence, in seconds."""
    group_requests: Annotated[bool, MAY_CHANGE] = True
    """Ask for all samples of a prompt in one request, which costs a fraction of a request for each; their verdicts
    begin when the last of them is there. False asks for each by itself, where answers of very different lengths make
    that slower, or a server draws the samples of a request alike."""
    max_rebuilds: Annotated[int, AtLeast(0), MAY_CHANGE] = 3
    """Times in a row that a lost session is replaced by a new one, from the last state that the server saved, where no
    optimizer step would be lost; then the run stops."""
    context_length: Annotated[int | None, AtLeast(2)] = None
    """Most tokens of a prompt and its completion together; null asks the server."""
    checkpoint_ttl_s: Annotated[int | None, AtLeast(3600), MAY_CHANGE] = None
    """Seconds after which the server may delete what a checkpoint of the run names; null keeps it until you delete
    it. A run cannot resume from a checkpoint that is gone."""


@dataclass(frozen=True)
class PolicySpec:
    """What a backend gets about the run's policy when it is opened (`backends.named`)."""

    model_name: str
    lora_rank: int
    seed: int
    start: Path | None
    """Folder of a saved policy whose weights a new run starts from."""
    base_url: str | None
    """Where a hosted service is."""
    local: LocalBackend
    scratch: ScratchModel
    """The model to build when `model_name` is `scratch`."""
    tinker: TinkerService = field(default_factory=TinkerService)
    cache_dir: Path | None = None
    """Where a backend may keep what it learned of a service; None keeps nothing."""
