from assay.envs.base import Counters
from assay.training.metrics.counters import StepCounters


def test_a_step_has_what_it_added_to_the_totals_and_the_levels_at_its_end():
    readings = iter(
        [
            Counters({"calls": 3.0, "usd": 0.5}, {"limit": 60.0}),
            Counters({"calls": 3.0, "usd": 0.5}, {"limit": 61.0}),
            Counters({"calls": 7.0, "usd": 0.75, "monitor/tokens": 9.0}, {"limit": 62.0}),
        ]
    )
    counters = StepCounters(lambda: next(readings))
    assert counters.take() == {"reward_engine/calls": 3.0, "reward_engine/usd": 0.5, "reward_engine/limit": 60.0}
    assert counters.take() == {}, "a step in which nothing was asked has no such metrics"
    assert counters.take() == {
        "reward_engine/calls": 4.0,
        "reward_engine/usd": 0.25,
        "reward_engine/monitor/tokens": 9.0,
        "reward_engine/limit": 62.0,
    }


def test_an_environment_without_counters_has_no_such_metrics():
    assert StepCounters(None).take() == {}
