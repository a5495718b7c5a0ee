from __future__ import annotations

import re

from assay.training.config import load_config
from assay.training.plan import describe


def test_plan_counts_problems_rollouts_steps_and_samples() -> None:
    overrides = [
        "model_name=scratch",
        "lora_rank=0",
        "learning_rate=5e-4",
        "dataset_builder=chess",
        "num_substeps=2",
        "sft.num_steps=1500",
        "eval_every=50",
        "save_every=20",
        "log_path=runs/x",
    ]
    text = describe(load_config(None, overrides), num_batches=200, heldout_tasks=200)
    assert "a gpt2 transformer from scratch (3 layers of width 128), training all weights" in text
    assert "SFT: 1,500 supervised steps of 32 examples, learning rate up to 0.002." in text
    assert (
        "RL: 200 batches of 16 problems x 16 rollouts = 256 samples, 2 optimizer steps each at 0.0005 "
        "(51,200 samples in all). Loss: importance_sampling." in text
    )
    assert "Held-out: 200 tasks x 4 samples before RL, every 50 batches and at the end." in text
    assert (
        "Checkpoints: at the start, every 100 supervised steps, after SFT, every 20 batches and at the end, in runs/x."
        in text
    )


def test_plan_leaves_out_what_will_not_happen() -> None:
    text = describe(load_config(None, ["eval_every=0", "eval.max_tasks=50"]), num_batches=1, heldout_tasks=200)
    assert "SFT" not in text
    assert "LoRA adapters of rank 32" in text
    assert "RL: 1 batch of" in text
    assert "Held-out: 50 tasks x 4 samples before RL and at the end." in text
    assert "no evaluation" in describe(load_config(None), num_batches=1, heldout_tasks=0)


def test_plan_names_what_changes_the_objective() -> None:
    overrides = [
        "mode=multi_turn",
        "max_turns=3",
        "loss_fn=ppo",
        "loss_fn_config.clip_high_threshold=1.3",
        "kl_penalty_coef=0.1",
        "normalize_advantages_by_std=true",
        "temperature=0.8",
        "dynamic_sampling_rounds=2",
    ]
    text = describe(load_config(None, overrides), num_batches=2, heldout_tasks=4)
    assert "rollouts of up to 3 turns" in text
    assert (
        "Loss: ppo, clip_high_threshold=1.3, advantages divided by their group's standard deviation, KL penalty 0.1 "
        "(k2 in the loss), groups of equal rewards replaced up to 2 times, temperature 0.8." in text
    )


def test_plan_counts_passes_and_says_what_adapts() -> None:
    overrides = [
        "loss_fn=dapo",
        "rollout_epochs=3",
        "num_substeps=2",
        "kl_penalty_coef=0.1",
        "grpo.kl_target=0.05",
        "grpo.entropy_coef=0.01",
        "max_steps_off_policy=2",
    ]
    text = describe(load_config(None, overrides), num_batches=2, heldout_tasks=4)
    assert "2 optimizer steps in each of 3 passes at 0.0001" in text
    assert (
        "Loss: dapo, advantages divided by their group's standard deviation, KL penalty 0.1 (k2 in the loss, adapted "
        "to 0.05), entropy bonus 0.01, batches sampled 2 steps ahead." in text
    )


def test_plan_says_the_largest_learning_rate_that_is_reached() -> None:
    def text(*changes: str, batches: int = 200) -> str:
        return describe(load_config(None, ["learning_rate=0.003", *changes]), num_batches=batches, heldout_tasks=0)

    assert "each at 0.003 (" in text()
    short = text("optimizer.lr_warmup_steps=5000")
    assert "each at up to 0.00012 of learning_rate=0.003, rising over 5,000 batches, (" in short
    assert "each at up to 0.003, falling to 0 (cosine), (" in text("optimizer.lr_schedule=cosine")
    both = text("optimizer.lr_schedule=linear", "optimizer.lr_warmup_steps=100")
    assert re.search(
        r"up to 0.0015\d of learning_rate=0.003, rising over 100 batches and falling to 0 \(linear\), \(", both
    )


def test_plan_says_that_the_parity_gate_is_off() -> None:
    assert "Parity gate" not in describe(load_config(None), num_batches=1, heldout_tasks=0)
    off = describe(load_config(None, ["grpo.parity.enabled=false"]), num_batches=1, heldout_tasks=0)
    assert off.splitlines()[-1].startswith("Parity gate: OFF (grpo.parity.enabled=false).")


def notes(*changes: str, batches: int = 40) -> str:
    text = describe(load_config(None, changes), num_batches=batches, heldout_tasks=9)
    return "\n".join(line for line in text.splitlines() if line.startswith("Note: "))


def test_plan_notes_what_hardly_does_what_is_wanted() -> None:
    assert notes() == notes("keep_best=1") == notes("max_batches=0", "sft.num_steps=3", batches=0) == ""
    assert "Note: nothing is trained" in notes("max_batches=0", batches=0)
    k1 = notes("kl_penalty_coef=0.1", "grpo.kl_estimator=k1")
    assert "grpo.kl_estimator=k1 in the loss regularises nothing" in k1 and "Set grpo.kl_estimator=k2" in k1
    for never in (("eval_every=7",), ("eval_every=0",), ("save_every=33", "eval_every=22")):
        assert "keep_best=2 compares only the checkpoints at the start and the end" in notes("keep_best=2", *never)
    assert notes("keep_best=2", "eval_every=7", "best_metric=reward/mean") == ""
