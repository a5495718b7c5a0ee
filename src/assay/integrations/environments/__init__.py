"""Whole environments for other trainers: tasks that travel as data, rollouts played by a host's policy, rows to train.

A host's adapter names tasks (`TaskReference`), gives a policy (`HostPolicy`), and is handed rows with Assay's own
credit (`HostRow`). What follows is the same for every host:

    config -> EnvironmentReference -> TaskReference (JSON) -> hosted_task -> HostGroup -> PlayedGroup -> HostRow
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.integrations.environments.access import HostedTask, ListedTask, close_environments, hosted_task, tasks_of
    from assay.integrations.environments.group import GroupTable, HostGroup, PlayedGroup, play_tasks
    from assay.integrations.environments.policy import Budget, HostPolicy, Sampled
    from assay.integrations.environments.reference import EnvironmentReference, TaskReference
    from assay.integrations.environments.rows import HostRow
    from assay.integrations.environments.settings import Credit, Playing, Prepared, prepared
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Budget",
    "Credit",
    "EnvironmentReference",
    "GroupTable",
    "HostGroup",
    "HostPolicy",
    "HostRow",
    "HostedTask",
    "ListedTask",
    "PlayedGroup",
    "Playing",
    "Prepared",
    "Sampled",
    "TaskReference",
    "close_environments",
    "hosted_task",
    "play_tasks",
    "prepared",
    "tasks_of",
]
