"""Whole training runs that take a second: how to start them, kill them, and tell whether two came to the same end."""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from assay.backends.config import LocalBackend, ScratchModel
from assay.training.config import EvalConfig, SFTConfig, TrainingConfig
from assay.training.loop import train
from assay.training.metrics.logger import SETTINGS_CHANGED, comparable
from assay.types import Json
from support.toy_env import ToyBuilder

SFT_STEPS, RL_BATCHES = 6, 6
Bomb = tuple[str, str, int]
"""(module, dotted name of a function in it, n): the process is killed when the function is called for the n-th time."""


def tiny(path: Path, **changes: Any) -> TrainingConfig:
    """SFT, RL, checkpoints and evaluations on the toy environment."""
    settings: dict[str, Any] = {
        "model_name": "scratch",
        "lora_rank": 0,
        "learning_rate": 5e-3,
        "max_tokens": 8,
        "save_every": 2,
        "eval_every": 3,
        **({} if changes.get("tensorboard_enabled") is False else {"tensorboard_log_histograms_every": 2}),
        "log_path": path,
        "cache_dir": path.parent / "cache",
        "local": LocalBackend(device="cpu"),
        "scratch": ScratchModel(hidden_size=32, num_layers=1, context_length=64, vocab_size=40),
        "sft": SFTConfig(num_steps=SFT_STEPS, save_every=3, batch_size=4, lr_warmup_steps=2),
        "eval": EvalConfig(samples_per_task=2),
        "dataset_builder": ToyBuilder(),
    }
    return TrainingConfig(**(settings | changes))


def run(config: TrainingConfig) -> None:
    """Start or resume a run, in this process."""
    torch.set_num_threads(1)
    train(config)


def kill(config: TrainingConfig, *bomb: str | int) -> None:
    """Start or resume a run in a process of its own, which is killed (SIGKILL) at the bomb's call."""
    # A process that ran a backward pass on a GPU cannot be forked and train.
    context: Any = multiprocessing.get_context("forkserver" if torch.cuda.is_available() else "fork")
    child = context.Process(target=_run_armed, args=(config, bomb))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL, f"{bomb} ended with {child.exitcode} instead of being killed"


def _run_armed(config: TrainingConfig, bomb: Bomb) -> None:
    module, name, countdown = bomb
    owner: Any = importlib.import_module(module)
    *parents, last = name.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original: Callable[..., Any] = getattr(owner, last)
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == countdown:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, last, call)
    run(config)


def read_lines(path: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def steps(path: Path) -> list[int]:
    """The steps of a run's metrics, in the order of its file."""
    return [record["step"] for record in read_lines(path / "metrics.jsonl")]


def outcome(path: Path) -> dict[str, Any]:
    """Everything that two equal runs have in common, to the bit: what only the clock decides is left out, and that a
    resume had other settings."""
    ledger = [{k: v for k, v in line.items() if k != "sinks"} for line in read_lines(path / "ledger.jsonl")]
    files = sorted(file for file in (path / "checkpoints").rglob("*") if file.is_file())
    return {
        "metrics": [comparable(record) for record in read_lines(path / "metrics.jsonl")],
        "traces": (path / "traces.jsonl").read_bytes(),
        "tokens": (path / "tokens.jsonl").read_bytes(),
        "events": [line for line in read_lines(path / "events.jsonl") if line["kind"] != SETTINGS_CHANGED],
        "ledger": ledger,
        "index": (path / "checkpoints.jsonl").read_bytes(),
        "checkpoints": {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files},
    }


def assert_same_run(path: Path, reference: Path) -> None:
    """Compare part by part, so that a difference is named."""
    found, wanted = outcome(path), outcome(reference)
    for part in wanted:
        assert found[part] == wanted[part], part
    assert steps(path) == list(dict.fromkeys(steps(path))), "a step was done twice"


def final_weights(path: Path) -> bytes:
    """The policy's weights at the end of a run."""
    last = read_lines(path / "checkpoints.jsonl")[-1]["name"]
    (file,) = (path / "checkpoints" / str(last) / "policy" / "model").glob("*.safetensors")
    return file.read_bytes()


def snapshot(path: Path) -> dict[str, bytes]:
    """Every file of a run directory but the lock."""
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file() and f.name != "run.lock"}


def metric(path: Path, name: str) -> Sequence[Json]:
    """The values of a metric, of the steps that have it."""
    return [record[name] for record in read_lines(path / "metrics.jsonl") if name in record]
