"""`assay config`: the whole config that a command would use, as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from assay.cli.options import add_config


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_config(parser)


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print it."""
    from assay.config import resolved
    from assay.training.config import load_config

    print(json.dumps(resolved(load_config(args.config, overrides)), indent=2))
    return 0
