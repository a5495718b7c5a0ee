from pathlib import Path

import pytest

from assay.cli.runs.sign_changes import LARGEST, SignChanges, advantage_changes
from assay.grpo.config import GRPOConfig
from assay.training.run.rollouts import Group, open_rollouts
from assay.types import Score
from support.recorded_run import group, record

CONFIG = GRPOConfig(normalize_advantages_by_std=False)


def recorded(path: Path, *rewards: float | None) -> Group:
    (found,) = open_rollouts(record(path, (0, "train", [group("a", *rewards)])))
    return found


def scores(*values: float | None) -> dict[int, list[Score]]:
    return {s: [Score("errored", None) if v is None else Score("scored", v)] for s, v in enumerate(values)}


def test_turned_rewards_turn_every_advantage(tmp_path: Path) -> None:
    changes = advantage_changes(recorded(tmp_path, 0.0, 1.0, 1.0), scores(1.0, 0.0, 0.0), CONFIG)
    assert [change.flips for change in changes] == [True] * 3
    assert [(c.before, c.after) for c in changes] == [
        pytest.approx(pair) for pair in [(-2 / 3, 2 / 3), (1 / 3, -1 / 3), (1 / 3, -1 / 3)]
    ]


def test_other_rewards_of_the_same_order_turn_nothing(tmp_path: Path) -> None:
    changes = advantage_changes(recorded(tmp_path, 0.0, 1.0), scores(5.0, 9.0), CONFIG)
    assert not any(change.flips for change in changes)


def test_groups_that_come_to_teach_nothing_or_something_are_counted_apart(tmp_path: Path) -> None:
    found = SignChanges()
    found.add(advantage_changes(recorded(tmp_path / "a", 0.0, 1.0), scores(0.5, 0.5), CONFIG))
    found.add(advantage_changes(recorded(tmp_path / "b", 1.0, 1.0, 1.0), scores(0.0, 0.5, 1.0), CONFIG))
    assert (found.turns, found.changed_sign, found.lost, found.gained) == (5, 0, 2, 2)


def test_answers_without_a_score_are_excluded_from_the_baseline(tmp_path: Path) -> None:
    first, second, third = advantage_changes(recorded(tmp_path, 0.0, 1.0, None), scores(0.0, None, 1.0), CONFIG)
    assert (first.before, first.after) == (-0.5, -0.5)
    assert (second.before, second.after) == (0.5, None)
    assert (third.before, third.after) == (None, 0.5)


def test_the_largest_are_listed_with_their_places(tmp_path: Path) -> None:
    found = SignChanges()
    for size in range(1, 15):
        made = recorded(tmp_path / str(size), 0.0, 1.0)
        found.add(advantage_changes(made, scores(float(size), 0.0), CONFIG))
    rows = found.to_json()["largest"]
    assert found.changed_sign == 28 and len(rows) == LARGEST
    assert rows[0] == {"step": 0, "group": 0, "sample": 0, "turn": 0, "task": "a", "before": -0.5, "after": 7.0}
    assert [row["after"] for row in rows[::2]] == [7.0, 6.5, 6.0, 5.5, 5.0]
