"""The search of `benchmarks/rollout_epochs.py`: every arm is tried alike, and until its best rate lies inside."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import rollout_epochs
from rollout_epochs import Arm, Lab, Setting, equal_cpu_batches, further_rate, substep_settings, tune

RATES = (5e-4, 1e-3, 2e-3, 4e-3)


@pytest.mark.parametrize(
    ("rewards", "wanted"),
    [
        ({1.0: 0.1, 2.0: 0.3, 4.0: 0.2}, None),
        ({1.0: 0.1, 2.0: 0.2, 4.0: 0.3}, 8.0),
        ({1.0: 0.3, 2.0: 0.2, 4.0: 0.1}, 0.5),
    ],
)
def test_a_best_rate_at_an_edge_is_followed(rewards: dict[float, float], wanted: float | None) -> None:
    assert further_rate(rewards) == wanted


@pytest.mark.parametrize("best_rate", [2.5e-4, 2e-3, 8e-3])
def test_an_arm_ends_at_the_best_of_what_it_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, best_rate: float
) -> None:
    """The response is known here: highest at one rate with two substeps."""

    def end_of(run: Setting) -> dict[str, float]:
        ratio = run.learning_rate / best_rate
        return {"reward": 1 - abs(ratio - 1 / ratio) + 0.01 * (run.substeps == 2), "legal": 0.0, "cpu_s": 1.0}

    monkeypatch.setattr(Lab, "grpo", lambda self, arm, setting, *_: setting)
    monkeypatch.setattr(rollout_epochs, "end_of", end_of)
    chosen, table = tune(Lab(tmp_path, [], 4), Arm(2, 5), 10, RATES)
    assert chosen == Setting(best_rate, 2)
    assert (table[0]["learning_rate"], table[0]["substeps"]) == (best_rate, 2)
    assert {row["learning_rate"] for row in table if row["substeps"] == 1} >= {*RATES, best_rate / 2, best_rate * 2}
    tried = [Setting(row["learning_rate"], row["substeps"]) for row in table if row["substeps"] > 1]
    assert set(tried) == set(substep_settings(best_rate)) and len(tried) == 4


def test_equal_cpu_gives_one_epoch_more_batches() -> None:
    assert equal_cpu_batches(100, {"cpu_s": 20.0}, {"cpu_s": 35.0}) == 180
