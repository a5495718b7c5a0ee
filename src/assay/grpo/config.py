"""Settings of the GRPO trainer; imports no torch.

`AlgorithmConfig` is what a run's config keeps under `grpo`; `GRPOConfig` adds what a run's config has elsewhere, and is
all that a trainer of its own (`assay.GRPOTrainer`) needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import chz

from assay.backends.base import KLEstimator, KLTerm, LossSpec
from assay.backends.config import LocalBackend
from assay.config import MAY_CHANGE, NOT_NULL, Above, AtLeast, AtMost, Below, Code, Settings, UsedWhen, fact, refuse
from assay.grpo.health.config import HealthConfig
from assay.grpo.parity import ParityConfig
from assay.grpo.recipes import LOSS, Aggregation, Baseline, Recipe, canonical, check_thresholds, recipe_of, resolve

KL_ALIASES: Mapping[str, KLEstimator] = {"kl1": "k1", "kl2": "k3", "kl3": "k2"}
"""Further names: `kl1` simple, `kl2` exponential, `kl3` quadratic. Schulman's k1, k2, k3 are numbered differently."""


@chz.chz
class AlgorithmConfig(Settings):
    """The algorithm: advantages, aggregation, KL penalty, rollout reuse, health."""

    baseline: Baseline | None = None
    """What a return is compared with: the `mean` over its group's turns, or over those of the other rollouts
    (`leave_one_out`), or over the other rollouts at the same `turn`, where a turn that no other rollout reached gets no
    advantage; null takes the choice of `loss_fn`."""
    aggregation: Aggregation | None = None
    """How the step's token losses are combined: mean over all `token`s, mean over `sequence`s of their token means, or
    sum over tokens divided by sequences times `constant_length`; null takes the choice of `loss_fn`."""
    count_constant_groups: bool | None = None
    """Whether the divisor of `aggregation` counts groups with equal rewards though `remove_constant_reward_groups`
    computes nothing for them (the loss is then a mean over all that was sampled); null takes the choice of
    `loss_fn`."""
    constant_length: Annotated[int | None, AtLeast(1)] = None
    """Divisor per sequence of `aggregation=constant`, in tokens; null means the run's `max_tokens`."""
    entropy_coef: Annotated[float, AtLeast(0)] = 0.0
    """Weight of an entropy bonus (exact entropy of each trained token's distribution) in the loss."""
    mask_truncated: bool = False
    """Exclude completions that were cut off at the length limit from the loss (they still count in their group's
    baseline)."""
    kl_estimator: Annotated[Literal["k1", "k2", "k3", "abs", "kl1", "kl2", "kl3"], UsedWhen("has_kl_penalty")] = "kl3"
    """Estimate of the KL divergence per token, from d = log policy - log reference: `k1` = d, `k2` = d^2/2,
    `k3` = exp(-d) - 1 + d, `abs` = |d|. `kl1` (simple), `kl2` (exponential) and `kl3` (quadratic) are other names of
    k1, k3 and k2."""
    kl_placement: Annotated[Literal["loss", "reward"], UsedWhen("has_kl_penalty")] = "loss"
    """Where the penalty acts: in the `loss`, by its gradient, or in the `reward` of each token, centred."""
    kl_unbiased: Annotated[bool, UsedWhen("has_kl_penalty"), UsedWhen("kl_placement", "loss")] = False
    """In the loss, weight the estimator by the policy ratio, so that its gradient is that of KL(policy || reference),
    also for k1, k3 and samples of an older policy."""
    kl_target: Annotated[float | None, Above(0), UsedWhen("has_kl_penalty")] = None
    """Adapt the coefficient so that the mean KL (k3, nats per token) reaches this; null keeps it fixed."""
    kl_controller: Annotated[Literal["threshold", "ziegler"], UsedWhen("kl_target", NOT_NULL)] = "threshold"
    """How the coefficient adapts, once per training step: `threshold` multiplies by 1.1 above 1.5 times the target and
    by 0.9 below half of it, within [0.001, 1]; `ziegler` is proportional to the clipped error (arXiv 1909.08593)."""
    kl_horizon: Annotated[int, AtLeast(1), UsedWhen("kl_controller", "ziegler")] = 10_000
    """Sequences trained on (each pass counts) over which the `ziegler` controller corrects an error."""
    ref_refresh_every: Annotated[int, AtLeast(0), UsedWhen("has_kl_penalty")] = 0
    """Training steps after which the reference is moved towards the policy; 0 keeps it."""
    ref_refresh_mix: Annotated[float, Above(0), AtMost(1), UsedWhen("ref_refresh_every", Above(0))] = 1.0
    """Share of the policy in a refreshed reference; 1 replaces it."""
    tis_cap: Annotated[float, AtLeast(0)] = 0.0
    """Truncated importance sampling: recompute the log-probabilities of rollouts with the trainer, and weight each
    token by min(trainer / sampler, `tis_cap`); 0 trusts the sampler's."""
    buffer_capacity: Annotated[int, AtLeast(1), UsedWhen("keeps_rollouts")] = 1000
    """Most groups to train on that the rollout buffer holds; the oldest are evicted first. Groups with equal rewards
    that only count (`count_constant_groups`) take no place."""
    max_staleness: Annotated[int | None, AtLeast(0), UsedWhen("keeps_rollouts")] = None
    """Most optimizer steps between sampling a group and training on it; older groups are dropped, also in the middle of
    a pass. At least `num_substeps` - 1, the age of a batch's last groups in its first pass. Null sets no limit."""
    min_fresh_fraction: Annotated[float, Above(0), AtMost(1), UsedWhen("max_staleness", NOT_NULL)] = 0.25
    """New rollouts are needed when, between two passes, less than this share of the groups is left: the others became
    too stale, or had all their passes."""
    parity: Annotated[ParityConfig, MAY_CHANGE] = chz.field(default_factory=ParityConfig)
    """The check that the sampler is the policy that is trained, before each optimizer step and in evaluations."""
    health: HealthConfig = chz.field(default_factory=HealthConfig)
    """Alarms and reports."""

    @chz.validate
    def _possible(self) -> None:
        refuse(_contradictions(self))

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

    loss_fn: Annotated[str | Recipe, Code(LOSS)] = chz.field(default="grpo", munger=lambda _, value: canonical(value))
    """The algorithm: a name of `assay.grpo.recipes.RECIPES`, a recipe of your own, or its `path/to/file.py:NAME` or
    `package.module:NAME`."""
    loss_fn_config: Mapping[str, float] = chz.field(default_factory=dict)
    """Settings of the loss by name, over those of its recipe; `clip_low_threshold` and `clip_high_threshold` are
    absolute ratios."""
    learning_rate: Annotated[float, AtLeast(0)] = 1e-5
    """Adam learning rate."""
    beta1: Annotated[float, AtLeast(0), Below(1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, AtLeast(0), Below(1)] = 0.95
    """Decay of the second moment."""
    eps: Annotated[float, Above(0)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    """Decoupled weight decay of all matrices, embeddings among them; norms and biases do not decay."""
    grad_clip_norm: Annotated[float, AtLeast(0)] = 1.0
    """Global gradient norm above which the gradient is scaled down; 0 turns clipping off."""
    temperature: Annotated[float, Above(0)] = 1.0
    """Temperature at which the rollouts were sampled; log-probabilities are taken under it."""
    gamma: Annotated[float, AtLeast(0), AtMost(1)] = 1.0
    """Discount of multi-turn returns."""
    normalize_advantages_by_std: bool | None = None
    """Divide a group's centred rewards by their standard deviation; null takes the choice of `loss_fn`."""
    remove_constant_reward_groups: bool = True
    """Compute nothing for groups in which all rewards are equal: they carry no gradient, except that of a KL penalty or
    entropy bonus in the loss."""
    num_substeps: Annotated[int, AtLeast(1)] = 1
    """Optimizer steps per pass over the rollouts; groups are split evenly among them, in the batch's order in every
    pass."""
    rollout_epochs: Annotated[int, AtLeast(1)] = 2
    """Passes over each rollout in `training_step_with_rollout_epochs`."""
    kl_coef: Annotated[float, AtLeast(0)] = 0.01
    """Weight of the KL penalty (its start, with `kl_target`); 0 turns it off."""
    kl_discount_factor: Annotated[
        float, AtLeast(0), AtMost(1), UsedWhen("has_kl_penalty"), UsedWhen("kl_placement", "reward")
    ] = 0.0
    """With `kl_placement=reward`, discount with which a token's penalty is also charged to earlier tokens."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute precision; trained weights and log-probabilities are float32. `auto`: as the model's weights are."""
    micro_batch_tokens: Annotated[int, AtLeast(1)] = 16384
    """Most tokens (padding included) in one forward pass. Bounds memory, never changes the gradient."""
    use_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    @chz.validate
    def _consistent(self) -> None:
        refuse(impossible(self))
        check_thresholds(recipe_of(self.loss_fn), self.loss_fn_config)
        if callable(self.recipe.surrogate):
            # Who hands a function of tensors over has torch.
            from assay.backends.local.losses import try_out

            try_out(self.loss)

    @fact("there is a KL penalty", "kl_coef", cure="Raise kl_coef")
    def has_kl_penalty(self) -> bool:
        """Whether the KL against the reference is penalised, and so measured."""
        return self.kl_coef > 0

    @fact("rollouts are kept", cure="")
    def keeps_rollouts(self) -> bool:
        """Always: a trainer by itself has its rollout buffer with one epoch too."""
        return True

    @chz.init_property
    def recipe(self) -> Recipe:
        """The algorithm's parts, with separate settings applied."""
        return resolve(
            self.loss_fn,
            self.loss_fn_config,
            self.baseline,
            self.normalize_advantages_by_std,
            self.aggregation,
            self.count_constant_groups,
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
        local = LocalBackend(
            device=device,
            dtype=dtype,
            micro_batch_tokens=self.micro_batch_tokens,
            use_gradient_checkpointing=self.use_gradient_checkpointing,
        )
        # The caller's model is there already, and with it, on CUDA, the allocator with the caller's settings.
        return local if device == "cpu" else chz.replace(local, cuda_allocator="")


def _contradictions(config: AlgorithmConfig) -> Iterator[str]:
    if config.kl_unbiased and config.kl_estimator == "abs":
        yield "kl_estimator=abs does not estimate a KL divergence, so it has no unbiased form. Use k1, k2 or k3."
    if config.constant_length is not None and config.aggregation not in (None, "constant"):
        yield (
            f"constant_length is set but aggregation={config.aggregation} does not divide by it. Remove one of them."
        )


def doubtful(config: GRPOConfig) -> Iterator[str]:
    """Settings that work and hardly do what is wanted of them, as messages that say what to change."""
    penalty_in_loss = config.kl_coef > 0 and config.kl_placement == "loss"
    if penalty_in_loss and config.estimator == "k1" and not config.kl_unbiased:
        yield (
            f"kl_estimator={config.kl_estimator} in the loss regularises nothing: its gradient is that of the policy's "
            "log-probability alone, which is 0 on average and does not depend on the reference. Set kl_estimator=k2, "
            "kl_unbiased=true or kl_placement=reward."
        )


def impossible(config: GRPOConfig) -> Iterator[str]:
    """Combinations that cannot work or would do nothing, as messages that say what to change."""
    if config.count_constant_groups is not None and not config.remove_constant_reward_groups:
        yield (
            f"count_constant_groups={str(config.count_constant_groups).lower()} would do nothing: with "
            "remove_constant_reward_groups=false, groups with equal rewards are trained on, so they count. Remove one "
            "of them."
        )
    stale, last = config.max_staleness, config.num_substeps - 1
    if stale is not None and stale < last:
        yield (
            f"max_staleness={stale} with num_substeps={config.num_substeps}: the last groups of a batch are {last} "
            "optimizer steps old when their first turn comes, so they would be dropped unused. Raise max_staleness to "
            f"at least {last}, or lower num_substeps."
        )
    uses_constant = config.recipe.aggregation == "constant"
    if uses_constant and config.constant_length is None:
        yield (
            f"loss_fn={config.loss_fn} with aggregation=constant divides by a fixed length, which is not set. Set "
            "constant_length to the generation limit in tokens."
        )
    if not uses_constant and config.constant_length is not None:
        yield (
            f"constant_length is set but loss_fn={config.loss_fn} does not divide by it. Set aggregation=constant, or "
            "remove constant_length."
        )
