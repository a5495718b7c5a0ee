"""verifiers' own env over an exported package, in front of an endpoint that says what a play says.

Where uv can fetch what verifiers' null harness needs, that program runs too (`ASSAY_NULL_HARNESS=1`); else the loop is
in this process, which verifiers allows a harness.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

vf = pytest.importorskip("verifiers.v1", reason="verifiers needs an environment of its own")


from assay.errors import ConfigError  # noqa: E402
from assay.integrations.environments import Prepared, close_environments, prepared  # noqa: E402
from assay.integrations.verifiers_plugin import write_plugin  # noqa: E402
from support.hosts import GOLDEN, PLAYS, Play, bytes_tokenizer, prepared_play  # noqa: E402
from support.verifiers_endpoint import HARNESS, Endpoint, env_of, play_group  # noqa: E402

FAILING = """
from assay.envs import Environment, Message, Score, StepResult, Task

class Fails(Environment):
    def tasks(self):
        return [Task.of(f"{n}\\u2028=", answer=str(n)) for n in range(4)]

    def score(self, task, text):
        if text == "!":
            raise RuntimeError("the judge is dead")
        return text == "0"

class Mute(Fails):
    max_turns = 2

    def env(self, task):
        return Silent()

class Silent:
    async def reset(self):
        return [Message("user", "?")]

    async def step(self, text):
        if text == "!":
            return StepResult(Score("errored", None, evidence={"message": "HTTP 503 of the judge"}), done=True)
        return StepResult(Score("scored", 1.0), done=False, replace=True)

class Ranked:
    def __init__(self, task):
        self.task = task

    async def make(self, n):
        return []

    async def score_group(self, trajectories):
        return [one.transitions[-1].score for one in trajectories]

class Ranks(Fails):
    def group(self, task):
        return Ranked(task)
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    (folder / "fails.py").write_text(FAILING)
    (folder / "assay_in_process.py").write_text(HARNESS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("OPENAI_API_KEY", "none")
        patch.syspath_prepend(str(folder))
        yield folder
        close_environments()


def fails(folder: Path, kind: str = "Fails") -> Prepared:
    settings = [f"dataset_builder={folder}/fails.py:{kind}", "max_tokens=8", "dataset_builder.group_size=3"]
    return prepared(None, settings, bytes_tokenizer())


@pytest.mark.parametrize("name", PLAYS)
def test_verifiers_plays_assays_own_turns_and_rewards(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = PLAYS[name]
    cached = [f"dataset_builder.grader.cache_path={cache}/verdicts.sqlite"] if name == "kernels" else []
    one = prepared_play(play, f"cache_dir={cache}", *cached)
    env = env_of(one, f"assay-{name}", cache, monkeypatch)
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    endpoint = Endpoint(play, one)
    groups = play_group(env, endpoint, [group["task"] for group in golden], play.group_size)
    for group, episodes in zip(golden, groups, strict=True):
        for rollout, (episode, rows) in zip(group["rollouts"], episodes, strict=True):
            assert episode.errors == []
            assert {trace.metrics["assay_reward"] for trace in episode.traces} == {rollout["reward"]}
            if len(episode.traces) == 1:
                assert episode.traces[0].rewards["assay"].score == rollout["reward"]
            assert [row.prompt_ids for row in rows] == [row["prompt_ids"] for row in rollout["rows"]]
            assert [row.response_ids for row in rows] == [row["response_ids"] for row in rollout["rows"]]


def test_what_could_not_be_scored_is_an_error_and_no_reward(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play, one = Play((), {"": ("0", "!", "3")}, 3, 1), fails(cache)
    env = env_of(one, "assay-fails", cache, monkeypatch)
    ((first, failed, last),) = play_group(env, Endpoint(play, one), [next(iter(env.taskset)).key], 3)
    assert "the judge is dead" in failed[0].errors[0].message and not failed[0].ok
    assert all("assay" not in trace.rewards for trace in failed[0].traces)
    assert [one.traces[0].rewards["assay"].score for one, _ in (first, last)] == [1.0, 0.0]


def test_a_conversation_written_anew_as_nothing_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play, one = Play((), {"": ("0", "!")}, 2, 1), fails(cache, "Mute")
    env = env_of(one, "assay-mute-env", cache, monkeypatch)
    ((silent, judged),) = play_group(env, Endpoint(play, one), [next(iter(env.taskset)).key], 2)
    assert "left nothing to answer" in silent[0].errors[0].message and not silent[0].ok
    assert "HTTP 503 of the judge" in judged[0].errors[0].message


def test_a_policy_that_gives_no_answer_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play, one = Play((), {"": ("0",)}, 3, 1), fails(cache)
    env = env_of(one, "assay-mute", cache, monkeypatch)
    (((episode, _),),) = play_group(env, Endpoint(play, one, status=400), [next(iter(env.taskset)).key], 1)
    assert not episode.ok and episode.errors


def test_groups_scored_as_a_whole_are_refused(cache: Path) -> None:
    with pytest.raises(ConfigError, match="scored as a whole"):
        write_plugin(fails(cache, "Ranks"), "assay-ranks", cache / "ranks", 4)


@pytest.mark.parametrize("name", ["Chess", "a b", "../up", ""])
def test_a_name_that_is_none_is_refused(cache: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a package"):
        write_plugin(fails(cache), name, cache / "named", 4)


@pytest.mark.skipif(not os.environ.get("ASSAY_NULL_HARNESS"), reason="uv has to fetch what the null harness needs")
def test_the_null_harness_plays_several_turns(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play, one = PLAYS["guess"], prepared_play(PLAYS["guess"])
    env = env_of(one, "assay-null", cache, monkeypatch, harness="null")
    golden = json.loads((GOLDEN / "guess.json").read_text())[:1]
    (episodes,) = play_group(env, Endpoint(play, one), [golden[0]["task"]], 2)
    for rollout, (episode, _) in zip(golden[0]["rollouts"], episodes, strict=False):
        assert episode.ok and episode.traces[0].rewards["assay"].score == rollout["reward"]
