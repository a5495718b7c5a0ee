"""One process of a machine has an environment, and plays it for the others; they take over when it ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.envs.base import StepResult
from assay.errors import DataError
from assay.integrations.environments import TaskReference, close_environments, hosted_task, tasks_of
from assay.integrations.environments.access import _desk
from assay.integrations.environments.desk import OwnDesk
from assay.integrations.environments.shared import SharedDesk
from assay.integrations.environments.wire import decode_result, encode_result
from assay.rewards.shared.frames import FrameError, frame
from assay.rewards.shared.hub import socket_path
from assay.types import Message, Score
from support.scripted import trajectory

RANKED = """
import os
from dataclasses import dataclass
from assay.envs import Environment, Message, Score, StepResult, Task

@dataclass
class Ranked:
    task: Task

    async def make(self, n):
        return [Asks() for _ in range(n)]

    async def score_group(self, trajectories):
        return [Score("scored", float(t.transitions[-1].text == "b")) for t in trajectories]

class Asks:
    whole_replies = True

    async def reset(self):
        return [Message("user", "go")]

    async def step(self, text):
        if text == "!":
            raise RuntimeError("fell over")
        score = Score("scored", 0.1, evidence={"pid": os.getpid()})
        more = (Message("user", "more"),)
        return StepResult(score, done=False, messages=more, metrics={"n": float("nan")}, replace=True)

class Ranks(Environment):
    def tasks(self):
        return [Task.of(str(n)) for n in range(300)]

    def group(self, task):
        return Ranked(task)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskReference]:
    """A task of an own file, with a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ranks.py").write_text(RANKED)
    from assay.integrations.environments import prepared

    file = f"dataset_builder={tmp_path}/ranks.py:Ranks"
    environment = prepared(None, [file, "dataset_builder.renderer_name=plain"]).environment
    listed = tasks_of(environment, "train", "process")
    yield listed[0][0]
    close_environments()


def test_the_second_asks_the_first_and_takes_over_when_it_ends(here: TaskReference, tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "one.desk"
        first, second = SharedDesk(path, OwnDesk), SharedDesk(path, OwnDesk)
        found = await first.find(here)
        assert found == await second.find(here) and found.ranks
        assert (first.is_here, second.is_here) == (True, False)
        assert len(await second.tasks(here.environment, "train")) == 270  # more than one page
        env, *_ = await second.make(here, 2)
        assert env.whole_replies and await env.reset() == [Message("user", "go")]  # type: ignore[attr-defined]
        result = await env.step("a")
        assert result.score.value == 0.1 and result.replace and result.messages == (Message("user", "more"),)
        with pytest.raises(RuntimeError, match="fell over"):
            await env.step("!")
        scores = await second.score(here, [trajectory([0.5]), trajectory([0.25])])
        assert [score.value for score in scores] == [0.0, 0.0]
        wrong = TaskReference(here.environment, "train", "0" * 16, "nobody")
        with pytest.raises(DataError, match="no task nobody"):
            await second.make(wrong, 1)
        await first.close()
        with pytest.raises(ConnectionError, match="ended"):
            await env.step("a")
        assert await second.find(here) == found and second.is_here
        await second.close()

    asyncio.run(run())


def test_a_process_that_dies_leaves_its_environment_to_the_next(here: TaskReference, tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, time\n"
        "from assay.integrations.environments import TaskReference, hosted_task\n"
        "asyncio.run(hosted_task(TaskReference.from_json(sys.stdin.readline())))\n"
        "print('here', flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    try:
        child.stdin.write(here.to_json() + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "here\n"

        async def run() -> None:
            task = await hosted_task(here)
            (env,) = await task.make(1)
            assert (await env.step("a")).score.evidence["pid"] == child.pid
            child.kill()
            child.wait()
            with pytest.raises(ConnectionError):
                await env.step("a")
            (env,) = await task.make(1)
            assert (await env.step("a")).score.evidence["pid"] == os.getpid()

        asyncio.run(run())
        assert _desk(here.environment, "machine").is_here  # type: ignore[attr-defined]
    finally:
        child.kill()
        child.communicate()


def test_a_frame_that_makes_no_sense_ends_its_connection_alone(here: TaskReference, tmp_path: Path) -> None:
    async def run() -> None:
        desk = SharedDesk(tmp_path / "one.desk", OwnDesk)
        await desk.find(here)
        for nonsense in (frame([1, "step", 7, 0, "a"]), frame(["?"]), b"\xff\xff\xff\xff"):
            reader, writer = await asyncio.open_unix_connection(str(socket_path(desk.path)))
            await reader.read(64)
            writer.write(nonsense)
            assert await reader.read() == b""
            writer.close()
        await desk.find(here)
        await desk.close()

    asyncio.run(run())


def test_results_are_looked_at_at_both_ends() -> None:
    result = StepResult(Score("errored", None, evidence={"a": (1, 2)}), True, metrics={"n": 1.5})
    assert decode_result(encode_result(result, "step()")) == StepResult(
        Score("errored", None, evidence={"a": [1, 2]}), True, metrics={"n": 1.5}
    )
    with pytest.raises(TypeError, match="not a StepResult"):
        encode_result("done", "step()")
    for broken in (None, {}, {"score": {"status": "fine"}}, {**encode_result(result, ""), "messages": [{"role": "x"}]}):
        with pytest.raises(FrameError):
            decode_result(broken)


def test_a_desk_of_this_process_needs_no_socket(here: TaskReference, tmp_path: Path) -> None:
    assert asyncio.run(hosted_task(here, "process")).task.id == here.id
    assert not list(tmp_path.rglob("*.desk*"))
