"""`assay export`: a checkpoint of a run as a Hugging Face folder, or on the hub."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from assay.cli.options import config_of


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory (`log_path` of the run)")
    parser.add_argument("target", type=Path, metavar="DIR", help="folder to write; a new one, or an earlier export")
    parser.add_argument(
        "--merge", action="store_true", help="merge LoRA adapters into the model (default: the adapters alone)"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--batch", type=int, metavar="N", help="checkpoint after N RL batches (default: the last one)")
    which.add_argument("--best", action="store_true", help="the checkpoint with the largest `best_metric`")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="precision of a whole model (default: its own)"
    )
    parser.add_argument(
        "--push", metavar="USER/MODEL", help="also push it to the Hugging Face hub, with the token in $HF_TOKEN"
    )
    parser.add_argument("--public", action="store_true", help="with --push: a new repository is public, not private")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Export, and say what was written."""
    config = config_of(args.run, overrides)
    from assay.training.export.folder import Wanted, describe, export

    wanted = Wanted(
        target=args.target.expanduser(),
        merge=args.merge,
        batch=args.batch,
        best=args.best,
        dtype=args.dtype,
        repo=args.push,
        public=args.public,
    )
    print(describe(export(args.run, config, wanted)))
    return 0
