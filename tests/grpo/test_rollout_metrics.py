import numpy as np
import pytest

from assay.grpo.advantages import has_constant_rewards
from assay.grpo.rollout_metrics import rollout_metrics
from assay.types import Completion, Message, Score, Task, Trajectory, TrajectoryGroup, Transition


def turn(value, *, metrics=None, parts=None, tokens=3, stop="stop", status="scored", cached=False):
    score = Score(status, value, parts=parts or {}, cached=cached)
    completion = Completion(tuple(range(tokens)), (0.0,) * tokens, stop, 0)
    return Transition((1, 2), completion, "text", score, metrics or {})


ERRORED = turn(None, status="errored", metrics={"legal": 0.0}, parts={"format": 0.0})


def rollout(task, *turns, end="done"):
    return Trajectory(task, turns, end, 0)


def task(*tags):
    return Task("chess", "1", (Message("user", "fen"),), tags=tags)


def group(task, *rollouts):
    return TrajectoryGroup(task, rollouts)


def test_rewards_are_summarised_over_rollouts():
    t = task()
    metrics = rollout_metrics(
        [group(t, *(rollout(t, turn(v)) for v in (0.0, 1.0, 2.0))), group(t, rollout(t, turn(5.0)))]
    )
    assert metrics["reward/mean"] == 2.0
    assert metrics["reward/std"] == pytest.approx(np.std([0, 1, 2, 5]))
    assert (metrics["reward_25pct"], metrics["reward_75pct"]) == (0.75, 2.75)
    assert (metrics["reward/min"], metrics["reward/max"]) == (0.0, 5.0)
    assert (metrics["rollout/count"], metrics["rollout/groups"]) == (4, 2)


def test_errored_rollouts_are_counted_and_enter_nothing_else():
    t = task("P")
    judged = [
        rollout(t, turn(1.0, metrics={"legal": 1.0}, parts={"format": 1.0})),
        rollout(t, turn(0.0, status="invalid")),
    ]
    failed = [rollout(t, ERRORED, end="errored"), rollout(t, end="errored")]
    without = rollout_metrics([group(t, *judged)])
    metrics = rollout_metrics([group(t, *judged, *failed)])
    entered = [name for name in without if not name.startswith("rollout/")]
    assert {"reward/mean", "reward_25pct", "env/legal", "part/format", "tag/P/legal", "tag/P/reward"} < set(entered)
    for name in entered:
        assert metrics[name] == without[name], name
    assert [metrics[f"rollout/{s}"] for s in ("scored", "invalid", "errored")] == [1, 1, 2]
    assert [metrics[f"rollout/{s}_fraction"] for s in ("scored", "invalid", "errored")] == [0.25, 0.25, 0.5]


def test_an_errored_turn_after_a_scored_one_makes_the_rollout_errored():
    t = task()
    metrics = rollout_metrics([group(t, rollout(t, turn(1.0), ERRORED, end="errored"))])
    assert metrics["rollout/errored"] == 1
    assert "reward/mean" not in metrics


def test_numbers_that_no_rollout_can_give_are_absent():
    t = task("P")
    metrics = rollout_metrics([group(t, rollout(t, end="errored"))])
    assert not [name for name in metrics if name.startswith(("reward", "env/", "part/", "tag/"))]
    assert "rollout/completion_tokens_mean" not in metrics
    assert rollout_metrics([]) == {"rollout/count": 0.0, "rollout/groups": 0.0}


def test_metrics_are_means_overall_and_per_tag():
    white, black = task("P", "P/white"), task("P", "P/black")
    metrics = rollout_metrics(
        [
            group(white, *(rollout(white, turn(v, metrics={"legal": v})) for v in (1.0, 0.0))),
            group(black, rollout(black, turn(4.0, metrics={"legal": 1.0, "mate": 1.0}))),
        ]
    )
    assert metrics["env/legal"] == pytest.approx(2 / 3)
    assert metrics["env/mate"] == 1.0
    assert (metrics["tag/P/white/legal"], metrics["tag/P/black/legal"]) == (0.5, 1.0)
    assert metrics["tag/P/legal"] == pytest.approx(2 / 3)
    assert (metrics["tag/P/white/reward"], metrics["tag/P/black/reward"]) == (0.5, 4.0)
    assert (metrics["tag/P/white/reward_25pct"], metrics["tag/P/white/reward_75pct"]) == (0.25, 0.75)
    assert "tag/P/white/mate" not in metrics


def test_a_rollout_of_several_turns_counts_once_with_its_last_values():
    t = task()
    long = rollout(
        t, turn(1.0, metrics={"legal": 0.0, "first": 1.0}), turn(2.0, metrics={"legal": 1.0}), end="max_turns"
    )
    metrics = rollout_metrics([group(t, long, rollout(t, turn(0.0, metrics={"legal": 0.0})))])
    assert metrics["env/legal"] == 0.5
    assert metrics["env/first"] == 1.0
    assert metrics["reward/mean"] == 1.5
    assert metrics["rollout/turns"] == 1.5
    assert (metrics["rollout/end/done_fraction"], metrics["rollout/end/max_turns_fraction"]) == (0.5, 0.5)
    assert metrics["rollout/end/length_fraction"] == 0.0


def test_tokens_and_truncation_are_over_turns():
    t = task()
    turns = [turn(0.0, tokens=2), turn(0.0, tokens=6, stop="length")]
    metrics = rollout_metrics([group(t, *(rollout(t, one) for one in turns))])
    assert metrics["rollout/completion_tokens_mean"] == 4
    assert metrics["rollout/completion_tokens_max"] == 6
    assert metrics["rollout/completion_tokens_sum"] == 8
    assert metrics["rollout/prompt_tokens_mean"] == 2
    assert metrics["rollout/truncated_fraction"] == 0.5


def test_nothing_depends_on_what_was_cached():
    t = task("P")
    fresh, cached = ([group(t, rollout(t, turn(1.0, cached=c)))] for c in (False, True))
    assert rollout_metrics(fresh) == rollout_metrics(cached)


@pytest.mark.parametrize(
    ("values", "constant"),
    [((1.0, 1.0), True), ((1.0, 0.0), False), ((1.0, None), True), ((1.0, None, 0.0), False), ((None,), True)],
)
def test_a_group_is_constant_when_its_known_rewards_do_not_differ(values, constant):
    t = task()
    members = [
        rollout(t, ERRORED if v is None else turn(v), end="done" if v is not None else "errored") for v in values
    ]
    assert has_constant_rewards(group(t, *members)) is constant
    assert rollout_metrics([group(t, *members)])["rollout/constant_group_fraction"] == float(constant)


def test_the_reward_of_constant_groups_tells_solved_tasks_from_hopeless_ones():
    t = task()
    solved, failed, mixed = (group(t, *(rollout(t, turn(v)) for v in vs)) for vs in ((1.0, 1.0), (-0.5,), (0.0, 1.0)))
    assert rollout_metrics([solved, mixed])["rollout/constant_group_reward"] == 1.0
    assert rollout_metrics([solved, failed])["rollout/constant_group_reward"] == 0.5
    unknown = group(t, rollout(t, ERRORED, end="errored"))
    assert "rollout/constant_group_reward" not in rollout_metrics([mixed, unknown])
