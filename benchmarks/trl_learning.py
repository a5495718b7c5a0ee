"""A tiny model trained on `examples/own_env.py` by TRL's own `GRPOTrainer`: held-out reward before and after.

python benchmarks/trl_learning.py [--steps N] [--seed N]

The model is made from nothing and has a token per character. The last line is JSON: `before`, `after` (held-out reward,
greedy), `first_reward`, `last_reward` (of training, means of ten steps), `errored` (the largest share of rollouts that
could not be scored), `steps`, `wall_s`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

from assay.integrations.environments import close_environments
from assay.integrations.trl_environment import environment

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_env.py"


def tokenizer_of(characters: str) -> Any:
    words = ["<pad>", "<end>", *characters]
    one = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
    one.pre_tokenizer = Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=one, pad_token="<pad>", eos_token="<end>", unk_token="<pad>")


def reward_of(model: Any, tokenizer: Any, rows: Any, answers: list[str]) -> float:
    """Share of the prompts that are answered rightly, greedily."""
    texts = ["".join(message["content"] for message in row["prompt"]) for row in rows]
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False) for text in texts])
    with torch.no_grad():
        said = model(ids).logits[:, -1].argmax(-1)
        ended = model(torch.cat([ids, said[:, None]], 1)).logits[:, -1].argmax(-1)
    right = [tokenizer.decode(int(t)) == a for t, a in zip(said, answers, strict=True)]
    return sum(r and int(e) == tokenizer.eos_token_id for r, e in zip(right, ended, strict=True)) / len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            print(json.dumps(trained(args.steps, args.seed, folder)))
        finally:
            close_environments()


def trained(steps: int, seed: int, folder: str) -> dict[str, float]:
    set_seed(seed)
    tokenizer = tokenizer_of("0123456789=")
    env = environment(None, [f"dataset_builder={EXAMPLE}:LargestDigit", f"seed={seed}"], tokenizer=tokenizer)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **shape, **ids))
    heldout = env.dataset("heldout")
    answers = [max(row["prompt"][-1]["content"].rstrip("=")) for row in heldout]
    config = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=128,
        num_generations=16,
        max_completion_length=2,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        beta=0.0,
        seed=seed,
        logging_steps=10,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    before, begun = reward_of(model, tokenizer, heldout, answers), time.monotonic()
    trainer = GRPOTrainer(
        model,
        reward_funcs=env.reward_func,
        rollout_func=env.rollout_func,
        train_dataset=env.dataset("train"),
        processing_class=tokenizer,
        args=config,
    )
    trainer.train()
    wall_s = time.monotonic() - begun
    model.eval()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    return {
        "before": before,
        "after": reward_of(model, tokenizer, heldout, answers),
        "first_reward": logs[0]["reward"],
        "last_reward": logs[-1]["reward"],
        "errored": max(entry["assay/errored"] for entry in logs),
        "steps": steps,
        "wall_s": round(wall_s, 1),
    }


if __name__ == "__main__":
    main()
