"""`GRPOTrainer`: scored groups of rollouts in, an improved policy and its metrics out.

    trainer = GRPOTrainer(model, ref_model, GRPOConfig(kl_coef=0.01, kl_target=0.05))
    metrics = trainer.training_step(step_data)                        one pass over the rollouts
    metrics = trainer.training_step_with_rollout_epochs(step_data)    `rollout_epochs` passes, through the buffer

Groups become advantages, then data with behaviour and reference log-probabilities, each computed once. A pass splits
the groups among `num_substeps` optimizer steps; every one has one normaliser of its own, real optimizer arithmetic and
the loss of its recipe. The training loop uses the same class (`GRPOTrainer.over`) with a backend that also samples.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.backends.base import AdamParams, Backend, Precision, stepped
from assay.errors import CheckpointError, HealthError, TrainingError
from assay.grpo.admit import admit, with_reference
from assay.grpo.buffer import BufferedGroup, RolloutBuffer
from assay.grpo.config import GRPOConfig
from assay.grpo.group_data import TurnPlace, TurnTraining, flat, split_evenly, turn_training, without_reference
from assay.grpo.health.finding import Finding
from assay.grpo.health.monitor import HealthMonitor
from assay.grpo.health.rules import watched
from assay.grpo.health.sampled import sampled_metrics
from assay.grpo.kl import adapt, add_penalty
from assay.grpo.normalise import normalise
from assay.grpo.parity import Gate, Of
from assay.grpo.rollout_metrics import rewards_by_task, rollout_metrics, why_nothing
from assay.grpo.standalone.blocking import blocking
from assay.grpo.standalone.misuse import Warned, checked_config, checked_data
from assay.grpo.standalone.step_data import RolloutGroup, StepData, checked_rate, knows_behaviour, trajectory_groups
from assay.grpo.step_metrics import Pass, pass_metrics
from assay.grpo.trainer_state import TrainerState, read_state, write_state
from assay.types import Datum, TrajectoryGroup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepReport:
    """What a training step did and what it says of the run's health."""

    rollouts: dict[str, float]
    """What the rollouts say before any training (`rollout_metrics`)."""
    metrics: dict[str, float]
    """What the training says."""
    findings: Sequence[Finding] = ()
    """Alarms that this step raised."""
    report: str | None = None
    """The health report, at its cadence."""
    rewards: dict[str, list[float]] = field(default_factory=dict)
    """Rewards of the step's scored rollouts by task type, for histograms."""
    turns: Mapping[TurnPlace, TurnTraining] = field(default_factory=dict)
    """What each turn of the step's groups trained with, or why it trained nothing."""
    parity: dict[str, float] = field(default_factory=dict)
    """How far sampler and trainer were apart before the step (`parity/...`)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What parts of the step took (`perf/...`)."""


class GRPOTrainer:
    """Group-relative policy optimisation of one policy. See the module, `GRPOConfig` and `StepData`."""

    def __init__(self, model: Any, ref_model: Any = None, config: GRPOConfig | None = None) -> None:
        """Train a Hugging Face causal LM, bare or wrapped by peft, in place and on the device it is on.

        Args:
            model: the policy. It is put into eval mode, here and for every pass of a step (dropout would make the
                trained distribution another one than the sampled); a mode that you set in between is restored.
                Trained weights in half precision become float32 (an update of 1e-5 would be rounded away), while
                computing stays in half precision.
            ref_model: reference of the KL penalty, of any architecture with the same vocabulary. None: the policy as
                it is now (a copy of what is trained; LoRA adapters that do nothing yet are switched off instead);
                nothing where `kl_coef` is 0.

        Raises:
            ModelError: the models do not fit together, or nothing of the model is trained.
            ConfigError: a setting would have no effect.
        """
        # Imported here, because a trainer of a hosted model needs no torch.
        from assay.grpo.standalone.model import own_backend

        config = checked_config(model, ref_model, config)
        self._begin(own_backend(model, ref_model, config), config, "other")  # the sampler is the caller's

    @classmethod
    def over(cls, backend: Backend, config: GRPOConfig) -> GRPOTrainer:
        """A trainer of a backend's policy. Who made the backend sees to its reference (`freeze_reference`)."""
        trainer = cls.__new__(cls)
        trainer._begin(backend, config)
        return trainer

    def _begin(self, backend: Backend, config: GRPOConfig, precision: Precision | None = None) -> None:
        self.backend = backend
        self.config = config
        self._precision = precision
        self.kl_coef = config.kl_coef
        """Present weight of the KL penalty."""
        self.buffer = self._empty_buffer()
        self.health = HealthMonitor(config.health)
        self.steps = 0
        """Training steps done."""
        self.paused = False
        """Whether the run was paused on this state; who restores it and goes on has read the alarms."""
        self._rewards: dict[str, list[float]] = {}
        self._warned = Warned()

    def _empty_buffer(self) -> RolloutBuffer:
        c = self.config
        return RolloutBuffer(c.buffer_capacity, c.rollout_epochs, c.max_staleness, c.min_fresh_fraction)

    # By itself: blocking calls on data of the caller's own.

    def training_step(
        self, step_data: StepData | Sequence[RolloutGroup], *, learning_rate: float | None = None
    ) -> dict[str, float]:
        """One pass over the rollouts: `num_substeps` optimizer steps. Returns the metrics of rollouts and training.

        Args:
            learning_rate: of this step (a schedule's, say); by default the config's. Either is multiplied by
                `health.learning_rate_factor`, which `roll_back` lowers; the metric `learning_rate` is what was used.

        Raises:
            DataError: the data or the rate cannot be trained with; nothing was changed.
            TrainingError: rollouts that are said to be the present policy's are not (`parity`).
            HealthError: an alarm says that training must not simply go on; the step was done.
        """
        return blocking(self._own_step(step_data, learning_rate, reuse=False))

    def training_step_with_rollout_epochs(
        self, step_data: StepData | Sequence[RolloutGroup] | None = None, *, learning_rate: float | None = None
    ) -> dict[str, float]:
        """Add rollouts to the buffer, then train until it needs new ones: `rollout_epochs` passes over each group.

        Args:
            step_data: None trains on what the buffer still holds; see `needs_rollouts`.
            learning_rate: as for `training_step`.

        Raises:
            DataError, HealthError: as `training_step`.
            TrainingError: there is nothing left to train on and no new rollouts were given.
        """
        return blocking(self._own_step(step_data, learning_rate, reuse=True))

    @property
    def needs_rollouts(self) -> bool:
        """Whether the buffer needs new rollouts before the next `training_step_with_rollout_epochs`."""
        return self.buffer.wants_rollouts()

    def save(self, path: Path | str) -> None:
        """Write weights, optimizer, reference, controller, buffer and health into the new directory `path`.

        Raises:
            CheckpointError: `path` exists already.
        """
        if Path(path).exists():
            raise CheckpointError(f"{path} exists already, and a checkpoint is never overwritten. Give a new path.")
        blocking(self.save_state(Path(path)))

    def load(self, path: Path | str) -> None:
        """Go on exactly where `save` was called.

        Raises:
            CheckpointError: the directory is not such a checkpoint, or is of another model.
        """
        blocking(self.load_state(Path(path)))

    def roll_back(self, path: Path | str) -> None:
        """Go back to the policy that `save` wrote, after an alarm, at a lower learning rate; see `roll_back_state`.

        Raises:
            CheckpointError: as `load`.
        """
        blocking(self.roll_back_state(Path(path)))

    @property
    def policy_version(self) -> int:
        """Optimizer steps that the policy has taken."""
        return self.backend.policy_version

    async def _own_step(
        self, step_data: StepData | Sequence[RolloutGroup] | None, learning_rate: float | None, *, reuse: bool
    ) -> dict[str, float]:
        if learning_rate is not None:
            learning_rate = checked_rate(learning_rate) * self.health.learning_rate_factor
        groups: list[TrajectoryGroup] = []
        known = True
        if step_data is not None:
            data = checked_data(step_data)
            known = knows_behaviour(data)
            groups = trajectory_groups(
                data, self.backend.policy_version, self.backend.vocab_size, self.backend.context_length
            )
        elif self.buffer.wants_rollouts():
            raise TrainingError(
                "The rollout buffer needs new rollouts, and none were given. Sample with the present policy and pass "
                "them as step_data (see needs_rollouts)."
            )
        self._warned.of_step(self.config, len(groups), reuse=reuse)
        step = await self.update(groups, learning_rate=learning_rate, reuse=reuse, behaviour_known=known)
        if step.report is not None:
            logger.info("%s", step.report)
        for finding in step.findings:
            logger.warning("%s", finding.message)
        metrics = {**step.rollouts, **step.metrics, **step.parity}
        action = self.health.decide(step.findings)
        if action not in ("ignore", "warn"):
            causes = " ".join(finding.message for finding in step.findings)
            raise HealthError(f"The trainer's health asks to {action}. {causes}", tuple(step.findings), metrics)
        return metrics

    # The learning half of the loop.

    async def update(
        self,
        groups: Sequence[TrajectoryGroup],
        *,
        learning_rate: float | None = None,
        reuse: bool = False,
        behaviour_known: bool = True,
        ahead: Sequence[Datum] = (),
    ) -> StepReport:
        """One training step on scored groups.

        Args:
            learning_rate: of this step; by default the config's times `health.learning_rate_factor`.
            reuse: train through the buffer, `rollout_epochs` times on each group.
            behaviour_known: False takes the present policy for the one that sampled.
            ahead: what the present policy has sampled for later steps, for the parity gate.

        Raises:
            TrainingError: the parity gate refuses tokens of the present policy; no step was taken on them.
        """
        if learning_rate is None:
            learning_rate = self.config.learning_rate * self.health.learning_rate_factor
        adam = self._adam(learning_rate)
        rollouts = rollout_metrics(groups)
        of: Of = "run" if self._precision is None else "step data"
        gate = Gate(self.backend, self.config.parity, self.config.temperature, self._precision, self.buffer.drop, of)
        items, found, seconds = await admit(self.backend, self.config, groups, gate, behaviour_known=behaviour_known)
        found |= await sampled_metrics(self.backend, self.config, groups, items, behaviour_known=behaviour_known)
        in_parts = self.config.num_substeps > 1 or (reuse and len(self.buffer) > 0)
        await gate.before_passes(items if in_parts and not self.config.tis_cap else (), ahead)
        numbers = {item.id: item.id for item in items if item.data}
        metrics = {"groups": float(len(numbers))}
        passes: list[Pass] = []
        if reuse:
            numbers = {self.buffer.added + order: item.id for order, item in enumerate(items) if item.data}
            self.buffer.add(items)
            await self._train_from_buffer(adam, passes, gate)
            metrics |= self._buffer_metrics()
        else:
            for part in split_evenly(items, self.config.num_substeps):
                await self._optimizer_step(part, adam, passes, gate)
        if groups and not passes:
            logger.warning("No optimizer step: %s, so there is nothing to learn from.", why_nothing(groups))
        metrics |= pass_metrics(passes, self.config.recipe) | found
        metrics |= {"learning_rate": adam.learning_rate, "kl_coef": self.kl_coef}
        await self._after(metrics, sum(len(one.data) for one in passes))
        rewards = rewards_by_task(groups)
        if self.config.health.report_every:
            for task, values in rewards.items():
                self._rewards.setdefault(task, []).extend(values)
        findings = self.health.observe({**watched(rollouts), **metrics})
        report = None
        if self.health.report_due:
            report, self._rewards = self.health.report(self._rewards), {}
        turns = turn_training(groups, numbers, passes, mask_truncated=self.config.mask_truncated)
        return StepReport(rollouts, metrics, findings, report, rewards, turns, gate.metrics(), seconds)

    def _adam(self, learning_rate: float) -> AdamParams:
        c = self.config
        return AdamParams(learning_rate, c.beta1, c.beta2, c.eps, c.weight_decay, c.grad_clip_norm)

    async def _train_from_buffer(self, adam: AdamParams, passes: list[Pass], gate: Gate) -> None:
        """Whole passes over the fresh groups until, between two of them, the buffer needs new rollouts."""
        while True:
            self.buffer.retire_stale(self.backend.policy_version)
            if self.buffer.wants_rollouts():
                return
            for part in split_evenly(self.buffer.fresh, self.config.num_substeps):
                self.buffer.retire_stale(self.backend.policy_version)
                held = {group.id for group in self.buffer.fresh}
                part = [group for group in part if group.id in held]
                await self._optimizer_step(part, adam, passes, gate)
                self.buffer.use(part)

    async def _optimizer_step(
        self, groups: Sequence[BufferedGroup], adam: AdamParams, passes: list[Pass], gate: Gate
    ) -> None:
        """One optimizer step on the data of some groups; none where the gradient would be 0.

        Adam would move the weights even by a gradient of 0. A gradient that is not finite is dropped and counted.
        """
        config, recipe = self.config, self.config.recipe
        data = flat(groups)
        if data and config.kl_coef and config.kl_placement == "reward":
            data = add_penalty(data, self.kl_coef, config.estimator, config.kl_discount_factor)
        loss = config.loss_at(self.kl_coef)
        pulls = loss.kl is not None or loss.entropy_coef != 0 or any(bool(d.advantages.any()) for d in data)
        if not data or not pulls:
            return
        version = self.backend.policy_version
        fresh = all(group.policy_version == version for group in groups)
        advantages = [datum.advantages for datum in data]
        counted = [tokens for group in groups for tokens in group.counted]
        data = normalise(data, recipe.aggregation, config.constant_length, counted)
        if config.tis_cap or not gate.judges(groups):  # tis_cap compared all
            done = await self.backend.train_step(data, loss, adam)
        else:
            output = await self.backend.forward_backward(data, loss)
            await gate.judge_pass(groups, data, output.logprobs)
            done = await stepped(self.backend, output, adam)
        metrics = {"loss": done.output.metrics["loss:sum"], "nan_skip": float(done.refused is not None)}
        shown = {"entropy": "entropy:mean", **({"kl_loss": "kl:sum"} if loss.kl is not None else {})}
        metrics |= {name: done.output.metrics[key] for name, key in shown.items() if key in done.output.metrics}
        if done.refused is not None:
            logger.warning("%s", done.refused)
        metrics |= done.metrics
        passes.append(Pass(groups, advantages, data, done.output.logprobs, metrics, fresh))

    def _buffer_metrics(self) -> dict[str, float]:
        buffer = self.buffer
        return {
            "rollout_buffer_size": float(len(buffer)),
            "rollouts_fresh_fraction": buffer.fresh_fraction,
            "rollouts_reused": float(buffer.reused),
            "rollouts_stale": float(buffer.stale),
            "rollouts_evicted": float(buffer.evicted),
        }

    async def _after(self, metrics: dict[str, float], rollouts: int) -> None:
        """What follows the optimizer steps: the KL coefficient of the next step, and a fresher reference."""
        config = self.config
        self.steps += 1
        if config.kl_target is not None and math.isfinite(metrics.get("kl_div", math.nan)):
            self.kl_coef = adapt(
                self.kl_coef,
                metrics["kl_div"],
                config.kl_target,
                controller=config.kl_controller,
                rollouts=rollouts,
                horizon=config.kl_horizon,
            )
        if config.ref_refresh_every and self.steps % config.ref_refresh_every == 0:
            await self.backend.refresh_reference(config.ref_refresh_mix)
            kept = [without_reference(group) for group in self.buffer.fresh]
            renewed = {group.id: group.data for group in await with_reference(self.backend, config, kept)}
            self.buffer.replace_data(lambda group: renewed[group.id])

    # State.

    async def save_state(self, path: Path) -> None:
        """Write the backend's state and the trainer's into the directory `path` (created, must not exist)."""
        await self.backend.save_state(path)
        write_state(path, TrainerState(self.steps, self.kl_coef, self.paused, self._rewards, self.health, self.buffer))

    async def load_state(self, path: Path) -> None:
        """Restore what `save_state` wrote.

        Raises:
            CheckpointError: the directory is not such a checkpoint, or is of another model.
        """
        saved = self._read(path)
        await self.backend.load_state(path)
        self._take(saved)

    def restore(self, path: Path) -> None:
        """Restore what `save_state` wrote of the trainer itself, for a backend that was loaded already.

        Raises:
            CheckpointError: as `load_state`.
        """
        self._take(self._read(path))

    def _read(self, path: Path) -> TrainerState:
        """Everything that can be refused, before anything is changed."""
        return read_state(path, HealthMonitor(self.config.health), self._empty_buffer())

    def _take(self, saved: TrainerState) -> None:
        self.steps, self.kl_coef, self._rewards = saved.steps, saved.kl_coef, saved.rewards
        self.health, self.buffer, self.paused = saved.health, saved.buffer, saved.paused

    async def roll_back_state(self, path: Path) -> None:
        """Take the policy, optimizer, reference and KL coefficient of an earlier checkpoint of this trainer.

        Step counts go on; the buffered rollouts, which are those of the discarded policy, are dropped, and the monitor
        starts again.
        """
        saved = self._read(path)
        await self.backend.load_state(path)
        self.kl_coef = saved.kl_coef
        self.buffer.clear()
        self.health.rolled_back(saved.steps)
