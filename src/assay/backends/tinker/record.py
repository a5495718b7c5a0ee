"""`tinker.json`: the names under which a server keeps a policy. It holds no weights and no key."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.config.urls import without_secrets
from assay.errors import CheckpointError

FILE = "tinker.json"
FORMAT = 1
BASE = "base"
"""A reference that is the base model."""
LONGEST_NAME, LARGEST_FILE = 2000, 100_000
"""Characters of a name, and bytes of the file."""


@dataclass(frozen=True)
class Saved:
    """A policy on a server."""

    server: str
    model: str
    lora_rank: int
    policy_version: int
    state: str
    """Weights and optimizer."""
    sampler: str
    """Weights to sample from."""
    reference: str | None
    """Weights of the reference policy: a state's name, `base` for the base model, None where there is none."""

    def write(self, folder: Path) -> None:
        """Write the record into a new folder."""
        folder.mkdir(parents=True)
        (folder / FILE).write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")

    def check(self, server: str, model: str, lora_rank: int, path: Path) -> None:
        """Refuse a policy of another server or model.

        Raises:
            CheckpointError: it is one.
        """
        wanted = {"server": server, "model": model, "lora_rank": lora_rank}
        other = [f"{k}: {getattr(self, k)} -> {v}" for k, v in wanted.items() if getattr(self, k) != v]
        if other:
            raise CheckpointError(
                f"{path} names a policy on a server, and the settings say another one ({'; '.join(other)}). Set "
                "base_url, model_name and lora_rank as they were, or choose another checkpoint."
            )


def read(folder: Path) -> Saved:
    """The record in a checkpoint folder.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            found: Any = json.loads(file.read(LARGEST_FILE + 1)[:LARGEST_FILE])
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}, where {FORMAT} is known")
        reference = found["reference"]
        saved = Saved(
            server=without_secrets(_name(found["server"])),
            model=_name(found["model"]),
            lora_rank=int(found["lora_rank"]),
            policy_version=int(found["policy_version"]),
            state=_remote(found["state"]),
            sampler=_remote(found["sampler"]),
            reference=reference if reference in (None, BASE) else _remote(reference),
        )
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} has no {FILE}, so it is not a checkpoint of backend=tinker. Use the backend that wrote it, or "
            "let a server load its weights (`assay export`, then `assay serve --model FOLDER`)."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error!r}). Choose another checkpoint.") from error
    if saved.lora_rank < 1 or saved.policy_version < 0:
        raise CheckpointError(f"{path} has a rank or a version that cannot be. Choose another checkpoint.")
    return saved


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > LONGEST_NAME:
        raise ValueError("a name that is not text, or too long")
    return value


def _remote(value: Any) -> str:
    if not _name(value).startswith("tinker://"):
        raise ValueError("a remote name that does not begin with tinker://")
    return str(value)
