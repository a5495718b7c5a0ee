"""What must not change a gradient does not: padding, micro-batches, order, shared prompts, repetition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.backends.local import forward
from assay.backends.local.backend import TorchBackend
from assay.envs.base import StepResult
from assay.grpo.config import GRPOConfig
from assay.grpo.recipes import RECIPES
from assay.types import Datum, Score, TrajectoryGroup
from support.off_policy import KL, LENGTH, World, a_backend, models, rollouts, update
from support.scripted import ScriptedGroup, play, scored, share_of_a, task, tiny_backend

TERMS: dict[str, Any] = {**KL, "kl_estimator": "k3", "kl_unbiased": True, "entropy_coef": 0.1}
IN_REWARD: dict[str, Any] = {**KL, "kl_estimator": "k1", "kl_placement": "reward", "kl_discount_factor": 0.5}
ROUNDING = 2e-5
"""Relative error that the order of float32 sums explains."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def case_of(name: str, terms: dict[str, Any] = TERMS) -> dict[str, Any]:
    return {"loss_fn": name, **(LENGTH if RECIPES[name].aggregation == "constant" else {}), **terms}


def gradient(case: dict[str, Any], groups: Sequence[TrajectoryGroup], **local: Any) -> Tensor:
    (found,) = update(a_backend(**local), groups, case).gradients
    return found


def assert_equal(found: Tensor, want: Tensor) -> None:
    assert want.norm() > 1e-3, "the gradient must not vanish"
    assert (found - want).norm() <= ROUNDING * want.norm()


@pytest.mark.parametrize("name", RECIPES)
def test_the_gradient_is_the_sum_of_those_of_each_sequence_alone(name: str) -> None:
    # Alone, a sequence is neither padded nor does it share its prompt; in the batch one is ten times as long.
    world = World(models()["policy"])
    prompt = world.tokens(2, 2)
    long = world.trajectory(prompt, [0.0] * 6)
    short = [world.trajectory(prompt, [reward]) for reward in (1.0, 0.25)]
    groups = [*rollouts(1.0), TrajectoryGroup(task("a"), (long, *short))]
    backend, case = a_backend(), case_of(name)
    recorder = update(backend, groups, case)
    (data,) = recorder.data
    lengths = [len(d) for d in data]
    assert max(lengths) > 5 * min(lengths)
    alone = a_backend()
    loss = GRPOConfig(**case).loss
    outputs = [asyncio.run(alone.forward_backward([d], loss)) for d in data]
    found = torch.cat([p.grad.flatten().double() for p in alone._trained.values() if p.grad is not None])
    assert_equal(recorder.gradients[0], found)
    for whole, part in zip(recorder.outputs[0].logprobs, outputs, strict=True):
        np.testing.assert_allclose(whole, part.logprobs[0], atol=2e-5)
    total = sum(output.metrics["loss:sum"] for output in outputs)
    assert recorder.reports[0].metrics["loss"] == pytest.approx(total, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("terms", [TERMS, IN_REWARD], ids=["loss", "reward"])
@pytest.mark.parametrize("name", RECIPES)
def test_neither_micro_batches_nor_order_nor_shared_prompts_nor_repetition_change_the_gradient(
    name: str, terms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, groups = case_of(name, terms), rollouts(1.0)
    want = gradient(case, groups)
    for budget in (1, 60, 10**6):
        assert_equal(gradient(case, groups, micro_batch_tokens=budget), want)
    rng = np.random.default_rng(0)
    shuffled = [
        replace(g, trajectories=tuple(g.trajectories[i] for i in rng.permutation(len(g.trajectories))))
        for g in (groups[i] for i in rng.permutation(len(groups)))
    ]
    assert_equal(gradient(case, shuffled), want)
    assert_equal(gradient(case, [*groups, *groups]), want)
    plan = forward.plan
    monkeypatch.setattr(
        forward, "plan", lambda data, budget, **settings: plan(data, budget, **{**settings, "share": False})
    )
    assert_equal(gradient(case, groups), want)


@pytest.mark.parametrize("name", RECIPES)
def test_a_constant_group_adds_exactly_nothing(name: str) -> None:
    case = {**case_of(name, {}), "remove_constant_reward_groups": False}
    level = [
        replace(
            group,
            trajectories=tuple(
                replace(t, transitions=tuple(replace(turn, score=Score("scored", 0.3)) for turn in t.transitions[:1]))
                for t in group.trajectories
                if not t.errored
            ),
        )
        for group in rollouts(1.0)
    ]
    backend = a_backend()
    before = [p.detach().clone() for p in backend._trained.values()]
    report = update(backend, level, {**case, "learning_rate": 1.0}).reports[0]
    assert report.metrics["optimizer_steps"] == 0 and report.metrics["groups"] == len(level)
    assert all(torch.equal(a, b) for a, b in zip(before, backend._trained.values(), strict=True))
    # Beside a group that pulls, the step is taken, and the constant ones count in its normaliser alone.
    pulls, both = rollouts(1.0)[:1], [*level, *rollouts(1.0)[:1]]
    (data,) = update(a_backend(), both, case).data
    constant = [d for d in data if not d.advantages.any()]
    assert len(constant) == sum(len(group.trajectories) for group in level)
    output = asyncio.run(backend.forward_backward(constant, GRPOConfig(kl_coef=0.0, **case_of(name, {})).loss))
    gradients = [p.grad for p in backend._trained.values() if p.grad is not None]
    assert output.metrics["loss:sum"] == 0 and gradients and not any(g.any() for g in gradients)
    alone, whole = gradient(case, pulls), gradient(case, both)
    cosine = float(alone @ whole / (alone.norm() * whole.norm()))
    assert cosine == pytest.approx(1.0, abs=1e-9) and whole.norm() < alone.norm()


@pytest.mark.parametrize("substeps", [1, 3])
@pytest.mark.parametrize("name", [name for name, row in RECIPES.items() if row.count_constant_groups])
def test_where_constant_groups_count_the_gradient_is_that_with_them(name: str, substeps: int) -> None:
    # Through the buffer and outside of it, split among optimizer steps or not; one of the five groups is constant.
    for steps in ({"num_substeps": substeps}, {"num_substeps": substeps, "rollout_epochs": 2}):
        found, want = (
            update(a_backend(), rollouts(1.0), {**case_of(name, {}), "remove_constant_reward_groups": removed}, **steps)
            for removed in (True, False)
        )
        assert len(found.gradients) == len(want.gradients) >= substeps
        for mine, other in zip(found.gradients, want.gradients, strict=True):
            assert_equal(mine, other)
        assert len(found.data[-1]) < len(want.data[-1]) or substeps > 1, "nothing is computed for the constant group"
        assert (found.reports[0].metrics["groups"], want.reports[0].metrics["groups"]) == (4, 5)
        assert not found.reports[0].turns.keys() ^ want.reports[0].turns.keys()
        assert {found.reports[0].turns[3, s, 0].removed for s in range(3)} == {"constant"}


def test_a_penalty_is_a_mean_over_the_tokens_that_bear_it_however_many_groups_count() -> None:
    counted, alone = (
        update(a_backend(), rollouts(1.0), {**case_of("grpo"), "count_constant_groups": counts})
        for counts in (True, False)
    )
    sequences = len(alone.data[0])
    for a, b in zip(counted.data[0], alone.data[0], strict=True):
        assert a.weights is not None and b.weights is not None
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_allclose(a.advantages * (sequences + 3), b.advantages * sequences, rtol=1e-5)


@pytest.mark.parametrize(("temperature", "turns"), [(1.0, 1), (0.7, 3)])
@pytest.mark.parametrize("name", RECIPES)
def test_before_the_first_update_every_ratio_is_one_and_every_kl_zero(
    name: str, temperature: float, turns: int
) -> None:
    backend, groups = sampled(temperature, turns)
    recorder = update(backend, groups, {**case_of(name), "temperature": temperature})
    ((data,), (output,)) = recorder.data, recorder.outputs
    tokens = 0
    for datum, now in zip(data, output.logprobs, strict=True):
        trained = datum.mask > 0
        tokens += int(trained.sum())
        assert datum.ref_logprobs is not None
        for other in (datum.logprobs, datum.ref_logprobs):
            gap = (now - other)[trained].astype(np.float64)
            np.testing.assert_allclose(np.exp(gap), 1.0, atol=1e-5)
            np.testing.assert_allclose(np.expm1(-gap) + gap, 0.0, atol=1e-5)
    assert tokens > 30 * turns
    metrics = recorder.reports[0].metrics
    assert metrics["ratio_error"] < 1e-5 and abs(metrics["kl_div"]) < 1e-9 and abs(metrics["kl_loss"]) < 1e-6


def sampled(temperature: float, turns: int) -> tuple[TorchBackend, list[TrajectoryGroup]]:
    """Rollouts that the policy has really sampled, which is also its reference."""

    def insist(text: str, sample: int, turn: int) -> StepResult:
        return scored(share_of_a(text, sample, turn).score.value or 0.0, done=turn == turns - 1, say=" 3 ")

    backend = tiny_backend(context=128)
    asyncio.run(backend.freeze_reference())
    builders = [ScriptedGroup(task(prompt), insist) for prompt in ("abc", "ab abc 123", "c")]
    return backend, play(backend, builders, max_turns=turns, temperature=temperature)


def test_padding_and_company_do_not_change_what_a_datum_is_worth() -> None:
    # The weights of the normaliser depend on the step alone.
    (data,) = update(a_backend(), rollouts(1.0), case_of("grpo")).data
    mass = [float(d.weights.sum()) for d in data if d.weights is not None]
    assert len(mass) == len(data)
    np.testing.assert_allclose(mass, 1 / len(data), rtol=1e-6)
    assert all(untouched(d) for d in data)


def untouched(datum: Datum) -> bool:
    """Whether nothing is said of what the policy was told."""
    told = datum.mask == 0
    assert datum.weights is not None and datum.ref_logprobs is not None
    return not any(s[told].any() for s in (datum.logprobs, datum.advantages, datum.weights, datum.ref_logprobs))
