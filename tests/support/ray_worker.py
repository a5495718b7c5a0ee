"""A reward worker of a host, for tests on Ray. Its process imports this module, so it imports no more than it needs."""

from __future__ import annotations

from typing import Any

import ray

from assay.integrations.verl import compute_score


@ray.remote(num_cpus=0)
class Worker:
    """A process with an engine of its own."""

    def score(self, given: dict[str, Any], texts: list[str]) -> list[float]:
        """The score of each text, under these settings."""
        rows = compute_score(solution_strs=texts, **given)
        return [row["score"] for row in rows]
