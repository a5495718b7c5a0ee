"""`GRPOTrainer(model, ref_model, config)` as a user has it: their own model, their own rollouts, blocking calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import chz
import numpy as np
import peft
import pytest
import torch

from assay import GRPOConfig, GRPOTrainer, HealthConfig, Rollout, RolloutBuffer, RolloutGroup, StepData
from assay.backends.local.backend import TorchBackend
from assay.errors import CheckpointError, HealthError, TrainingError
from support.off_policy import MADE_UP
from support.own_rollouts import adapted, changed, logprobs, made_up, pairs, same, sampled, share_low, snapshot
from support.tiny_models import CONFIGS, VOCAB, tiny_model

SPEC = GRPOConfig(kl_estimator="kl3", kl_coef=0.01, kl_target=0.05, learning_rate=1e-2, parity=MADE_UP)
ALWAYS = HealthConfig(actions={"mismatch": "ignore", "kl_runaway": "ignore"})
AGAIN = chz.replace(SPEC, health=ALWAYS)
"""For tests that train on the same rollouts again and again, as if the present policy had sampled them."""
SPEC_METRICS = [
    *("reward/mean", "reward/std", "reward/min", "reward/max", "reward_25pct", "reward_75pct"),
    *("kl_div", "kl_div_5pct", "kl_div_95pct", "kl_coef", "kl_loss", "loss", "fraction_clipped", "approx_entropy"),
    *("entropy", "logprob_ratio_min", "logprob_ratio_max", "fraction_positive_advantages", "grad_norm", "nan_skip"),
    *("learning_rate", "groups", "optimizer_steps", "rollout/constant_group_fraction"),
    *("rollout/truncated_fraction", "rollout/errored_fraction"),
    *("tag/P/count", "tag/A/count", "tag/P/reward", "tag/A/reward_25pct", "tag/A/reward_75pct"),
]
BUFFER_METRICS = ["rollout_buffer_size", "rollouts_fresh_fraction", "rollouts_reused", "rollouts_stale"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def k3(data: StepData, policy: Any, reference: Any) -> float:
    """The mean KL estimate by two forward passes of the models themselves."""
    asked = list(pairs(data))
    base, now = ([logprobs(m, prompt, r.tokens) for prompt, r in asked] for m in (reference, policy))
    gap = np.concatenate(base) - np.concatenate(now)
    return float(np.mean(np.expm1(gap) - gap))


def count_reference_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences that the reference is asked about from now on, call by call."""
    asked: list[int] = []
    original = TorchBackend.logprobs

    async def logprobs(self: TorchBackend, data: Sequence[Any], **settings: Any) -> Any:
        if settings.get("reference"):
            asked.append(len(data))
        return await original(self, data, **settings)

    monkeypatch.setattr(TorchBackend, "logprobs", logprobs)
    return asked


# Any architecture


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("make", [tiny_model, adapted])
def test_a_step_trains_the_callers_model_in_place(make: Any, name: str) -> None:
    model = make(name).train()
    trainer = GRPOTrainer(model, None, SPEC)
    data = made_up(model)
    before = snapshot(model)
    metrics = trainer.training_step(data)
    after = snapshot(model)
    assert metrics["optimizer_steps"] == 1 and metrics["groups"] == 4
    assert metrics["ratio_error"] < 1e-4, "trainer and the model's own forward pass must agree"
    assert all(np.isfinite(value) for value in metrics.values())
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert {n for n in after if not torch.equal(after[n], before[n])} <= trained
    moved = sum(not torch.equal(after[n], before[n]) for n in trained)
    assert moved > 0.8 * len(trained), "almost every trained tensor has a part in the completions"
    assert not model.training


@pytest.mark.parametrize(
    ("make", "policy", "reference"),
    [
        (tiny_model, "llama", "llama"),
        (tiny_model, "gpt_neox", "gpt2"),
        (adapted, "gpt2", "qwen3"),
        (adapted, "qwen2", "gpt_bigcode"),
    ],
)
def test_a_reference_of_its_own_may_have_any_architecture(make: Any, policy: str, reference: str) -> None:
    model, ref_model = make(policy), changed(tiny_model(reference))
    kept = snapshot(ref_model)
    data = made_up(model)
    expected = k3(data, model, ref_model)
    trainer = GRPOTrainer(model, ref_model, AGAIN)
    metrics = trainer.training_step_with_rollout_epochs(data)
    first = trainer.training_step(data)["kl_div"]
    assert metrics["optimizer_steps"] == 2 and expected > 0.1
    assert GRPOTrainer(make(policy), ref_model, AGAIN).training_step(data)["kl_div"] == pytest.approx(
        expected, rel=1e-4
    )
    assert first != pytest.approx(expected, rel=1e-4), "the policy has moved since"
    assert same(snapshot(ref_model), kept)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("make", [tiny_model, adapted])
def test_without_a_reference_a_model_is_held_to_where_it_started(make: Any, name: str) -> None:
    model, start = make(name), make(name)
    trainer = GRPOTrainer(model, None, AGAIN)
    data = made_up(model)
    assert trainer.training_step(data)["kl_div"] < 1e-9
    trainer.training_step(data)
    expected = k3(data, model, start)
    assert expected > 1e-3
    assert trainer.training_step(data)["kl_div"] == pytest.approx(expected, rel=1e-3)


def test_the_reference_is_not_asked_about_what_the_caller_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = changed(tiny_model("llama"))
    data = made_up(tiny_model("llama"))
    known = StepData(
        [
            replace(g, rollouts=[replace(r, ref_logprobs=logprobs(reference, g.prompt, r.tokens)) for r in g.rollouts])
            for g in data.groups
        ]
    )
    asked = count_reference_calls(monkeypatch)
    models = [tiny_model("llama") for _ in range(2)]
    own, given = (GRPOTrainer(m, reference, AGAIN) for m in models)
    by_trainer = own.training_step_with_rollout_epochs(data)
    assert asked == [16], "one call for the step, though every rollout is used twice"
    by_caller = given.training_step_with_rollout_epochs(known)
    assert asked == [16]
    assert by_caller["kl_div"] == pytest.approx(by_trainer["kl_div"], rel=1e-4)
    partly = StepData([data.groups[0], *known.groups[1:]])
    assert given.training_step(partly)["optimizer_steps"] == 1
    assert asked == [16, 4], "only the group that came without"


def test_no_penalty_needs_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_reference_calls(monkeypatch)
    metrics = GRPOTrainer(tiny_model("llama"), None, GRPOConfig(kl_coef=0)).training_step(made_up())
    assert not asked and "kl_div" not in metrics


# Forms of data


def padded(data: StepData, side: str, convert: Any) -> StepData:
    """The same rollouts in padded matrices, with garbage under the padding."""
    rows = [(g, group, r) for g, group in enumerate(data.groups) for r in group.rollouts if r is not None]
    width = max(len(group.prompt) + len(r.tokens) for _, group, r in rows) + 2
    ids = np.full((len(rows), width), 999)
    mask = np.zeros((len(rows), width), np.int64)
    known = np.full((len(rows), width), np.nan, np.float32)
    for i, (_, group, r) in enumerate(rows):
        count = len(group.prompt) + len(r.tokens)
        place = slice(width - count, width) if side == "left" else slice(0, count)
        ids[i, place], mask[i, place] = [*group.prompt, *r.tokens], 1
        if r.logprobs is not None:
            known[i, place] = [*[7.0] * len(group.prompt), *r.logprobs]
    return StepData.from_padded(
        convert(ids),
        convert(mask),
        convert(np.array([len(group.prompt) for _, group, _ in rows])),
        convert(np.array([np.nan if r.reward is None else r.reward for _, _, r in rows])),
        [f"group {g}" for g, _, _ in rows],
        logprobs=convert(known),
        scored=convert(np.array([r.reward is not None for _, _, r in rows])),
        tasks=[group.task for _, group, _ in rows],
    )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy, lambda a: a.tolist()])
def test_padded_arrays_are_the_same_data(side: str, convert: Any) -> None:
    model, other = tiny_model("qwen3"), tiny_model("qwen3")
    data = made_up(model)
    first, *others = data.groups
    unscored = replace(first, rollouts=[*first.rollouts[1:], replace(first.rollouts[0], reward=None)])
    data = StepData([unscored, *others])
    expected = GRPOTrainer(model, None, SPEC).training_step(data)
    found = GRPOTrainer(other, None, SPEC).training_step(padded(data, side, convert))
    same_parts = {name: value for name, value in expected.items() if not name.startswith("part/")}
    assert found == pytest.approx(same_parts, rel=1e-6, abs=1e-9)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_log_probabilities_may_come_in_half_precision() -> None:
    data = StepData.from_padded(
        torch.tensor([[5, 6, 7], [5, 8, 9]]), torch.ones(2, 3), torch.tensor([1, 1]), torch.tensor([0.0, 1.0]),
        [0, 0], logprobs=torch.full((2, 3), -1.5, dtype=torch.bfloat16),
    )  # fmt: skip
    assert [r.logprobs for g in data.groups for r in g.rollouts if r] == [[-1.5, -1.5]] * 2


def test_missing_members_and_missing_rewards_leave_the_group_without_them() -> None:
    models = [tiny_model("gpt2") for _ in range(3)]
    first, *others = made_up(models[0]).groups
    absent = replace(first, rollouts=[None, *first.rollouts[1:]])
    unscored = replace(first, rollouts=[replace(first.rollouts[0], reward=None), *first.rollouts[1:]])
    fewer = replace(first, rollouts=first.rollouts[1:])
    metrics = [
        GRPOTrainer(m, None, SPEC).training_step([g, *others])
        for m, g in zip(models, (absent, unscored, fewer), strict=True)
    ]
    assert same(snapshot(models[0]), snapshot(models[1])) and same(snapshot(models[0]), snapshot(models[2]))
    assert [m["rollout/errored_fraction"] for m in metrics] == [0, 1 / 16, 0]
    assert metrics[0]["reward/mean"] == metrics[1]["reward/mean"] == metrics[2]["reward/mean"]


def test_without_log_probabilities_the_present_policy_is_the_sampler() -> None:
    known, unknown = tiny_model("llama"), tiny_model("llama")
    with_them = GRPOTrainer(known, None, SPEC).training_step_with_rollout_epochs(made_up(known))
    without = GRPOTrainer(unknown, None, SPEC).training_step_with_rollout_epochs(made_up())
    assert without == pytest.approx(with_them, rel=1e-3, abs=1e-4)
    assert with_them["kl_behaviour"] > 0, "the second pass is off-policy either way"


def test_calls_block_also_inside_a_running_event_loop() -> None:
    async def notebook() -> dict[str, float]:
        trainer = GRPOTrainer(tiny_model("llama"), None, SPEC)
        trainer.training_step(made_up())
        return trainer.training_step_with_rollout_epochs(made_up(seed=1))

    outside = GRPOTrainer(tiny_model("llama"), None, SPEC)
    outside.training_step(made_up())
    assert asyncio.run(notebook()) == outside.training_step_with_rollout_epochs(made_up(seed=1))


# Precision and memory


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_half_precision_weights_become_float32_and_a_warning_says_so(
    name: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(name).to(dtype)
    trainer = GRPOTrainer(model, None, SPEC)
    assert "Trained weights in half precision become float32" in caplog.text
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    before = snapshot(model)
    metrics = trainer.training_step(made_up())
    assert metrics["kl_div"] == 0, "policy and reference compute alike"
    assert not same(before, snapshot(model))


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_the_warning_on_half_precision_says_what_computes_and_how_to_sample_alike(
    dtype: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model("llama").to(torch.float16)
    trainer = GRPOTrainer(model, None, GRPOConfig(dtype=dtype, learning_rate=0.0))
    if dtype == "auto":
        said = "compute in bfloat16, not in float16 as the model came. To sample with the same numbers, wrap your own"
        assert said in caplog.text and "torch.autocast('cpu', dtype=torch.bfloat16)" in caplog.text
    else:
        assert "compute in float32, not in float16" in caplog.text and "forward without autocast" in caplog.text
    computing = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "auto")
    other = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != "auto")
    with computing:
        alike = sampled(model, groups=4, size=4, length=6, seed=0)
    with other:
        otherwise = sampled(model, groups=4, size=4, length=6, seed=0)
    told, against = (trainer.training_step(data)["parity/tail"] for data in (alike, otherwise))
    assert told < against, "what the warning tells to do brings the two closer"


def test_a_step_that_half_precision_would_round_away_is_kept() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    trainer = GRPOTrainer(model, None, chz.replace(SPEC, learning_rate=1e-6, weight_decay=0.0))
    before = snapshot(model)
    trainer.training_step(made_up())
    moved = torch.cat([(p - before[n]).abs().flatten() for n, p in model.named_parameters()])
    assert 0 < moved.max() < 3e-6


def test_float32_models_warn_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    GRPOTrainer(tiny_model("llama"), None, SPEC).training_step(made_up())
    assert not caplog.records


@pytest.mark.parametrize("name", CONFIGS)
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    models = [tiny_model(name) for _ in range(2)]
    data = made_up(models[0])
    # A large eps makes the step proportional to the gradient.
    settings = chz.replace(SPEC, eps=1.0, weight_decay=0.0, grad_clip_norm=0.0)
    norms = [
        GRPOTrainer(m, None, chz.replace(settings, use_gradient_checkpointing=on)).training_step(data)["grad_norm"]
        for m, on in zip(models, (False, True), strict=True)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and norms[0] > 0.01
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_the_threads_of_the_process_are_the_callers() -> None:
    torch.set_num_threads(2)
    trainer = GRPOTrainer(tiny_model("gpt2"), None, SPEC)
    trainer.training_step(made_up())
    assert asyncio.run(trainer.backend._worker.run(torch.get_num_threads)) == 2  # type: ignore[attr-defined]
    assert torch.get_num_threads() == 2


# Metrics, health, learning


def test_the_metrics_of_the_specification_are_all_there() -> None:
    model = tiny_model("llama")
    trainer = GRPOTrainer(model, None, SPEC)
    single = trainer.training_step(made_up(model))
    epochs = trainer.training_step_with_rollout_epochs(made_up(model, seed=1))
    assert not set(SPEC_METRICS) - single.keys()
    assert not set(SPEC_METRICS + BUFFER_METRICS) - epochs.keys()
    data = [r.reward for _, r in pairs(made_up(model))]
    assert single["reward_25pct"] == pytest.approx(np.percentile(data, 25))
    assert single["reward_75pct"] == pytest.approx(np.percentile(data, 75))
    said = -np.mean(np.concatenate([logprobs(tiny_model("llama"), prompt, r.tokens) for prompt, r in pairs(made_up())]))
    assert single["approx_entropy"] == pytest.approx(said, rel=1e-4)
    assert 0 < single["entropy"] < np.log(VOCAB)
    assert epochs["rollouts_reused"] == 4 and epochs["optimizer_steps"] == 2
    assert isinstance(trainer.buffer, RolloutBuffer)


def test_a_report_comes_every_ten_steps(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "assay")
    trainer = GRPOTrainer(tiny_model("llama"), None, GRPOConfig(learning_rate=1e-5))
    for step in range(20):
        trainer.training_step(made_up(seed=step))
    reports = [r.message for r in caplog.records if r.message.startswith("health")]
    assert len(reports) == 2
    for wanted in ("10 steps", "task P", "task A", "clipped tokens", "KL to reference", "25/50/75 %"):
        assert wanted in reports[0]
    counts = [int(n) for line in reports[1].splitlines() if "counts" in line for n in line.split("counts")[1].split()]
    assert sum(counts) == 10 * 16, "the histograms are of the steps since the last report"


def test_no_reports_remember_no_rewards() -> None:
    trainer = GRPOTrainer(tiny_model("llama"), None, GRPOConfig(health=HealthConfig(report_every=0)))
    trainer.training_step(made_up())
    assert not trainer._rewards, "they would pile up for the whole run"


def test_an_alarm_ends_the_call_after_the_step_and_the_next_call_goes_on() -> None:
    model = tiny_model("llama")
    trainer = GRPOTrainer(model, None, SPEC)
    wrong = made_up(changed(tiny_model("llama"), 0.3))
    before = snapshot(model)
    with pytest.raises(HealthError, match=r"asks to pause.*sampler and trainer disagree") as caught:
        trainer.training_step(wrong)
    assert "mismatch" in {f.rule for f in caught.value.findings}  # type: ignore[attr-defined]
    assert caught.value.exit_code == 3 and trainer.steps == 1 and not same(before, snapshot(model))
    trainer.training_step(wrong)
    assert trainer.steps == 2


@pytest.mark.parametrize("epochs", [False, True])
def test_a_reward_rises(epochs: bool) -> None:
    model = tiny_model("llama")
    config = GRPOConfig(learning_rate=1e-2, kl_coef=0.001, health=HealthConfig(actions={"kl_runaway": "ignore"}))
    trainer = GRPOTrainer(model, None, config)
    step = trainer.training_step_with_rollout_epochs if epochs else trainer.training_step
    rewards = [step(sampled(model, groups=4, size=8, length=6, seed=s))["reward/mean"] for s in range(20)]
    assert np.mean(rewards[:3]) < 0.65 and np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2
    held_out = sampled(model, groups=16, size=2, length=6, seed=1000)
    assert np.mean([share_low(r.tokens) for _, r in pairs(held_out)]) > 0.75


# The buffer and checkpoints

KEEPS = chz.replace(
    SPEC, max_staleness=2, kl_target=1e-3, health=HealthConfig(report_every=3, actions={"mismatch": "ignore"})
)
"""Of `aged` rollouts, a fifth is left for the next call: after the first pass the others are too old."""


def aged(trainer: GRPOTrainer, seed: int = 0) -> StepData:
    """Four groups that the policy sampled two optimizer steps ago, and one of now."""
    while (now := trainer.policy_version) < 2:
        trainer.training_step(made_up(groups=2), learning_rate=0.0)
    groups = made_up(groups=5, seed=seed).groups
    return StepData([replace(g, policy_version=now - 2 * (i < 4)) for i, g in enumerate(groups)])


def test_leftover_groups_are_trained_on_with_the_next_rollouts() -> None:
    trainer = GRPOTrainer(tiny_model("llama"), None, KEEPS)
    assert trainer.needs_rollouts
    first = trainer.training_step_with_rollout_epochs(aged(trainer))
    assert first["optimizer_steps"] == 1 and first["rollout_buffer_size"] == 1 and first["rollouts_stale"] == 4
    assert trainer.needs_rollouts and first["rollouts_fresh_fraction"] == 0.2
    with pytest.raises(TrainingError, match="needs new rollouts, and none were given"):
        trainer.training_step_with_rollout_epochs()
    second = trainer.training_step_with_rollout_epochs(made_up(groups=5, seed=1))
    assert second["rollouts_reused"] == 1 + 5 and not len(trainer.buffer)


@pytest.mark.parametrize("make", [tiny_model, adapted])
def test_a_loaded_trainer_goes_on_bit_for_bit(make: Any, tmp_path: Path) -> None:
    config = chz.replace(KEEPS, ref_refresh_every=2)
    model = make("qwen3")
    trainer = GRPOTrainer(model, None, config)

    def go_on(trainer: GRPOTrainer) -> list[dict[str, float]]:
        return [trainer.training_step_with_rollout_epochs(aged(trainer, 10 + s)) for s in range(4)]

    for s in range(3):
        trainer.training_step_with_rollout_epochs(aged(trainer, s))
    assert len(trainer.buffer) and trainer.kl_coef != SPEC.kl_coef
    trainer.save(tmp_path / "saved")
    expected = go_on(trainer)

    fresh = make("qwen3")
    loaded = GRPOTrainer(fresh, None, config)
    loaded.load(tmp_path / "saved")
    loaded.save(tmp_path / "again")
    for file in ("trainer.json", "rollouts.npz", "reference.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "saved" / file).read_bytes()
    assert go_on(loaded) == expected
    assert same(snapshot(fresh), snapshot(model))
    assert loaded.health.state() == trainer.health.state() and loaded.kl_coef == trainer.kl_coef
    assert [g.id for g in loaded.buffer.fresh] == [g.id for g in trainer.buffer.fresh]


@pytest.mark.parametrize("reference", ["own", "start", "start of adapters", "base"])
def test_going_back_takes_the_reference_along(reference: str, tmp_path: Path) -> None:
    model = adapted("llama") if reference == "start of adapters" else tiny_model("llama")
    if reference == "base":
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    ref_model = changed(tiny_model("llama")) if reference == "own" else None
    trainer = GRPOTrainer(model, ref_model, chz.replace(AGAIN, ref_refresh_every=1, kl_target=None))
    trainer.save(tmp_path / "saved")
    data = made_up(model)
    expected = [trainer.training_step(data) for _ in range(3)]
    trainer.save(tmp_path / "later")
    after = trainer.training_step(data)
    trainer.load(tmp_path / "saved")
    assert [trainer.training_step(data) for _ in range(3)] == expected
    trainer.load(tmp_path / "saved")
    trainer.load(tmp_path / "later")
    assert trainer.training_step(data) == after


def test_a_checkpoint_is_never_written_over(tmp_path: Path) -> None:
    trainer = GRPOTrainer(tiny_model("gpt2"), None, SPEC)
    trainer.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"saved exists already.*Give a new path"):
        trainer.save(tmp_path / "saved")


@pytest.mark.parametrize("damage", ["none", "trainer.json", "empty state", "rollouts.npz", "other model"])
def test_a_directory_that_is_no_checkpoint_is_refused(damage: str, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    writer = GRPOTrainer(tiny_model("gpt2" if damage == "other model" else "llama"), None, SPEC)
    writer.training_step(made_up())
    if damage != "none":
        writer.save(saved)
    if damage == "empty state":
        (saved / "trainer.json").write_text('{"version": 1}')
    elif damage in ("trainer.json", "rollouts.npz"):
        (saved / damage).unlink()
    model = tiny_model("llama")
    trainer = GRPOTrainer(model, None, SPEC)
    before = snapshot(model)
    with pytest.raises(CheckpointError, match="saved"):
        trainer.load(saved)
    assert same(before, snapshot(model)) and trainer.steps == 0 and trainer.backend.policy_version == 0


def test_rollouts_need_not_be_wrapped() -> None:
    group = RolloutGroup([5], [Rollout([6], 0.0), Rollout([7], 1.0)])
    a, b = tiny_model("gpt2"), tiny_model("gpt2")
    assert GRPOTrainer(a).training_step([group]) == GRPOTrainer(b).training_step(StepData([group]))
