"""The engine against a real judge process that breaks in every way, and against its own machine's failures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common.judge_behaviour import Behaviour
from benchmarks.common.judge_server import JudgeServer

from assay.errors import ConfigError, JudgeError, RewardError
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine
from assay.types import Score
from support.scripted_judge import Marks, samples

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(scope="module")
def shared() -> Iterator[JudgeServer]:
    with JudgeServer() as judge:
        yield judge


@pytest.fixture
def judge(shared: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """The judge process, its counters at zero, answering `1` after 10 ms; `behave` changes that."""
    monkeypatch.setenv("SOME_KEY", KEY)
    behave(shared)
    yield shared
    behave(shared)


def behave(judge: JudgeServer, **changes: Any) -> None:
    judge.configure(**{**asdict(Behaviour()), "latency_s": 0.01, "replies": ["1"], **changes})
    judge.reset()


def config_of(judge: JudgeServer, **changes: Any) -> JudgeConfig:
    return JudgeConfig(**{"base_url": judge.base_url, "model": "judge-1", "api_key_env": "SOME_KEY", **changes})


@contextlib.contextmanager
def engine_of(judge: JudgeServer, tmp_path: Path | None = None, **config: Any) -> Iterator[RewardEngine]:
    given = {"cache": tmp_path is not None, "max_failure_rate": 1.0, "call_deadline_s": 30.0, **config}
    with RewardEngine(Marks(), config_of(judge), EngineConfig(**given), cache_dir=tmp_path) as engine:
        yield engine


def assert_all_scored(scores: list[Score]) -> None:
    assert [(s.status, s.value, dict(s.evidence)) for s in scores] == [("scored", 1.0, {})] * len(scores)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("faults", "drip_s"),
    [
        ({"http_500": 0.2, "http_502": 0.1, "http_503": 0.1}, 0.0),
        ({"reset_before": 0.2, "reset_during": 0.2}, 0.0),
        ({"malformed": 0.2, "truncated": 0.2}, 0.0),
        ({"drip": 0.5}, 0.05),
        ({"drip": 0.1, "hang": 0.1}, 60.0),
        ({"garbage": 0.2}, 0.0),
    ],
    ids=["5xx", "resets", "cut", "drip", "too slow", "garbage"],
)
def test_no_sample_is_lost_where_the_judge_would_answer_in_the_end(
    judge: JudgeServer, faults: dict[str, float], drip_s: float
) -> None:
    behave(judge, faults=faults, drip_s=drip_s, seed=3)
    with engine_of(judge, attempt_timeout_s=0.4, reread_limit=8) as engine:
        assert_all_scored(engine.score_many_sync(samples(range(50))))
        counters, stats = engine.counters(), judge.stats()
        assert sum(stats["faults"].values()) >= 5
        assert counters["failures"] == counters["in_flight"] == counters["waiting"] == 0
        assert 50 <= counters["attempts"] <= stats["requests"]
        assert counters["answered"] == 50 + counters["reread"] <= stats["answered"] + stats["faults"].get("garbage", 0)


@pytest.mark.parametrize("limits", [{"max_in_flight": 6}, {"max_in_flight": 6, "retry_after_s": 0}])
def test_a_judge_that_holds_few_calls_answers_them_all(judge: JudgeServer, limits: dict[str, Any]) -> None:
    behave(judge, **limits)
    with engine_of(judge) as engine:
        assert_all_scored(engine.score_many_sync(samples(range(150))))
        counters, stats = engine.counters(), judge.stats()
        assert stats["refused"]["concurrency"] == counters["refusals"] > 0
        assert counters["limit"] < 20
        assert stats["answered"] == 150


@pytest.mark.parametrize("told", [True, False], ids=["headers", "refusals alone"])
def test_a_judge_that_counts_requests_is_asked_no_faster(judge: JudgeServer, told: bool) -> None:
    behave(judge, requests_per_minute=6000, request_burst=20, rate_headers=told, rate_retry_after=told)
    with engine_of(judge, start_in_flight=30) as engine:
        assert_all_scored(engine.score_many_sync(samples(range(90))))
        if told:
            engine_refused = judge.stats()["refused"].get("requests", 0)
            assert_all_scored(engine.score_many_sync(samples(range(90, 120))))
            assert judge.stats()["refused"].get("requests", 0) - engine_refused <= 10, "by now it knows the rate"


@pytest.mark.parametrize(
    ("behaviour", "asked", "words"),
    [
        ({"api_key": "sk-another-key"}, {}, "Check the key in SOME_KEY"),
        ({"models": ["judge-2"]}, {}, "Check judge.model=judge-1"),
        ({"quota": 0}, {}, "Add credit"),
        ({}, {"budget_tokens": 10}, "Raise budget_usd or budget_tokens"),
    ],
    ids=["wrong key", "unknown model", "quota", "budget"],
)
def test_what_no_call_can_pass_ends_the_batch_at_once(
    judge: JudgeServer, behaviour: dict[str, Any], asked: dict[str, Any], words: str, tmp_path: Path
) -> None:
    behave(judge, **behaviour)
    with engine_of(judge, tmp_path, **asked) as engine:
        with pytest.raises(JudgeError, match=words) as caught:
            engine.score_many_sync(samples(range(600)))
        assert KEY not in str(caught.value)
        stats = judge.stats()
        assert stats["answered"] == 0
        assert stats["requests"] <= 300
        behave(judge)
        if not asked:
            assert_all_scored(engine.score_many_sync(samples(range(20))))


def test_a_missing_key_is_an_error_before_anything_is_asked(
    judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(ConfigError, match="SOME_KEY is not set"):
        RewardEngine(Marks(), config_of(judge))
    assert judge.stats()["requests"] == 0


def test_a_quota_that_ends_in_mid_batch_keeps_what_was_paid_for(judge: JudgeServer, tmp_path: Path) -> None:
    behave(judge, quota=30)
    with (
        engine_of(judge, tmp_path, start_in_flight=8, adaptive=False) as engine,
        pytest.raises(JudgeError, match="Add credit"),
    ):
        engine.score_many_sync(samples(range(100)))
    judge.configure(quota=None)
    with engine_of(judge, tmp_path) as engine:
        assert_all_scored(engine.score_many_sync(samples(range(100))))
        stats = judge.stats()
        assert engine.counters()["cache_hits"] >= 30 - 8
        assert stats["paid_twice"] <= 8, "no more than were in flight when the batch ended"


def test_a_judge_that_is_killed_and_comes_back_costs_no_sample() -> None:
    with JudgeServer(Behaviour(latency_s=0.02, replies=("1",))) as judge:

        def outage() -> None:
            eventually(lambda: judge.stats()["answered"] >= 40)
            judge.kill()
            time.sleep(0.1)
            judge.start()

        breaking = threading.Thread(target=outage)
        config = EngineConfig(cache=False, start_in_flight=8, adaptive=False)
        os.environ["SOME_KEY"] = KEY
        with RewardEngine(Marks(), config_of(judge, api_key_env=""), config) as engine:
            breaking.start()
            assert_all_scored(engine.score_many_sync(samples(range(200))))
            breaking.join()
            counters, stats = engine.counters(), judge.stats()
        assert counters["answered"] == 200
        assert counters["attempts"] > 200
        assert 0 < stats["answered"] <= 160, "what was answered before was not asked again"


CLIENT = """
import os, sys
from pathlib import Path
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine
from support.scripted_judge import Marks, samples
import asyncio

async def main():
    judge = JudgeConfig(base_url=sys.argv[1], model="judge-1", api_key_env="")
    config = EngineConfig(start_in_flight=8, adaptive=False)
    with RewardEngine(Marks(), judge, config, cache_dir=Path(sys.argv[2])) as engine:
        async for index, score in engine.stream(samples(range(200))):
            assert score.value == 1.0, score
            print(index, flush=True)
        print(engine.counters(), file=sys.stderr)

if len(sys.argv) > 3:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
asyncio.run(main())
"""


def client(judge: JudgeServer, folder: Path, *more: object) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, judge.base_url, str(folder), *map(str, more)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_client_that_is_killed_pays_again_for_nothing_it_was_given(judge: JudgeServer, tmp_path: Path) -> None:
    behave(judge, latency_s=0.02)
    process = client(judge, tmp_path)
    assert process.stdout is not None
    given = [int(process.stdout.readline()) for _ in range(50)]
    process.kill()
    given += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    process.communicate()
    judge.configure(latency_s=0.0)
    with engine_of(judge, tmp_path) as engine:
        scores = engine.score_many_sync(samples(range(200)))
        assert_all_scored(scores)
        assert all(scores[index].cached for index in given)
        stats = judge.stats()
        assert stats["answered_distinct"] == 200
        assert stats["paid_twice"] <= 8, "no more than were in flight when it was killed"


def test_a_full_disk_costs_no_score(judge: JudgeServer, tmp_path: Path) -> None:
    behave(judge, latency_s=0.0)
    out, err = client(judge, tmp_path, 50_000).communicate(timeout=60)
    assert sorted(map(int, out.split())) == list(range(200)), err
    assert "cannot be written" in err or "'cache_write_failures': 0.0" not in err
    with engine_of(judge, tmp_path) as engine:
        assert_all_scored(engine.score_many_sync(samples(range(200))))
        assert 0 < judge.stats()["paid_twice"] < 200, "some were stored before the disk was full, and some were not"


def test_a_damaged_cache_costs_its_replies_and_no_score(
    judge: JudgeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_of(judge, tmp_path) as engine:
        assert_all_scored(engine.score_many_sync(samples(range(50))))
    (tmp_path / "rewards.sqlite").write_bytes(b"what the disk made of it" * 1000)
    with engine_of(judge, tmp_path) as engine:
        assert_all_scored(engine.score_many_sync(samples(range(50))))
        assert_all_scored(engine.score_many_sync(samples(range(50))))
        assert engine.counters()["cache_hits"] == 50
    assert "damaged" in caplog.text


@pytest.mark.parametrize("seed", range(2))
def test_no_order_of_faults_cancellations_and_hosts_leaves_anything_behind(
    judge: JudgeServer, seed: int, tmp_path: Path
) -> None:
    """Batches from several threads and loops, cancelled at random, with a judge that fails in every way."""
    faults = dict.fromkeys(["http_500", "http_503", "reset_before", "reset_during", "truncated", "malformed"], 0.04)
    behave(judge, faults={**faults, "hang": 0.02}, max_in_flight=12, latency="uniform", spread=0.01, seed=seed)
    raised: list[BaseException] = []

    async def batch(engine: RewardEngine, rng: random.Random) -> None:
        given = samples([rng.randint(0, 150) for _ in range(rng.randint(1, 60))])
        deadline_s = rng.choice([None, None, 0.05])
        if rng.random() < 0.3:
            async for index, score in engine.stream(given, deadline_s):
                assert 0 <= index < len(given)
                assert score.value == 1.0 or deadline_s
                if rng.random() < 0.01:
                    return
        else:
            scores = await engine.score_many(given, deadline_s)
            assert len(scores) == len(given)
            assert all(score.value == 1.0 or deadline_s for score in scores), scores

    async def host(engine: RewardEngine, rng: random.Random) -> None:
        for _ in range(3):
            tasks = [asyncio.create_task(batch(engine, rng)) for _ in range(3)]
            for task in tasks:
                if rng.random() < 0.4:
                    asyncio.get_running_loop().call_later(rng.uniform(0.0, 0.1), task.cancel)
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                    raised.append(result)

    stored = tmp_path if seed % 2 else None
    with engine_of(judge, stored, attempt_timeout_s=0.3, hedge_fraction=0.2, start_in_flight=24) as engine:
        hosts = [
            threading.Thread(target=lambda n=n: asyncio.run(host(engine, random.Random(10 * seed + n))), daemon=True)
            for n in range(3)
        ]
        for thread in hosts:
            thread.start()
        for thread in hosts:
            thread.join(60)
            assert not thread.is_alive(), "a host hangs"
        assert not raised
        eventually(lambda: engine.counters()["in_flight"] == engine.counters()["waiting"] == 0)
        caller: Any = engine._caller
        tasks = engine._thread.submit(_tasks()).result()  # type: ignore[union-attr]
        assert not tasks
        assert not caller._calls
        assert not engine._flows
        behave(judge)
        assert_all_scored(engine.score_many_sync(samples(range(200, 260))))
        counters, stats = engine.counters(), judge.stats()
        assert counters["hedges"] <= 0.2 * counters["attempts"]
        assert stats["answered"] == 60
        assert stats["abandoned"] == 0


async def _tasks() -> list[asyncio.Task[Any]]:
    await asyncio.sleep(0.02)
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_an_outage_is_an_error_and_no_reward(judge: JudgeServer) -> None:
    behave(judge, faults={"http_500": 1.0})
    with (
        engine_of(judge, max_failure_rate=0.25, call_deadline_s=0.2, start_in_flight=60) as engine,
        pytest.raises(RewardError, match=r"of 60 samples could not be scored \(\d+ server\).*max_failure_rate"),
    ):
        engine.score_many_sync(samples(range(60)))
