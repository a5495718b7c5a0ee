"""`assay train`: train, or with `--dry-run` say what a run would do."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from assay.cli.options import add_config, add_settings_help
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.training.config import TrainingConfig

CHANGED_MOST = (
    "dataset_builder",
    "dataset_builder.batch_size",
    "dataset_builder.group_size",
    "model_name",
    "lora_rank",
    "learning_rate",
    "loss_fn",
    "kl_penalty_coef",
    "num_substeps",
    "max_tokens",
    "temperature",
    "max_batches",
    "save_every",
    "keep_last",
    "eval_every",
    "eval.samples_per_task",
    "sft.num_steps",
    "log_path",
    "seed",
    "local.device",
    "local.dtype",
    "wandb_project",
)
"""Settings that `--help` shows."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_config(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check all that a start checks, print the plan with time and memory, and leave no run",
    )
    add_settings_help(
        parser,
        "assay.training.config:TrainingConfig",
        CHANGED_MOST,
        "`assay settings` shows all settings: below a key, or by words (`assay settings kl`).",
    )


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Train, or print the plan."""
    from assay.training.config import load_config

    _check_task(args.config, overrides)
    config = load_config(args.config, overrides)
    for note in _left_out(args.config, config):
        print(f"Note: {note}", file=sys.stderr)
    if args.dry_run:
        from assay.training.dry_run import dry_run

        print(asyncio.run(dry_run(config)))
    else:
        from assay.training.loop import train

        train(config)
    return 0


def _left_out(configs: Sequence[str], config: TrainingConfig) -> Iterator[str]:
    """What presets are made for and the command does not say."""
    from assay.presets import FOLLOWS

    for name in configs:
        if name in FOLLOWS and config.load_checkpoint_path is None:
            yield (
                f"{name} goes on from the weights that {FOLLOWS[name]} trained, and without load_checkpoint_path it "
                f"starts from {config.model_name} as it is. Give load_checkpoint_path=RUN/checkpoints/NAME of that run."
            )


def _check_task(configs: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse a command that does not say what to train on: the default is only for Python.

    Raises:
        ConfigError: no config and no argument names an environment; the message lists what can be given.
    """
    from assay.config.sources import read_overrides, read_source
    from assay.envs.named import ENVIRONMENT
    from assay.presets import presets

    layers = [*map(read_source, configs), read_overrides(overrides, said=False)]
    if any(key in ("dataset_builder", "dataset_builder.type") for layer in layers for key in layer.values):
        return
    ready = [(f"--config {name}", text) for name, text in presets().items()]
    ready += [(f"dataset_builder={name}", "an environment, with settings of your choice") for name in ENVIRONMENT.known]
    ready += [("dataset_builder=mine.py:Mine", "an environment of your own (`assay init mine.py` writes one)")]
    wide = max(len(given) for given, _ in ready)
    listed = "\n".join(f"  {given:{wide}}  {text}" for given, text in ready)
    which = " (no config names a dataset_builder)" if configs else ""
    raise ConfigError(f"Nothing says what to train on{which}. Give one of:\n{listed}")
