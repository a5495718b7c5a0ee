"""What a GPU gives: sampling beside `generate` and bandwidth, training's share of the matrix rate, a step beside TRL.

    python benchmarks/gpu.py [--size 1.5B] [--sections sampling training step settings] [--repeats 3]

The model is a Qwen2 of that size with random weights: nothing is downloaded, and lengths are fixed (no stop token), so
random weights cost what trained ones do. Sections:

sampling   tokens per second of Assay and of `model.generate` (bf16, same prompts, group and lengths), and of a program
           that does nothing but read weights, keys and values once per token at the measured copy bandwidth.
training   tokens per second of forward and backward pass, and model FLOP utilisation: operations that the method needs
           (prompts once per group, 6 per weight and token, attention, nothing for recomputation) over the matrix rate
           measured here, and over the datasheet's 989 TFLOP/s.
step       whole steps (sample, score, train, update) beside whole steps of TRL's `GRPOTrainer`, each through its public
           API, on the same prompts and reward; the fastest of TRL's settings counts (skipped where TRL is missing).
settings   each hardware setting, on and off.

Clocks are read when the device has finished; figures are medians after a warm-up. Without a GPU everything runs at a
tiny size, in CPU time, and says so: such figures show that the program works and nothing else. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import importlib.util
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig

from assay.backends.base import LossSpec
from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.grpo.recipes import RECIPES
from assay.types import Completion, SamplingParams
from common import Summary, machine, summary
from common.accelerator import (
    DATASHEET_BF16,
    SIZES,
    Size,
    ceilings,
    clean,
    make_data,
    make_model,
    make_prompts,
    now,
    peak_mb,
    saved_mb,
    step_bytes,
    timed,
    training_flops,
)
from common.whole_steps import Work, alternate, run_blocking, trl_trainer, word_steps, word_tokenizer

SECTIONS = ("sampling", "training", "step", "settings")
SPEC = LossSpec("ppo", config=RECIPES["ppo"].thresholds)
NO_GPU = "NO GPU: these are not GPU figures. They show that the program works, and nothing of what a GPU gives."
TRL_ARMS = (("sdpa", 64), ("sdpa", 16), ("eager", 16))
"""TRL's attention, and the most completions in one pass; the fastest of them counts."""
ALLOCATORS = ("", "max_split_size_mb:128", "expandable_segments:True")


class Bench:
    """A model, a batch for it, and the clock."""

    def __init__(self, name: str, device: torch.device, repeats: int, compile_too: bool = False) -> None:
        self.size: Size = SIZES[name]
        self.device, self.repeats, self.compile_too = device, repeats, compile_too
        self.dtype = "bfloat16" if device.type == "cuda" else "float32"
        self.model = make_model(self.size, device)
        self.prompts, self.data = make_prompts(self.size), make_data(self.size)

    def backend(self, tokenizer: Any = None, **settings: Any) -> TorchBackend:
        """A backend over the model, by default in the precision that this device is for."""
        clean(self.device)
        local = LocalBackend(**{"device": str(self.device), "dtype": self.dtype, **settings})
        return TorchBackend(self.model, tokenizer, local)

    def sample(self, backend: TorchBackend) -> list[Completion]:
        params = SamplingParams(self.size.completion)
        return asyncio.run(backend.sample(self.prompts, params, range(len(self.prompts))))

    def sampled_per_s(self, backend: TorchBackend) -> Summary:
        """Sampled tokens per second; the warm-up captures what there is to capture."""
        return self.rate(lambda: self.sample(backend), len(self.prompts) * self.size.completion, 2)

    def trained_per_s(self, backend: TorchBackend) -> Summary:
        """Tokens of whole sequences per second of forward and backward pass, as if prompts were not shared."""
        tokens = len(self.prompts) * (self.size.prompt + self.size.completion)
        return self.rate(lambda: self.train(backend), tokens, 2)

    def train(self, backend: TorchBackend) -> None:
        backend._forward_backward(self.data, SPEC)
        backend._optimizer.zero_grad(set_to_none=True)

    def rate(self, work: Callable[[], Any], count: int, warm_up: int = 1) -> Summary:
        seconds = timed(work, self.device, self.repeats, warm_up)
        return {"median": count / seconds["median"], "low": count / seconds["high"], "high": count / seconds["low"]}


def sampling(bench: Bench, limits: dict[str, float]) -> dict[str, Any]:
    """Assay beside `generate` and beside the floor that bandwidth sets."""
    size = bench.size
    ours = bench.sampled_per_s(bench.backend())
    model = copy.deepcopy(bench.model).to(getattr(torch, bench.dtype))
    tokens = torch.tensor(bench.prompts, device=bench.device)
    model.generation_config.eos_token_id = None
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=size.completion,
        min_new_tokens=size.completion,
        pad_token_id=0,
    )

    @torch.no_grad()
    def generate() -> Any:
        return model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), generation_config=config)

    theirs = bench.rate(generate, len(bench.prompts) * size.completion)
    floor = len(bench.prompts) * limits["copy_bytes_per_s"] / step_bytes(size, head_bytes=4)
    return {
        "tokens_per_s": ours,
        "generate_tokens_per_s": theirs,
        "ratio_to_generate": ours["median"] / theirs["median"],
        "bandwidth_bound_tokens_per_s": floor,
        "share_of_bandwidth_bound": ours["median"] / floor,
    }


def training(bench: Bench, limits: dict[str, float]) -> dict[str, Any]:
    """Tokens per second and model FLOP utilisation, as set by default and with what is fastest."""
    tokens = len(bench.prompts) * (bench.size.prompt + bench.size.completion)
    found: dict[str, Any] = {}
    half = {"dtype": "bfloat16", "head_dtype": "bfloat16"}
    variants: dict[str, dict[str, Any]] = {"default": {}, "half_head": half}
    if bench.compile_too:
        variants["half_head_compiled"] = {**half, "compile": True}
    for name, changes in variants.items():
        rate = bench.trained_per_s(bench.backend(**changes))
        flops = training_flops(bench.size) * rate["median"] / tokens
        found[name] = {
            "tokens_per_s": rate,
            "mfu_of_measured_bf16": flops / limits["bf16_flop_per_s"],
            "mfu_of_datasheet_989_tflops": flops / DATASHEET_BF16,
        }
    return found


def step(bench: Bench) -> dict[str, Any]:
    """A whole step of both sides, each through its public API: see `common/whole_steps.py`."""
    ours = _assay_rate(bench)
    if importlib.util.find_spec("trl") is None:
        return {"completions_per_s": ours, "trl": "skipped: trl not installed"}
    arms = {}
    for attention, most in TRL_ARMS:
        clean(bench.device)
        part = min(most, len(bench.prompts))
        try:
            arms[f"{attention}_{part}"] = _trl_rate(bench, attention, part)
        except torch.OutOfMemoryError:
            print(f"TRL ran out of memory with {attention} attention and {part} completions in one pass.")
    best = max(arms, key=lambda name: arms[name]["median"])
    ratio = ours["median"] / arms[best]["median"]
    return {"completions_per_s": ours, "trl_completions_per_s": arms, "trl_best": best, "ratio_to_trl": ratio}


def _work(bench: Bench) -> Work:
    size = bench.size
    return Work(size.vocab, size.prompt, size.prompts, size.group, size.prompts, size.completion)


def _assay_rate(bench: Bench) -> Summary:
    with asyncio.Runner() as runner:
        run = run_blocking(word_steps(bench.backend(tokenizer=word_tokenizer(bench.size.vocab)), _work(bench)), runner)
        numbers = itertools.count()
        return bench.rate(lambda: run(next(numbers), 1), len(bench.prompts), 2)


def _trl_rate(bench: Bench, attention: str, part: int) -> Summary:
    """TRL's, with `part` completions in one pass; its first two steps are left out likewise."""
    on_gpu = bench.device.type == "cuda"
    model = copy.deepcopy(bench.model)
    model.set_attn_implementation(attention)
    settings = {"bf16": on_gpu, "use_cpu": not on_gpu, "dataloader_pin_memory": on_gpu}
    trainer = trl_trainer(model, _work(bench), bench.repeats + 2, lengths=[], micro_batch=part, **settings)
    seconds, _ = alternate(trainer, [], 1, lambda: now(bench.device))
    return summary([len(bench.prompts) / s for s in seconds[2:]])


def settings(bench: Bench, name: str) -> dict[str, Any]:
    """Each setting on and off: rates, and memory where it matters."""
    found: dict[str, Any] = {}
    trained: dict[str, dict[str, Any]] = {
        "default": {},
        "bfloat16": {"dtype": "bfloat16"},
        "bfloat16_head": {"dtype": "bfloat16", "head_dtype": "bfloat16"},
        "checkpointing": {"use_gradient_checkpointing": True},
    }
    if bench.device.type == "cuda":
        trained["float32_tf32"] = {"dtype": "float32"}
        trained["float32_highest"] = {"dtype": "float32", "matmul_precision": "highest"}
    sampled: dict[str, dict[str, Any]] = {"cuda_graphs": {}, "no_cuda_graphs": {"cuda_graphs": False}}
    if bench.compile_too:
        trained["compile"] = sampled["compile"] = {"compile": True}
    for label, changes in trained.items():
        backend = bench.backend(**changes)
        found[f"train_{label}"] = {
            "tokens_per_s": bench.trained_per_s(backend),
            "saved_activations_mb": saved_mb(backend, bench.data),
            **peak_mb(bench.device, lambda backend=backend: bench.train(backend)),
        }
    for label, changes in sampled.items():
        found[f"sample_{label}"] = {"tokens_per_s": bench.sampled_per_s(bench.backend(**changes))}
    for kind in ("fused", "foreach", "loop"):
        backend = bench.backend(adamw=kind)
        for parameter in backend._trained.values():
            parameter.grad = torch.full_like(parameter, 1e-4)
        for group in backend._optimizer.param_groups:
            group["lr"] = 1e-9
        found[f"adamw_{kind}"] = {"step_s": timed(backend._optimizer.step, bench.device, 3 * bench.repeats, 2)}
        backend._optimizer.zero_grad(set_to_none=True)
    if bench.device.type == "cuda":
        for allocator in ALLOCATORS:
            found[f"allocator_{allocator or 'default'}"] = _apart(name, allocator)
    return found


def _apart(name: str, allocator: str) -> dict[str, Any]:
    """Training in a process of its own, since the allocator reads its settings once."""
    command = [sys.executable, __file__, "--size", name, "--repeats", "2", "--allocator", allocator]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def show(found: dict[str, Any], indent: str = "") -> None:
    """A result as indented lines; summaries as their median and range."""
    for key, value in found.items():
        if isinstance(value, dict) and value.keys() == {"median", "low", "high"}:
            print(f"{indent}{key}: {value['median']:.4g} ({value['low']:.4g} to {value['high']:.4g})")
        elif isinstance(value, dict):
            print(f"{indent}{key}:")
            show(value, indent + "  ")
        else:
            print(f"{indent}{key}: {value:.4g}" if isinstance(value, float) else f"{indent}{key}: {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, help="1.5B on a GPU, tiny without one")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="try torch.compile without a GPU too: takes minutes")
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    args = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    device = torch.device("cuda:0" if is_gpu else "cpu")
    name = args.size or ("1.5B" if is_gpu else "tiny")
    if not is_gpu:
        torch.set_num_threads(1)
        print(NO_GPU)
    if args.allocator is not None:
        # The backend must be there before anything else starts CUDA.
        TorchBackend(make_model(SIZES["tiny"], torch.device("cpu")), None, LocalBackend(cuda_allocator=args.allocator))
        bench = Bench(name, device, args.repeats)
        backend = bench.backend()
        rate = bench.trained_per_s(backend)
        print(json.dumps({"tokens_per_s": rate, **peak_mb(device, lambda: bench.train(backend))}))
        return
    bench = Bench(name, device, args.repeats, is_gpu or args.compile)
    limits = ceilings(device, small=not is_gpu)
    work = {
        "sampling": lambda: sampling(bench, limits),
        "training": lambda: training(bench, limits),
        "step": lambda: step(bench),
        "settings": lambda: settings(bench, name),
    }
    found: dict[str, Any] = {}
    for section in args.sections:
        begin = time.perf_counter()
        found[section] = work[section]()
        clean(device)
        print(f"\n{section} ({time.perf_counter() - begin:.0f} s)")
        show(found[section], "  ")
    header = {
        "is_gpu": is_gpu,
        "device": torch.cuda.get_device_name(device) if is_gpu else "cpu",
        "note": "" if is_gpu else NO_GPU,
        "size": name,
        "ceilings": limits,
    }
    print(json.dumps(header | found | {"machine": machine()}))


if __name__ == "__main__":
    main()
