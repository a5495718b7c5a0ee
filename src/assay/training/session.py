"""The parts of a run in progress: run directory, data, policy, renderer, sinks.

`open_session` puts it together, at the start or at the checkpoint that a run resumes from, and always closes it again.
"""

from __future__ import annotations

import difflib
import itertools
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from assay.backends.base import AdamParams, Backend, Capabilities
from assay.backends.config import PolicySpec
from assay.backends.named import check_access, open_named
from assay.config import resolved
from assay.config.record import may_change, rounding_changes
from assay.config.schema import settings
from assay.envs.base import EnvData, EnvGroupBuilder, Records, build_data, iter_builders
from assay.errors import AssayError, ConfigError
from assay.grpo.recipes import RECIPES
from assay.grpo.trainer import GRPOTrainer
from assay.rollouts.renderers.base import Renderer
from assay.storage.files import read_object
from assay.training.config import TrainingConfig
from assay.training.metrics.counters import StepCounters
from assay.training.metrics.logger import SETTINGS_CHANGED, MetricsLogger
from assay.training.metrics.names import METRICS, is_possible
from assay.training.metrics.progress import RunProgress
from assay.training.metrics.sinks import ConsoleSink, MetricSink, TensorBoardSink, WandbSink, writes_tensorboard
from assay.training.plan import NO_GATE
from assay.training.run.checkpoints import Checkpoint, open_checkpoint
from assay.training.run.directory import RunDirectory
from assay.training.run.resume import CONFIG, Refusal, ResumePlan, plan_resume
from assay.training.run.retention import Keep
from assay.training.settle import renderer_of, settle
from assay.types import Json, SamplingParams

logger = logging.getLogger(__name__)

SHOWN: Mapping[str, str] = {
    "reward/mean": "reward",
    "part/": "",
    "perf/sampled_tokens_per_s": "tokens/s",
    "eval/reward/mean": "held-out reward",
    "train/loss": "loss",
    "train/entropy": "entropy",
    "train/grad_norm": "gradient norm",
    "rollout/constant_group_fraction": "constant groups",
}
"""Metrics of a step that are worth a terminal line, and what they are called there: the reward and its parts first."""


@dataclass(frozen=True)
class Session:
    """The parts of a run in progress."""

    config: TrainingConfig
    run: RunDirectory
    data: EnvData
    backend: Backend
    trainer: GRPOTrainer
    renderer: Renderer
    log: MetricsLogger
    progress: RunProgress
    counters: StepCounters

    @property
    def max_turns(self) -> int:
        """Most turns of a rollout in the run's mode."""
        return self.config.build_context().max_turns

    @property
    def num_batches(self) -> int:
        """RL batches of the whole run."""
        return num_batches(self.config, self.data)

    @property
    def sampling(self) -> SamplingParams:
        """How rollouts are sampled, in training and in evaluation."""
        return SamplingParams(self.config.max_tokens, self.config.temperature)

    @property
    def heldout(self) -> Sequence[EnvGroupBuilder]:
        """The held-out tasks that are evaluated."""
        return list(itertools.islice(iter_builders(self.data.heldout), self.config.eval.max_tasks))


def num_batches(config: TrainingConfig, data: EnvData) -> int:
    """RL batches of a run on this data."""
    return min(len(data.train), len(data.train) if config.max_batches is None else config.max_batches)


def adam(config: TrainingConfig, learning_rate: float) -> AdamParams:
    """The optimizer settings at one learning rate."""
    o = config.optimizer
    return AdamParams(learning_rate, o.beta1, o.beta2, o.eps, o.weight_decay, o.grad_clip_norm)


def plan_run(config: TrainingConfig) -> ResumePlan | Refusal:
    """How the run of a config starts or goes on in its directory. Changes nothing.

    Raises:
        ModelError, ConfigError: as `settle`.
    """
    record = resolved(settle(config))
    return plan_resume(config.log_path, record, config.resume_from_batch, may_change(config))


def warn_of_rounding(config: TrainingConfig, plan: ResumePlan) -> None:
    """Say so where a run goes on with settings under which sums are rounded in another way."""
    before = read_object(plan.path / CONFIG) if plan.checkpoint is not None else None
    if before and (changes := rounding_changes(before, config)):
        logger.warning(
            "The run goes on with %s, which changes how sums are rounded: its figures may differ in their last digits "
            "from those of an uninterrupted run.",
            ", ".join(changes),
        )


def accepted(plan: ResumePlan | Refusal) -> ResumePlan:
    """The plan of a run that can start or go on.

    Raises:
        RunDirectoryError, CheckpointError: it can do neither.
    """
    if isinstance(plan, Refusal):
        raise plan.error
    return plan


def check_data(config: TrainingConfig, data: EnvData) -> Keep:
    """Refuse data that lack what the run needs; returns which checkpoints the run keeps.

    Raises:
        ConfigError: they lack supervised examples, or as `retention`.
    """
    if config.sft.num_steps and data.sft is None:
        path = "sft_path" in settings(type(config.active_builder))
        raise ConfigError(
            f"sft.num_steps={config.sft.num_steps}, but this environment has no supervised examples. "
            f"Set sft.num_steps=0{', or sft_path of the dataset builder' if path else ''}."
        )
    idle = [key for key, default, value in _of_evaluation(config) if value != default]
    if idle and not len(data.heldout):
        raise ConfigError(
            f"{' and '.join(idle)} would have no effect: this environment has no held-out tasks, so nothing is "
            "evaluated. Remove it, or give held-out tasks."
        )
    return retention(config, data)


def _of_evaluation(config: TrainingConfig) -> Iterator[tuple[str, Json, Json]]:
    """Key, default and value of each setting of evaluations."""
    for key, node in (("", config), ("eval.", config.eval)):
        for name, setting in settings(type(node)).items():
            if key or name == "eval_every":
                yield f"{key}{name}", setting.default, getattr(node, name)


async def open_policy(config: TrainingConfig, data: EnvData, resumed: Checkpoint | None) -> tuple[Backend, Renderer]:
    """The policy of a run at its start or at a checkpoint, and its renderer.

    Raises:
        AssayError: as `make_backend` and `renderer_of`.
    """
    backend = await make_backend(config, data, resumed.policy if resumed else None)
    try:
        return backend, renderer_of(config, backend, resumed)
    except AssayError:
        await backend.close()
        raise


@asynccontextmanager
async def open_session(config: TrainingConfig, plan: ResumePlan, *, quiet: bool = False) -> AsyncIterator[Session]:
    """Open or resume the run of `config` as planned for its directory; `quiet` draws no progress.

    Raises:
        AssayError: any part cannot be opened; the message says which and what to do. Nothing committed is lost.
    """
    warn_of_rounding(config, plan)
    check_access(config.backend, config.base_url)
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(RunProgress(Console(stderr=True, quiet=True) if quiet else None))
        with progress.building() as show:
            data = build_data(config.active_builder, config.build_context(show))
        try:
            run = stack.enter_context(RunDirectory.open(plan, check_data(config, data)))
            backend, renderer = await open_policy(config, data, run.resumed)
            stack.push_async_callback(backend.close)
            trainer = GRPOTrainer.over(backend, config.trainer())
            if run.resumed is not None:
                trainer.restore(run.resumed.policy)
            log = stack.enter_context(
                MetricsLogger(run, make_sinks(config, run, num_batches(config, data), data.records))
            )
            _record_changes(config, run, log)
            counters = StepCounters(data.counters)
            yield Session(config, run, data, backend, trainer, renderer, log, progress, counters)
        finally:
            await data.close()


def _record_changes(config: TrainingConfig, run: RunDirectory, log: MetricsLogger) -> None:
    """Say which settings a resume has changed, in the log and among the run's events."""
    if not run.changes:
        return
    off = not config.grpo.parity.enabled and any(change.key == "grpo.parity.enabled" for change in run.changes)
    warning = f" {NO_GATE}" if off else ""
    said = f"The run goes on with other settings: {', '.join(map(str, run.changes))}.{warning}"
    log.event(run.next_step, SETTINGS_CHANGED, "warning" if off else "info", said)


def retention(config: TrainingConfig, data: EnvData) -> Keep:
    """Which checkpoints the run keeps.

    Raises:
        ConfigError: the best ones are to be kept by a metric that no run has, or by a held-out one without held-out
            tasks.
    """
    if config.keep_best is not None and config.best_metric.startswith("eval/") and not len(data.heldout):
        raise ConfigError(
            f"keep_best={config.keep_best} by best_metric={config.best_metric}, but this environment has no held-out "
            "tasks, so it is never measured. Set best_metric to one of training (reward/mean), or keep_best=null."
        )
    if config.keep_best is not None and not is_possible(config.best_metric):
        near = difflib.get_close_matches(config.best_metric, [*METRICS, "eval/reward/mean"], n=1)
        raise ConfigError(
            f"best_metric={config.best_metric} is not measured, so keep_best={config.keep_best} could not compare "
            f"checkpoints.{f' Did you mean {near[0]}?' if near else ''} docs/metrics.md has all names."
        )
    ahead, suspect = config.max_steps_off_policy, config.grpo.health.most_suspect
    return Keep(config.keep_last, config.keep_best, config.best_metric, ahead, suspect)


async def make_backend(config: TrainingConfig, data: EnvData, resume: Path | None) -> Backend:
    """The policy at the start of a run, or as saved in the folder `resume`.

    Raises:
        ConfigError: the backend cannot do what the config asks for.
        AssayError: as `open_named`.
    """
    backend = await open_named(config.backend, policy_of(config, resume), data, resume)
    if problems := list(beyond(backend.capabilities, config)):
        await backend.close()
        raise ConfigError("\n".join(problems))
    return backend


def policy_of(config: TrainingConfig, resume: Path | None) -> PolicySpec:
    """What a backend needs to know to open the run's policy.

    Raises:
        CheckpointError: there is no whole checkpoint at `load_checkpoint_path`.
    """
    start = None
    if resume is None and config.load_checkpoint_path is not None:
        start = open_checkpoint(config.load_checkpoint_path.expanduser()).policy
    return PolicySpec(
        model_name=config.model_name,
        lora_rank=config.lora_rank,
        seed=config.seed,
        start=start,
        base_url=config.base_url,
        local=config.local,
        scratch=config.scratch,
        tinker=config.tinker,
        cache_dir=config.cache_dir.expanduser(),
    )


def beyond(can: Capabilities, config: TrainingConfig) -> Iterator[str]:
    """What a config asks for but a backend cannot do, as messages that say what to change."""
    loss, backend = config.trainer().loss, f"backend={config.backend}"
    computed = ", ".join(name for name, row in RECIPES.items() if row.surrogate in can.losses)
    if callable(loss.surrogate) and not can.own_losses:
        yield (
            f"loss_fn={config.loss_fn} is a function of your own ({loss.name}), and {backend} computes only losses "
            f"that it knows by name. Set backend=local, or loss_fn to one of {computed}."
        )
    elif not callable(loss.surrogate) and loss.surrogate not in can.losses:
        yield (
            f"loss_fn={config.loss_fn} needs the surrogate {loss.name}, which {backend} does not compute. Set loss_fn "
            f"to one of {computed}."
        )
    terms = {"kl": loss.kl is not None, "entropy": loss.entropy_coef != 0}
    if lacking := [term for term, wanted in terms.items() if wanted and term not in can.terms]:
        cures = {"kl": "grpo.kl_placement=reward", "entropy": "grpo.entropy_coef=0"}
        yield (
            f"{backend} cannot compute {' and '.join(lacking)} terms in the loss. Set "
            f"{' and '.join(cures[term] for term in lacking)}."
        )
    if config.temperature != 1 and not can.tempered:
        yield (
            f"temperature={config.temperature:g}, but {backend} computes log-probabilities at temperature 1 alone, so "
            "the ratio of every loss would be wrong. Set temperature=1."
        )
    if config.lora_rank and not can.lora:
        yield f"lora_rank={config.lora_rank}, but {backend} cannot train adapters. Set lora_rank=0."
    if can.max_lora_rank is not None and config.lora_rank > can.max_lora_rank:
        yield (
            f"lora_rank={config.lora_rank}, but {backend} trains adapters of rank {can.max_lora_rank} at most for this "
            f"model. Set lora_rank={can.max_lora_rank}."
        )
    if not config.lora_rank and not can.full_weights:
        yield f"lora_rank=0 trains all weights, but {backend} can train only adapters. Set lora_rank to 1 or more."


def make_sinks(config: TrainingConfig, run: RunDirectory, batches: int, records: Records) -> list[MetricSink]:
    """The sinks that the config asks for, beside the run's own JSON lines."""
    sinks: list[MetricSink] = [ConsoleSink(SHOWN, {"sft": config.sft.num_steps, "rl": batches})]
    if writes_tensorboard(config.tensorboard_enabled):
        folder, per_level = run.path / "tensorboard", config.tensorboard_log_per_level
        sinks.append(TensorBoardSink(folder, per_tag=per_level, tags=records.tags, charts=records.charts))
    if config.wandb_project is not None:
        sinks.append(WandbSink(run.path, project=config.wandb_project, name=config.wandb_name, config=run.config))
    return sinks
