"""An environment as a package that verifiers and prime-rl load by its name: tasks as data, and a few lines of code."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from assay.envs.base import GroupScorer
from assay.errors import ConfigError
from assay.integrations.environments import HostedTask, ListedTask, Prepared, hosted_task, tasks_of
from assay.integrations.environments.access import Share
from assay.storage.files import Writing, encode_json, replace_file

SETTINGS, TASKS = "environment.json", "tasks.jsonl"
"""Files of the package: the environment with how it is played, and a line for each task."""
MOST_BYTES = 1 << 30
"""Of one of them."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

CODE = '''"""The environment {name}, written by `assay export-env`."""

from pathlib import Path

from assay.integrations.verifiers_environment import AssayEnv, AssayTaskset


class Tasks(AssayTaskset):
    """The tasks in this folder."""

    folder = Path(__file__).parent


class Plays(AssayEnv):
    """Plays them."""


__all__ = ["Plays", "Tasks"]
'''
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["assay-rl", "verifiers>=0.4"]

[tool.hatch.build.targets.wheel]
packages = ["{module}"]
"""
PRIME_RL = """# For prime-rl: name the model, and the GPUs that train and sample.
# Set seq_len so that a whole trace fits: prime-rl cuts what is longer.
[orchestrator]
batch_size = {batch}

[[orchestrator.train.source]]
name = "{name}"
group_size = {group}

# Here and not at the agent: the trainer reads the temperature here.
[orchestrator.train.source.sampling]
max_completion_tokens = {tokens}
temperature = {temperature}

[orchestrator.train.source.env.taskset]
id = "{name}"

[orchestrator.train.source.env.agent]
max_turns = {turns}

[orchestrator.train.source.env.agent.harness]
id = "null"

[orchestrator.train.source.env.agent.runtime]
type = "subprocess"

# Without it no server is started.
[inference]
"""


def write_plugin(one: Prepared, name: str, folder: Path, groups_per_batch: int, share: Share = "process") -> int:
    """Write the package, and `prime_rl.toml` beside it.

    Args:
        name: of the package, and its id in verifiers.
        groups_per_batch: of a training step.
        share: who builds the environment to list its tasks; see `hosted_task`.

    Returns:
        How many tasks it has.

    Raises:
        ConfigError: the name is not one, there are no tasks, or their groups are scored as a whole.
        AssayError: the environment cannot be built, or the folder not be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a package. Use small letters, digits and single hyphens: assay-chess."
        )
    listed = [row for split in ("train", "heldout") for row in tasks_of(one.environment, split, share)]
    if not listed:
        raise ConfigError("The environment has no tasks, so there is nothing to export.")
    _refuse_whole_groups(listed, share)
    module = name.replace("-", "_")
    fields = {
        "name": name,
        "module": module,
        "group": one.group_size,
        "batch": one.group_size * groups_per_batch,
        "turns": one.playing.max_turns,
        "tokens": one.playing.params.max_tokens,
        "temperature": float(one.playing.params.temperature),
    }
    files = {
        "pyproject.toml": PROJECT.format(**fields).encode(),
        "prime_rl.toml": PRIME_RL.format(**fields).encode(),
        f"{module}/__init__.py": CODE.format(**fields).encode(),
        f"{module}/{SETTINGS}": one.to_json().encode(),
        f"{module}/{TASKS}": b"".join(_line(row) for row in listed),
    }
    with Writing(folder, "the package"):
        (folder / module).mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            replace_file(folder / path, data)
    return len(listed)


def _line(row: ListedTask) -> bytes:
    reference, task = row
    prompt = [{"role": message.role, "content": message.content} for message in task.prompt]
    return encode_json({"id": reference.id, "key": reference.key, "split": reference.split, "prompt": prompt}) + b"\n"


def _refuse_whole_groups(listed: Sequence[ListedTask], share: Share) -> None:
    async def found() -> list[HostedTask]:
        return [await hosted_task(reference, share) for reference, _ in listed]

    for task in asyncio.run(found()):
        if isinstance(task, GroupScorer):
            raise ConfigError(whole_groups(task.task.id))


def whole_groups(name: str) -> str:
    """Why such tasks are not for verifiers."""
    return (
        f"The groups of {name} are scored as a whole, and an episode of verifiers knows no other rollout of its group, "
        "so none would have a reward. Train on it in Assay, verl or the Tinker cookbook, or let the environment score "
        "each rollout by itself."
    )
