"""The health rules by name with their default actions, and `HealthConfig`. Imports no torch.

A rule finds one kind of problem in the metrics of the last steps (`assay.grpo.health.rules`). Each has a default
action, from mild to severe: `ignore` (the rule is off), `warn` (say so), `pause` (checkpoint and wait for a person),
`rollback` (go back to the last good checkpoint, at a lower learning rate), `stop`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import chz

from assay.config import MAY_CHANGE, Above, AtLeast, AtMost, Settings, UsedWhen, refuse
from assay.config.schema import settings

Action = Literal["ignore", "warn", "pause", "rollback", "stop"]
ACTIONS: tuple[Action, ...] = get_args(Action)
"""From mild to severe. A rollback outranks a pause: a run must not be paused, and started again, on broken weights."""

DEFAULT_ACTIONS: Mapping[str, Action] = {
    # NaN spreads to every weight and moment within a step; only older weights are known to be good.
    "non_finite": "rollback",
    # Steps were too large; the same data at a lower rate is the cure, and later checkpoints are worse.
    "kl_runaway": "rollback",
    # One answer for each prompt, found before the policy had looked for others: nothing leads away from it.
    "policy_collapse": "rollback",
    # Sampler and trainer disagree: no retry cures a bug or a precision, so a person has to look.
    "mismatch": "pause",
    # The run costs and learns nothing. Where the task is solved, this is a warning.
    "no_gradient": "pause",
    # Most of the gain is lost. Where an older policy does not earn it again either, restored_reward says so.
    "reward_drop": "rollback",
    # The policy is as it was and earns less: a rollback was no cure, and only a person can tell what changed.
    "restored_reward": "pause",
    # A rollback was no cure, or the rate is too low now: going on costs and gains nothing.
    "not_recovered": "pause",
    # A verifier that broke, or another unit: the next steps train on something else.
    "reward_shift": "pause",
    # A heavy tail is an early sign of damage, and may pass.
    "kl_tail": "warn",
    # A solved task ends here too, so low entropy alone does not justify ending a run.
    "entropy_floor": "warn",
    # A forecast, and an early one.
    "entropy_slope": "warn",
    # The clip already limits the damage; learning is slow, not wrong.
    "clip_fraction": "warn",
    # Nothing is learned and nothing is damaged; easy and impossible tasks look the same here.
    "constant_groups": "warn",
    # Early in training it is common and passes.
    "truncation": "warn",
    # The gradient is clipped before it is used.
    "grad_norm": "warn",
    # A trade between parts may be what the reward asks for; only a person can judge whether it is.
    "part_divergence": "warn",
}
"""Rule -> its action unless `HealthConfig.actions` says otherwise."""

_OF_SETTINGS = {"mismatch", "clip_fraction", "truncation", "reward_shift", "restored_reward", "not_recovered"}
OF_POLICY = frozenset(DEFAULT_ACTIONS) - _OF_SETTINGS
"""Rules that say that the policy itself may have changed for the worse. While one of them is active, a checkpoint is
nothing to go back to, also where its action is only a warning. The others say how a run is set up, and may be active
from its first step to its last."""
STANDING = 100
"""Steps after which an active warning counts as the run's normal state, and not as a sign of damage any more."""


@dataclass(frozen=True, slots=True)
class ReadBy:
    """A threshold is read by these rules alone."""

    rules: tuple[str, ...]


def _read_by(*rules: str) -> ReadBy:
    return ReadBy(rules)


_SUSTAINED = ("clip_fraction", "constant_groups", "truncation", "reward_drop", "policy_collapse", "not_recovered")


@chz.chz
class HealthConfig(Settings):
    """Alarms about a training run: thresholds, the action for each, and the report."""

    report_every: Annotated[int, AtLeast(0), MAY_CHANGE] = 10
    """Steps between health reports; 0 turns them off."""
    actions: Mapping[str, str] = chz.field(default_factory=dict)
    """Rule -> `ignore`, `warn`, `pause`, `rollback` or `stop`, where it should differ from the rule's default."""
    max_rollbacks: Annotated[int, AtLeast(0)] = 3
    """Rollbacks of a run, since it began or last earned more than ever, before the next one becomes a stop."""
    rollback_lr_factor: Annotated[float, Above(0), AtMost(1)] = 0.25
    """Factor on the learning rate at a rollback; its square where the reward has not surpassed its best since the one
    before. Its root bounds how much of the rate at which trouble came is ever used again."""
    lr_recovery_steps: Annotated[int, AtLeast(1)] = 20
    """Steps in a row without an active alarm about the policy after which the learning rate doubles, up to
    what the rollbacks allow."""
    recovery_steps: Annotated[int, AtLeast(1), _read_by("not_recovered")] = 150
    """Steps after a rollback within which the policy has to learn on."""
    window: Annotated[int, AtLeast(10), _read_by("kl_runaway", "entropy_slope", "grad_norm", "part_divergence")] = 20
    """Steps over which trends, growth and the median gradient norm are taken."""
    sustained_steps: Annotated[int, AtLeast(1), _read_by(*_SUSTAINED)] = 10
    """Steps over which clipping, constant groups, truncation and the level of the reward are averaged."""
    quiet_steps: Annotated[int, AtLeast(1)] = 10
    """Steps without a finding after which a rule may report again."""
    kl_tail_limit: Annotated[float, Above(0), UsedWhen("has_kl_penalty"), _read_by("kl_tail")] = 4.0
    """95th percentile of the tokens' KL estimates against the reference, in nats, above which the tail counts as
    heavy."""
    kl_runaway_level: Annotated[float, Above(0), UsedWhen("has_kl_penalty"), _read_by("kl_runaway")] = 0.6
    """Mean KL against the reference, in nats per token, below which no growth counts as a runaway."""
    kl_runaway_factor: Annotated[float, Above(1), UsedWhen("has_kl_penalty"), _read_by("kl_runaway")] = 3.0
    """Growth of the mean KL over the window that counts as a runaway."""
    entropy_floor: Annotated[float, Above(0), _read_by("entropy_floor", "entropy_slope", "policy_collapse")] = 0.03
    """Entropy, in nats per token, below which the policy no longer explores."""
    entropy_horizon: Annotated[int, AtLeast(1), _read_by("entropy_slope")] = 10
    """Entropy falls too fast when its trend reaches the floor within this many steps."""
    trend_significance: Annotated[float, Above(0), _read_by("entropy_slope", "part_divergence")] = 5.0
    """Slope of a trend, in standard errors, from which it counts as more than noise."""
    clip_fraction_limit: Annotated[float, Above(0), AtMost(1), _read_by("clip_fraction")] = 0.3
    """Share of clipped tokens above which the updates have left the trust region."""
    constant_groups_limit: Annotated[float, Above(0), AtMost(1), _read_by("constant_groups", "policy_collapse")] = 0.9
    """Share of groups with equal rewards above which there is too little to learn from."""
    no_gradient_steps: Annotated[int, AtLeast(1), _read_by("no_gradient")] = 20
    """Steps in a row without an optimizer step after which a run has nothing to learn from."""
    reward_drop_share: Annotated[float, Above(0), AtMost(1), _read_by("reward_drop")] = 0.5
    """Share of what the reward had gained since the run began whose loss counts as a collapse."""
    truncation_limit: Annotated[float, Above(0), AtMost(1), _read_by("truncation")] = 0.5
    """Share of completions cut off at the token limit above which rewards judge the limit, not the answers."""
    mismatch_ratio_limit: Annotated[float, Above(0), _read_by("mismatch")] = 0.2
    """Largest |ratio - 1| of a token before any update; at 0.2 the usual clipping would already act. A mismatch needs
    both this and the KL."""
    mismatch_kl_limit: Annotated[float, Above(0), _read_by("mismatch")] = 0.01
    """KL between sampler and trainer on equal weights, in nats per token, above which they disagree in more than single
    tokens."""
    grad_norm_limit: Annotated[float, Above(0), _read_by("grad_norm")] = 100.0
    """Gradient norm, before clipping, above which it is too large in any case."""
    grad_norm_spike_factor: Annotated[float, Above(1), _read_by("grad_norm")] = 10.0
    """Gradient norm, as a multiple of the window's median, that counts as a spike."""
    grad_norm_harmless: Annotated[float, AtLeast(0), _read_by("grad_norm")] = 1.0
    """Gradient norm up to which nothing counts as a spike; the usual clipping does not change it."""
    part_divergence_share: Annotated[float, Above(0), _read_by("part_divergence")] = 0.25
    """Least change of a part of the reward over the window: a rise in standard deviations of one step's rewards, a
    fall in those or, if that is less, in its own level."""

    @chz.validate
    def _possible(self) -> None:
        refuse(_unknown_actions(self))
        refuse(_without_effect(self))

    @property
    def most_suspect(self) -> int:
        """Most updates before an alarm that may have done damage already: how far back a rollback looks for a policy
        from before them. A policy that gives one answer to each prompt does so for `sustained_steps` steps first."""
        return self.window + self.sustained_steps

    def action(self, rule: str) -> Action:
        """What is done about findings of a rule."""
        chosen = self.actions.get(rule, DEFAULT_ACTIONS[rule])
        return next(action for action in ACTIONS if action == chosen)


def _unknown_actions(config: HealthConfig) -> Iterator[str]:
    for rule, action in config.actions.items():
        if rule not in DEFAULT_ACTIONS:
            hint = f"{_near(rule, DEFAULT_ACTIONS)} Rules: {', '.join(map(repr, DEFAULT_ACTIONS))}."
            yield f"actions.{rule}={action}: this rule does not exist.{hint}"
        if action not in ACTIONS:
            yield f"actions.{rule}={action}: expected one of {', '.join(ACTIONS)}.{_near(action, ACTIONS)}"


def _near(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _without_effect(config: HealthConfig) -> Iterator[str]:
    """Settings that differ from their defaults though nothing reads them."""
    if not config.actions:
        return
    known = settings(HealthConfig)
    changed = [name for name in known if getattr(config, name) != known[name].default]
    for name in changed:
        rules = [rule for mark in known[name].marks if isinstance(mark, ReadBy) for rule in mark.rules]
        if rules and all(config.action(rule) == "ignore" for rule in rules):
            off = ", ".join(f"actions.{rule}=ignore" for rule in rules)
            yield (
                f"{name}={getattr(config, name)} is set, but with {off} nothing reads it. "
                f"Remove it, or give a rule an action."
            )
    for name in ("max_rollbacks", "rollback_lr_factor", "lr_recovery_steps"):
        if name in changed and all(config.action(rule) != "rollback" for rule in DEFAULT_ACTIONS):
            yield (
                f"{name}={getattr(config, name)} is set, but no rule's action is rollback, so nothing reads it. "
                "Remove it, or set health.actions.RULE=rollback."
            )
