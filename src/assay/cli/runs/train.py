"""`assay train`: train, or with `--dry-run` say what a run would do."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from assay.cli.options import add_config, add_settings_help


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_config(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check all that a start checks, print the plan with time and memory, and write nothing",
    )
    add_settings_help(parser, "assay.training.config:TrainingConfig")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Train, or print the plan."""
    from assay.training.config import load_config

    config = load_config(args.config, overrides)
    if args.dry_run:
        from assay.training.dry_run import dry_run

        print(asyncio.run(dry_run(config)))
    else:
        from assay.training.loop import train

        train(config)
    return 0
