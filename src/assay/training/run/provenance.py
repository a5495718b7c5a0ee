"""What produced a run: versions of the code and of the packages that decide its numbers.

Nothing about the person or the machine's name, no environment variables.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from assay.types import Json

VERSION = 1
"""Format of `code.json`."""
PACKAGES = ("assay-rl", "chess", "numpy", "peft", "safetensors", "tokenizers", "torch", "transformers")
"""Packages whose version can change a run's numbers."""


@cache
def describe_code() -> dict[str, Json]:
    """The record written to `code.json`: versions, platform, and the git commit where Assay runs from a checkout.

    Found out once per process; do not change the record.
    """
    return {
        "version": VERSION,
        "packages": {name: _package_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "platform": platform.platform(),
        "git": git_state(Path(__file__).resolve().parents[2]),
    }


def code_changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    """What differs between two `code.json` records in a way that can change a run's numbers, as `name: old -> new`."""
    old, new = _deciding(before), _deciding(now)
    return [
        f"{name}: {old.get(name)} -> {new.get(name)}" for name in sorted(old | new) if old.get(name) != new.get(name)
    ]


def _deciding(record: Mapping[str, Json]) -> dict[str, Json]:
    git = record.get("git") or {}
    return {
        **record.get("packages", {}),
        "python": record.get("python"),
        "machine": record.get("machine"),
        "git commit": git.get("commit"),
    }


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Json] | None:
    """Commit of the checkout that tracks `folder`, and whether tracked files differ from it; None outside one."""
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
