"""Whole environments through verl's own agent loop workers: golden tokens and credit, and every way to fail."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.errors import ConfigError
from assay.integrations.environments import Budget, GroupTable, Prepared, close_environments, prepared
from assay.integrations.verl import agent_loop
from assay.integrations.verl.agent_loop import _Session
from support.hosts import GOLDEN, PLAYS, Play, bytes_tokenizer, prepared_play
from support.verl_agents import Server, extra_of, rollouts_of, run_prompts, trainer_config, worker_of

FAILING = """
from assay.envs import Environment, Task

class Fails(Environment):
    def tasks(self):
        return [Task.of(f"{n}=", answer=str(n)) for n in range(4)]

    def score(self, task, text):
        if text == "!":
            raise RuntimeError("the judge is dead")
        return text == "0"
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
        close_environments()


@pytest.fixture(autouse=True)
def groups_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    groups = GroupTable()
    monkeypatch.setattr(agent_loop, "_GROUPS", groups)
    yield
    assert len(groups) == len(groups._incomplete), "a group is forgotten with its last rollout"


@pytest.fixture(scope="module")
def fails(cache: Path) -> Prepared:
    (cache / "fails.py").write_text(FAILING)
    settings = [f"dataset_builder={cache}/fails.py:Fails", "max_tokens=8", "dataset_builder.group_size=3"]
    return prepared(None, settings, bytes_tokenizer())


def sha(ids: Any) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


@pytest.mark.parametrize("name", PLAYS)
def test_verl_is_given_what_assays_own_loop_trains_on(name: str, cache: Path) -> None:
    play = PLAYS[name]
    cached = [f"dataset_builder.grader.cache_path={cache}/verdicts.sqlite"] if name == "kernels" else []
    queue = run_prompts(play, prepared_play(play, f"cache_dir={cache}", *cached))
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    for place, group in enumerate(golden):
        assert queue.tags[f"u{place}"]["status"] == "finished"
        for rows, rollout in zip(rollouts_of(queue, f"u{place}", play.group_size), group["rollouts"], strict=True):
            for row, own in zip(rows, rollout["rows"], strict=True):
                assert [len(row["prompts"]), sha(row["prompts"].tolist())] == own["prompt_ids"]
                assert row["responses"].tolist() == own["response_ids"]
                assert row["response_mask"].tolist() == own["mask"]
                assert row["advantages"] == torch.tensor(own["advantages"], dtype=torch.float32).tolist()
                assert row["rollout_log_probs"].tolist() == pytest.approx(own["logprobs"])
                assert extra_of(row)["reward_extra_info"]["assay_reward"] == rollout["reward"]


def test_what_could_not_be_scored_is_dropped_and_not_zero(fails: Prepared) -> None:
    queue = run_prompts(Play((), {"": ("0", "!", "3")}, 3, 1), fails)
    rollouts = rollouts_of(queue, "u0", 3)
    assert [len(rows) for rows in rollouts] == [1, 0, 1]
    assert queue.tags["u0"]["status"] == "finished"
    first, last = (set(rows[0]["advantages"]) for rows in (rollouts[0], rollouts[2]))
    assert first == {-value for value in last} and 0 not in first, "the mean is of the two that were scored"


def test_a_group_without_a_score_is_a_failure_that_verl_replaces(fails: Prepared) -> None:
    queue = run_prompts(Play((), {"": ("!",)}, 3, 1), fails)
    assert queue.rows == {} and queue.tags["u0"]["status"] == "failure"


def test_a_prompt_over_budget_is_never_sampled(fails: Prepared) -> None:
    server = Server(Play((), {"": ("0",)}, 3, 1))
    queue = run_prompts(Play((), {"": ("0",)}, 3, 1), fails, server=server, budget=Budget(1, 8))
    assert queue.rows == {} and server.asked == [] and queue.tags["u0"]["status"] == "failure"


def test_an_empty_completion_is_judged_and_not_trained(fails: Prepared) -> None:
    play = Play((), {"": ("0",)}, 3, 1)
    queue = run_prompts(play, fails, server=Server(play, most=0))
    assert queue.rows == {} and queue.tags["u0"]["status"] == "finished"


def test_validation_has_the_plain_reward() -> None:
    play = PLAYS["own"]
    one = prepared_play(play)
    queue = run_prompts(play, one, split="heldout")
    rewards = [extra_of(row)["reward_extra_info"]["assay_reward"] for row in queue.rows.values()]
    assert [float(row["rm_scores"].sum()) for row in queue.rows.values()] == pytest.approx(rewards)
    assert len(rewards) == play.tasks * play.group_size and any(rewards)
    empty = run_prompts(play, one, split="heldout", server=Server(play, most=0))
    assert len(empty.rows) == play.tasks * play.group_size, "an empty answer counts in validation"


def test_the_server_is_asked_with_verls_settings_within_the_budget() -> None:
    play, server = PLAYS["guess"], Server(PLAYS["guess"])
    run_prompts(play, prepared_play(play), server=server, budget=Budget(8192, 6))
    assert {asked["temperature"] for asked in server.asked} == {1.0}
    assert all(asked["stop_token_ids"] and 1 <= asked["max_tokens"] <= 6 for asked in server.asked)
    assert any(asked["max_tokens"] < 6 for asked in server.asked), "later turns have what is left of the row"
    assert len({asked["request"] for asked in server.asked}) == play.tasks * play.group_size


def test_a_sibling_that_never_starts_is_not_waited_for(fails: Prepared) -> None:
    class Lame(type(worker_of(trainer_config(3), None))):  # type: ignore[misc]
        async def _run_agent_loop(self, *args: Any, session_id: int, **kwargs: Any) -> Any:
            if session_id == 1:
                raise RuntimeError("its tools cannot be loaded")
            return await super()._run_agent_loop(*args, session_id=session_id, **kwargs)

    play = Play((), {"": ("0", "3")}, 3, 1)
    worker = worker_of(trainer_config(3), Server(play))
    worker.__class__ = Lame
    queue = run_prompts(play, fails, worker=worker, start_s=0.2)
    assert [len(rows) for rows in rollouts_of(queue, "u0", 3)] == [1, 0, 1]
    assert queue.tags["u0"]["status"] == "failure", "verl's word for a group with a session that raised"


def test_a_server_that_fails_ends_its_rollout_alone(fails: Prepared) -> None:
    class Dies(Server):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            if len(self.asked) == 1:
                self.asked.append({})
                raise ConnectionError("the server is gone")
            return await super().generate(*args, **kwargs)

    play = Play((), {"": ("0", "3")}, 3, 1)
    queue = run_prompts(play, fails, server=Dies(play), start_s=0.2)
    assert sorted(len(rows) for rows in rollouts_of(queue, "u0", 3)) == [0, 1, 1]


def test_an_interrupted_completion_is_not_judged(fails: Prepared) -> None:
    class Interrupted(Server):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            found = await super().generate(*args, **kwargs)
            found.stop_reason = "aborted"
            return found

    play = Play((), {"": ("0",)}, 3, 1)
    assert run_prompts(play, fails, server=Interrupted(play)).rows == {}


def test_a_task_of_another_environment_is_refused(fails: Prepared, cache: Path) -> None:
    other = prepared_play(PLAYS["own"])
    queue = run_prompts(Play((), {"": ("0", "1")}, 3, 1), fails, prepared=other.to_json())
    assert queue.rows == {} and queue.tags["u0"]["status"] == "failure"


@pytest.mark.parametrize("estimator", ["grpo", "assay"])
def test_another_estimator_is_refused(fails: Prepared, estimator: str) -> None:
    play, config = Play((), {"": ("0", "1")}, 3, 1), trainer_config(3)
    config.algorithm.adv_estimator = estimator
    queue = run_prompts(play, fails, worker=worker_of(config, Server(play)))
    assert bool(queue.rows) == (estimator == "assay")


def test_the_v0_trainer_is_refused(fails: Prepared) -> None:
    with pytest.raises(ConfigError, match="use_v1=true"):
        _Session.of({"uid": "u", "global_steps": 0, "extra_info": {}}, trainer_config(3).actor_rollout_ref.rollout)
