"""Workers of a real Ray cluster share an actor: one limit, one payment per distinct call, one budget, through kills."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from benchmarks.common.judge_behaviour import Behaviour
from benchmarks.common.judge_server import JudgeServer

from assay.errors import ConfigError, JudgeError
from assay.integrations.common.ray_actor import NAMESPACE, RayCaller, actor_name
from assay.integrations.common.scoring import scorer
from assay.integrations.common.settings import read_settings
from assay.integrations.verl import compute_score
from assay.rewards import Request, Sample, Usage
from assay.types import Message
from support.ray_worker import Worker
from support.verl_data import KEY, KEY_ENV

LIMIT = 6


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer(Behaviour(latency_s=0.03, api_key=KEY, replies=("0.25", "0.75"))) as judge:
        yield judge


@pytest.fixture
def settings(server: JudgeServer, tmp_path: Path) -> Iterator[dict[str, Any]]:
    given = {
        "reward": "support.host_rewards:EchoedScore",
        "judge": {"base_url": server.base_url, "api_key_env": KEY_ENV},
        "engine": {
            "adaptive": False,
            "start_in_flight": LIMIT,
            "max_in_flight": LIMIT,
            "hedge_fraction": 0.0,
            "cache_path": str(tmp_path / "replies.sqlite"),
        },
    }
    yield given
    end_actor(given)


def end_actor(given: dict[str, Any]) -> None:
    name = actor_name(read_settings(given))
    if name in {found["name"] for found in ray.util.list_named_actors(all_namespaces=True)}:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE))


def wait_for(server: JudgeServer, answered: int) -> None:
    while server.stats()["answered"] < answered:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def workers(ray_cluster: None) -> Iterator[list[Any]]:
    """Four workers, for all tests that kill none: starting one takes a second."""
    started = [Worker.remote() for _ in range(4)]
    yield started
    for worker in started:
        ray.kill(worker)


def test_four_workers_keep_one_limit_and_pay_once(
    workers: list[Any], server: JudgeServer, settings: dict[str, Any]
) -> None:
    texts = [f"w{i}" for i in range(60)]
    # Each worker has 40 of the 60 texts, so every text is wanted by several at about the same time.
    shares = [(texts * 2)[16 * i : 16 * i + 40] for i in range(4)]
    results = ray.get([worker.score.remote(settings, share) for worker, share in zip(workers, shares, strict=True)])
    stats = server.stats()
    assert stats["max_in_flight"] <= LIMIT
    assert (stats["answered"], stats["answered_distinct"], stats["paid_twice"]) == (60, 60, 0)
    by_text: dict[str, float] = {}
    for share, scores in zip(shares, results, strict=True):
        for text, value in zip(share, scores, strict=True):
            assert by_text.setdefault(text, value) == value
    assert set(by_text.values()) == {0.25, 0.75}


def test_the_actor_outlives_the_worker_that_made_it(
    workers: list[Any], server: JudgeServer, settings: dict[str, Any]
) -> None:
    first, second = Worker.remote(), workers[0]
    ray.get(first.score.remote(settings, ["w1"]))
    actor = ray.get_actor(actor_name(read_settings(settings)), namespace=NAMESPACE)
    ray.kill(first)
    ray.get(second.score.remote(settings, ["w1", "w2"]))
    counters = ray.get(actor.counters.remote())
    assert (counters["cache_hits"], counters["calls"]) == (1.0, 2.0)
    assert server.stats()["answered"] == 2


def test_calls_without_an_answer_are_sent_again_when_the_actor_dies(
    workers: list[Any], server: JudgeServer, settings: dict[str, Any]
) -> None:
    worker, texts = workers[0], [f"w{i}" for i in range(80)]
    scoring = worker.score.remote(settings, texts)
    wait_for(server, 30)
    ray.kill(ray.get_actor(actor_name(read_settings(settings)), namespace=NAMESPACE))
    assert len(ray.get(scoring)) == 80
    stats = server.stats()
    assert stats["answered_distinct"] == 80
    # What had been answered came from the cache: only what was in flight at the kill, or on its way to the disk, was
    # asked twice, and not all of the thirty.
    assert stats["requests"] <= 80 + 3 * LIMIT


def test_the_budget_outlives_the_actor(ray_cluster: None, server: JudgeServer, settings: dict[str, Any]) -> None:
    settings["judge"]["usd_per_million_prompt_tokens"] = 1.0
    settings["engine"] |= {"cache": False, "cache_path": None}

    async def spend() -> None:
        probe = scorer(settings)
        cost = (await probe.engine.score(_sample("w100"))).usage["usd"]
        end_actor(settings)
        settings["engine"]["budget_usd"] = 6.5 * cost
        one = scorer(settings)
        for i in range(4):
            await one.engine.score(_sample(f"w10{i}"))
        end_actor(settings)
        for i in range(4, 9):
            await one.engine.score(_sample(f"w10{i}"))

    with pytest.raises(JudgeError, match="the budget is spent"):
        asyncio.run(spend())
    assert server.stats()["answered"] == 1 + 6


def _sample(text: str) -> Sample:
    return Sample(text)


def test_a_missing_key_is_said_before_anything_is_asked(
    ray_cluster: None, server: JudgeServer, settings: dict[str, Any]
) -> None:
    settings["judge"]["api_key_env"] = "ASSAY_NO_SUCH_KEY"
    with pytest.raises(ConfigError, match=r"ASSAY_NO_SUCH_KEY is not set.*environment that Ray was started with"):
        compute_score(response="a", **settings)
    assert server.stats()["requests"] == 0


def test_the_key_is_in_nothing_that_is_sent_or_shown(
    ray_cluster: None, server: JudgeServer, settings: dict[str, Any]
) -> None:
    config = read_settings(settings)
    caller = RayCaller(config)
    assert KEY not in repr(config) + repr(vars(caller)) + actor_name(config)
    server.configure(api_key="another")
    with pytest.raises(JudgeError, match="refuses every call") as caught:
        compute_score(response="a", **settings)
    assert KEY not in str(caught.value)


def test_an_idle_actor_ends_and_comes_back(ray_cluster: None, server: JudgeServer, settings: dict[str, Any]) -> None:
    async def run() -> list[str]:
        caller = RayCaller(read_settings(settings), idle_s=0.2)
        texts = []
        for text in ("w1", "w2"):
            texts.append((await caller.call(_request(text))).text)
            while actor_name(read_settings(settings)) in {
                found["name"] for found in ray.util.list_named_actors(all_namespaces=True)
            }:
                await asyncio.sleep(0.05)
        return texts

    assert all(text in ("0.25", "0.75") for text in asyncio.run(run()))


@ray.remote
class Ending:
    """An actor that ends when it is greeted, as an idle one does that was found in its last moment."""

    async def greet(self, worker: str, paid: Usage) -> None:
        ray.actor.exit_actor()


def test_an_actor_that_ends_as_it_is_found_is_replaced(
    ray_cluster: None, server: JudgeServer, settings: dict[str, Any]
) -> None:
    config = read_settings(settings)
    Ending.options(name=actor_name(config), namespace=NAMESPACE, lifetime="detached", num_cpus=0).remote()

    async def ask() -> str:
        return (await RayCaller(config).call(_request("w"))).text

    assert asyncio.run(ask()) in ("0.25", "0.75")


def _request(text: str) -> Request:
    return Request("judge", (Message("user", text),))
