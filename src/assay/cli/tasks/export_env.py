"""`assay export-env`: an environment as a plugin of verifiers and prime-rl."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from assay.cli.tasks.export_data import add_source, source_config
from assay.terminal import inert


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_source(parser)
    parser.add_argument(
        "--verifiers", type=Path, required=True, metavar="DIR", help="folder to write a package for verifiers 0.4 into"
    )
    parser.add_argument("--name", metavar="NAME", help="of the package (default: assay-, and the name of the source)")
    parser.epilog = """\
  assay export-env chess --verifiers assay_chess dataset_builder.num_train=640
  assay export-env my_task.py:MyTask --verifiers assay_mine
  pip install -e assay_chess
"""


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write the package, and say how to use it."""
    from assay.integrations.environments.settings import prepared_of
    from assay.integrations.verifiers_plugin import write_plugin

    config = source_config(args.source, overrides)
    stem = re.sub(r"[^a-z0-9]+", "-", Path(args.source).stem.lower()).strip("-")
    name, folder = args.name or f"assay-{stem}", args.verifiers.expanduser()
    tasks = write_plugin(prepared_of(config, messages=True), name, folder, config.active_builder.batch_size)
    print(inert(f"wrote {folder}: {tasks:,} tasks. Use it with:\n\n    pip install -e {folder}"))
    print(inert(f"    uv run eval {name} --env.agent.harness.id null --env.agent.runtime.type subprocess"))
    print(inert(f"    uv run rl @ {folder / 'prime_rl.toml'}        in a checkout of prime-rl"))
    return 0
