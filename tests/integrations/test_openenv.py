"""An OpenEnv server over Assay's environments, asked by OpenEnv's client: the real package where it is installed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="OpenEnv needs an environment of its own")

import uvicorn
from openenv.core.generic_client import GenericEnvClient

from assay.errors import DataError
from assay.integrations.environments import close_environments, prepared
from assay.integrations.openenv import Reply, TaskServer, app_of

GAME = """
from assay.envs import Environment, Message, Score, StepResult, Task

class Game(Environment):
    max_turns = 3

    def tasks(self):
        return [Task.of(f"{n}=", answer="a secret answer") for n in range(10)]

    def env(self, task):
        return One(task)

class One:
    def __init__(self, task):
        self.task = task

    async def reset(self):
        return list(self.task.prompt)

    async def step(self, text):
        if text == "!":
            raise RuntimeError("the judge is dead")
        return StepResult(Score("scored", float(text == "a")), done=text == "a", messages=(Message("user", "again"),))
"""


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "game.py").write_text(GAME)
    yield f"dataset_builder={tmp_path}/game.py:Game"
    close_environments()


def played(game: str, *texts: str) -> list[Any]:
    async def run() -> list[Any]:
        one = TaskServer(prepared(None, [game], messages=True))
        seen = [await one.reset_async(seed=1)]
        for text in texts:
            seen.append(await one.step_async(Reply(text=text)))
        return seen

    return asyncio.run(run())


def test_a_session_over_the_network(game: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app_of(None, [game]), port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
            first = client.reset(split="heldout", index=0)
            assert first.observation["messages"][0]["content"].endswith("=") and not first.done
            second = client.step({"text": "b"})
            assert (second.reward, second.done) == (0.0, False)
            assert second.observation["messages"] == [{"role": "user", "content": "again"}]
            last = client.step({"text": "a"})
            assert (last.reward, last.done) == (1.0, True)
    finally:
        server.should_exit = True
        thread.join(10)


def test_what_could_not_be_scored_has_no_reward(game: str) -> None:
    last = played(game, "!")[-1]
    assert (last.reward, last.done, last.status) == (None, True, "errored")
    assert "the judge is dead" in last.error


def test_a_rollout_ends_after_its_turns_and_an_empty_reply_is_judged(game: str) -> None:
    assert [seen.done for seen in played(game, "b", "", "b")] == [False, False, False, True]
    with pytest.raises(DataError, match="Call reset first"):
        played(game, "b", "b", "b", "b")


def test_tasks_are_listed_without_their_answers(game: str) -> None:
    one = TaskServer(prepared(None, [game], messages=True))
    assert (one.list_splits(), one.num_tasks("train"), one.num_tasks("heldout")) == (["train", "heldout"], 9, 1)
    assert [task["index"] for task in one.get_task_range("train", 2, 4)] == [2, 3]
    assert "secret" not in str(one.list_tasks("train"))
    with pytest.raises(IndexError):
        one.get_task("train", 9)
    with pytest.raises(IndexError, match="not a task of the 9"):
        one.reset(index=9)
    with pytest.raises(DataError, match="not one of train, heldout"):
        one.num_tasks("test")


def test_a_reply_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most 1000000"):
        Reply(text="x" * 1_000_001)
