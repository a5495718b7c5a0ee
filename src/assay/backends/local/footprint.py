"""How much memory a run takes, from the shapes of its model: estimated on the meta device, without allocating weights.

What is counted: weights, gradients, the optimizer's two moments, a reference copy, activations of one micro-batch, and
the key-value cache of one sampling batch. What is not: the CUDA context and libraries (about 1 GB), fragmentation, and
what Python and the tokenizer hold.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from assay.backends.config import LocalBackend, PolicySpec
from assay.backends.local.forward import LOGIT_CHUNK
from assay.backends.local.models import load_config, scratch_config, source_of
from assay.errors import ModelError

HALF, FULL = 2, 4
"""Bytes of a bfloat16 and of a float32 number."""
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes by purpose, and the numbers of parameters."""

    parameters: int
    trained: int
    weights: int
    gradients: int
    optimizer: int
    reference: int
    activations: int
    cache: int

    @property
    def total(self) -> int:
        """Bytes in all; activations and key-value cache are not needed at the same time."""
        return self.weights + self.gradients + self.optimizer + self.reference + max(self.activations, self.cache)

    def parts(self) -> dict[str, int]:
        """Bytes by name, without what takes none."""
        names = {"reference": "reference copy", "cache": "key-value cache"}
        parts = {names.get(k, k): v for k, v in asdict(self).items() if k not in ("parameters", "trained")}
        return {name: size for name, size in parts.items() if size}


def footprint(policy: PolicySpec, *, reference: bool, positions: int) -> Footprint:
    """The memory of a policy.

    Args:
        reference: whether a copy of the trained weights is kept.
        positions: tokens of the prompts and completions of a batch; settings limit how many are held at once.

    Raises:
        ModelError: there is no such model.
    """
    local, lora = policy.local, policy.lora_rank
    config = scratch_config(policy.scratch) if policy.model_name == "scratch" else load_config(policy.model_name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    parameters = sum(p.numel() for p in model.parameters())
    half = local.dtype == "bfloat16"
    learned = _adapters(model, lora, local) if lora else parameters
    base = parameters * (HALF if half else FULL) if lora else parameters * FULL
    copies = parameters * HALF if half and not lora else 0  # what sampling reads
    return Footprint(
        parameters=parameters + (learned if lora else 0),
        trained=learned,
        weights=base + copies + (learned * FULL if lora else 0),
        gradients=learned * FULL,
        optimizer=2 * learned * FULL,
        reference=learned * FULL if reference else 0,
        activations=_activations(config, local, min(positions, local.micro_batch_tokens)),
        cache=_cache(config, min(positions, local.sample_batch_tokens), HALF if half else FULL),
    )


def free_memory(device: str) -> int:
    """Bytes that are free on the device that a setting names: of the GPU, or of the machine."""
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        free, _ = torch.cuda.mem_get_info(None if device == "auto" else device)
        return int(free)
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ModelError("This machine does not say how much memory is free (there is no MemAvailable in /proc/meminfo).")


def weights_are_here(model_name: str) -> bool:
    """Whether a model's weights are on this machine: made from scratch, in a folder, or in the cache of the hub."""
    if model_name == "scratch" or Path(source_of(model_name)).is_dir():
        return True
    return any(isinstance(try_to_load_from_cache(model_name, name), str) for name in WEIGHT_FILES)


def _adapters(model: nn.Module, rank: int, local: LocalBackend) -> int:
    """Parameters of LoRA adapters: two matrices for each layer that gets them."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    wanted = None if local.lora_targets == "all-linear" else {n.strip() for n in local.lora_targets.split(",")}
    chosen = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and (module is not head if wanted is None else name.rpartition(".")[2] in wanted)
    ]
    return sum(rank * sum(module.weight.shape) for module in chosen)


def _shape(config: Any) -> tuple[int, int, int, int]:
    """Layers, width, width of the keys of one layer, width inside the MLP."""
    width, heads = config.hidden_size, config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    per_head = getattr(config, "head_dim", None) or width // heads
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    return config.num_hidden_layers, width, keys * per_head, inner


def _activations(config: Any, local: LocalBackend, positions: int) -> int:
    """What the backward pass needs of one micro-batch: inputs of norms and products, and a chunk of logits."""
    layers, width, keys, inner = _shape(config)
    each = 7 * width + 2 * keys + 3 * inner
    kept = (layers * width + each) if local.use_gradient_checkpointing else layers * each
    size = HALF if local.dtype == "bfloat16" else FULL
    logits = min(LOGIT_CHUNK, positions * int(config.vocab_size))
    return positions * kept * size + 3 * logits * FULL


def _cache(config: Any, positions: int, size: int) -> int:
    layers, _, keys, _ = _shape(config)
    return positions * layers * 2 * keys * size
