"""An environment's tasks as verl's trainer reads them: a parquet file for each split, and the file of agent loops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from assay.errors import ConfigError, MissingDependencyError, pip_install
from assay.integrations.environments import ListedTask, Prepared, tasks_of
from assay.integrations.environments.access import Share
from assay.integrations.environments.reference import Split
from assay.integrations.verl.agent_check import ESTIMATOR, LOOP, MANAGER
from assay.storage.files import Writing, replace_file

NAME = "assay"
"""Of the agent loop, in the rows and in the file of agent loops."""
FILES: dict[Split, str] = {"train": "train.parquet", "heldout": "heldout.parquet"}
LOOPS = "agent_loop.yaml"
OVERRIDES = "overrides.txt"
"""verl's settings that go with the files, one a line."""


def write_data(one: Prepared, folder: Path, share: Share = "process") -> list[str]:
    """Write the files.

    Args:
        share: who builds the environment to list its tasks; see `hosted_task`.

    Returns:
        verl's overrides that go with them.

    Raises:
        MissingDependencyError: what writes parquet files is not installed.
        ConfigError: there is nothing to train on.
        AssayError: the environment cannot be built, or the folder not be written.
    """
    try:
        import datasets  # noqa: F401
    except ImportError as missing:
        raise MissingDependencyError(
            f"verl's data sets are parquet files, and what writes them cannot be imported ({missing}): "
            f"{pip_install('data')}."
        ) from missing
    listed: dict[Split, Sequence[ListedTask]] = {
        split: tasks_of(one.environment, split, share) for split in ("train", "heldout")
    }
    if not listed["train"]:
        raise ConfigError("The environment has no tasks in its training split, so there is nothing to train on.")
    with Writing(folder, "the data for verl"):
        folder.mkdir(parents=True, exist_ok=True)
        for split, tasks in listed.items():
            if tasks:
                _write_rows(rows_of(tasks, one), folder / FILES[split])
        replace_file(folder / LOOPS, loops_of(one).encode())
        found = overrides_of(one, folder, bool(listed["heldout"]))
        replace_file(folder / OVERRIDES, "".join(f"{override}\n" for override in found).encode())
    return found


def rows_of(tasks: Sequence[ListedTask], one: Prepared) -> list[dict[str, Any]]:
    """Rows of verl's data sets. What verifies an answer stays with the environment."""
    kind = json.loads(one.environment.record)["dataset_builder"].get("type", "environment")
    source = f"assay/{str(kind).rpartition(':')[2]}"
    return [
        {
            "prompt": [{"role": message.role, "content": message.content} for message in task.prompt],
            "data_source": source,
            "agent_name": NAME,
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "split": reference.split, "assay_task": reference.to_json()},
        }
        for index, (reference, task) in enumerate(tasks)
    ]


def loops_of(one: Prepared) -> str:
    """The file of agent loops, as text."""
    # The text has to reach verl as it is: OmegaConf would take ${...} in it for a reference to another setting.
    text = one.to_json().replace("${", "\\u0024{")
    entry = {"name": NAME, "_target_": LOOP, "share": "machine", "prepared": text}
    return str(yaml.safe_dump([entry], sort_keys=False, allow_unicode=True))


def overrides_of(one: Prepared, folder: Path, validates: bool) -> list[str]:
    """verl's settings without which the files would not be used, or credit be another."""
    rollout = "actor_rollout_ref.rollout"
    absolute = folder.resolve()
    found = [
        f"data.train_files={absolute / FILES['train']}",
        f"data.val_files={absolute / FILES['heldout' if validates else 'train']}",
        "data.filter_overlong_prompts=false",
        f"{rollout}.agent.agent_loop_config_path={absolute / LOOPS}",
        f"+{rollout}.agent.agent_loop_manager_class={MANAGER}",
        f"{rollout}.n={one.group_size}",
        f"{rollout}.temperature={one.playing.params.temperature:g}",
        f"algorithm.adv_estimator={ESTIMATOR}",
        "algorithm.use_kl_in_reward=false",
        "trainer.use_v1=true",
        "trainer.v1.sampler.sync_refill_failed_groups=true",
    ]
    return found if validates else [*found, "trainer.val_before_train=false", "trainer.test_freq=-1"]


def _write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(rows).to_parquet(str(path))
