"""verl's own agent loop worker and its own advantages; only the model server and the queue are stand-ins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.hosts.common import FAILING_PLAY, Rollout, Row, report

from assay.integrations.environments import Prepared
from support.hosts import Play
from support.verl_agents import extra_of, rollouts_of, run_prompts


def row_of(row: Any) -> Row:
    said, mask = row["responses"].tolist(), row["response_mask"].tolist()
    return Row.of(row["prompts"].tolist(), said, mask, row["advantages"])


def play(name: str, play: Play, one: Prepared) -> Sequence[Sequence[Rollout]]:
    queue, found = run_prompts(play, one), []
    for place in range(play.tasks):
        group = rollouts_of(queue, f"u{place}", play.group_size)
        found.append([Rollout(reward_of(rows), [row_of(row) for row in rows]) for rows in group])
    return found


def reward_of(rows: Sequence[Any]) -> float | None:
    return extra_of(rows[-1])["reward_extra_info"]["assay_reward"] if rows else None


def failing(one: Prepared) -> Sequence[bool]:
    return [not rows for rows in rollouts_of(run_prompts(FAILING_PLAY, one), "u0", FAILING_PLAY.group_size)]


if __name__ == "__main__":
    report(play, failing)
