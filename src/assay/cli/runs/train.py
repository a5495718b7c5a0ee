"""`assay train`: train, or with `--dry-run` say what a run would do."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.cli.options import add_config, add_settings_help

if TYPE_CHECKING:
    from assay.training.config import TrainingConfig


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_config(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="check the config, build the data and print the plan only"
    )
    add_settings_help(parser, "assay.training.config:TrainingConfig")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Train, or print the plan."""
    from assay.training.config import load_config

    config = load_config(args.config, overrides)
    if args.dry_run:
        print(asyncio.run(_plan(config)))
    else:
        from assay.training.loop import train

        train(config)
    return 0


async def _plan(config: TrainingConfig) -> str:
    """The plan of a run whose data sets are built to see how large they are, and closed again."""
    from assay.envs.base import build_data, iter_builders
    from assay.training.plan import describe
    from assay.training.session import num_batches

    data = build_data(config.active_builder, config.build_context())
    try:
        return describe(config, num_batches(config, data), sum(1 for _ in iter_builders(data.heldout)))
    finally:
        await data.close()
