"""`assay export`: a checkpoint of a run as a Hugging Face folder, or on the hub; or the right kernels that it wrote."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from assay.cli.options import config_of
from assay.errors import ConfigError

MOST = 16
"""Kernels of a problem that `--samples` takes unless told otherwise."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory (`log_path` of the run)")
    parser.add_argument(
        "target",
        type=Path,
        metavar="TARGET",
        help="folder to write (a new one, or an earlier export); a file, with --samples",
    )
    parser.add_argument(
        "--samples",
        action="store_true",
        help="write the right kernels of the run's training, as JSON lines to imitate (sft_path) or to retrieve",
    )
    parser.add_argument(
        "--per-problem", type=int, metavar="N", help=f"with --samples: most kernels of a problem (default: {MOST})"
    )
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
    _refuse_strays(args)
    config = config_of(args.run, overrides)
    if args.samples:
        from assay.cli.runs.export_samples import export_samples

        most = MOST if args.per_problem is None else args.per_problem
        print(export_samples(args.run, config, args.target.expanduser(), most))
        return 0
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


def _refuse_strays(args: argparse.Namespace) -> None:
    """Refuse options that would do nothing.

    Raises:
        ConfigError: as said.
    """
    if not args.samples:
        if args.per_problem is not None:
            raise ConfigError("--per-problem would have no effect without --samples. Remove it.")
        return
    given = {"--merge": args.merge, "--batch": args.batch, "--best": args.best}
    given |= {"--dtype": args.dtype, "--push": args.push, "--public": args.public}
    if idle := [name for name, value in given.items() if value not in (None, False)]:
        raise ConfigError(f"{idle[0]} would have no effect: --samples writes kernels and no model. Remove it.")
    if args.per_problem is not None and args.per_problem < 1:
        raise ConfigError(f"--per-problem {args.per_problem} must be at least 1.")
