"""Settings of the GRPO trainer; imports no torch.

`AlgorithmConfig` is what a run's config keeps under `grpo`; `GRPOConfig` adds what a run's config has elsewhere, and is
all that a trainer of its own (`assay.GRPOTrainer`) needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import chz

from assay.backends.base import KLEstimator, KLTerm, LossSpec
from assay.backends.config import LocalBackend
from assay.config.schema import mistyped
from assay.errors import ConfigError
from assay.grpo.health.config import HealthConfig
from assay.grpo.recipes import Aggregation, Baseline, Recipe, canonical, check_thresholds, recipe_of, resolve

KL_ALIASES: Mapping[str, KLEstimator] = {"kl1": "k1", "kl2": "k3", "kl3": "k2"}
"""The specification's names: `kl1` simple, `kl2` exponential, `kl3` quadratic. Schulman counts them differently."""


@chz.chz
class AlgorithmConfig:
    """The algorithm: advantages, aggregation, KL penalty, rollout reuse, health."""

    baseline: Baseline | None = None
    """What a reward is compared with: the `mean` of its group, or `leave_one_out`, the mean of the others; null means
    as `loss_fn` has it."""
    aggregation: Aggregation | None = None
    """How the step's token losses become one: mean over all `token`s, mean over `sequence`s of their token means, or
    sum over tokens divided by sequences times `constant_length`; null means as `loss_fn` has it."""
    constant_length: int | None = None
    """Divisor per sequence of `aggregation=constant`, in tokens; null means the run's `max_tokens`."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus (exact entropy of each trained token's distribution) in the loss."""
    mask_truncated: bool = False
    """Leave completions that ran into the length limit out of the loss (they stay in their group's baseline)."""
    kl_estimator: Literal["k1", "k2", "k3", "abs", "kl1", "kl2", "kl3"] = "kl3"
    """Estimate of the KL divergence per token, from d = log policy - log reference: `k1` = d, `k2` = d^2/2,
    `k3` = exp(-d) - 1 + d, `abs` = |d|. The specification's `kl1` (simple), `kl2` (exponential) and `kl3` (quadratic)
    are k1, k3 and k2."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """Where the penalty acts: in the `loss`, by its gradient, or in the `reward` of each token, centred."""
    kl_unbiased: bool = False
    """In the loss, weight the estimator by the policy ratio, so that its gradient is that of KL(policy || reference)
    also for k1, k3 and samples of an older policy."""
    kl_target: float | None = None
    """Adapt the coefficient so that the mean KL (k3, nats per token) comes to this; null keeps it fixed."""
    kl_controller: Literal["threshold", "ziegler"] = "threshold"
    """How it adapts, once per training step: `threshold` multiplies by 1.1 above 1.5 times the target and by 0.9 below
    half of it, within [0.001, 1]; `ziegler` is proportional to the clipped error (arXiv 1909.08593)."""
    kl_horizon: int = 10_000
    """Sequences trained on (each pass counts) over which the `ziegler` controller corrects an error."""
    ref_refresh_every: int = 0
    """Training steps after which the reference is moved towards the policy; 0 keeps it."""
    ref_refresh_mix: float = 1.0
    """Share of the policy in a refreshed reference; 1 replaces it."""
    tis_cap: float = 0.0
    """Truncated importance sampling: recompute the log-probabilities of rollouts with the trainer, and weight each
    token by min(trainer / sampler, `tis_cap`); 0 trusts the sampler's."""
    max_ratio_error: float | None = None
    """Refuse to train on fresh rollouts (with an error, before anything is changed) when trainer and sampler disagree
    on the probability of a token by more than this relative error; null only reports it."""
    buffer_capacity: int = 1000
    """Most groups that the rollout buffer holds; the oldest are evicted first."""
    min_fresh_fraction: float = 0.25
    """New rollouts are wanted when less than this share of the buffered groups has epochs left."""
    max_staleness: int | None = None
    """Most optimizer steps between sampling a group and training on it; older ones are retired. Null sets no bound."""
    health: HealthConfig = chz.field(default_factory=HealthConfig)
    """Alarms and reports."""

    @chz.validate
    def _in_range(self) -> None:
        if problems := mistyped(self):
            raise ConfigError("\n".join(problems))
        problems = [*_out_of_range(self), *_without_effect(self)]
        if problems:
            raise ConfigError("\n".join(problems))

    @property
    def estimator(self) -> KLEstimator:
        """The estimator by its canonical name."""
        return canonical_estimator(self.kl_estimator)


def canonical_estimator(name: str) -> KLEstimator:
    """`k1`, `k2`, `k3` or `abs` for any of the names of `kl_estimator`."""
    found: Mapping[str, KLEstimator] = {**KL_ALIASES, "k1": "k1", "k2": "k2", "k3": "k3", "abs": "abs"}
    return found[name]


@chz.chz
class GRPOConfig(AlgorithmConfig):
    """Everything that `GRPOTrainer` needs to know."""

    loss_fn: str | Recipe = chz.field(default="grpo", munger=lambda _, value: canonical(value))
    """The algorithm: a name of `assay.grpo.recipes.RECIPES`, a recipe of your own, or its `path/to/file.py:NAME` or
    `package.module:NAME`."""
    loss_fn_config: Mapping[str, float] = chz.field(default_factory=dict)
    """Settings of the loss by name, over those of its recipe; `clip_low_threshold` and `clip_high_threshold` are
    absolute ratios."""
    learning_rate: float = 1e-5
    """Adam learning rate."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay, applied to matrices only."""
    grad_clip_norm: float = 1.0
    """Global gradient norm above which the gradient is scaled down; 0 turns clipping off."""
    temperature: float = 1.0
    """Temperature at which the rollouts were sampled; log-probabilities are taken under it."""
    gamma: float = 1.0
    """Discount of multi-turn returns."""
    normalize_advantages_by_std: bool | None = None
    """Divide a group's centred rewards by their standard deviation; null means as `loss_fn` has it."""
    remove_constant_reward_groups: bool = True
    """Drop groups in which all rewards are equal: they carry no gradient."""
    num_substeps: int = 1
    """Optimizer steps per pass over the rollouts; groups are split evenly among them."""
    rollout_epochs: int = 2
    """Passes over each rollout in `training_step_with_rollout_epochs`."""
    kl_coef: float = 0.01
    """Weight of the KL penalty (its start, with `kl_target`); 0 turns it off."""
    kl_discount_factor: float = 0.0
    """With `kl_placement=reward`, discount with which a token's penalty is also charged to earlier tokens."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute precision; trained weights and log-probabilities are float32. `auto`: as the model's weights are."""
    micro_batch_tokens: int = 16384
    """Most tokens (padding included) in one forward pass. Bounds memory, never changes the gradient."""
    use_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    @chz.validate
    def _consistent(self) -> None:
        problems = [*_bad_numbers(self), *impossible(self)]
        if problems:
            raise ConfigError("\n".join(problems))
        check_thresholds(recipe_of(self.loss_fn), self.loss_fn_config)
        if callable(self.recipe.surrogate):
            # Who hands a function of tensors over has torch.
            from assay.backends.local.losses import try_out

            try_out(self.loss)

    @chz.init_property
    def recipe(self) -> Recipe:
        """The algorithm's parts, with what is set by itself in place."""
        return resolve(
            self.loss_fn, self.loss_fn_config, self.baseline, self.normalize_advantages_by_std, self.aggregation
        )

    @property
    def loss(self) -> LossSpec:
        """The loss of the backend at the configured KL coefficient."""
        return self.loss_at(self.kl_coef)

    def loss_at(self, kl_coef: float) -> LossSpec:
        """The loss of the backend at a KL coefficient; the penalty is in it where it is placed there."""
        in_loss = self.kl_coef != 0 and self.kl_placement == "loss"
        term = KLTerm(kl_coef, self.estimator, self.kl_unbiased) if in_loss else None
        recipe = self.recipe
        return LossSpec(recipe.surrogate, self.temperature, recipe.thresholds, term, self.entropy_coef)

    def local_backend(self, device: str, half: bool) -> LocalBackend:
        """How a backend of the trainer's own computes; `half` says whether the model came in half precision."""
        dtype = self.dtype if self.dtype != "auto" else "bfloat16" if half else "float32"
        return LocalBackend(
            device=device,
            dtype=dtype,
            micro_batch_tokens=self.micro_batch_tokens,
            use_gradient_checkpointing=self.use_gradient_checkpointing,
        )


def _out_of_range(config: AlgorithmConfig) -> list[str]:
    least = {
        "constant_length": 1,
        "entropy_coef": 0,
        "kl_horizon": 1,
        "ref_refresh_every": 0,
        "tis_cap": 0,
        "max_ratio_error": 0,
        "buffer_capacity": 1,
        "max_staleness": 0,
    }
    values = {name: getattr(config, name) for name in least}
    problems = [
        f"{name}={value} must be at least {least[name]}."
        for name, value in values.items()
        if value is not None and not value >= least[name]
    ]
    if not 0 < config.ref_refresh_mix <= 1:
        problems.append(f"ref_refresh_mix={config.ref_refresh_mix} must be above 0 and at most 1.")
    if not 0 < config.min_fresh_fraction <= 1:
        problems.append(f"min_fresh_fraction={config.min_fresh_fraction} must be above 0 and at most 1.")
    if config.kl_target is not None and not config.kl_target > 0:
        problems.append(f"kl_target={config.kl_target} must be above 0; use null for a fixed coefficient.")
    return problems


def _without_effect(config: AlgorithmConfig) -> list[str]:
    """Settings that were changed although nothing reads them in this combination."""
    problems = []
    if config.kl_unbiased and config.kl_placement == "reward":
        problems.append(
            "kl_unbiased=true weights a penalty in the loss, but kl_placement=reward. There, kl_estimator=k1 is the "
            "unbiased one. Set kl_placement=loss, or remove kl_unbiased."
        )
    if config.kl_unbiased and config.kl_estimator == "abs":
        problems.append(
            "kl_estimator=abs estimates no KL divergence, so there is no unbiased form of it. Use k1, k2 or k3."
        )
    if config.kl_controller != "threshold" and config.kl_target is None:
        problems.append("kl_controller is set but kl_target is null, so nothing adapts. Set kl_target or remove it.")
    if config.kl_horizon != 10_000 and (config.kl_controller != "ziegler" or config.kl_target is None):
        problems.append("kl_horizon is read by kl_controller=ziegler with a kl_target only. Set both, or remove it.")
    if config.ref_refresh_mix != 1 and not config.ref_refresh_every:
        problems.append("ref_refresh_mix is set but ref_refresh_every=0 never refreshes. Set it, or remove the mix.")
    if config.constant_length is not None and config.aggregation not in (None, "constant"):
        problems.append(
            f"constant_length is set but aggregation={config.aggregation} does not divide by it. Remove one of them."
        )
    return problems


def _bad_numbers(config: GRPOConfig) -> list[str]:
    least = {
        "learning_rate": 0,
        "beta1": 0,
        "beta2": 0,
        "weight_decay": 0,
        "grad_clip_norm": 0,
        "gamma": 0,
        "num_substeps": 1,
        "rollout_epochs": 1,
        "kl_coef": 0,
        "kl_discount_factor": 0,
        "micro_batch_tokens": 1,
    }
    values = {name: getattr(config, name) for name in least}
    problems = [
        f"{name}={value} must be at least {least[name]}." for name, value in values.items() if not value >= least[name]
    ]
    problems += [f"{n}={values[n]} must be below 1." for n in ("beta1", "beta2") if values[n] >= 1]
    problems += [f"{n}={values[n]} must be at most 1." for n in ("gamma", "kl_discount_factor") if values[n] > 1]
    problems += [
        f"{name}={getattr(config, name)} must be above 0."
        for name in ("temperature", "eps")
        if not getattr(config, name) > 0
    ]
    return problems


def impossible(config: GRPOConfig) -> list[str]:
    """Combinations that cannot work or would do nothing, as messages that say what to change."""
    problems = []
    uses_constant = config.recipe.aggregation == "constant"
    if uses_constant and config.constant_length is None:
        problems.append(
            f"loss_fn={config.loss_fn} with aggregation=constant divides by a fixed length, which is not set. Set "
            "constant_length to the generation limit in tokens."
        )
    if not uses_constant and config.constant_length is not None:
        problems.append(
            f"constant_length is set but loss_fn={config.loss_fn} does not divide by it. Set aggregation=constant, or "
            "remove constant_length."
        )
    if not config.kl_coef:
        idle = [
            name
            for name, used in (
                ("kl_target", config.kl_target is not None),
                ("kl_unbiased", config.kl_unbiased),
                ("kl_discount_factor", config.kl_discount_factor != 0),
                ("ref_refresh_every", config.ref_refresh_every != 0),
            )
            if used
        ]
        if idle:
            problems.append(
                f"{', '.join(idle)} set, but the KL coefficient is 0, so there is no penalty. Raise the coefficient "
                "(kl_coef, or kl_penalty_coef of a run; an adaptive one must start above 0), or remove them."
            )
    if config.kl_discount_factor and config.kl_placement != "reward":
        problems.append(
            "kl_discount_factor charges later penalties to earlier tokens, which needs kl_placement=reward. Set it, or "
            "remove kl_discount_factor."
        )
    return problems
