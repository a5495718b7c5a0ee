"""How the ratio of whole steps depends on prompts and groups, and how much of a step is work that both sides must do.

The model has the size of the chess preset's (GPT-2, 3 layers, width 128, 512 tokens) and random weights. It computes
GELU by PyTorch's own function on both sides (`gelu_pytorch_tanh`; `gelu_new` is the same function in six operations,
of which only TRL's side would run all). Nearly all completions have 12 tokens.

A third arm beside both is the step in bare PyTorch (`plain_step.PlainSteps`), with nothing round the model's work.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, GPT2Config

from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from common import summary
from common.plain_step import PlainSteps
from common.whole_steps import AssaySteps, Work, alternate, run_blocking, trl_trainer, word_steps, word_tokenizer

VOCAB, MAX_TOKENS, COMPLETIONS = 512, 12, 64
ATTENTION = ("sdpa", "eager")
"""TRL's attention: of the two, the faster one in each cell counts."""
WEIGHTS = ("aten::mm", "aten::addmm", "aten::addmm_")
"""Products of weights with hidden states: of as many tokens on both sides, where no prompts are shared."""
ATTENTIONS = (
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)


def cells(quick: bool) -> Iterator[Work]:
    """Prompts of 2 to 128 tokens in groups of 2 to 16: all different, then all equal, then four times as many."""
    if quick:
        yield _work(2, 2)
        yield _work(41, 16)
        return
    for prompt_tokens in (2, 16, 41, 128):
        for group_size in (2, 4, 16):
            yield _work(prompt_tokens, group_size)
    for prompt_tokens in (2, 41):
        yield _work(prompt_tokens, 4, distinct=1)
    yield _work(2, 2, completions=4 * COMPLETIONS)


def _work(prompt_tokens: int, group_size: int, *, completions: int = COMPLETIONS, distinct: int | None = None) -> Work:
    prompts = completions // group_size
    return Work(VOCAB, prompt_tokens, prompts, group_size, distinct or prompts, MAX_TOKENS)


def make_model(attention: str = "sdpa") -> Any:
    """The model that both sides start from."""
    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=128,
        n_layer=3,
        n_head=4,
        n_positions=256,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()


def assay_steps(work: Work) -> AssaySteps:
    """Assay's side on the CPU."""
    backend = TorchBackend(make_model(), word_tokenizer(VOCAB), LocalBackend(device="cpu"))
    return word_steps(backend, work)


def sweep_cell(work: Work, block: int, repeats: int) -> dict[str, Any]:
    """All sides on one work; `ratio` is beside the faster of TRL's attentions. The first blocks are a warm-up.

    `plain_step_ms` is the step in bare PyTorch, `over_plain` Assay's step in units of it, and `plain_ratio` what it
    would get in the place of Assay's.
    """
    found = []
    for attention in ATTENTION:
        with asyncio.Runner() as runner:
            assay, lengths = assay_steps(work), list[float]()
            trainer = trl_trainer(make_model(attention), work, block * (repeats + 1), lengths=lengths)
            others = [run_blocking(assay, runner), PlainSteps(make_model(), work).steps]
            theirs, (ours, plain) = alternate(trainer, others, block, time.process_time)
        ratios = summary([b / a for a, b in zip(ours[1:], theirs[1:], strict=True)])
        found.append(
            {
                "prompt_tokens": work.prompt_tokens,
                "group_size": work.group_size,
                "distinct": work.distinct,
                "prompts": work.prompts,
                "ratio": round(ratios["median"], 3),
                "range": [round(ratios["low"], 3), round(ratios["high"], 3)],
                "step_ms": round(1e3 * statistics.median(ours[1:]), 1),
                "trl_step_ms": round(1e3 * statistics.median(theirs[1:]), 1),
                "plain_step_ms": round(1e3 * statistics.median(plain[1:]), 1),
                "over_plain": round(statistics.median(a / b for a, b in zip(ours[1:], plain[1:], strict=True)), 3),
                "plain_ratio": round(statistics.median(a / b for a, b in zip(theirs[1:], plain[1:], strict=True)), 3),
                "trl_attention": attention,
                "completion_tokens": [round(statistics.fmean(side), 2) for side in (assay.lengths, lengths)],
            }
        )
    return min(found, key=lambda cell: cell["ratio"])


def floor(work: Work, cell: dict[str, Any], steps: int) -> dict[str, Any]:
    """What of both sides' steps is products with the model's weights, from a profile of `steps` steps each.

    Args:
        cell: what `sweep_cell` measured without a profiler; its times are the whole steps.

    Returns:
        Per side the work of those products in a step (`weight_gflop`); the CPU time that it takes at the rate of a
        large product on this machine (`floor_ms`), which no implementation in float32 can go below; all that the step
        takes besides (`rest_ms`); and their and attention's share of the profiled time, which the profiler makes
        smaller. `ratio_limit` is what the ratio would be if Assay's step took no more than its floor.
    """
    rate = _matrix_rate()
    found = {"assay": _assay_profile(work, steps), "trl": _trl_profile(work, cell["trl_attention"], steps)}
    for side, whole in (("assay", cell["step_ms"]), ("trl", cell["trl_step_ms"])):
        least = 1e3 * found[side]["weight_gflop"] / rate
        found[side] |= {"step_ms": whole, "floor_ms": round(least, 1), "rest_ms": round(whole - least, 1)}
    return {
        **{name: cell[name] for name in ("prompt_tokens", "group_size", "distinct", "prompts", "ratio")},
        **{name: cell[name] for name in ("plain_step_ms", "over_plain", "plain_ratio")},
        **found,
        "machine_gflop_per_s": round(rate, 1),
        "ratio_limit": round(cell["trl_step_ms"] / found["assay"]["floor_ms"], 2),
        "rest_ratio": round(found["trl"]["rest_ms"] / found["assay"]["rest_ms"], 2),
    }


def _assay_profile(work: Work, steps: int) -> dict[str, float]:
    with asyncio.Runner() as runner:
        run = run_blocking(assay_steps(work), runner)
        run(0, 2)
        begin = time.perf_counter()
        with _profile() as profiled:
            run(2, steps)
            seconds = time.perf_counter() - begin
    return _products(profiled, seconds, steps)


def _trl_profile(work: Work, attention: str, steps: int) -> dict[str, float]:
    """As Assay's; its first two steps are left out likewise."""
    from transformers import TrainerCallback

    profiled, marks = _profile(), []

    class Window(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
            if state.global_step == 2:
                profiled.__enter__()
            if state.global_step in (2, 2 + steps):
                marks.append(time.perf_counter())
            if state.global_step == 2 + steps:
                profiled.__exit__(None, None, None)

    trainer = trl_trainer(make_model(attention), work, 2 + steps, lengths=[])
    trainer.add_callback(Window())
    trainer.train()
    return _products(profiled, marks[1] - marks[0], steps)


def _profile() -> profile:
    # Assay computes on a thread of its own; without this setting only the thread that starts the profiler is seen.
    from torch._C._profiler import _ExperimentalConfig

    every = _ExperimentalConfig(profile_all_threads=True)
    return profile(activities=[ProfilerActivity.CPU], with_flops=True, experimental_config=every)


def _products(profiled: profile, seconds: float, steps: int) -> dict[str, float]:
    """Of a step: operations of products with weights (`addmm_` reports none), and shares of the profiled seconds."""
    events = profiled.key_averages()

    def share(names: tuple[str, ...]) -> float:
        return round(sum(e.self_cpu_time_total for e in events if e.key in names) / 1e6 / seconds, 3)

    flops = sum(event.flops for event in events if event.key in WEIGHTS)
    return {
        "weight_gflop": round(flops / 1e9 / steps, 2),
        "weights_share": share(WEIGHTS),
        "attention_share": share(ATTENTIONS),
    }


def _matrix_rate() -> float:
    """GFLOP/s of a product of large float32 matrices."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(8):
        begin = time.process_time()
        torch.mm(a, b)
        seconds.append(time.process_time() - begin)
    return 2 * 1024**3 / 1e9 / statistics.median(seconds[1:])
