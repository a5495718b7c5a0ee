"""Assay's own environments by name. The table holds text and imports nothing, so none needs the packages of another."""

from __future__ import annotations

import inspect

from assay.envs.base import DatasetBuilder
from assay.plugins import Kind

ENVIRONMENT = Kind(
    "dataset builder",
    {
        "chess": "assay.envs.chess.dataset:ChessDatasetBuilder",
        "kernelbench": "assay.envs.kernelbench.dataset:KernelBenchDatasetBuilder",
        "kernelbench_generated": "assay.envs.kernelbench.generated:GeneratedKernelsBuilder",
        "kernelbench_turns": "assay.envs.kernelbench.dataset:MultiTurnKernelBenchDatasetBuilder",
        "monitor": "assay.envs.monitor.dataset:MonitorDatasetBuilder",
        "rows": "assay.envs.rows:RowsDatasetBuilder",
    },
    lambda found: inspect.isclass(found) and issubclass(found, DatasetBuilder) and found is not DatasetBuilder,
    "a class over assay.envs.DatasetBuilder",
)
"""What `dataset_builder` may name."""
