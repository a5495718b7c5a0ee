"""TRL's real `GRPOTrainer` with a scripted sampler: what it generates, and what its reward function gives."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.hosts.common import FAILING_PLAY, Rollout, Row, report
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from assay.integrations.environments import Prepared
from assay.integrations.trl_environment import TRLEnvironment
from support.hosts import Play, Script, bytes_tokenizer


def trainer_of(env: TRLEnvironment, play: Play, data: Dataset, folder: str) -> GRPOTrainer:
    tokenizer = bytes_tokenizer()
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=32768, **shape, **ids))
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=play.group_size,
        num_generations=play.group_size,
        max_completion_length=8192,
        use_cpu=True,
        report_to="none",
    )
    rewards = env.reward_func
    trainer = GRPOTrainer(model, rewards, config, data, processing_class=tokenizer, rollout_func=env.rollout_func)
    script = Script(play)

    def scripted(prompts: list[list[int]], images: Any, fields: Any, n: int) -> Any:
        return [script.tokens(prompt, 8192) for prompt in prompts], None

    trainer._generate_single_turn = scripted
    trainer.model.train()
    return trainer


def generated(play: Play, one: Prepared) -> list[list[Rollout]]:
    """The groups of a play as the trainer generates and rewards them."""
    env = TRLEnvironment(one, rebuilt="last")
    data = env.dataset("train")
    rows = sorted(data, key=lambda row: json.loads(row["assay_task"])["key"])[: play.tasks]
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(env, play, data, folder)
        prompts = [row["prompt"] for row in rows for _ in range(play.group_size)]
        ids, completions, masks, texts, _, extra, _, _ = trainer._generate(prompts)
    rewards = env.reward_func(prompts, texts, **extra)
    rollouts = [
        Rollout(reward, [Row.of(prompt, said, mask)] if any(mask) else [], last_only=True)
        for reward, prompt, said, mask in zip(rewards, ids, completions, masks, strict=True)
    ]
    return [rollouts[begun : begun + play.group_size] for begun in range(0, len(rollouts), play.group_size)]


def play(name: str, play: Play, one: Prepared) -> Sequence[Sequence[Rollout]]:
    return generated(play, one)


def failing(one: Prepared) -> Sequence[bool]:
    (group,) = generated(FAILING_PLAY, one)
    return [rollout.reward is None for rollout in group]


if __name__ == "__main__":
    report(play, failing)
