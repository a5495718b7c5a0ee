"""`assay export-data`: an environment's tasks as another trainer's data sets."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.options import config_of
from assay.errors import ConfigError, pip_install
from assay.terminal import inert

if TYPE_CHECKING:
    from assay.training.config import TrainingConfig


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_source(parser)
    parser.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="the model to train: a folder, or a name on the hub; renderer_name=auto asks",
    )
    parser.add_argument("--verl", type=Path, required=True, metavar="DIR", help="folder to write for verl 0.9")
    parser.epilog = """\
  assay export-data chess --verl chess_data --tokenizer Qwen/Qwen3-0.6B dataset_builder.num_train=640
  assay export-data my_task.py:MyTask --verl my_data --tokenizer Qwen/Qwen3-0.6B
  assay export-data runs/chess --verl chess_data
"""


def add_source(parser: argparse.ArgumentParser) -> None:
    """Where the environment's settings come from."""
    parser.add_argument("source", metavar="SOURCE", help="run directory, preset, YAML file, or FILE:Name of your own")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write the files, and say how to train on them."""
    from assay.integrations.environments.settings import prepared_of
    from assay.integrations.verl.agent_data import write_data

    one = prepared_of(source_config(args.source, overrides), tokenizer_of(args.tokenizer))
    folder = args.verl.expanduser()
    found = write_data(one, folder)
    print(inert(f"wrote {folder}. Train with:\n\n    python -m verl.trainer.main_ppo \\"))
    print(inert(" \\\n".join(f"        {shlex.quote(override)}" for override in found)))
    return 0


def source_config(source: str, overrides: Sequence[str]) -> TrainingConfig:
    """The config of a run, a preset, a YAML file, or an environment of the user's own.

    Raises:
        AssayError: there is none of that name, or it cannot be read.
    """
    from assay.integrations.environments import settings

    path = Path(source).expanduser()
    return config_of(path, overrides) if path.is_dir() else settings.config_of(source, overrides)


def tokenizer_of(model: str | None) -> Any:
    """The tokenizer of a model; None where none is named.

    Raises:
        ConfigError: what reads it is not installed.
        ModelError: there is none.
    """
    if model is None:
        return None
    try:
        from assay.backends.local.models import load_tokenizer
    except ImportError as missing:
        raise ConfigError(f"--tokenizer needs transformers ({missing}): {pip_install('torch')}.") from missing
    return load_tokenizer(model)
