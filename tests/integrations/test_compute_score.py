"""`compute_score` by itself: both conventions, one engine, failures, and the ways in which a host can call it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.common.judge_behaviour import Behaviour
from benchmarks.common.judge_server import JudgeServer

from assay.errors import ConfigError, DataError, RewardError
from assay.integrations.common import scoring
from assay.integrations.verl import acompute_score, compute_score
from assay.integrations.verl.score import _sort

LOCAL = {"reward": "support.host_rewards:ShareOfWords"}


@pytest.fixture(autouse=True)
def engines_end() -> Iterator[None]:
    yield
    scoring.close_all()


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer(Behaviour(latency_s=0.01, replies=("0.25", "0.75"))) as judge:
        yield judge


def judged(server: JudgeServer, folder: Path, **engine: Any) -> dict[str, Any]:
    return {
        "reward": "support.host_rewards:EchoedScore",
        "judge": {"base_url": server.base_url, "api_key_env": ""},
        "engine": {"cache_path": str(folder / "replies.sqlite"), "hedge_fraction": 0.0, **engine},
    }


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def test_all_conventions_agree() -> None:
    response, truth, source, extra = "a b", "a c", "words", {"index": 3}
    by_position = compute_score(response, truth, source, extra, **LOCAL)
    specification = {"response": response, "ground_truth": truth, "dataset_name": source, "extra_info": extra}
    verls = {"data_source": source, "solution_str": response, "ground_truth": truth, "extra_info": extra}
    batch = compute_score(
        data_sources=objects([source]),
        solution_strs=[response],
        ground_truths=[truth],
        extra_infos=objects([extra]),
        **LOCAL,
    )
    assert by_position == compute_score(**specification, **LOCAL) == compute_score(**verls, **LOCAL) == 0.5
    row = compute_score(response, truth, source, extra, **LOCAL, details=True)
    assert batch == [row] == [asyncio.run(acompute_score(**verls, **LOCAL))] and row["score"] == 0.5
    assert asyncio.run(acompute_score(**verls, **LOCAL, details=False)) == 0.5
    assert extra == {"index": 3}


def test_rows_have_equal_keys_and_finite_floats_in_order() -> None:
    responses = ["a", "", "b c", "a b"] * 8
    rows = compute_score(solution_strs=responses, ground_truths=["a"] * 32, **LOCAL)
    assert isinstance(rows, list) and len(rows) == 32
    assert {tuple(row) for row in rows} == {
        ("score", "found", "length", "assay_errored", "assay_invalid", "assay_cached")
    }
    assert all(isinstance(value, float) and np.isfinite(value) for row in rows for value in row.values())
    assert [row["score"] for row in rows[:4]] == [1.0, 0.0, 0.0, 1.0]


def test_parts_that_nobody_declares_are_those_of_the_batch() -> None:
    class Undeclared:
        name, fingerprint, asks_judge = "undeclared", "1", False

        def requests(self, sample: Any) -> tuple[()]:
            return ()

        def score(self, sample: Any, replies: Any) -> Any:
            return scoring.Score("scored", 1.0, {sample.response: 0.5, "score": 9.0})

    one = scoring.HostScorer(scoring.read_settings(LOCAL), Undeclared())
    scores = one.engine.score_many_sync([scoring.sample_of("x"), scoring.sample_of("y")])
    rows = one.rows(scores)
    assert [(row["x"], row["y"], row["score"]) for row in rows] == [(0.5, 0.0, 1.0), (0.0, 0.5, 1.0)]
    one.close()


def test_parts_with_names_that_hosts_use_are_refused() -> None:
    with pytest.raises(ConfigError, match="called acc, names that hosts use for something else"):
        compute_score("a", "a", "s", None, **LOCAL, parts=["acc"])


def test_an_empty_batch() -> None:
    assert compute_score(solution_strs=[], ground_truths=[], data_sources=[], extra_infos=[], **LOCAL) == []


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {"solution_strs": ["a"], "response": "a"}, "together with response"),
        (("a",), {"solution_strs": ["a"]}, "with 1 positional"),
        ((), {"ground_truths": ["a"]}, "without solution_strs"),
        ((), {"ground_truth": "a"}, "not given a response"),
        (("a",), {"solution_str": "b"}, "response twice, once as solution_str"),
        (("a", "b", "c", {}, 5), {}, "4 positional arguments"),
        (("words", "a b", ["a"], {}), {}, "order=verl"),
        ((None, "a", "s", {}), {}, "response=None"),
        (("a", "b", "s", [("k", 1)]), {}, "must be a mapping"),
        ((), {"solution_strs": ["a", None], "ground_truths": ["a", "a"]}, "response=None"),
        ((), {"solution_strs": ["a"], "extra_infos": [{}, {}]}, "solution_strs has 1, extra_infos has 2"),
    ],
)
def test_arguments_that_make_no_sample_are_refused(arguments: Any, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        compute_score(*arguments, **keywords, **LOCAL)


def test_verls_positional_order_is_declared_and_never_guessed() -> None:
    assert compute_score("words", "a b", "a c", {}, **LOCAL, order="verl") == 0.5
    with pytest.raises(ConfigError, match="one of response_first, verl"):
        compute_score("words", "a b", "a c", {}, **LOCAL, order="guess")


def test_a_served_reward_model_is_the_judge_unless_another_is_named() -> None:
    served = {"response": "a", "reward_router_address": "10.0.0.1:80", "reward_model_tokenizer": object()}
    assert _sort((), served).settings == {"judge.base_url": "http://10.0.0.1:80/v1", "judge.api_key_env": ""}
    assert _sort((), {**served, "judge": {"base_url": "http://j/v1"}}).settings == {
        "judge": {"base_url": "http://j/v1"}
    }
    assert _sort((), {"response": "a", "reward_router_address": None}).settings == {}


def test_one_engine_for_equal_settings_from_many_threads() -> None:
    with ThreadPoolExecutor(8) as threads:
        rows = list(threads.map(lambda i: compute_score("a", "a", "s", {"index": i}, **LOCAL), range(64)))
    assert rows == [1.0] * 64
    assert len(scoring._SCORERS) == 1
    compute_score("a", "a", "s", None, **LOCAL, options={"scale": 2.0})
    assert len(scoring._SCORERS) == 2


GOOD = "It is right. <measurements>[True, True, True]</measurements>"
MONITORED = {"data_source": "function_correctness", "solution_str": GOOD, "ground_truth": [True, True, True]}
MONITORED |= {"extra_info": {"is_correct": True, "text": "x"}}


def test_a_variable_that_is_set_after_the_first_call_counts(
    server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that decides what is asked, one that decides what is paid, and the one that holds the key."""
    settings = {"judge.base_url": server.base_url, "judge.api_key_env": "ASSAY_KEY_OF_A_TEST", "engine.cache": False}
    monkeypatch.setenv("ASSAY_KEY_OF_A_TEST", "first")
    without = compute_score(**MONITORED, **settings)
    monkeypatch.setenv("VERBOSE_REWARDS", "0.5")
    assert compute_score(**MONITORED, **settings) == pytest.approx(without + 3 * 0.5)
    monkeypatch.delenv("VERBOSE_REWARDS")
    assert compute_score(**MONITORED, **settings) == without
    assert len(scoring._SCORERS) == 2, "what was made for the first settings serves them again"
    monkeypatch.setenv("MONITOR_CACHE", "false")
    compute_score(**MONITORED, **{k: v for k, v in settings.items() if k != "engine.cache"})
    engines = [scorer.config.engine.cache for scorer in scoring._SCORERS.values()]
    assert engines == [False, False, False]
    monkeypatch.setenv("ASSAY_KEY_OF_A_TEST", "second")
    compute_score(**MONITORED, **settings)
    assert len(scoring._SCORERS) == 4, "a client keeps the key that it was made with"


def test_a_settings_file_that_changes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rewards.yaml"
    file.write_text("reward: support.host_rewards:ShareOfWords\n")
    monkeypatch.setenv("ASSAY_REWARDS_CONFIG", str(file))
    assert compute_score("a b", "a c", "s", None) == 0.5
    file.write_text("reward: support.host_rewards:ShareOfWords\noptions: {scale: 4.0}\n")
    assert compute_score("a b", "a c", "s", None) == 2.0


def test_blocking_inside_a_running_loop() -> None:
    async def host() -> Any:
        return compute_score("a", "a", "s", None, **LOCAL)

    assert asyncio.run(host()) == 1.0


def test_a_forked_process_makes_an_engine_of_its_own() -> None:
    compute_score("a", "a", "s", None, **LOCAL)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(compute_score, ("a b", "a c", "s", None), LOCAL) == 0.5


def test_the_asynchronous_one_is_a_plain_function() -> None:
    assert inspect.iscoroutinefunction(acompute_score)


def test_duplicates_are_asked_once_and_a_second_batch_is_free(server: JudgeServer, tmp_path: Path) -> None:
    responses = [f"w{i % 10}" for i in range(40)]
    settings = judged(server, tmp_path)
    first = compute_score(solution_strs=responses, **settings)
    assert server.stats()["answered"] == 10
    second = compute_score(solution_strs=responses, **settings)
    assert server.stats()["answered"] == 10
    assert [row["score"] for row in first] == [row["score"] for row in second]
    assert {row["assay_cached"] for row in second} == {1.0}


def test_plain_processes_share_a_hub(server: JudgeServer, tmp_path: Path) -> None:
    limits = {"adaptive": False, "start_in_flight": 3, "max_in_flight": 3}
    settings = judged(server, tmp_path, **limits) | {"share": "hub"}
    responses = [f"w{i}" for i in range(30)]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        batches = pool.starmap(functools.partial(score_batch, settings), [(responses,)] * 3, chunksize=1)
    assert batches[0] == batches[1] == batches[2]
    stats = server.stats()
    assert (stats["answered"], stats["paid_twice"]) == (30, 0)
    assert stats["max_in_flight"] <= 3


def score_batch(settings: dict[str, Any], responses: list[str]) -> list[float]:
    return [row["score"] for row in compute_score(solution_strs=responses, **settings)]


def test_a_judge_that_is_down_is_never_a_score(server: JudgeServer, tmp_path: Path) -> None:
    settings = judged(server, tmp_path, call_deadline_s=0.3)
    server.kill()
    with pytest.raises(RewardError, match=r"could not be scored.*connection"):
        compute_score(solution_strs=["w1", "w2"], extra_infos=[{"index": 1}, {"index": 1}], **settings)
    with pytest.raises(RewardError, match="leaves this rollout out of its group"):
        asyncio.run(acompute_score(response="w1", **settings))


def test_a_missing_key_is_an_error_before_anything_is_asked(server: JudgeServer, tmp_path: Path) -> None:
    settings = judged(server, tmp_path) | {"judge": {"base_url": server.base_url, "api_key_env": "ASSAY_NO_KEY"}}
    with pytest.raises(ConfigError, match="ASSAY_NO_KEY is not set"):
        compute_score("w1", None, "s", None, **settings)
    assert server.stats()["requests"] == 0
