"""`assay report`: write the report of a run again, during the run or after it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from assay.cli.options import config_of
from assay.errors import AssayError
from assay.training.report.report import recorded_page, renew_report, save_page
from assay.training.run.reader import read_run


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory (`log_path` of the run)")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write the report, and print where it is. Overrides say where the environment now finds what it needs."""
    records = read_run(args.run)
    try:
        config = config_of(args.run, overrides)
    except AssayError as error:
        if overrides:
            raise
        print(save_page(args.run, recorded_page(records, error)))
        return 0
    print(renew_report(args.run, config))
    return 0
