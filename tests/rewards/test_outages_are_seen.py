"""A judge that answers nothing is seen while it does so, and what cannot be counted or forgotten ends no batch."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from assay.errors import ConfigError, JudgeError, RewardError
from assay.rewards import EngineConfig, JudgeConfig, Reply, Request, RewardEngine, Sample, progress
from assay.rewards.base import CallFailure, Outcome
from assay.rewards.client import client, limits
from assay.rewards.client.chat import Refusal, read
from assay.transport.http import Response
from assay.types import Message
from support.host_rewards import EchoedScore
from support.scripted_judge import Asked, scripted_judge


def test_the_reason_is_logged_while_calls_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "QUIET_S", 0.0)

    def answer(asked: Asked) -> str | int:
        return 500 if asked.number < 2 else "0.5"

    with scripted_judge(answer) as judge, caplog.at_level(logging.WARNING, "assay"):
        config = JudgeConfig(base_url=judge.base_url, api_key_env="")
        with RewardEngine(EchoedScore(), config, EngineConfig(cache=False)) as engine:
            (score,) = engine.score_many_sync([Sample("a")])
    assert score.value == 0.5
    assert "has not answered for" in caplog.text and "out of order" in caplog.text


class Unreachable:
    """A caller that answers after `delay_s`, and cannot be reached for anything else."""

    def __init__(self, text: str, delay_s: float = 0.0) -> None:
        self.text, self.delay_s = text, delay_s

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        await asyncio.sleep(self.delay_s)
        return Reply(self.text)

    async def forget(self, request: Request) -> None:
        raise RewardError("the process that has the judge is gone")

    async def counters(self) -> dict[str, float]:
        raise RewardError("the process that has the judge is gone")

    async def close(self) -> None:
        return None


def test_lines_of_progress_come_while_nothing_is_scored_and_end_no_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    engine = RewardEngine(EchoedScore(), config=EngineConfig(), caller=Unreachable("1", delay_s=0.3))
    with engine, caplog.at_level(logging.INFO, "assay"):
        scores = engine.score_many_sync([Sample(str(i)) for i in range(20)])
    assert [score.value for score in scores] == [1.0] * 20
    assert "echo: 0/20 scored" in caplog.text


def test_a_reply_that_cannot_be_forgotten_errors_its_sample_alone() -> None:
    class Sometimes(Unreachable):
        async def call(self, request: Request, deadline: float | None = None) -> Outcome:
            return Reply("not a number" if request.messages[0].content == "bad" else "1")

    with RewardEngine(EchoedScore(), config=EngineConfig(), caller=Sometimes("1")) as engine:
        bad, good = engine.score_many_sync([Sample("bad"), Sample("good")])
    assert bad.status == "errored" and bad.evidence["failure"] == "connection"
    assert good.value == 1.0


@pytest.mark.parametrize("status", [402, 403, 429])
def test_a_quota_that_is_used_up_is_no_matter_of_the_key(status: int) -> None:
    body = b'{"error": {"code": "insufficient_quota", "message": "no credit"}}'
    found: Any = read(Response(status, {}, body))
    assert isinstance(found, Refusal) and found.kind == "quota"


@pytest.mark.parametrize("url", ["http://judge/v1?api-version=1", "http://judge/v1#x"])
def test_a_url_to_which_no_path_can_be_added_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must not have"):
        JudgeConfig(base_url=url)


def nobody() -> str:
    """The URL of a port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


def test_a_judge_that_was_never_reached_ends_the_batch_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUT_OF_REACH_S", 0.0)
    url = nobody()
    config = JudgeConfig(base_url=url, api_key_env="")
    with RewardEngine(EchoedScore(), config, EngineConfig(cache=False)) as engine, pytest.raises(JudgeError) as caught:
        engine.score_many_sync([Sample("a")])
    said = str(caught.value)
    assert "The judge cannot be reached" in said and f"Check judge.base_url={url}" in said
    assert url.removeprefix("http://").removesuffix("/v1") in said and "refused" in said.lower()


def test_a_judge_that_was_reached_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [limits.is_out_of_reach(False, s) for s in (0.0, 2.9, 3.0, 900.0)] == [False, False, True, True]
    assert not limits.is_out_of_reach(True, 900.0)

    async def asked_after_an_answer() -> Outcome:
        settings = EngineConfig(cache=False, call_deadline_s=0.2)
        caller = client.Client(JudgeConfig(base_url=nobody(), api_key_env=""), settings)
        caller._reached = True
        try:
            return await caller.call(Request("m", (Message("user", "q"),)))
        finally:
            await caller.close()

    monkeypatch.setattr(limits, "OUT_OF_REACH_S", 0.0)
    outcome = asyncio.run(asked_after_an_answer())
    assert isinstance(outcome, CallFailure) and outcome.kind == "connection" and outcome.attempts > 1


def test_a_closed_engine_still_tells_calls_and_money() -> None:
    with scripted_judge(lambda asked: "0.5") as judge:
        config = JudgeConfig(base_url=judge.base_url, api_key_env="", usd_per_million_prompt_tokens=1e6)
        engine = RewardEngine(EchoedScore(), config, EngineConfig(cache=False))
        with engine:
            engine.score_many_sync([Sample("a"), Sample("b")])
            open_ = engine.counters()
        closed = engine.counters()
        assert closed["calls"] == open_["calls"] == 2 and closed["usd"] == open_["usd"]
        assert closed["samples"] == 2 and "in_flight" in open_ and "in_flight" not in closed
        with engine:
            engine.score_many_sync([Sample("c")])
            assert engine.counters()["calls"] == 3
        assert engine.counters()["calls"] == 3
        engine.close()
        assert engine.counters()["calls"] == 3
