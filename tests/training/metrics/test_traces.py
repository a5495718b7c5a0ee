import json
from dataclasses import replace

import numpy as np

from assay.grpo.group_data import TurnTraining
from assay.storage.files import encode_json
from assay.training.metrics.traces import trace_records
from assay.types import Completion, Message, Score, Task, Trajectory, TrajectoryGroup, Transition

TASK = Task("chess", "e2", (Message("user", "P: fen"),), tags=("P",))
HEADER = {"run_id": "abc", "step": 4, "phase": "rl", "index": 2, "split": "train"}


def transition(prompt, tokens, score):
    completion = Completion(tokens, (0.0,) * len(tokens), "stop", 7)
    return Transition(prompt, completion, "B: e2e4", score, {"legal": 1.0})


def scored(cached=False):
    parts = {"format": 0.2, "best": 0.0}
    return Score("scored", 0.5, parts, {"best": "d2d4"}, usage={"s": 1.0}, cached=cached, fingerprint="sf16")


def groups(*rollouts):
    return [TrajectoryGroup(TASK, tuple(rollouts))]


def test_a_record_says_what_was_told_said_and_earned():
    rollout = Trajectory(TASK, (transition((1, 2), (3, 4, 5), scored()),), "done", 99)
    (record,) = trace_records(groups(rollout), **HEADER)
    assert record == {
        "version": 2,
        "run": "abc",
        "step": 4,
        "phase": "rl",
        "index": 2,
        "split": "train",
        "group": 0,
        "sample": 0,
        "turn": 0,
        "task": {"env": "chess", "id": "e2", "key": TASK.key, "tags": ["P"]},
        "seed": 99,
        "end": "done",
        "reward": 0.5,
        "messages": [{"role": "user", "content": "P: fen"}],
        "text": "B: e2e4",
        "stop_reason": "stop",
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "policy_version": 7,
        "score": {
            "status": "scored",
            "value": 0.5,
            "parts": {"format": 0.2, "best": 0.0},
            "evidence": {"best": "d2d4"},
            "verifier": "sf16",
        },
        "metrics": {"legal": 1.0},
        "advantage": None,
        "trained": False,
        "removed": "failed",
    }
    assert json.loads(encode_json(record)) == record


def test_later_turns_show_what_the_env_answered():
    turns = (transition((1, 2), (3,), scored()), transition((1, 2, 3, 8, 9), (4,), scored()))
    rewritten = (transition((1, 2), (3,), scored()), transition((6, 7), (4,), scored()))
    rollouts = [Trajectory(TASK, t, "done", 0) for t in (turns, rewritten)]
    records = trace_records(groups(*rollouts), **HEADER, decode=str)
    assert [(r["sample"], r["turn"], r.get("observation")) for r in records] == [
        (0, 0, None),
        (0, 1, "(8, 9)"),
        (1, 0, None),
        (1, 1, "(6, 7)"),
    ]
    assert ["messages" in record for record in records] == [True, False, True, False]


def test_a_conversation_that_was_begun_anew_is_recorded_whole():
    began = (Message("system", "be brief"), Message("user", "asked again"))
    turns = (transition((1, 2), (3,), scored()), replace(transition((6, 7), (4,), scored()), messages=began))
    records = trace_records(groups(Trajectory(TASK, turns, "done", 0)), **HEADER, decode=str)
    assert [record["messages"] for record in records] == [
        [{"role": "user", "content": "P: fen"}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "asked again"}],
    ]
    assert "observation" not in records[1]


def test_a_first_turn_shows_what_the_env_said_and_not_what_the_task_says():
    turn = replace(transition((1, 2), (3,), scored()), messages=(Message("user", "from the env"),))
    (record,) = trace_records(groups(Trajectory(TASK, (turn,), "done", 0)), **HEADER)
    assert record["messages"] == [{"role": "user", "content": "from the env"}]


def test_a_record_says_what_its_turn_trained_with():
    rollout = Trajectory(TASK, (transition((1, 2), (3, 4), scored()),), "done", 0)
    ratios = np.zeros(2, np.float32)
    turns = {
        (0, 0, 0): TurnTraining(None, np.array([0.1, 0.3], np.float32), ratios),
        (0, 1, 0): TurnTraining("constant"),
    }
    records = trace_records(groups(rollout, rollout), **HEADER, turns=turns)
    found = [(record["advantage"], record["trained"], record["removed"]) for record in records]
    assert found == [(0.2, True, None), (None, False, "constant")]
    (record,) = trace_records(groups(rollout), **{**HEADER, "split": "eval"}, turns=None)
    assert (record["advantage"], record["trained"], record["removed"]) == (None, False, None)


def test_traces_do_not_depend_on_the_cache():
    fresh, again = (
        trace_records(groups(Trajectory(TASK, (transition((1,), (3,), scored(cached)),), "done", 0)), **HEADER)
        for cached in (False, True)
    )
    assert fresh == again


def test_a_rollout_that_never_got_a_turn_is_recorded():
    (record,) = trace_records(groups(Trajectory(TASK, (), "errored", 0)), **HEADER)
    assert (record["end"], record["text"], record["reward"]) == ("errored", None, None)
    assert record["score"]["status"] == record["removed"] == "errored"
