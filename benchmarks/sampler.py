"""Sampled tokens per CPU-second, beside `model.generate` of the same model.

    python benchmarks/sampler.py [--repeats 7] [--quick]

Both sides sample 16 completions of each of 8 chess prompts from the same briefly trained model, at temperature 1
without truncation, in float32 on one thread. The headline setting is what the chess preset asks for: up to 12 tokens,
ended by the end-of-sequence token. Beside it: 8 and 32 tokens each (no stop token); up to 32 with stop tokens that end
completions at very different lengths; and 12 and 32 tokens of 128 prompts that all differ, so that none is shared.
`ratio` is that of the headline setting, the best, and `lowest_ratio` the lowest of all. Only tokens up to the stop
count. `generate` runs with its dynamic and with its static cache, and the better one counts; both sides compute GELU by
PyTorch's own function. Blocks alternate; CPU time is the process's; a setting's ratio is the median over repeats of
neighbouring blocks. `logprob_gap` is the difference between the mean log-probabilities of both sides' tokens in
standard errors: both sample one distribution. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.activations import ACT2FN

from assay.backends.local.backend import TorchBackend
from assay.backends.local.models import load_pretrained
from assay.rollouts.renderers.base import PlainRenderer
from assay.types import SamplingParams
from common import machine, summary
from common.chess_policy import chess_backend, chess_data, warm_up

PROMPTS, GROUP = 8, 16
Rows = list[list[int]]
"""Sampled tokens of each completion."""


@dataclass(frozen=True)
class Setting:
    """How long completions are; `stops` are token ids that end one. Each of PROMPTS prompts has GROUP completions, or
    each of as many prompts has one.
    """

    name: str
    max_tokens: int
    stops: tuple[int, ...]
    shared: bool = True


def assay_rows(backend: TorchBackend, prompts: Rows, setting: Setting, seed: int) -> Rows:
    """Assay's completions."""
    params = SamplingParams(setting.max_tokens, stop=setting.stops)
    seeds = range(seed * len(prompts), (seed + 1) * len(prompts))
    return [list(c.tokens) for c in asyncio.run(backend.sample(prompts, params, seeds))]


def generate_rows(model: Any, pad: int, prompts: Rows, setting: Setting, seed: int, cache: str) -> Rows:
    """The completions of `model.generate`, left padded as it wants."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    torch.manual_seed(seed)
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=setting.max_tokens,
        eos_token_id=list(setting.stops) or None,
        pad_token_id=pad,
        cache_implementation=None if cache == "dynamic" else cache,
        disable_compile=True,
    )
    with torch.no_grad():
        rows = model.generate(input_ids=tokens, attention_mask=mask, generation_config=config)[:, width:].tolist()
    return [_until_stop(row, setting.stops) for row in rows]


def _until_stop(row: list[int], stops: Sequence[int]) -> list[int]:
    end = next((i for i, token in enumerate(row) if token in stops), len(row) - 1)
    return row[: end + 1]


def timed(work: Callable[[], Rows]) -> tuple[float, Rows]:
    """Tokens per CPU-second, and the rows."""
    begin = time.process_time()
    rows = work()
    return sum(map(len, rows)) / (time.process_time() - begin), rows


@torch.no_grad()
def token_logprobs(model: Any, prompts: Rows, rows: Rows) -> list[float]:
    """Mean log-probability of each completion's tokens under the model, from its own forward pass."""
    means = []
    for prompt, row in zip(prompts, rows, strict=True):
        logits = model(input_ids=torch.tensor([prompt + row])).logits[0, len(prompt) - 1 : -1]
        picked = torch.log_softmax(logits, -1).gather(-1, torch.tensor(row)[:, None])
        means.append(float(picked.mean()))
    return means


def gap(a: list[float], b: list[float]) -> float:
    """Difference of means in standard errors."""
    error = (statistics.variance(a) / len(a) + statistics.variance(b) / len(b)) ** 0.5
    return (statistics.fmean(a) - statistics.fmean(b)) / error


def measure(backend: TorchBackend, model: Any, prompts: Rows, setting: Setting, repeats: int) -> dict[str, Any]:
    """One setting: rates of all sides, the ratio to the better cache, and the check of distributions."""
    pad = backend.tokenizer.eos_token_id
    sides: dict[str, Callable[[int], Rows]] = {
        "assay": lambda seed: assay_rows(backend, prompts, setting, seed),
        "dynamic": lambda seed: generate_rows(model, pad, prompts, setting, seed, "dynamic"),
        "static": lambda seed: generate_rows(model, pad, prompts, setting, seed, "static"),
    }
    for work in sides.values():
        work(0)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    logprobs: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(1, repeats + 1):
        for name, work in sides.items():
            rate, rows = timed(lambda work=work, repeat=repeat: work(repeat))
            rates[name].append(rate)
            if repeat <= 2:
                logprobs[name] += token_logprobs(model, prompts, rows)
    best = max(("dynamic", "static"), key=lambda name: statistics.median(rates[name]))
    ratios = [a / b for a, b in zip(rates["assay"], rates[best], strict=True)]
    return {
        "setting": setting.name,
        "ratio": summary(ratios),
        "assay_tokens_per_cpu_s": summary(rates["assay"]),
        **{f"generate_{name}_tokens_per_cpu_s": summary(rates[name]) for name in ("dynamic", "static")},
        "logprob_gap": gap(logprobs["assay"], logprobs[best]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="2 repeats, to see that it works")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = chess_data(PROMPTS, GROUP, PROMPTS * GROUP, Path(folder))
        backend = chess_backend(data)
        warm_up(backend, data, 40)
        asyncio.run(backend.save_state(Path(folder) / "policy"))
        model = load_pretrained(str(Path(folder) / "policy" / "model"), torch.float32)[0].eval()
        for block in model.transformer.h:
            block.mlp.act = ACT2FN["gelu_pytorch_tanh"]
        # Otherwise `generate` falls back to the model's own stop token where a setting has none.
        model.generation_config.eos_token_id = None
        renderer = PlainRenderer(backend.tokenizer)
        tasks = [builder.task for batch in range(GROUP) for builder in data.train.batch(batch)]
        apart = [renderer.start(task.prompt) for task in tasks]
        shared = [prompt for prompt in apart[:PROMPTS] for _ in range(GROUP)]
        asyncio.run(data.close())
        # File letters end a completion early or late, by chance.
        letters = tuple(backend.tokenizer.convert_tokens_to_ids(c) for c in "ah")
        end = (backend.tokenizer.eos_token_id,)
        settings = [
            Setting("preset", 12, end),
            Setting("8 tokens", 8, ()),
            Setting("32 tokens", 32, ()),
            Setting("to a stop", 32, letters),
            Setting("12, apart", 12, (), shared=False),
            Setting("32, apart", 32, (), shared=False),
        ]
        repeats = 2 if args.quick else args.repeats
        found = [measure(backend, model, shared if s.shared else apart, s, repeats) for s in settings]
    for row in found:
        rate, other = row["assay_tokens_per_cpu_s"]["median"], row["generate_dynamic_tokens_per_cpu_s"]["median"]
        print(
            f"{row['setting']:10} assay {rate:8.0f}   generate {other:8.0f} (dynamic) "
            f"{row['generate_static_tokens_per_cpu_s']['median']:8.0f} (static)   ratio {row['ratio']['median']:.2f}"
        )
    ratios = [row["ratio"]["median"] for row in found]
    sizes = {"prompts": PROMPTS, "group": GROUP}
    print(
        json.dumps({"ratio": ratios[0], "lowest_ratio": min(ratios), "settings": found, **sizes, "machine": machine()})
    )


if __name__ == "__main__":
    main()
