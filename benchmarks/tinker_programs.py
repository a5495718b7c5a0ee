"""The Tinker cookbook's supervised and RL loops, unmodified, against `assay serve` with a tiny model on a CPU.

    python benchmarks/tinker_programs.py [--keep FOLDER]

The cookbook runs `examples/tinker_cookbook_digits.py` in .venv-hosts, which `make test-hosts` makes. Programs, each a
process that knows the server by TINKER_BASE_URL alone:

    supervised       supervised.train.main on answers of the right form, from a model with random weights
    rl               rl.train.main from that state, with a reward for the right answer; importance_sampling
    rl_resumed       the same command once more, for more steps: it goes on from its last checkpoint
    rl_ppo_async     rl.train.main with ppo, in its asynchronous loop with two substeps

The last line is JSON: for each program `steps`, `loss_before` and `loss_after` or `reward_before` and `reward_after`
(means of the first and last three steps), `wall_s` and `errors` (lines; empty where it ended well). The exit status is
1 where a program failed, a loss did not fall, a reward did not rise, or the resumed run began as low as a new one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).parents[1]
COOKBOOK = ROOT / ".venv-hosts" / "bin" / "python"
PROGRAM = ROOT / "examples" / "tinker_cookbook_digits.py"
LOSS, REWARD = "train_mean_nll", "env/all/reward/total"
ENDS = 3
"""Steps at each end that a figure is the mean of."""
LONGEST_S = 1200
KINDS = {
    "supervised": LOSS,
    "rl": REWARD,
    "rl_resumed": REWARD,
    "rl_ppo_async": REWARD,
}


def save_model(folder: Path) -> None:
    """A Qwen3 model with random weights, and a tokenizer of one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate([*alphabet, "<eos>"])}, []))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_level.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=byte_level, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 128}
    end = len(alphabet)
    config = Qwen3Config(vocab_size=end + 1, eos_token_id=end, initializer_range=0.2, **size, **heads)
    Qwen3ForCausalLM(config).save_pretrained(folder)


@contextmanager
def served(model: Path, folder: Path) -> Iterator[str]:
    """`assay serve` in a process of its own; the address."""
    command = [sys.executable, "-m", "assay", "serve", "--model", str(model), "port=0", "local.device=cpu"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, f"state_path={folder / 'state'}"], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            line = server.stdout.readline() if server.stdout else ""
            if " at http://" not in line:
                raise SystemExit(f"assay serve did not start: {(folder / 'server.log').read_text()[-2000:]}")
            yield line.split(" at ")[1].split()[0]
        finally:
            server.terminate()
            server.wait(60)


def run(arguments: Sequence[str], url: str, log: Path) -> tuple[float, list[str]]:
    """One program; its seconds, and what it ended with if it failed."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER_", "WANDB_"))}
    ours = {"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-benchmark", "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
    begin = time.monotonic()
    with log.open("w") as out:
        done = subprocess.run(
            [COOKBOOK, PROGRAM, *arguments],
            cwd=log.parent,
            env={**keep, **ours},
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_S,
            check=False,
        )
    errors = [] if done.returncode == 0 else log.read_text(errors="replace").splitlines()[-3:]
    return time.monotonic() - begin, errors


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(log_path: Path, metric: str, wall_s: float, errors: list[str], skip: int = 0) -> dict[str, Any]:
    """What a program's own metrics say."""
    values = [row[metric] for row in rows(log_path / "metrics.jsonl") if metric in row][skip:]
    what = "loss" if metric == LOSS else "reward"
    found: dict[str, Any] = {"steps": len(values)}
    if values:
        first, last = values[:ENDS], values[-ENDS:]
        found |= {f"{what}_before": sum(first) / len(first), f"{what}_after": sum(last) / len(last)}
    return {**found, "wall_s": round(wall_s, 1), "errors": errors}


def learned(found: dict[str, dict[str, Any]]) -> bool:
    """Whether all programs did what they should."""
    if found.keys() != KINDS.keys() or any(row["errors"] or not row["steps"] for row in found.values()):
        return False
    start = found["rl"]["reward_before"]
    resumed = found["rl_resumed"]
    return (
        found["supervised"]["loss_after"] < found["supervised"]["loss_before"]
        and all(row["reward_after"] > start for row in (found["rl"], resumed, found["rl_ppo_async"]))
        and resumed["reward_before"] > (start + found["rl"]["reward_after"]) / 2
    )


def programs(model: Path, url: str, folder: Path) -> dict[str, dict[str, Any]]:
    """All programs, one after the other."""
    found: dict[str, dict[str, Any]] = {}

    def one(name: str, log_path: str, *arguments: str, skip: int = 0) -> None:
        common = (f"model_name={model}", f"log_path={folder / log_path}")
        wall_s, errors = run([*arguments[:1], *common, *arguments[1:]], url, folder / f"{name}.log")
        found[name] = measured(folder / log_path, KINDS[name], wall_s, errors, skip)
        print(f"{name}: {json.dumps(found[name])}", flush=True)

    one("supervised", "sft", "supervised", f"dataset_builder.model_name={model}")
    saved = [row["state_path"] for row in rows(folder / "sft" / "checkpoints.jsonl") if "state_path" in row]
    if not saved:
        return found
    rl = ("rl", f"dataset_builder.model_name={model}", f"load_checkpoint_path={saved[-1]}")
    one("rl", "rl", *rl, "dataset_builder.num_batches=15")
    one("rl_resumed", "rl", *rl, "dataset_builder.num_batches=20", skip=found["rl"]["steps"])
    other = ("loss_fn=ppo", "num_substeps=2", "async_config=AsyncConfig", "async_config.loss_fn=ppo")
    one("rl_ppo_async", "async", *rl, *other, "async_config.max_steps_off_policy=1", "async_config.groups_per_batch=10")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep logs and metrics here")
    args = parser.parse_args()
    if not COOKBOOK.exists():
        sys.exit(f"{COOKBOOK.parents[1].name} was not made, and the cookbook runs in it: make test-hosts")
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        save_model(folder / "model")
        with served(folder / "model", folder) as url:
            found = programs(folder / "model", url, folder)
    print(json.dumps(found))
    sys.exit(not learned(found))


if __name__ == "__main__":
    main()
