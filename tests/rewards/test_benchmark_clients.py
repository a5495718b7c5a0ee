"""The clients that the reward benchmark compares: each asks about every sample, and reads the right verdict."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from benchmarks.common.judge_behaviour import Behaviour
from benchmarks.common.judge_client import CLIENTS, Job, measured
from benchmarks.common.judge_server import JudgeServer

pytest.importorskip("aiohttp", reason="needs the bench extra")
pytest.importorskip("openai", reason="needs the bench extra")

SAMPLES = 24


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_every_verdict(tmp_path: Path, client: str) -> None:
    with JudgeServer(Behaviour(latency_s=0.0)) as server:
        settings = {"start_in_flight": 8, "max_in_flight": 8, "hedge_fraction": 0.0}
        job = Job(client, server.base_url, SAMPLES, 0.0, 8, settings, str(tmp_path))
        row = measured(job)
        assert (row["lost"], row["wrong"]) == (0, 0)
        assert server.stats()["answered_distinct"] == server.stats()["requests"] == SAMPLES
        assert server.stats()["max_in_flight"] <= 8


def test_plain_aiohttp_retries_as_the_sdk_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda *_: 0.0)  # no waits
    with JudgeServer(Behaviour(latency_s=0.0, faults={"http_500": 1.0})) as server:
        row = measured(Job("aiohttp_semaphore", server.base_url, SAMPLES, 0.0, 8, {}, str(tmp_path)))
        assert row["lost"] == SAMPLES
        assert server.stats()["requests"] == 3 * SAMPLES
