"""Tasks as data: what another process needs to rebuild an environment, and to find one of its tasks.

Everything is JSON. An environment is the record of its config (`assay.config.resolved`), with the SHA-256 of the code
and data that it names; a task is that, its split and its key, which is a hash of the task's content. Settings name
secrets (`judge.api_key_env`) and never hold them, so none travels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import chz

from assay.config import AtLeast, Code, Settings, from_resolved, resolved
from assay.config.record import changed_files
from assay.envs.base import BuildContext, DatasetBuilder
from assay.envs.named import ENVIRONMENT
from assay.errors import ConfigError, DataError
from assay.plugins import find
from assay.storage.files import encode_json
from assay.terminal import shown
from assay.types import Json

VERSION = 1
"""Of the form of a reference. A reader refuses another."""
MOST_CHARACTERS = 1_000_000
"""Of a reference as text."""
KEY_CHARACTERS = 200
"""Of a task's key or id in a reference."""

Split = Literal["train", "heldout"]


def _first() -> DatasetBuilder:
    return find("kernelbench", ENVIRONMENT, "dataset_builder")()  # type: ignore[no-any-return]


@chz.chz
class EnvironmentConfig(Settings):
    """What the tasks of an environment follow from."""

    dataset_builder: Annotated[DatasetBuilder, Code(ENVIRONMENT, "kernelbench")] = chz.field(default_factory=_first)
    """The environment."""
    seed: int = 0
    """Seed of what it draws."""
    max_turns: Annotated[int, AtLeast(1)] = 1
    """Most turns of a rollout."""
    chat: bool = False
    """Whether messages are written by a chat template."""
    cache_dir: Path = Path("~/.cache/assay")
    """Where verdicts of verifier programs are kept, on whichever machine asks for them."""

    def context(self) -> BuildContext:
        """What the environment is told when its data sets are made."""
        return BuildContext(self.seed, self.max_turns, self.cache_dir.expanduser(), self.chat)


@dataclass(frozen=True)
class EnvironmentReference:
    """An environment with its settings, as JSON text. Equal ones have equal text."""

    record: str

    @classmethod
    def of(cls, config: EnvironmentConfig) -> EnvironmentReference:
        """The reference of a config."""
        return cls(encode_json(resolved(config), sort_keys=True).decode())

    @cached_property
    def digest(self) -> str:
        """Hash of the record (hex, 16 characters)."""
        return hashlib.sha256(self.record.encode()).hexdigest()[:16]

    def config(self) -> EnvironmentConfig:
        """The config, for which the code that it names is loaded.

        Raises:
            DataError: the record cannot be read.
            ConfigError: a setting cannot be read, or code or data have changed since the reference was made.
        """
        record = json_object(self.record, "the record of an environment")
        if changed := changed_files(record):
            raise ConfigError(
                f"{', '.join(changed)} changed, or cannot be read here, since these tasks were written. They would be "
                "posed and scored in another way. Write the tasks anew, or put the files back as they were."
            )
        return from_resolved(EnvironmentConfig, record, "the record of an environment")


@dataclass(frozen=True)
class TaskReference:
    """One task of an environment. `key` is the hash of its content (`Task.key`); `id` names it in messages."""

    environment: EnvironmentReference
    split: Split
    key: str
    id: str

    def to_json(self) -> str:
        """The reference as one line of JSON text."""
        record = json.loads(self.environment.record)
        task = {"version": VERSION, "split": self.split, "key": self.key, "id": self.id, "environment": record}
        return encode_json(task, sort_keys=True).decode()

    @classmethod
    def from_json(cls, text: object) -> TaskReference:
        """The reference that `to_json` wrote.

        Raises:
            DataError: it is not one.
        """
        record = json_object(text, "an Assay task")
        if record.get("version") != VERSION:
            raise DataError(
                f"An Assay task has version {shown(record.get('version'), 40)}, and this Assay reads {VERSION}. Write "
                "the tasks anew with it."
            )
        environment = record.get("environment")
        split: Any = record.get("split")
        key: Any = record.get("key")
        name: Any = record.get("id")
        if not isinstance(environment, dict) or split not in get_args(Split):
            raise DataError(f"An Assay task needs an environment and a split ({' or '.join(get_args(Split))}).")
        if not all(isinstance(one, str) and 0 < len(one) <= KEY_CHARACTERS for one in (key, name)):
            raise DataError(f"An Assay task needs a key and an id of at most {KEY_CHARACTERS} characters each.")
        return cls(_shared(encode_json(environment, sort_keys=True).decode()), split, key, name)


@lru_cache(maxsize=64)
def _shared(record: str) -> EnvironmentReference:
    """One object, and one hash, for the thousands of tasks of an environment."""
    return EnvironmentReference(record)


def json_object(text: object, said: str) -> Mapping[str, Json]:
    """The object in a JSON text of bounded length; `said` names it in messages.

    Raises:
        DataError: it is none.
    """
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        found = f"{len(text)} characters" if isinstance(text, str) else f"a {type(text).__name__}"
        raise DataError(f"{said} is JSON text of at most {MOST_CHARACTERS} characters; this is {found}.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{said} is not valid JSON ({error}): {shown(text, 80)}") from error
    if not isinstance(found, dict):
        raise DataError(f"{said} is a JSON object, not a {type(found).__name__}.")
    return found
