"""Data and models that cannot be trained on: refused with what, why and the cure, and nothing is changed by it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import chz
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from assay import GRPOConfig, GRPOTrainer, HealthConfig, Rollout, RolloutGroup, StepData
from assay.errors import AssayError, DataError, ModelError, TrainingError
from support.off_policy import MADE_UP
from support.own_rollouts import adapted, changed, made_up, same, snapshot
from support.tiny_models import CONTEXT, VOCAB, tiny_model

# Without a penalty no log-probability is computed before the first optimizer step, so nothing is found by chance.
SAMPLED = GRPOConfig(
    kl_coef=0.0, learning_rate=1e-2, num_substeps=4, health=HealthConfig(actions={"mismatch": "ignore"})
)
PLAIN = chz.replace(SAMPLED, parity=MADE_UP)
GOOD = Rollout([5, 6], 1.0, [-1.0, -2.0])
OTHER = Rollout([7], 0.0, [-1.5])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def with_rollout(**changes: Any) -> RolloutGroup:
    """A good group of which one rollout is changed."""
    return RolloutGroup([3, 4], [OTHER, replace(GOOD, **changes)])


def state(trainer: GRPOTrainer, model: Any) -> tuple[Any, ...]:
    """Everything that a refused step must leave as it is."""
    groups = [(g.id, g.uses) for g in trainer.buffer.fresh]
    moments = copy.deepcopy(trainer.backend._optimizer.state_dict()["state"])  # type: ignore[attr-defined]
    counters = (trainer.steps, trainer.kl_coef, trainer.buffer.added, trainer.backend.policy_version)
    return snapshot(model), groups, counters, trainer.health.state(), str(moments)


def assert_untouched(before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    assert same(before[0], after[0]), "weights"
    assert before[1:] == after[1:]


NAN, INF = float("nan"), float("inf")
BAD: dict[str, tuple[RolloutGroup, str]] = {
    "nan reward": (with_rollout(reward=NAN), "Rollout 1 of group 4 has reward nan.*None where it is unknown"),
    "infinite reward": (with_rollout(reward=-INF), "Rollout 1 of group 4 has reward -inf"),
    "huge reward": (with_rollout(reward=1e300), "Rollout 1 of group 4 has reward 1e.300.*at most 1e.15"),
    "nan part": (with_rollout(parts={"form": NAN}), "Rollout 1 of group 4 has form=nan among the parts"),
    "text as a prompt": (replace(with_rollout(), prompt="hi"), "The prompt of group 4 is 'hi', and not .* token ids"),
    "text as tokens": (with_rollout(tokens="hi"), "Rollout 1 of group 4 is 'hi', and not a sequence of token ids"),
    "texts as tokens": (with_rollout(tokens=["h", "i"]), r"Rollout 1 of group 4 is \['h', 'i'\], and not"),
    "version to come": (
        replace(with_rollout(), policy_version=99),
        "Group 4 has policy_version=99, .* at version [0-9]+: ",
    ),
    "version before all": (replace(with_rollout(), policy_version=-5), "Group 4 has policy_version=-5.* from 0 to"),
    "half a version": (replace(with_rollout(), policy_version=0.5), "Group 4 has policy_version=0.5"),
    "nan log-prob": (with_rollout(logprobs=[-1.0, NAN]), "Rollout 1 of group 4 has nan among its logprobs"),
    "infinite log-prob": (with_rollout(logprobs=[-INF, -1.0]), "has -inf among its logprobs; .* finite and at most 0"),
    "positive log-prob": (with_rollout(logprobs=[0.5, -1.0]), "has 0.5 among its logprobs; .* finite and at most 0"),
    "nan ref log-prob": (with_rollout(ref_logprobs=[NAN, -1.0]), "has nan among its ref_logprobs"),
    "positive ref log-prob": (with_rollout(ref_logprobs=[-1.0, 2.0]), "has 2.0 among its ref_logprobs"),
    "too few log-probs": (with_rollout(logprobs=[-1.0]), "has 2 tokens and 1 logprobs; give one for each"),
    "too many log-probs": (with_rollout(logprobs=[-1.0] * 3), "has 2 tokens and 3 logprobs; give one for each"),
    "too few ref log-probs": (with_rollout(ref_logprobs=[-1.0]), "has 2 tokens and 1 ref_logprobs"),
    "some without log-probs": (with_rollout(logprobs=None), "Some rollouts .* have none.*Give them for all .*or for"),
    "empty prompt": (replace(with_rollout(), prompt=[]), "Group 4 has an empty prompt.*Give at least one token"),
    "unknown token": (with_rollout(tokens=[5, VOCAB]), f"Rollout 1 of group 4 has token {VOCAB}, .*0 to {VOCAB - 1}"),
    "negative token": (with_rollout(tokens=[-100, 5]), "Rollout 1 of group 4 has token -100.*padding"),
    "unknown prompt token": (replace(with_rollout(), prompt=[999]), "The prompt of group 4 has token 999"),
    "too long": (
        with_rollout(tokens=[5] * CONTEXT, logprobs=[-1.0] * CONTEXT),
        rf"Rollout 1 of group 4 has {CONTEXT + 2} tokens with its prompt, .*context is {CONTEXT}\. Sample shorter",
    ),
}


@pytest.fixture(scope="module")
def trained() -> tuple[GRPOTrainer, Any, StepData]:
    """A trainer that has done a step and refuses what it is given, its model, and the data of that step."""
    torch.set_num_threads(1)
    model = tiny_model("gpt2")
    trainer = GRPOTrainer(model, None, PLAIN)
    good = made_up(model, size=2)
    trainer.training_step_with_rollout_epochs(good)
    return trainer, model, good


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_refused_and_change_nothing(
    trained: tuple[GRPOTrainer, Any, StepData], case: str, epochs: bool
) -> None:
    group, message = BAD[case]
    trainer, model, good = trained
    before = state(trainer, model)
    step = trainer.training_step_with_rollout_epochs if epochs else trainer.training_step
    with pytest.raises(DataError, match=f"(?s){message}"):
        step(StepData([*good.groups, group]))
    assert_untouched(before, state(trainer, model))


@pytest.mark.parametrize("epochs", [False, True])
def test_a_trainer_that_refused_a_step_does_the_next(epochs: bool) -> None:
    model = tiny_model("gpt2")
    trainer = GRPOTrainer(model, None, PLAIN)
    good = made_up(model, size=2)
    trainer.training_step_with_rollout_epochs(good)
    step = trainer.training_step_with_rollout_epochs if epochs else trainer.training_step
    for group, _ in BAD.values():
        with pytest.raises(DataError):
            step(StepData([*good.groups, group]))
    assert step(good)["optimizer_steps"] == (8 if epochs else 4)


def test_a_step_without_groups_is_refused() -> None:
    model = tiny_model("gpt2")
    trainer = GRPOTrainer(model, None, PLAIN)
    before = state(trainer, model)
    for empty in (StepData([]), []):
        with pytest.raises(DataError, match=r"no groups, so there is nothing to train on\. Give at least one"):
            trainer.training_step(empty)
        with pytest.raises(DataError, match="no groups"):
            trainer.training_step_with_rollout_epochs(empty)
    with pytest.raises(TrainingError, match="needs new rollouts, and none were given"):
        trainer.training_step_with_rollout_epochs()
    assert_untouched(before, state(trainer, model))


TEACHES_NOTHING = {
    "no rollouts": RolloutGroup([3], []),
    "one rollout": RolloutGroup([3], [GOOD]),
    "all missing": RolloutGroup([3], [None, None]),
    "all without a reward": RolloutGroup([3], [replace(GOOD, reward=None)] * 2),
    "one with a reward": RolloutGroup([3], [replace(GOOD, reward=None), GOOD]),
    "equal rewards": RolloutGroup([3], [GOOD, replace(OTHER, reward=1.0)]),
    "only empty completions": RolloutGroup([3], [Rollout([], 0.0, []), Rollout([], 1.0, [])]),
}


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("case", TEACHES_NOTHING)
def test_a_group_that_teaches_nothing_is_tolerated_and_moves_nothing(case: str, remove: bool) -> None:
    model = tiny_model("gpt2")
    trainer = GRPOTrainer(model, None, chz.replace(PLAIN, remove_constant_reward_groups=remove))
    before = snapshot(model)
    for step in (trainer.training_step, trainer.training_step_with_rollout_epochs):
        metrics = step([TEACHES_NOTHING[case]])
        assert metrics["optimizer_steps"] == 0
        assert metrics["rollout/constant_group_fraction"] == (0 if case == "only empty completions" else 1)
    assert same(before, snapshot(model)) and trainer.steps == 2


def test_a_group_that_teaches_nothing_does_not_change_what_others_teach() -> None:
    alone, beside = tiny_model("gpt2"), tiny_model("gpt2")
    good = made_up(alone)
    # Where it counts in the divisor, it scales the gradient: tests/grpo/test_loss_invariances.py.
    one = chz.replace(PLAIN, num_substeps=1, count_constant_groups=False)
    GRPOTrainer(alone, None, one).training_step(good)
    GRPOTrainer(beside, None, one).training_step([*TEACHES_NOTHING.values(), *good.groups])
    assert same(snapshot(alone), snapshot(beside))


def test_an_empty_completion_counts_in_its_groups_baseline_and_trains_nothing() -> None:
    models = [tiny_model("gpt2") for _ in range(2)]
    groups = [RolloutGroup([3], [GOOD, OTHER, Rollout([], r, [])]) for r in (0.0, 10.0)]
    metrics = [GRPOTrainer(m, None, PLAIN).training_step([g]) for m, g in zip(models, groups, strict=True)]
    assert metrics[0]["tokens"] == metrics[1]["tokens"] == 3
    assert metrics[0]["fraction_positive_advantages"] > 0 == metrics[1]["fraction_positive_advantages"]


# Padded arrays


def padded(**changes: Any) -> StepData:
    arrays: dict[str, Any] = {
        "input_ids": np.array([[3, 5, 6, 0], [3, 7, 0, 0]]),
        "attention_mask": np.array([[1, 1, 1, 0], [1, 1, 0, 0]]),
        "prompt_lengths": np.array([1, 1]),
        "rewards": np.array([0.0, 1.0]),
        "group_ids": np.array([0, 0]),
    }
    return StepData.from_padded(**(arrays | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_mask": np.ones((2, 3))}, r"attention_mask has shape \(2, 3\) and input_ids \(2, 4\)"),
        ({"input_ids": np.array([3, 5])}, "input_ids must have 2 dimensions; its shape is"),
        ({"rewards": np.array([0.0])}, "rewards has 1 entries for 2 sequences; give one for each"),
        ({"rewards": np.array([[0.0], [1.0]])}, "rewards must have 1 dimension; its shape is"),
        ({"group_ids": [0, 0, 0]}, "group_ids has 3 entries for 2 sequences"),
        ({"tasks": ["P"]}, "tasks has 1 entries for 2 sequences"),
        ({"truncated": [True]}, "truncated has 1 entries for 2"),
        ({"logprobs": np.zeros((2, 3))}, r"logprobs has shape \(2, 3\); it must be that of input_ids, \(2, 4\)"),
        ({"ref_logprobs": np.zeros((1, 4))}, r"ref_logprobs has shape \(1, 4\)"),
        ({"prompt_lengths": [0, 1]}, r"prompt_lengths\[0\]=0 of a sequence of 3 tokens; a prompt has at least 1"),
        ({"prompt_lengths": [1, 3]}, r"prompt_lengths\[1\]=3 of a sequence of 2 tokens"),
        ({"prompt_lengths": [2, 1]}, "Group 0 has sequences of different prompts.*a group id of its own"),
        ({"tasks": ["P", "A"]}, "Group 0 has sequences of different prompts or tasks"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(changes: dict[str, Any], message: str) -> None:
    assert len(padded().groups[0].rollouts) == 2
    with pytest.raises(DataError, match=message):
        padded(**changes)


# Models


def frozen() -> Any:
    model = tiny_model("gpt2")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def other_vocabulary() -> Any:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **shape))


def refreshing(mix: float = 1.0) -> GRPOConfig:
    return GRPOConfig(ref_refresh_every=1, ref_refresh_mix=mix)


def below_adapters() -> tuple[Any, Any]:
    model = adapted("llama")
    return model, model.get_base_model()


def same_twice() -> tuple[Any, Any]:
    model = tiny_model("gpt2")
    return model, model


MODELS: dict[str, tuple[Callable[[], tuple[Any, Any]], GRPOConfig, str]] = {
    "nothing trained": (lambda: (frozen(), None), GRPOConfig(), "No parameter .* requires a gradient.*Unfreeze it"),
    "itself": (same_twice, GRPOConfig(), "ref_model is the model itself.*Give a copy"),
    "below its adapters": (below_adapters, GRPOConfig(), "shares trained weights with the model.*Give None"),
    "never asked": (
        lambda: (tiny_model("gpt2"), tiny_model("gpt2")),
        GRPOConfig(kl_coef=0.0),
        "with kl_coef=0 it is never used. Set kl_coef, or leave ref_model out",
    ),
    "other vocabulary": (
        lambda: (tiny_model("gpt2"), other_vocabulary()),
        GRPOConfig(),
        f"reference model knows 50 tokens and the policy {VOCAB}.*Give a reference with the policy's tokenizer",
    ),
    "refresh of another architecture": (
        lambda: (tiny_model("llama"), tiny_model("gpt2")),
        refreshing(),
        "has other weights than the policy.*turn the refresh off",
    ),
    "mixed adapters": (lambda: (adapted("llama"), None), refreshing(0.5), "cannot be mixed.*Set ref_refresh_mix=1"),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_that_do_not_fit_are_refused_before_training(case: str) -> None:
    make, config, message = MODELS[case]
    model, reference = make()
    before = snapshot(model)
    wants = [p.requires_grad for p in model.parameters()]
    with pytest.raises(ModelError, match=f"(?s){message}"):
        GRPOTrainer(model, reference, config)
    assert same(before, snapshot(model)) and wants == [p.requires_grad for p in model.parameters()]


def test_a_reference_with_a_shorter_context_is_refused_before_the_step() -> None:
    model = tiny_model("llama")
    trainer = GRPOTrainer(model, tiny_model("gpt2"), GRPOConfig(learning_rate=1e-2))
    before = state(trainer, model)
    long = Rollout([5] * (CONTEXT + 5), 1.0)
    with pytest.raises(AssayError, match=f"context is {CONTEXT}"):
        trainer.training_step_with_rollout_epochs([RolloutGroup([3], [long, Rollout([6], 0.0)])])
    assert_untouched(before, state(trainer, model))


@pytest.mark.parametrize("epochs", [False, True])
def test_rollouts_of_another_sampler_are_refused(epochs: bool) -> None:
    model = tiny_model("llama")
    trainer = GRPOTrainer(model, None, chz.replace(SAMPLED, num_substeps=1))
    step = trainer.training_step_with_rollout_epochs if epochs else trainer.training_step
    assert step(made_up(model))["optimizer_steps"] > 0
    before, held = snapshot(model), trainer.buffer.fresh
    other = changed(model)
    with pytest.raises(TrainingError, match=r"not sampled by the policy.* KL of .*limit 0\.02.*tis_cap=2.*Nothing was"):
        step(made_up(other))
    assert same(before, snapshot(model)) and trainer.buffer.fresh == held
    assert all(p.grad is None for p in model.parameters()), "no gradient is left"
    assert step(made_up(model))["optimizer_steps"] > 0, "nothing of the refused rollouts is left"


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "typo in a choice": ({"kl_placement": "rewards"}, "kl_placement='rewards': expected one of loss, reward. Did you"),
    "typo in the loss": ({"loss_fn": "gpro"}, "loss_fn=gpro: looked for a loss of this name among .*Did you mean"),
    "fraction of a step": ({"num_substeps": 1.5}, "num_substeps=1.5: expected a whole number"),
    "text for a number": ({"learning_rate": "1e-5"}, "learning_rate='1e-5': expected a number"),
    "nan": ({"kl_coef": NAN}, "kl_coef=nan"),
    "infinite": ({"learning_rate": INF}, "learning_rate=inf"),
    "no length": ({"loss_fn": "dr_grpo"}, "Set constant_length to the generation limit"),
    "idle length": ({"constant_length": 8}, "constant_length is set but loss_fn=grpo.*remove"),
    "target without penalty": (
        {"kl_coef": 0.0, "kl_target": 0.1},
        "read only when there is a KL penalty.*Raise kl_coef, or remove",
    ),
    "refresh without penalty": ({"kl_coef": 0.0, "ref_refresh_every": 2}, "ref_refresh_every=2 is set, but .*remove"),
    "unbiased in the reward": ({"kl_unbiased": True, "kl_placement": "reward"}, "Set kl_placement=loss, or remove"),
    "unbiased abs": ({"kl_unbiased": True, "kl_estimator": "abs"}, "Use k1, k2 or k3"),
    "discount in the loss": ({"kl_discount_factor": 0.5}, "Set kl_placement=reward"),
    "controller without target": ({"kl_controller": "ziegler"}, "kl_target=null.*Set kl_target, or remove"),
    "horizon without ziegler": ({"kl_horizon": 5, "kl_target": 0.1}, "kl_horizon=5 is set.* kl_controller is ziegler"),
    "mix without refresh": ({"ref_refresh_mix": 0.5}, "read only when ref_refresh_every is above 0"),
    "threshold of another loss": (
        {"loss_fn": "rloo", "constant_length": 4, "loss_fn_config": {"clip": 1}},
        "sets clip",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_settings_that_cannot_work_are_refused_with_the_cure(case: str) -> None:
    changes, message = IMPOSSIBLE[case]
    with pytest.raises(ValueError, match=f"(?s){message}") as caught:
        GRPOConfig(**changes)
    assert isinstance(caught.value, AssayError)
