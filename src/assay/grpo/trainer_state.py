"""What a checkpoint holds of the trainer itself, beside what the backend wrote: counters, health, rollouts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import CheckpointError
from assay.grpo.buffer import RolloutBuffer
from assay.grpo.health.monitor import HealthMonitor
from assay.types import Json

VERSION = 1
STATE, BUFFER = "trainer.json", "rollouts.npz"


@dataclass(frozen=True)
class TrainerState:
    """Everything that a trainer needs to go on, beside its backend."""

    steps: int
    kl_coef: float
    paused: bool
    rewards: dict[str, list[float]]
    """Rewards since the last health report, by task type."""
    health: HealthMonitor
    buffer: RolloutBuffer


def write_state(path: Path, state: TrainerState) -> None:
    """Write the state into the directory `path`."""
    record: dict[str, Json] = {
        "version": VERSION,
        "steps": state.steps,
        "kl_coef": state.kl_coef,
        "paused": state.paused,
        "rewards": state.rewards,
        "health": state.health.state(),
    }
    (path / STATE).write_text(json.dumps(record))
    state.buffer.save(path / BUFFER)


def read_state(path: Path, health: HealthMonitor, buffer: RolloutBuffer) -> TrainerState:
    """The state in the directory `path`, taken into a new monitor and an empty buffer.

    Restoring a paused run acknowledges its alarms: somebody has read them.

    Raises:
        CheckpointError: the files are missing, damaged or of a newer format.
    """
    record = _record(path / STATE)
    buffer.load(path / BUFFER)
    try:
        health.load(record["health"])
        if record["paused"]:
            health.acknowledge()
        rewards = {str(task): [float(v) for v in values] for task, values in record["rewards"].items()}
        return TrainerState(int(record["steps"]), float(record["kl_coef"]), False, rewards, health, buffer)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path / STATE} is not what a trainer writes ({error!r}). Use a checkpoint that this class wrote."
        ) from error


def _record(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        version = int(record["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}), so the trainer's counters and controllers are lost. Use a checkpoint "
            "that this class wrote."
        ) from error
    if version > VERSION:
        raise CheckpointError(f"{path} has format version {version}; this Assay reads up to {VERSION}.")
    return record
