"""What a GPU benchmark needs: clocks that wait for the device, models from a config alone, counts of work, ceilings."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from assay.backends.local.backend import TorchBackend
from assay.types import Datum
from common import Summary, summary

DATASHEET_BF16 = 989e12
"""Dense bf16 rate of an H100 or H200 SXM by NVIDIA's datasheet, in FLOP/s."""


@dataclass(frozen=True)
class Size:
    """A Qwen2 model, and the batch: P prompts of L tokens with G completions of T tokens each."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    vocab: int
    prompts: int
    group: int
    prompt: int
    completion: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' matrix products."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.key_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        """Weights of the output head, which is tied to the embedding."""
        return self.hidden * self.vocab


SIZES = {
    "1.5B": Size(1536, 8960, 28, 12, 2, 151936, 8, 16, 256, 256),
    "0.5B": Size(896, 4864, 24, 14, 2, 151936, 8, 16, 256, 256),
    "small": Size(256, 1024, 6, 4, 2, 4096, 4, 8, 64, 64),
    "tiny": Size(64, 176, 2, 4, 2, 512, 2, 4, 16, 16),
}


def make_model(size: Size, device: torch.device) -> Any:
    """A model with random weights, made where it will run; float32."""
    config = Qwen2Config(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        max_position_embeddings=size.prompt + size.completion + 8,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def make_prompts(size: Size) -> list[tuple[int, ...]]:
    """P random prompts of L tokens, each G times in a row."""
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(1, size.vocab, size.prompt).tolist()) for _ in range(size.prompts)]
    return [p for p in prompts for _ in range(size.group)]


def make_data(size: Size) -> list[Datum]:
    """Training data of the batch with random completions and advantages."""
    rng = np.random.default_rng(1)
    data = []
    for prompt in make_prompts(size):
        ids = np.array([*prompt, *rng.integers(1, size.vocab, size.completion)])
        mask = (np.arange(1, len(ids)) >= size.prompt).astype(np.float32)
        advantage = float(rng.standard_normal()) / size.prompts / size.group / size.completion
        data.append(Datum(ids[:-1], ids[1:], -np.log(size.vocab) * mask, advantage * mask, mask))
    return data


def training_flops(size: Size) -> float:
    """Floating-point operations of one forward and backward pass as Assay runs it: prompts once, heads where trained.

    6 per weight and token, and 12 per attended pair, head and channel; nothing for what is computed again.
    """
    completions = size.prompts * size.group
    tokens = size.prompts * size.prompt + completions * size.completion
    pairs = size.prompts * size.prompt**2 / 2
    pairs += completions * (size.completion * size.prompt + size.completion**2 / 2)
    products = 6 * (size.layer_weights * tokens + size.head_weights * completions * size.completion)
    return products + 12 * size.layers * size.hidden * pairs


def step_bytes(size: Size, head_bytes: int) -> float:
    """Bytes that one token step must read in half precision: weights once, and keys and values of what is cached."""
    rows = size.prompts * size.group
    cached = size.prompts * size.prompt + rows * size.completion / 2
    keys_values = 2 * size.layers * size.key_heads * size.head_dim * cached
    return 2 * (size.layer_weights + keys_values) + head_bytes * size.head_weights


def now(device: torch.device) -> float:
    """Seconds: by the clock once the device has done what it was told; on a CPU, which may be shared, of CPU time."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(work: Callable[[], Any], device: torch.device, repeats: int, warm_up: int = 1) -> Summary:
    """Seconds that `work` takes."""
    for _ in range(warm_up):
        work()
    seconds = []
    for _ in range(repeats):
        begin = now(device)
        work()
        seconds.append(now(device) - begin)
    return summary(seconds)


def ceilings(device: torch.device, small: bool) -> dict[str, float]:
    """Measured copy bandwidth (bytes read and written per second) and bf16 matrix rate (FLOP/s)."""
    side, count = (256, 2**20) if small else (8192, 2**29)
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product = timed(lambda: [torch.mm(a, b) for _ in range(10)], device, 5, 2)["median"] / 10
    copy = timed(lambda: [target.copy_(source) for _ in range(10)], device, 5, 2)["median"] / 10
    return {"copy_bytes_per_s": 2 * count / copy, "bf16_flop_per_s": 2 * side**3 / product}


def saved_mb(backend: TorchBackend, data: list[Datum]) -> float:
    """Megabytes that autograd keeps of the first micro-batch for its backward pass, weights apart."""
    weights = {p.untyped_storage().data_ptr() for p in backend._model.parameters()}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    packed = next(iter(backend._policy.micro_batches(data)))
    targets = torch.zeros(len(packed.rows), dtype=torch.long, device=backend.device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = backend._policy.targets(packed, targets, 1.0)
    del kept
    return sum(held.values()) / 1e6


def peak_mb(device: torch.device, work: Callable[[], Any]) -> dict[str, float]:
    """Peak memory of the CUDA allocator while `work` runs, in megabytes; empty elsewhere."""
    if device.type != "cuda":
        return {}
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return {
        "peak_allocated_mb": torch.cuda.max_memory_allocated(device) / 1e6,
        "peak_reserved_mb": torch.cuda.max_memory_reserved(device) / 1e6,
    }


def clean(device: torch.device) -> None:
    """Give back what is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
