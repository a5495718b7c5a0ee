"""Options that several commands have, and the config of a run that is there already."""

from __future__ import annotations

import argparse
import logging
import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from assay.errors import ConfigError, RunDirectoryError
from assay.presets import presets

if TYPE_CHECKING:
    from assay.training.config import TrainingConfig


def add_config(parser: argparse.ArgumentParser) -> None:
    """`--config`, which may be repeated."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME|PATH",
        help=f"a preset ({', '.join(presets())}) or a YAML file; may be repeated, later ones win",
    )


def add_settings_help(parser: argparse.ArgumentParser, root: str, keys: Sequence[str], more: str) -> None:
    """`--help` with the settings that are changed most.

    Args:
        root: class that they are below, `package.module:Name`, which loads only when help is asked for.
        keys: of the settings.
        more: the command that shows all of them.
    """
    said = (root, tuple(keys), more)
    parser.add_argument("--help", "-h", action=_SettingsHelp, const=said, help="show this message")


class _SettingsHelp(argparse.Action):
    def __init__(
        self, option_strings: Sequence[str], dest: str, const: tuple[str, tuple[str, ...], str], help: str | None = None
    ) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help, const=const)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print and leave."""
        from assay.config.help import brief

        root, keys, more = self.const
        module, _, name = root.partition(":")
        listed = brief(getattr(import_module(module), name), keys, columns())
        parser.epilog = f"settings changed most (key=default):\n{listed}\n\n{more}"
        parser.print_help()
        parser.exit()


def columns() -> int:
    """Width of the terminal, in columns that are pleasant to read."""
    return min(120, shutil.get_terminal_size().columns)


def listed(asked: bool, given: Mapping[str, object], root: type) -> bool:
    """Print every setting of a class where `--settings` was given; returns whether it was.

    Raises:
        ConfigError: settings were given besides.
    """
    if not asked:
        return False
    if given:
        raise ConfigError(f"{next(iter(given))} would have no effect: --settings lists settings. Remove it.")
    from assay.config.help import listing

    print(listing(root, columns()))
    return True


def no_settings(overrides: Sequence[str], command: str) -> None:
    """Refuse `key=value` arguments of a command that has no settings.

    Raises:
        ConfigError: there are some.
    """
    if overrides:
        raise ConfigError(
            f"{overrides[0]!r}: `assay {command}` has no settings. Its options begin with --; see --help."
        )


def config_of(run: Path, overrides: Sequence[str]) -> TrainingConfig:
    """The config of a run. Its own config.json is a layer like any other, so that a setting can be overridden.

    Raises:
        RunDirectoryError: there is no run in that folder.
        ConfigError: an override that does not fit.
    """
    from assay.config.record import changed_files
    from assay.storage.files import read_object
    from assay.training.config import load_config

    record = run / "config.json"
    if not record.is_file():
        raise RunDirectoryError(f"{run} is not a run: it has no config.json. Give the log_path of a run.")
    for file in changed_files(read_object(record) or {}):
        logging.getLogger(__name__).warning("%s has changed since the run began; what it says now is used.", file)
    return load_config([str(record)], overrides)
