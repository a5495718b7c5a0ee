"""Completions per CPU-second of a full GRPO step, beside TRL's `GRPOTrainer` doing the same step.

    python benchmarks/grpo_step.py [--quick] [--repeats R] [--steps N] [--profile] [--only-sweep]

It needs `pip install '.[torch,chess,trl]'`.

A step samples, scores, trains and takes one optimizer step. Both sides start from the same weights (the chess preset's
model after a short supervised stage) and use the same tokenizer, prompts, group size, generation limit, reward function
(`score_policy` on Stockfish's values of all moves, found beforehand), clipped loss without KL, averaged over tokens,
advantages divided by the group's standard deviation, and AdamW; float32, one thread. Both train on every completion:
Assay's removal of constant groups, which would save it work, is off.

Assay runs the pieces of its training loop: the data set's builders and their envs (which look the analysis up again in
each step, in the pool's memory), `run_groups` and `GRPOTrainer.update`, metrics and health monitor included.
TRL runs its own `train()` with logging, saving and progress bars off, gradient checkpointing off, the whole batch in
one micro-batch, and the fastest of its attention implementations and caches (--attention and --cache choose; the
defaults were the fastest here).

Chess prompts are long beside their answers, and a group shares its prompt, which Assay computes once. So `sweep`
measures other shapes on random words (`common/step_sweep.py`): prompts of 2 to 128 tokens, groups of 2 to 16, all
prompts of a step different or all equal. `lowest_ratio` is the lowest of all sizes and of the sweep. Beside both runs
the same work in bare PyTorch (`common/plain_step.py`: no text, no objects, no checks, no metrics; prompts are shared in
sampling only): `over_plain` is Assay's step in units of that, and `plain_ratio` what TRL's step takes in units of that.
`--profile` shows for the lowest cell of the sweep how much of both sides' steps is matrix products of the same sizes.

Blocks of steps alternate in one process; Assay's run inside a callback of TRL's trainer. CPU time is that of the whole
process. Figures are medians over blocks, and `ratio`, of neighbouring blocks, is that of the chess preset's size,
16 x 16. Both sides compute GELU by PyTorch's own function, which transformers' `gelu_new` is slower than and equal to.
`peak_mb` is the peak resident memory of a process that runs one side alone; `start_mb` is what it held before the first
step. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.backends.local.models import load_pretrained
from assay.envs.base import EnvData
from assay.envs.chess.env import ChessEnv
from assay.envs.chess.grammar import parse_policy
from assay.envs.chess.rewards import PolicyTruth, PolicyWeights, score_policy
from common import Summary, machine, summary
from common.chess_policy import chess_backend, chess_data, warm_up
from common.step_sweep import cells, floor, sweep_cell
from common.whole_steps import AssaySteps, Work, alternate, trl_config

SIZES = ((8, 8), (16, 16))
"""Prompts and completions per prompt of a step."""
POSITIONS = 160
MAX_TOKENS = 12
SFT_STEPS = 150
SWEEP_STEPS, SWEEP_REPEATS = 2, 5
"""Most steps of a block, and blocks, of a cell of the sweep."""


@dataclass
class Tally:
    """Mean lengths and rewards of TRL's completions."""

    lengths: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


def assay_side(policy: Path, data: EnvData, group: int) -> AssaySteps:
    """Assay's step on one size."""
    model, tokenizer = load_pretrained(str(policy), torch.float32)
    backend = TorchBackend(model, tokenizer, LocalBackend(device="cpu"))
    return AssaySteps(backend, data.train.batch, group, MAX_TOKENS)


def trl_side(
    policy: Path, rows: list[dict[str, str]], truths: dict[str, PolicyTruth], args: argparse.Namespace, tally: Tally
) -> Any:
    """TRL's trainer, set up for `args.total` steps of `args.prompts` x `args.group` completions."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    weights = PolicyWeights()

    def reward(
        completions: list[str], completion_ids: list[list[int]], fen: list[str], **_: object
    ) -> list[float | None]:
        scores = [
            score_policy(truths[f], parse_policy(text, "best"), weights, "best").value
            for text, f in zip(completions, fen, strict=True)
        ]
        tally.lengths.append(statistics.fmean(map(len, completion_ids)))
        tally.rewards.append(statistics.fmean(s for s in scores if s is not None))
        return scores

    cache = {"cache_implementation": None if args.cache == "dynamic" else args.cache}
    config = trl_config(
        args.prompts * args.group, args.group, MAX_TOKENS, args.total, output_dir=str(policy / "trl"), **cache
    )
    model = AutoModelForCausalLM.from_pretrained(
        policy, dtype=torch.float32, attn_implementation=args.attention, activation_function="gelu_pytorch_tanh"
    )
    tokenizer = AutoTokenizer.from_pretrained(policy)
    return GRPOTrainer(model, reward, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)


async def truths_of(data: EnvData, batches: int) -> tuple[list[dict[str, str]], dict[str, PolicyTruth]]:
    """The prompts of the first batches in order, as rows for TRL, and the engine's values of their moves."""
    rows, truths = [], {}
    for index in range(batches):
        for builder in data.train.batch(index):
            (env,) = await builder.make(1)
            assert isinstance(env, ChessEnv) and env.truth.policy is not None, env
            fen = builder.task.payload["fen"]
            truths[fen] = env.truth.policy
            rows.append({"prompt": builder.task.prompt[0].content, "fen": fen})
    return rows, truths


def measure(policy: Path, cache: Path, prompts: int, group: int, args: argparse.Namespace) -> dict[str, Any]:
    """Both sides on one size."""
    blocks = args.repeats + 1
    args.prompts, args.group, args.total = prompts, group, blocks * args.steps
    data = chess_data(prompts, group, POSITIONS, cache)
    with asyncio.Runner() as runner:
        rows, truths = runner.run(truths_of(data, args.total))
        assay, tally = assay_side(policy, data, group), Tally()
        trainer = trl_side(policy, rows, truths, args, tally)
        ours = lambda first, count: runner.run(assay.steps(first, count))  # noqa: E731
        theirs, (mine,) = alternate(trainer, [ours], args.steps, time.process_time)
        runner.run(data.close())
    count = prompts * group
    # The first block of each side warms caches and allocators.
    mine, theirs = mine[1:], theirs[1:]
    return {
        "size": f"{prompts}x{group}",
        "completions_per_cpu_s": summary([count / s for s in mine]),
        "trl_completions_per_cpu_s": summary([count / s for s in theirs]),
        "ratio": summary([b / a for a, b in zip(mine, theirs, strict=True)]),
        "completion_tokens": [statistics.fmean(t.lengths) for t in (assay, tally)],
        "reward": [statistics.fmean(t.rewards) for t in (assay, tally)],
    }


def memory(side: str, policy: Path, cache: Path, args: argparse.Namespace) -> dict[str, float]:
    """Resident memory of this process in MB: before the first step, and at its peak in a few steps of one side."""
    args.prompts, args.group, args.total = *SIZES[-1], 3
    data = chess_data(args.prompts, args.group, POSITIONS, cache)
    with asyncio.Runner() as runner:
        rows, truths = runner.run(truths_of(data, args.total))
        if side == "assay":
            assay = assay_side(policy, data, args.group)
            start = _status_mb("VmRSS")
            runner.run(assay.steps(0, args.total))
        else:
            trainer = trl_side(policy, rows, truths, args, Tally())
            start = _status_mb("VmRSS")
            trainer.train()
        runner.run(data.close())
    return {"start_mb": start, "peak_mb": _status_mb("VmHWM")}


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name + ":"))


def memory_apart(side: str, policy: Path, cache: Path, args: argparse.Namespace) -> dict[str, float]:
    """`memory` in a process of its own."""
    command = [sys.executable, __file__, "--memory", side, "--policy", str(policy), "--engine-cache", str(cache)]
    command += ["--attention", args.attention, "--cache", args.cache]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def make_policy(folder: Path, cache: Path) -> Path:
    """A folder with the model that both sides start from."""
    data = chess_data(8, 8, POSITIONS, cache)
    backend = chess_backend(data)
    warm_up(backend, data, SFT_STEPS)
    asyncio.run(backend.save_state(folder))
    asyncio.run(data.close())
    return folder / "model"


def show(results: list[dict[str, Any]], peaks: dict[str, dict[str, float]]) -> None:
    """A small table."""
    print(f"{'size':8s} {'completions per CPU-s':>24s} {'TRL':>24s} {'ratio':>20s}   tokens, reward (Assay | TRL)")
    for r in results:
        ours, theirs, ratio = (_cell(r[k]) for k in ("completions_per_cpu_s", "trl_completions_per_cpu_s", "ratio"))
        (length, trl_length), (reward, trl_reward) = r["completion_tokens"], r["reward"]
        same = f"{length:.2f}, {reward:.3f} | {trl_length:.2f}, {trl_reward:.3f}"
        print(f"{r['size']:8s} {ours:>24s} {theirs:>24s} {ratio:>20s}   {same}")
    for side, found in peaks.items():
        print(f"memory of {side} alone: {found['peak_mb']:.0f} MB at peak, {found['start_mb']:.0f} MB before step 1")


def _cell(s: Summary) -> str:
    return f"{s['median']:.3g} ({s['low']:.3g}..{s['high']:.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter blocks, no memory figures")
    parser.add_argument("--repeats", type=int, default=7, help="blocks per side that are measured")
    parser.add_argument("--steps", type=int, default=4, help="steps per block")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa", help="TRL's attention")
    parser.add_argument("--cache", choices=("dynamic", "static"), default="dynamic", help="TRL's key-value cache")
    parser.add_argument("--profile", action="store_true", help="show the products in the steps of the lowest cell")
    parser.add_argument("--only-sweep", action="store_true", help="leave the chess sizes and the memory out")
    parser.add_argument("--memory", choices=("assay", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--policy", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--engine-cache", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        print(json.dumps(memory(args.memory, args.policy, args.engine_cache, args)))
        return
    if args.quick:
        args.repeats, args.steps = min(args.repeats, 3), min(args.steps, 2)
    found: dict[str, Any] = {} if args.only_sweep else chess_sizes(args)
    sweep: list[tuple[Work, dict[str, Any]]] = []
    for work in cells(args.quick):
        sweep.append((work, sweep_cell(work, min(args.steps, SWEEP_STEPS), min(args.repeats, SWEEP_REPEATS))))
        show_cell(sweep[-1][1])
    found["sweep"] = [cell for _, cell in sweep]
    ratios = [size["ratio"]["median"] for size in found.get("sizes", [])] + [cell["ratio"] for _, cell in sweep]
    found["lowest_ratio"] = round(min(ratios), 3)
    if args.profile:
        work, lowest = min(sweep, key=lambda pair: float(pair[1]["ratio"]))
        found["floor"] = floor(work, lowest, steps=4)
        print(json.dumps(found["floor"], indent=2))
    settings = {"attention": args.attention, "cache": args.cache, "repeats": args.repeats, "steps": args.steps}
    print(json.dumps(found | {"trl_settings": settings, "machine": machine("trl", "accelerate", "chess")}))


def chess_sizes(args: argparse.Namespace) -> dict[str, Any]:
    """The chess preset's model and prompts in two sizes, and both sides' memory."""
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(temporary) / "engine"
        policy = make_policy(Path(temporary) / "policy", cache)
        results = [measure(policy, cache, prompts, group, args) for prompts, group in SIZES]
        peaks = {} if args.quick else {side: memory_apart(side, policy, cache, args) for side in ("assay", "trl")}
    show(results, peaks)
    preset = results[-1]
    names = ("completions_per_cpu_s", "trl_completions_per_cpu_s", "ratio")
    headline = {name: round(preset[name]["median"], 3) for name in names}
    return headline | {"size": preset["size"], "sizes": results, "memory": peaks}


def show_cell(cell: dict[str, Any]) -> None:
    """One line of the sweep."""
    low, high = cell["range"]
    print(
        f"prompts of {cell['prompt_tokens']:3d} tokens, {cell['distinct']:3d} of {cell['prompts']:3d} different, "
        f"groups of {cell['group_size']:2d}: {cell['step_ms']:7.1f} ms, TRL {cell['trl_step_ms']:7.1f} ms, "
        f"ratio {cell['ratio']:.2f} ({low:.2f} to {high:.2f}), bare PyTorch {cell['plain_step_ms']:.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
