"""Every setting of the trainer changes what it says it changes; a new one without an entry here fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch

from assay import GRPOConfig, GRPOTrainer, HealthConfig, RolloutGroup, StepData
from assay.backends.local import gradient
from assay.config.schema import settings
from assay.errors import TrainingError
from assay.grpo.health.monitor import HealthMonitor
from assay.grpo.parity import ParityConfig
from support.off_policy import MADE_UP
from support.own_rollouts import changed, made_up, snapshot
from support.scripted import group, tiny_backend
from support.tiny_models import tiny_model

IGNORED = dict.fromkeys(("mismatch", "kl_runaway", "kl_tail", "clip_fraction"), "ignore")
BASE: dict[str, Any] = {
    # Adam's steps are then no longer blind to the size of a gradient.
    "eps": 0.1,
    "learning_rate": 0.05,
    "kl_coef": 0.05,
    "num_substeps": 3,
    "grad_clip_norm": 0.5,
    "health": HealthConfig(actions=IGNORED),
    "parity": MADE_UP,
}


@dataclass(frozen=True)
class Change:
    """A setting in a scenario, and what of the outcome it must change."""

    value: Any
    where: str
    given: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of the scenario; they are there with and without the change."""


CONFIG: dict[str, Change] = {
    "baseline": Change("leave_one_out", "weights"),
    "aggregation": Change("token", "weights"),
    "count_constant_groups": Change(False, "grad_norm", {"remove_constant_reward_groups": True}),
    "constant_length": Change(50, "grad_norm", {"aggregation": "constant", "constant_length": 5}),
    "entropy_coef": Change(0.2, "weights"),
    "mask_truncated": Change(True, "tokens"),
    "kl_estimator": Change("k3", "weights"),
    "kl_placement": Change("reward", "weights"),
    "kl_unbiased": Change(True, "weights"),
    "kl_target": Change(1e-3, "kl_coef"),
    "kl_controller": Change("ziegler", "kl_coef", {"kl_target": 1e-3}),
    "kl_horizon": Change(100, "kl_coef", {"kl_target": 1e-3, "kl_controller": "ziegler"}),
    "ref_refresh_every": Change(1, "kl_div"),
    "ref_refresh_mix": Change(0.5, "kl_div", {"ref_refresh_every": 1}),
    "tis_cap": Change(1.1, "tis_weight"),
    "parity": Change(ParityConfig(max_ratio_error=0.01), "error"),
    "buffer_capacity": Change(2, "rollouts_evicted"),
    "min_fresh_fraction": Change(0.9, "rollout_buffer_size", {"max_staleness": 5}),
    "max_staleness": Change(2, "rollouts_stale"),
    "health": Change(HealthConfig(report_every=1, actions=IGNORED), "log"),
    "loss_fn": Change("cispo", "weights"),
    "loss_fn_config": Change({"clip_high_threshold": 1.01}, "fraction_clipped"),
    "learning_rate": Change(0.01, "learning_rate"),
    "beta1": Change(0.5, "weights"),
    "beta2": Change(0.5, "weights"),
    "eps": Change(0.5, "weights"),
    "weight_decay": Change(0.5, "weights"),
    "grad_clip_norm": Change(0.01, "weights"),
    "temperature": Change(0.5, "entropy"),
    "gamma": Change(0.5, "turns"),
    "normalize_advantages_by_std": Change(False, "weights"),
    "remove_constant_reward_groups": Change(False, "groups"),
    "num_substeps": Change(2, "optimizer_steps"),
    "rollout_epochs": Change(3, "optimizer_steps"),
    "kl_coef": Change(0.5, "kl_coef"),
    "kl_discount_factor": Change(0.9, "weights", {"kl_placement": "reward"}),
    "dtype": Change("bfloat16", "weights"),
    "micro_batch_tokens": Change(1, "forward passes"),
    "use_gradient_checkpointing": Change(True, "layer calls"),
}


PARITY: dict[str, tuple[dict[str, Any], str]] = {
    "enabled": ({"enabled": False}, "parity/kl"),
    "kl_limit": ({"kl_limit": 1e-9}, "error"),
    "tail_limit": ({"tail_limit": 1e-6}, "error"),
    "max_ratio_error": ({"max_ratio_error": 1e-3}, "error"),
    "tokens": ({"tokens": 1}, "parity/tokens"),
}
"""Settings of the parity gate, and what of the outcome each must change."""


def data(model: Any) -> StepData:
    """Groups of several lengths: one of equal rewards, one with a truncated member."""
    first, second, *others = made_up(model, groups=5, size=3).groups
    equal = replace(first, rollouts=[replace(r, reward=1.0) for r in first.rollouts if r])
    cut = replace(second, rollouts=[replace(second.rollouts[0], truncated=True), *second.rollouts[1:]])
    others[0] = replace(others[0], policy_version=0)  # old in a second step
    return StepData([equal, cut, *others])


@cache
def rollouts() -> list[RolloutGroup]:
    """Sampled by a policy that is not quite the trained one."""
    return list(data(changed(tiny_model("gpt_neox"), 0.02)).groups)


def outcome(config: GRPOConfig) -> dict[str, Any]:
    """Two training steps through the buffer; and what rewards of several turns become."""
    model = tiny_model("gpt_neox")
    calls = {"layer": 0, "forward": 0}
    layer = model.base_model.layers[0]
    original, losses = layer.forward, gradient.token_losses

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls["layer"] += 1
        return original(*args, **kwargs)

    def token_losses(*args: Any) -> Any:
        calls["forward"] += 1
        return losses(*args)

    layer.forward = forward
    trainer = GRPOTrainer(model, changed(tiny_model("gpt_neox")), config)
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient, "token_losses", token_losses)
        logged: list[str] = []
        patch.setattr("assay.grpo.trainer.logger.info", lambda text, *args: logged.append(text % args))
        try:
            steps = [trainer.training_step_with_rollout_epochs(rollouts()) for _ in range(2)]
        except TrainingError as error:
            return {"error": str(error)}
    found = {name: [step.get(name) for step in steps] for name in steps[0].keys() | {"tis_weight"}}
    weights = torch.cat([p.flatten() for p in snapshot(model).values()]).tolist()
    return found | {
        "error": None,
        "weights": weights,
        "log": logged,
        "forward passes": calls["forward"],
        "layer calls": calls["layer"],
    }


def turns(config: GRPOConfig) -> list[float]:
    """What a policy is worth after a step on rollouts of two turns."""
    backend = tiny_backend()
    groups = [group([0.1, 0.9], [0.8, 0.0])]
    asyncio.run(backend.freeze_reference())
    asyncio.run(GRPOTrainer.over(backend, config).update(groups))
    return torch.cat([p.detach().flatten() for p in backend._trained.values()]).tolist()


@cache
def unchanged(given: str) -> dict[str, Any]:
    """The outcome of a scenario, by name of the setting that has it."""
    torch.set_num_threads(1)
    return outcome(GRPOConfig(**(BASE | dict(CONFIG[given].given))))


def test_every_setting_has_an_entry() -> None:
    assert set(CONFIG) == set(settings(GRPOConfig)), "add the new setting with a scenario in which it matters"
    assert set(PARITY) == set(settings(ParityConfig)), "add the new setting with a scenario in which it matters"
    assert set(HEALTH) == set(settings(HealthConfig)), "add the new setting with a scenario in which it matters"


@pytest.mark.parametrize("name", CONFIG)
def test_a_setting_changes_what_it_says(name: str) -> None:
    torch.set_num_threads(1)
    change = CONFIG[name]
    plain = GRPOConfig(**(BASE | dict(change.given)))
    config = GRPOConfig(**(BASE | dict(change.given) | {name: change.value}))
    if change.where == "turns":
        assert turns(plain) != turns(config)
        return
    without = unchanged(name if change.given else "learning_rate")
    assert outcome(config)[change.where] != without[change.where]


@pytest.mark.parametrize("name", PARITY)
def test_a_setting_of_the_parity_gate_changes_what_it_says(name: str) -> None:
    torch.set_num_threads(1)
    change, where = PARITY[name]
    near = data(changed(tiny_model("gpt_neox"), 1e-4))

    def found(parity: ParityConfig) -> Any:
        trainer = GRPOTrainer(tiny_model("gpt_neox"), None, GRPOConfig(**(BASE | {"parity": parity})))
        try:
            return trainer.training_step(near).get(where)
        except TrainingError as error:
            return str(error)

    plain = found(ParityConfig())
    assert not isinstance(plain, str), "the default takes rollouts of a slightly different sampler"
    assert found(ParityConfig(**change)) != plain


def test_settings_of_memory_change_no_weights() -> None:
    without = unchanged("learning_rate")["weights"]
    for name in ("micro_batch_tokens", "use_gradient_checkpointing"):
        found = outcome(GRPOConfig(**(BASE | {name: CONFIG[name].value})))["weights"]
        assert max(abs(a - b) for a, b in zip(found, without, strict=True)) < 1e-5


# Health

Series = Callable[[int], float]


def growing(start: float, factor: float) -> Series:
    return lambda i: start * factor**i


CALM: dict[str, Series] = {
    "kl_div": lambda i: 0.01,
    "kl_div_95pct": lambda i: 0.1,
    "entropy": lambda i: 2.0,
    "grad_norm": lambda i: 0.5,
    "reward/std": lambda i: 0.1,
}


@dataclass(frozen=True)
class Alarm:
    """A threshold in a course of the metrics in which it decides."""

    value: Any
    course: Mapping[str, Series]
    speaks: bool | None
    """Whether the changed setting raises an alarm where the default is silent, or the other way round; None: other."""


def at(*steps: int) -> Series:
    """NaN at these steps."""
    return lambda i: math.nan if i in steps else 1.0


def falling(i: int) -> float:
    return 0.55 - 0.015 * i + 0.004 * math.sin(5 * i)


MISMATCHED: dict[str, Series] = {"ratio_error": lambda i: 0.5, "mismatch_kl": lambda i: 0.05}

HEALTH: dict[str, Alarm] = {
    "report_every": Alarm(3, {}, None),
    "actions": Alarm({"entropy_floor": "stop"}, {"entropy": lambda i: 0.01}, None),
    "max_rollbacks": Alarm(0, {"loss": at(5)}, None),
    "rollback_lr_factor": Alarm(0.1, {}, None),
    "lr_recovery_steps": Alarm(5, {}, None),
    "recovery_steps": Alarm(15, {"reward/mean": lambda i: 0.5 if i < 30 else 0.3}, None),
    "quiet_steps": Alarm(2, {"loss": at(5, 10)}, None),
    "window": Alarm(
        10, {"kl_div": growing(0.1, 1.1), "kl_div_95pct": growing(0.1, 1.1)}, False
    ),
    "sustained_steps": Alarm(3, {"fraction_clipped": lambda i: 0.5 if i > 26 else 0.0}, True),
    "kl_tail_limit": Alarm(10.0, {"kl_div_95pct": lambda i: 5.0}, False),
    "kl_runaway_level": Alarm(0.1, {"kl_div": growing(0.01, 1.13), "kl_div_95pct": growing(0.01, 1.13)}, True),
    "kl_runaway_factor": Alarm(100.0, {"kl_div": growing(0.1, 1.2), "kl_div_95pct": growing(0.01, 1.2)}, False),
    "entropy_floor": Alarm(0.5, {"entropy": lambda i: 0.3}, True),
    "entropy_horizon": Alarm(100, {"entropy": lambda i: 3 - 0.05 * i}, True),
    "trend_significance": Alarm(1e6, {"entropy": falling}, False),
    "clip_fraction_limit": Alarm(0.9, {"fraction_clipped": lambda i: 0.5}, False),
    "constant_groups_limit": Alarm(0.5, {"rollout/constant_group_fraction": lambda i: 0.7}, True),
    "no_gradient_steps": Alarm(40, {"optimizer_steps": lambda i: 0.0}, False),
    "reward_drop_share": Alarm(0.9, {"reward/mean": lambda i: 0.0 if i < 10 else 1.0 if i < 20 else 0.3}, False),
    "truncation_limit": Alarm(0.9, {"rollout/truncated_fraction": lambda i: 0.7}, False),
    "mismatch_ratio_limit": Alarm(1.0, MISMATCHED, False),
    "mismatch_kl_limit": Alarm(0.1, MISMATCHED, False),
    "grad_norm_limit": Alarm(1000.0, {"grad_norm": lambda i: 500.0}, False),
    "grad_norm_spike_factor": Alarm(2.0, {"grad_norm": lambda i: 1.0 if i < 28 else 5.0}, True),
    "grad_norm_harmless": Alarm(10.0, {"grad_norm": lambda i: 0.1 if i < 28 else 5.0}, False),
    "part_divergence_share": Alarm(
        100.0, {"part/a": lambda i: 0.1 * i, "part/b": lambda i: -0.1 * i, "reward/mean": lambda i: 0.0}, False
    ),
}  # fmt: skip


def course(config: HealthConfig, changes: Mapping[str, Series]) -> tuple[int, Any]:
    """Thirty steps of a monitor, two rollbacks, and thirty steps more: how many alarms the first raised, and everything
    that it said."""
    monitor, said, alarms = HealthMonitor(config), [], []
    for i in range(60):
        found = monitor.observe({name: series(i) for name, series in (CALM | dict(changes)).items()})
        alarms.append(len(found))
        said.append(([(f.rule, f.action) for f in found], monitor.decide(found), monitor.report_due))
        if i == 29:
            monitor.rolled_back()
            monitor.rolled_back()
    return sum(alarms[:30]), (said, monitor.learning_rate_factor)


@pytest.mark.parametrize("name", HEALTH)
def test_a_threshold_decides(name: str) -> None:
    alarm = HEALTH[name]
    silent, before = course(HealthConfig(), alarm.course)
    loud, after = course(HealthConfig(**{name: alarm.value}), alarm.course)
    assert before != after
    if alarm.speaks is not None:
        assert (silent > 0, loud > 0) == (not alarm.speaks, alarm.speaks)
