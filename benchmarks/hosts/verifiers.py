"""verifiers' own env over an exported package, with its own agents, and a chat endpoint that is a stand-in.

Tokens are those that the endpoint makes of the messages it is sent, by Assay's renderer: they are equal where the
messages are. verifiers' own renderers are not seen here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.hosts.common import FAILING_PLAY, Rollout, Row, first_tasks, report

from assay.integrations.environments import Prepared
from support.hosts import Play
from support.verifiers_endpoint import HARNESS, Endpoint, env_of, play_group


def groups_of(name: str, play: Play, one: Prepared) -> list[list[tuple[Any, list[Any]]]]:
    with tempfile.TemporaryDirectory() as text, pytest.MonkeyPatch.context() as patch:
        folder = Path(text)
        (folder / "assay_in_process.py").write_text(HARNESS)
        patch.syspath_prepend(str(folder))
        patch.setitem(os.environ, "OPENAI_API_KEY", "none")
        env = env_of(one, f"assay-{name}", folder, patch)
        keys = [reference.key for reference, _ in first_tasks(play, one)]
        return play_group(env, Endpoint(play, one), keys, play.group_size)


def reward_of(episode: Any) -> float | None:
    """What prime-rl trains on; of a rollout in several traces, each of which has its own return, the whole's."""
    if not episode.ok:
        return None
    first = episode.traces[0]
    return first.reward if len(episode.traces) == 1 else first.metrics["assay_reward"]


def play(name: str, play: Play, one: Prepared) -> Sequence[Sequence[Rollout]]:
    return [
        [
            Rollout(reward_of(episode), [Row.of(r.prompt, r.response_ids, r.mask) for r in rows])
            for episode, rows in group
        ]
        for group in groups_of(name, play, one)
    ]


def failing(one: Prepared) -> Sequence[bool]:
    (group,) = groups_of("failing", FAILING_PLAY, one)
    return [reward_of(episode) is None for episode, _ in group]


if __name__ == "__main__":
    report(play, failing)
