"""TRL's real `GRPOTrainer` takes two steps with our reward function, and with a whole environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.integrations.common.scoring import close_all
from assay.integrations.environments import close_environments, prepared
from assay.integrations.trl import reward_func
from assay.integrations.trl_environment import TRLEnvironment
from support.hosts import PLAYS, bytes_tokenizer

LOCAL = "support.host_rewards:ShareOfWords"


@pytest.fixture(autouse=True)
def engines_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    close_all()
    close_environments()


def test_a_reward_function_trains(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = ("[PAD]", "[UNK]", "[EOS]", "a", "b", "c", "BROKEN")
    model_of_words = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    model_of_words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model_of_words, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]"
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **shape, pad_token_id=0, eos_token_id=2))
    before = model.lm_head.weight.detach().clone()
    data = Dataset.from_list([{"prompt": text, "ground_truth": "a b"} for text in ("a", "b", "c", "a b")])
    config = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        learning_rate=0.1,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model, reward_funcs=reward_func(LOCAL), args=config, train_dataset=data, processing_class=tokenizer
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logs) == 2
    assert all(0 <= entry["rewards/words/mean"] <= 1 for entry in logs)
    assert "rewards/words/found" in logs[0] and "rewards/words/errored" in logs[0]
    assert not torch.equal(before, model.lm_head.weight)


def test_an_environment_trains(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = bytes_tokenizer()
    play = PLAYS["guess"]
    env = TRLEnvironment(prepared(None, [*play.settings[:1], "max_tokens=3"], tokenizer))
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **shape, **ids))
    before = model.lm_head.weight.detach().clone()
    config = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=8,
        learning_rate=0.1,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    seen: list[list[float | None]] = []

    def rewarded(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        rewards = env.reward_func(prompts, completions, **columns)
        # Random digits are seldom right: a rollout is marked, so that the weights must move, and one is not scored.
        marked = [float(place % 4 == 1) if reward is not None else None for place, reward in enumerate(rewards)]
        seen.append([None if place == 0 else reward for place, reward in enumerate(marked)])
        return seen[-1]

    trainer = GRPOTrainer(
        model,
        reward_funcs=rewarded,
        rollout_func=env.rollout_func,
        args=config,
        train_dataset=env.dataset("train"),
        processing_class=tokenizer,
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logs) == 2 and len(seen) == 2
    assert all(entry["assay/errored"] == 0 and 1 <= entry["assay/turns"] <= 3 for entry in logs)
    assert all(entry["reward"] == pytest.approx(2 / 7) for entry in logs), "None is in no mean"
    assert not torch.equal(before, model.lm_head.weight)
