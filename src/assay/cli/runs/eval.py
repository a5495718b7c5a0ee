"""`assay eval`: measure a checkpoint of a run on held-out tasks, without touching the run."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.cli.options import add_settings_help, config_of
from assay.config.sources import read_overrides
from assay.envs.base import build_data, iter_builders
from assay.errors import ConfigError
from assay.training.config import TrainingConfig
from assay.training.evaluate import check_errored, evaluate
from assay.training.metrics.intervals import mean_ci95
from assay.training.metrics.progress import RunProgress
from assay.training.run.checkpoints import checkpoint_folder, open_checkpoint
from assay.training.run.reader import find_checkpoint
from assay.training.session import make_backend
from assay.training.settle import renderer_of
from assay.types import Json, SamplingParams

CHANGED_MOST = (
    "eval.samples_per_task",
    "eval.max_tasks",
    "temperature",
    "max_tokens",
    "max_errored_fraction",
    "local.device",
    "local.dtype",
    "local.sample_batch_tokens",
    "cache_dir",
)
"""Settings that `--help` shows."""


NOT_READ = (
    *("learning_rate", "lora_rank", "gamma", "num_substeps", "rollout_epochs", "loss_fn", "loss_fn_config"),
    *("kl_penalty_coef", "kl_discount_factor", "normalize_advantages_by_std", "remove_constant_reward_groups"),
    *("dynamic_sampling_rounds", "max_steps_off_policy", "max_batches", "log_path", "save_every", "keep_last"),
    *("keep_best", "best_metric", "eval_every", "wandb_project", "wandb_name", "trace_token_groups"),
    *("tensorboard_enabled", "completion_table_every", "tensorboard_log_histograms_every"),
    *("tensorboard_log_per_level", "load_checkpoint_path", "resume_from_batch", "optimizer", "grpo", "sft"),
    *("local.micro_batch_tokens", "local.use_gradient_checkpointing", "local.adamw", "dataset_builder.batch_size"),
    "dataset_builder.group_size",
)
"""Settings of training, below which an evaluation reads nothing."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--run", required=True, type=Path, metavar="DIR", help="run directory (`log_path` of the run)")
    parser.add_argument("--batch", type=int, metavar="N", help="checkpoint after N RL batches (default: the last one)")
    add_settings_help(
        parser,
        "assay.training.config:TrainingConfig",
        CHANGED_MOST,
        "Any other setting of the run that an evaluation reads can be given too: `assay settings` shows all.",
    )


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Measure, and print the figures as JSON."""
    _refuse_idle(overrides)
    print(json.dumps(measure(args.run, config_of(args.run, overrides), args.batch), indent=2))
    return 0


def _refuse_idle(overrides: Sequence[str]) -> None:
    """Refuse settings of training, which would do nothing.

    Raises:
        ConfigError: there are some.
    """
    given = read_overrides(overrides).values
    if idle := [key for key in given if any(f"{key}.".startswith(f"{name}.") for name in NOT_READ)]:
        raise ConfigError(
            f"{' and '.join(idle)} would have no effect: an evaluation trains nothing. Remove it. What it reads is "
            f"{', '.join(CHANGED_MOST)} and the settings of the environment, of sampling and of the device."
        )


def measure(run: Path, config: TrainingConfig, batch: int | None) -> Mapping[str, Json]:
    """Evaluate the checkpoint of RL batch `batch` (the last checkpoint by default).

    Args:
        run: run directory.
        config: the run's config, possibly with other settings of evaluation.

    Returns:
        JSON data: run, checkpoint, tasks, samples_per_task, and per metric `mean`, `low`, `high` (95 %, over tasks),
        with the environment's baseline policies beside them.

    Raises:
        RunDirectoryError: no such run or checkpoint.
        TrainingError: too many rollouts could not be scored, or the sampler is not the policy that is trained.
    """
    return asyncio.run(_measure(run, config, batch))


async def _measure(run: Path, config: TrainingConfig, batch: int | None) -> Mapping[str, Json]:
    checkpoint = open_checkpoint(checkpoint_folder(run, find_checkpoint(run, batch)))
    with RunProgress() as progress, progress.building() as show:
        data = build_data(config.active_builder, config.build_context(show))
    try:
        backend = await make_backend(config, data, checkpoint.policy)
        tasks = list(iter_builders(data.heldout))[: config.eval.max_tasks]
        with RunProgress() as progress, progress.phase("eval", len(tasks)) as phase:
            evaluation = await evaluate(
                backend,
                renderer_of(config, backend, checkpoint),
                tasks,
                SamplingParams(config.max_tokens, config.temperature),
                samples=config.eval.samples_per_task,
                max_turns=config.build_context().max_turns,
                seed=config.seed,
                parity=config.grpo.parity,
                advance=phase.advance,
            )
        check_errored(evaluation.groups, config.max_errored_fraction, "the evaluation")
        policies = {"policy": evaluation.per_task}
        if data.baseline_policies is not None and config.eval.max_tasks is None:
            policies |= await data.baseline_policies()
    finally:
        await data.close()
    return {
        "run": str(run),
        "checkpoint": checkpoint.name,
        "tasks": len(tasks),
        "samples_per_task": config.eval.samples_per_task,
        "metrics": {name: _intervals(per_task) for name, per_task in policies.items()},
    }


def _intervals(per_task: Mapping[str, object]) -> dict[str, Json]:
    found = {}
    for name, values in per_task.items():
        interval = mean_ci95(values)  # type: ignore[arg-type]
        found[name] = {"mean": interval.mean, "low": interval.low, "high": interval.high}
    return found
