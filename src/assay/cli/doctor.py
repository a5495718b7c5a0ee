"""`assay doctor`: whether this machine has what Assay, or one run, needs; with cures. Each room checks its own
needs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from assay.cli.options import add_config, no_settings
from assay.errors import ConfigError
from assay.terminal import inert
from assay.types import Check

if TYPE_CHECKING:
    from assay.backends.tinker.probe.finding import Finding

NOT_WELL = 3
"""Exit status where something is missing: 1 and 2 mean that nothing was checked."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print the rows as one JSON list")
    parser.add_argument("--tinker", metavar="URL", help="try out the server of the Tinker API at this address")
    parser.add_argument("--model", metavar="NAME", help="with --tinker: the model to try (its first)")
    parser.add_argument("--rank", type=int, default=8, metavar="N", help="with --tinker: LoRA rank to try (8)")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print one row for each check; 3 if one of them failed."""
    if args.tinker is not None:
        no_settings(overrides, "doctor --tinker")
        return _examine_server(args)
    from assay.training.config import load_config
    from assay.training.examine import examine_machine, examine_run

    whole = not args.config and not overrides
    checks = asyncio.run(examine_machine() if whole else examine_run(load_config(args.config, overrides)))
    sys.stdout.write(f"{json.dumps([asdict(check) for check in checks]) if args.json else table(checks)}\n")
    return 0 if all(check.ok for check in checks) else NOT_WELL


def _examine_server(args: argparse.Namespace) -> int:
    """The probe of a server; 3 if a run would train wrongly there."""
    from assay.backends.config import TinkerService
    from assay.backends.tinker.probe.run import probe_server

    if args.rank < 1:
        raise ConfigError(f"--rank {args.rank}: adapters have a rank of 1 or more.")
    findings = asyncio.run(probe_server(args.tinker, args.model, args.rank, TinkerService()))
    rows = [finding.record() for finding in findings]
    sys.stdout.write(f"{json.dumps(rows) if args.json else server_table(findings)}\n")
    return NOT_WELL if any(finding.verdict == "wrong" for finding in findings) else 0


def server_table(findings: Sequence[Finding]) -> str:
    """One line for each finding, what to do below those that are not ok, and what it all means."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for one in findings:
        verdict = one.verdict if one.verdict == "ok" else one.verdict.upper()
        lines.append(f"{one.point}  {verdict:5}  {one.name:{width}}  {inert(one.found, lines=False)}")
        if one.cure:
            lines.append(f"   {'':5}  {'':{width}}  -> {one.cure}")
    wrong = [one for one in findings if one.verdict == "wrong"]
    parts = sorted({one.feature for one in wrong if one.feature})
    if any(not one.feature for one in wrong):
        end = "No run may train here."
    elif parts:
        end = f"Runs may train here, but not with: {', '.join(parts)}."
    else:
        end = "Runs may train here."
    return "\n".join([*lines, "", end])


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
