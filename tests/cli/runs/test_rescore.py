from __future__ import annotations

import json
from pathlib import Path

import chz
import pytest

from assay.cli.runs.rescore import rescore
from assay.errors import RunDirectoryError
from support.tiny_run import run, snapshot, tiny
from support.toy_env import ToyBuilder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a complete run. Do not change it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    run(tiny(path))
    return path


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_same_rewards_give_the_same_scores_and_the_run_is_left_alone(finished: Path, tmp_path: Path) -> None:
    before = snapshot(finished)
    found = rescore(finished, tiny(finished), tmp_path / "scores.jsonl")
    assert snapshot(finished) == before
    traces, scores = lines(finished / "traces.jsonl"), lines(tmp_path / "scores.jsonl")
    assert len(scores) == len(traces) == found["rollouts"] > 100
    assert [s["after"]["value"] for s in scores] == [t["score"]["value"] for t in traces]  # type: ignore[index]
    assert (found["changed"], found["errored"]) == (0, 0)
    assert found["mean_reward"]["before"] == found["mean_reward"]["after"] > 0
    advantages = found["advantages"]
    assert advantages["turns"] == sum(t["split"] == "train" for t in traces)
    assert (advantages["changed_sign"], advantages["lost"], advantages["gained"]) == (0, 0, 0)


def test_other_rewards_are_told_from_those_of_before(finished: Path, tmp_path: Path) -> None:
    outage = tmp_path / "outage"
    outage.write_text("the verifier is away")
    config = chz.replace(tiny(finished), dataset_builder=ToyBuilder(outage=outage))
    found = rescore(finished, config, tmp_path / "scores.jsonl")
    assert found["errored"] == found["changed"] == found["rollouts"]
    assert found["mean_reward"] == {}
    trained = [t for t in lines(finished / "traces.jsonl") if t["advantage"]]
    assert (found["advantages"]["lost"], found["advantages"]["changed_sign"]) == (len(trained), 0)
    first = lines(tmp_path / "scores.jsonl")[0]
    assert first["before"]["status"] == "scored" and first["after"]["status"] == "errored"  # type: ignore[index]


def test_several_turns_are_played_in_order(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", mode="multi_turn", max_turns=2)
    run(config)
    found = rescore(tmp_path / "run", config, tmp_path / "scores.jsonl")
    scores = lines(tmp_path / "scores.jsonl")
    assert found["changed"] == 0 and len(scores) == len(lines(tmp_path / "run" / "traces.jsonl"))
    assert {score["turn"] for score in scores} == {0, 1}


def test_a_run_of_other_tasks_and_no_run_at_all_are_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="not among the tasks"):
        rescore(finished, chz.replace(tiny(finished), seed=7), tmp_path / "scores.jsonl")
    with pytest.raises(RunDirectoryError, match="is not a run"):
        rescore(tmp_path, tiny(tmp_path), tmp_path / "scores.jsonl")
    before = snapshot(finished)
    with pytest.raises(RunDirectoryError, match="belongs to the run"):
        rescore(finished, tiny(finished), finished / "traces.jsonl")
    assert snapshot(finished) == before
