"""A training step on real rollouts of a tiny real policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import chz
import numpy as np
import pytest
import torch

from assay.backends.base import AdamParams, LossSpec
from assay.backends.local.backend import TorchBackend
from assay.envs.base import StepResult
from assay.grpo.config import GRPOConfig
from assay.grpo.group_data import advantages_of, flat, group_data
from assay.grpo.normalise import normalise
from assay.grpo.trainer import GRPOTrainer
from assay.types import Datum, Score, TrajectoryGroup
from support.scripted import ScriptedGroup, group, play, scored, share_of_a, task, tiny_backend

SETTINGS = GRPOConfig(loss_fn="importance_sampling", learning_rate=1e-2, kl_coef=0.0, weight_decay=0.0)
PROMPTS = ["abc", "ab abc 123", "c", "3 2 1", "b"]


def rollouts(backend: TorchBackend, prompts: Sequence[str] = PROMPTS, **settings: int | float) -> list[TrajectoryGroup]:
    groups = play(backend, [ScriptedGroup(task(p)) for p in prompts], **settings)  # type: ignore[arg-type]
    assert all(len({t.reward for t in g.trajectories}) > 1 for g in groups), "rewards must differ within every group"
    return groups


def level(of: TrajectoryGroup) -> TrajectoryGroup:
    """The same rollouts, all worth the same."""
    equal = tuple(
        replace(t, transitions=tuple(replace(x, score=Score("scored", 0.5)) for x in t.transitions))
        for t in of.trajectories
    )
    return replace(of, trajectories=equal)


def data_of(groups: Sequence[TrajectoryGroup], config: GRPOConfig = SETTINGS) -> list[Datum]:
    """The data of the groups that have something to teach."""
    found = [group_data(g, advantages_of(g, config), config) for g in groups]
    return flat([item for item in found if item is not None])


def gradient(backend: TorchBackend, data: Sequence[Datum], loss: LossSpec = SETTINGS.loss) -> torch.Tensor:
    asyncio.run(backend.forward_backward(data, loss))
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in backend._trained.values()]
    backend._optimizer.zero_grad()
    return torch.cat([p.flatten() for p in parts])


def weights(backend: TorchBackend) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in backend._trained.values()])


def run(backend: TorchBackend, groups: Sequence[TrajectoryGroup], config: GRPOConfig = SETTINGS) -> dict[str, float]:
    report = asyncio.run(GRPOTrainer.over(backend, config).update(groups))
    assert not report.rollouts.keys() & report.metrics.keys()
    return {**report.rollouts, **report.metrics}


@pytest.mark.parametrize(("temperature", "max_turns"), [(1.0, 1), (0.7, 1), (1.0, 3)])
def test_ratio_is_one_and_kl_zero_on_every_token_before_the_first_update(temperature: float, max_turns: int) -> None:
    def insist(text: str, sample: int, turn: int) -> StepResult:
        return scored(share_of_a(text, sample, turn).score.value or 0.0, done=False, say=" 3 ")

    backend = tiny_backend(context=128)
    builders = [ScriptedGroup(task(p), insist) for p in PROMPTS]
    groups = play(backend, builders, max_turns=max_turns, temperature=temperature)
    loss = LossSpec("importance_sampling", temperature)
    data = data_of(groups)
    assert len(data) == 20
    output = asyncio.run(backend.forward_backward(normalise(data), loss))
    assert sum(d.mask.sum() for d in data) > 80 * max_turns
    for datum, now in zip(data, output.logprobs, strict=True):
        trained = datum.mask > 0
        gap = (now - datum.logprobs)[trained].astype(np.float64)
        np.testing.assert_allclose(np.exp(gap), 1.0, atol=1e-5)
        np.testing.assert_allclose(np.expm1(gap) - gap, 0.0, atol=1e-5)
        assert datum.logprobs[trained].min() < -0.5, "the policy of this test must be unsure"


def test_an_update_raises_what_was_rewarded() -> None:
    backend = tiny_backend()
    groups = rollouts(backend, group_size=16)
    before = np.mean([t.reward for g in groups for t in g.trajectories])
    for step in range(6):
        run(backend, rollouts(backend, group_size=16, seed=step))
    after = np.mean([t.reward for g in rollouts(backend, group_size=16, seed=99) for t in g.trajectories])
    assert after > before + 0.1


def test_metrics_say_what_was_done() -> None:
    backend = tiny_backend()
    groups = rollouts(backend)
    metrics = run(backend, [*groups[:3], level(groups[3])])
    assert metrics["optimizer_steps"] == 1 and metrics["groups"] == 3
    assert metrics["rollout/constant_group_fraction"] == 0.25
    assert metrics["tokens"] == sum(
        len(x.completion.tokens) for g in groups[:3] for t in g.trajectories for x in t.transitions
    )
    assert metrics["ratio_error"] < 1e-5 and metrics["kl_behaviour"] < 1e-9
    assert 0 < metrics["entropy"] < np.log(40)
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize("remove", [True, False])
def test_a_constant_group_adds_exactly_nothing_to_the_gradient(remove: bool) -> None:
    backend = tiny_backend()
    groups = rollouts(backend)
    settings = chz.replace(SETTINGS, remove_constant_reward_groups=remove)
    constant = level(groups[0])
    data = data_of([constant], settings)
    assert len(data) == (0 if remove else 4)
    assert not gradient(backend, data).any(), "every component must be exactly 0"
    mixed, alone = data_of([constant, *groups[1:]], settings), data_of(groups[1:], settings)
    torch.testing.assert_close(gradient(backend, mixed), gradient(backend, alone), rtol=1e-4, atol=1e-6)


def test_kept_constant_groups_count_in_the_normaliser() -> None:
    groups = rollouts(tiny_backend())
    settings = chz.replace(SETTINGS, remove_constant_reward_groups=False)
    kept, alone = data_of([level(groups[0]), groups[1]], settings), data_of([groups[1]])
    whole, part = normalise(kept)[-1], normalise(alone)[-1]
    tokens = [sum(d.mask.sum() for d in data) for data in (kept, alone)]
    np.testing.assert_allclose(whole.advantages * tokens[0], part.advantages * tokens[1], rtol=1e-5)


@pytest.mark.parametrize("remove", [True, False])
def test_a_batch_that_says_nothing_takes_no_step(remove: bool, caplog: pytest.LogCaptureFixture) -> None:
    backend = tiny_backend()
    groups = rollouts(backend)
    run(backend, groups)  # Adam's moments would now move the weights by themselves.
    before = weights(backend)
    settings = chz.replace(SETTINGS, remove_constant_reward_groups=remove)
    metrics = run(backend, [level(g) for g in groups], chz.replace(settings, weight_decay=0.1))
    assert metrics["optimizer_steps"] == 0 and metrics["rollout/constant_group_fraction"] == 1
    assert torch.equal(before, weights(backend)) and backend.policy_version == 1
    assert "nothing to learn from" in caplog.text
    assert run(backend, [])["optimizer_steps"] == 0


def test_what_an_environment_reports_is_its_own_and_no_alarm() -> None:
    backend = tiny_backend()
    groups = rollouts(backend)
    odd = [
        replace(g, trajectories=tuple(
            replace(t, transitions=tuple(replace(x, metrics={"unknown": float("nan")}) for x in t.transitions))
            for t in g.trajectories
        ))
        for g in groups
    ]  # fmt: skip
    trainer = GRPOTrainer.over(backend, SETTINGS)
    report = asyncio.run(trainer.update(odd))
    assert np.isnan(report.rollouts["env/unknown"]) and not report.findings
    (seen,) = trainer.health.history
    assert {"reward/mean", "rollout/constant_group_fraction", "part/value", "loss", "entropy"} <= seen.keys()


def test_errored_rollouts_train_nothing() -> None:
    backend = tiny_backend()
    groups = rollouts(backend)
    broken = replace(groups[0].trajectories[0], stop_reason="errored")
    whole = replace(groups[0], trajectories=(broken, *groups[0].trajectories[1:]))
    left = replace(groups[0], trajectories=groups[0].trajectories[1:])
    with_failure, without = (data_of([g]) for g in (whole, left))
    assert len(with_failure) == 3
    assert all(np.array_equal(a.advantages, b.advantages) for a, b in zip(with_failure, without, strict=True))
    kept = chz.replace(SETTINGS, remove_constant_reward_groups=False)
    assert group_data(group(None, None), advantages_of(group(None, None), kept), kept) is None


def test_the_order_of_groups_and_samples_does_not_change_the_gradient() -> None:
    backend = tiny_backend()
    groups = rollouts(backend)
    whole = gradient(backend, normalise(data_of(groups)))
    rng = np.random.default_rng(0)
    mixed = [
        replace(groups[i], trajectories=tuple(groups[i].trajectories[j] for j in rng.permutation(4)))
        for i in rng.permutation(len(groups))
    ]
    other = gradient(backend, normalise(data_of(mixed)))
    assert whole.norm() > 1e-3
    assert (whole - other).norm() <= 2e-5 * whole.norm()


def test_the_loss_is_a_mean_over_the_tokens_of_the_step() -> None:
    backend = tiny_backend()
    data = data_of(rollouts(backend))
    tokens = sum(float(d.mask.sum()) for d in data)
    mean, total = gradient(backend, normalise(data)), gradient(backend, data)
    torch.testing.assert_close(mean * tokens, total, rtol=1e-4, atol=1e-6)
    twice = gradient(backend, normalise([*data, *data]))
    torch.testing.assert_close(twice, mean, rtol=1e-4, atol=1e-7)


def test_an_update_is_one_step_on_all_groups_with_one_normaliser() -> None:
    backend, by_hand = tiny_backend(), tiny_backend()
    groups = rollouts(backend)
    groups[0] = replace(groups[0], trajectories=groups[0].trajectories[:2])
    metrics = run(backend, groups)
    data = normalise(data_of(groups))
    output = asyncio.run(by_hand.forward_backward(data, SETTINGS.loss))
    step = asyncio.run(by_hand.optim_step(AdamParams(SETTINGS.learning_rate)))
    assert torch.equal(weights(backend), weights(by_hand))
    assert metrics["loss"] == output.metrics["loss:sum"]
    assert metrics["grad_norm"] == step["grad_norm"]


@pytest.mark.parametrize("substeps", [1, 2, 3, 5])
def test_groups_are_split_evenly_among_optimizer_steps(substeps: int) -> None:
    backend = tiny_backend()
    groups = rollouts(backend)
    metrics = run(backend, groups, chz.replace(SETTINGS, num_substeps=substeps))
    assert backend.policy_version == substeps == metrics["optimizer_steps"]
    one_by_one = tiny_backend()
    bounds = [round(i * 5 / substeps) for i in range(substeps + 1)]
    assert max(np.diff(bounds)) - min(np.diff(bounds)) <= 1
    for a, b in pairwise(bounds):
        run(one_by_one, groups[a:b])
    assert torch.equal(weights(backend), weights(one_by_one))


def test_later_substeps_are_off_policy_and_say_so() -> None:
    backend = tiny_backend()
    metrics = run(backend, rollouts(backend), chz.replace(SETTINGS, num_substeps=2))
    assert metrics["kl_behaviour"] > 1e-6
    assert metrics["ratio_error"] < 1e-5, "taken from the first substep, where sampler and trainer must agree"


def test_more_substeps_than_informative_groups_are_not_taken() -> None:
    backend = tiny_backend()
    groups = rollouts(backend)
    metrics = run(backend, [groups[0], *(level(g) for g in groups[1:])], chz.replace(SETTINGS, num_substeps=4))
    assert metrics["optimizer_steps"] == backend.policy_version == 1


@pytest.mark.parametrize("penalty", [{}, {"kl_estimator": "k1", "kl_placement": "reward"}])
def test_a_kl_penalty_changes_nothing_while_the_policy_is_its_reference(penalty: dict[str, str]) -> None:
    plain, bound = tiny_backend(), tiny_backend()
    asyncio.run(bound.freeze_reference())
    groups = rollouts(plain)
    # A large eps makes Adam's first step proportional to the gradient, where the usual one blows rounding up.
    settings = chz.replace(SETTINGS, eps=1.0)
    metrics = run(bound, groups, chz.replace(settings, kl_coef=0.5, **penalty))
    before = weights(plain)
    run(plain, groups, settings)
    assert abs(metrics["kl_div"]) < 1e-5
    moved = (weights(plain) - before).abs().max().item()
    torch.testing.assert_close(weights(bound), weights(plain), atol=1e-3 * moved, rtol=0)


@pytest.mark.parametrize(
    "penalty",
    [
        {"kl_estimator": "kl3"},
        {"kl_estimator": "kl2"},
        {"kl_estimator": "k1", "kl_unbiased": True},
        {"kl_estimator": "k3", "kl_unbiased": True},
        {"kl_estimator": "k1", "kl_placement": "reward"},
    ],
)
def test_a_kl_penalty_alone_brings_the_policy_back_to_its_reference(penalty: dict[str, str]) -> None:
    backend = tiny_backend()
    asyncio.run(backend.freeze_reference())
    for step in range(4):
        run(backend, rollouts(backend, group_size=8, seed=step))
    settings = chz.replace(SETTINGS, kl_coef=1.0, learning_rate=5e-3, remove_constant_reward_groups=False, **penalty)
    estimates = []
    for step in range(6):
        groups = [level(g) for g in rollouts(backend, group_size=8, seed=100 + step)]
        estimates.append(run(backend, groups, settings)["kl_div"])
    assert estimates[0] > 0.05
    assert estimates[-1] < 0.5 * estimates[0]
