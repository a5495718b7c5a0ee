"""What `examples/own_env.py` teaches a tiny model in other trainers: held-out reward before and after, by seed.

    python benchmarks/host_learning.py [--hosts trl cookbook] [--seeds 0 1 2] [--steps N] [--keep FOLDER]

    trl         examples/trl_env.py: TRL's GRPOTrainer, with Assay's `rollout_func`; all weights
    cookbook    examples/tinker_cookbook_env.py: the Tinker cookbook's RL loop against `assay serve`; an adapter

Both start from the same weights, which are random, with a token per character. The cookbook runs in .venv-hosts, which
`make test-hosts` makes. Before and after, Assay plays the held-out tasks with the model, 16 samples of each at
temperature 1.

The last line is JSON: `hosts`, each with `before` and `after` (means over the seeds), these and `change_ci95` by seed
(paired 95 % intervals over the held-out tasks), `lifted` (seeds whose interval lies above 0), and for each seed
`first_reward` and `last_reward` (of training, means of ten steps as the host logs them), `errored` (the largest share
of rollouts of a step that could not be scored), `cpu_s` (of the trainer and the server) and `wall_s`. The exit status
is 1 where a seed was not lifted or a rollout was errored.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from assay.integrations.environments import close_environments
from common.heldout_rewards import heldout_rewards
from common.served_model import served
from common.trained_runs import before_and_after

ROOT = Path(__file__).parents[1]
COOKBOOK = ROOT / ".venv-hosts" / "bin" / "python"
GROUPS, GROUP_SIZE = 8, 16
"""Prompts of a step, and rollouts of each."""
SAMPLES = 16
ENDS = 10
"""Steps at each end that a training reward is the mean of."""
LONGEST_S = 1800

Trained = tuple[Path, Path | None, list[dict[str, float]]]
"""The model, its adapter, `reward` and `errored` of each step."""


def settings_of(seed: int) -> list[str]:
    return [
        f"dataset_builder={ROOT}/examples/own_env.py:LargestDigit",
        f"dataset_builder.group_size={GROUP_SIZE}",
        f"seed={seed}",
    ]


def save_model(folder: Path, seed: int) -> None:
    """A model with random weights, and a tokenizer of one token per character."""
    words = ["<pad>", "<end>", *"0123456789="]
    words_of = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
    words_of.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words_of, pad_token="<pad>", eos_token="<end>", unk_token="<pad>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=16, initializer_range=0.1, **shape, **ids)
    LlamaForCausalLM(config).save_pretrained(folder)


def run(command: Sequence[str | Path], log: Path, **variables: str) -> None:
    """A program in a process of its own, on one core."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER_", "WANDB_"))}
    ours = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(log.parent), **variables}
    with log.open("w") as out:
        done = subprocess.run(
            list(map(str, command)), cwd=log.parent, env=keep | ours, stdout=out, stderr=out, timeout=LONGEST_S
        )
    if done.returncode:
        raise SystemExit(f"{command[1]} failed: {log.read_text(errors='replace')[-2000:]}")


def train_trl(model: Path, seed: int, steps: int, folder: Path) -> Trained:
    """TRL's trainer, from the weights of `model`."""
    out = folder / "out"
    flags = {
        "output_dir": out,
        "max_steps": steps,
        "per_device_train_batch_size": GROUPS * GROUP_SIZE,
        "num_generations": GROUP_SIZE,
        "max_completion_length": 2,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "seed": seed,
        "logging_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    program = ROOT / "examples" / "trl_env.py"
    run([sys.executable, program, model, "--env", *settings_of(seed), *words], folder / "trl.log")
    logged = json.loads((out / "trainer_state.json").read_text())["log_history"]
    rows = [{"reward": row["reward"], "errored": row["assay/errored"]} for row in logged if "reward" in row]
    return out, None, rows


def train_cookbook(model: Path, seed: int, steps: int, folder: Path) -> Trained:
    """The cookbook's loop against `assay serve`, which holds the weights of `model`."""
    out = folder / "out"
    own = {
        "log_path": out,
        "learning_rate": 4e-3,
        "lora_rank": 32,
        "max_steps": steps,
        "num_epochs": steps,
        "save_every": 0,
        "eval_every": 0,
        "num_groups_to_log": 0,
    }
    words = ["--groups", str(GROUPS), "--cookbook", *(f"{name}={value}" for name, value in own.items())]
    program = ROOT / "examples" / "tinker_cookbook_env.py"
    with served(model, str(model), folder / "state") as server:
        keys = {"TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-benchmark", "TINKER_TELEMETRY": "0"}
        run([COOKBOOK, program, model, "--env", *settings_of(seed), *words], folder / "cookbook.log", **keys)
        saved = lines(out / "checkpoints.jsonl")[-1]["sampler_path"]
        adapter = server.weights(saved).parent
    logged = [row for row in lines(out / "metrics.jsonl") if "env/all/reward/total" in row]
    rows = [{"reward": row["env/all/reward/total"], "errored": row["env/all/assay_errored"]} for row in logged]
    return model, adapter, rows


TRAINERS: Mapping[str, Callable[[Path, int, int, Path], Trained]] = {"trl": train_trl, "cookbook": train_cookbook}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def trained(host: str, model: Path, seed: int, steps: int, folder: Path) -> tuple[list[float], dict[str, float]]:
    """One host's run: held-out rewards by task, and what it logged."""
    folder.mkdir()
    cpu_s, begun = children_cpu_s(), time.monotonic()
    found, adapter, rows = TRAINERS[host](model, seed, steps, folder)
    cpu_s, wall_s = children_cpu_s() - cpu_s, time.monotonic() - begun
    rewards = [row["reward"] for row in rows]
    log = {
        "seed": seed,
        "steps": len(rows),
        "first_reward": fmean(rewards[:ENDS]),
        "last_reward": fmean(rewards[-ENDS:]),
        "errored": max(row["errored"] for row in rows),
        "cpu_s": round(cpu_s, 1),
        "wall_s": round(wall_s, 1),
    }
    return heldout_rewards(found, adapter, settings_of(seed), SAMPLES), log


def measured(hosts: Sequence[str], seeds: Sequence[int], steps: int, folder: Path) -> dict[str, Any]:
    pairs: dict[str, list[tuple[list[float], list[float]]]] = {host: [] for host in hosts}
    logs: dict[str, list[dict[str, float]]] = {host: [] for host in hosts}
    for seed in seeds:
        model = folder / f"model_{seed}"
        save_model(model, seed)
        before = heldout_rewards(model, None, settings_of(seed), SAMPLES)
        for host in hosts:
            after, log = trained(host, model, seed, steps, folder / f"{host}_{seed}")
            pairs[host].append((before, after))
            logs[host].append(log)
            print(f"{host}: {fmean(before):.3f} -> {fmean(after):.3f}, {json.dumps(log)}", flush=True)
    return {host: {**before_and_after(pairs[host]), "runs": logs[host]} for host in hosts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", nargs="+", choices=list(TRAINERS), default=list(TRAINERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep models, logs and metrics here")
    args = parser.parse_args()
    if "cookbook" in args.hosts and not COOKBOOK.exists():
        sys.exit(f"{COOKBOOK.parents[1].name} was not made, and the cookbook runs in it: make test-hosts")
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            hosts = measured(args.hosts, args.seeds, args.steps, folder)
        finally:
            close_environments()
    print(json.dumps({"hosts": hosts}))
    errored = any(log["errored"] for found in hosts.values() for log in found["runs"])
    sys.exit(errored or any(found["lifted"] < len(args.seeds) for found in hosts.values()))


if __name__ == "__main__":
    main()
