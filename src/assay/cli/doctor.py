"""`assay doctor`: whether this machine has what Assay, or one run, needs; with cures. Each room checks its own
needs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from assay.cli.options import add_config
from assay.terminal import inert
from assay.types import Check

NOT_WELL = 3
"""Exit status where something is missing: 1 and 2 mean that nothing was checked."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print the rows as one JSON list")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print one row for each check; 3 if one of them failed."""
    from assay.training.config import load_config
    from assay.training.examine import examine_machine, examine_run

    whole = not args.config and not overrides
    checks = asyncio.run(examine_machine() if whole else examine_run(load_config(args.config, overrides)))
    sys.stdout.write(f"{json.dumps([asdict(check) for check in checks]) if args.json else table(checks)}\n")
    return 0 if all(check.ok for check in checks) else NOT_WELL


def table(checks: Sequence[Check]) -> str:
    """One line for each check, and below those that failed what to do."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:{width}}  {inert(check.found, lines=False)}")
        if not check.ok and check.cure:
            lines.append(f"      {'':{width}}  -> {inert(check.cure, lines=False)}")
    failed = sum(not check.ok for check in checks)
    return "\n".join([*lines, "", f"{failed} of {len(checks)} need attention." if failed else "All is well."])
