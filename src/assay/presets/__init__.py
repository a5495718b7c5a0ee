"""Configs shipped with Assay: sparse YAML files that hold only what differs from the defaults.

The first comment line of a file is its description.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent

FOLLOWS: Mapping[str, str] = {f"rl_kernelbench_stage{n}": f"rl_kernelbench_stage{n - 1}" for n in (2, 3, 4)}
"""Preset -> the one whose run's weights it is meant to start from."""


def presets() -> dict[str, str]:
    """Name -> one-line description of every preset."""
    return {path.stem: _description(path) for path in sorted(_FOLDER.glob("*.yaml"))}


def preset_path(name: str) -> Path:
    """File of the preset `name`; it need not exist."""
    return _FOLDER / f"{name}.yaml"


def _description(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
