"""Environments: tasks, verifiers, rewards and data sets. Speak messages, not tokens, and import no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.envs.base import (
        BuildContext,
        Counters,
        DatasetBuilder,
        Env,
        EnvData,
        EnvGroupBuilder,
        Example,
        GroupScorer,
        RLDataset,
        StepResult,
        SupervisedDataset,
        TokenizerCorpus,
        iter_builders,
    )
    from assay.envs.environment import Environment
    from assay.envs.tasks import ExampleTexts, TaskBatches
    from assay.types import Message, Score, Task, Trajectory
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "BuildContext",
    "Counters",
    "DatasetBuilder",
    "Env",
    "EnvData",
    "EnvGroupBuilder",
    "Environment",
    "Example",
    "ExampleTexts",
    "GroupScorer",
    "Message",
    "RLDataset",
    "Score",
    "StepResult",
    "SupervisedDataset",
    "Task",
    "TaskBatches",
    "TokenizerCorpus",
    "Trajectory",
    "iter_builders",
]
