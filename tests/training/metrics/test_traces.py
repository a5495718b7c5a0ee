import json

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
        "version": 1,
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


def test_traces_do_not_depend_on_the_cache():
    fresh, again = (
        trace_records(groups(Trajectory(TASK, (transition((1,), (3,), scored(cached)),), "done", 0)), **HEADER)
        for cached in (False, True)
    )
    assert fresh == again


def test_a_rollout_that_never_got_a_turn_is_recorded():
    (record,) = trace_records(groups(Trajectory(TASK, (), "errored", 0)), **HEADER)
    assert (record["end"], record["text"], record["reward"]) == ("errored", None, None)
    assert record["score"]["status"] == "errored"
