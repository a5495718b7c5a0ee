import json
import math

import pytest

from assay.training.metrics.logger import MetricsLogger, comparable, metrics_record
from support.toy_run import open_run


class Remembering:
    """A sink that keeps what it is told."""

    files = ()

    def __init__(self):
        self.calls = []
        self.closed = 0

    def log(self, step, phase, index, metrics, histograms):
        self.calls.append((step, phase, index, dict(metrics), dict(histograms)))

    def flush(self, *, durable): ...

    def close(self):
        self.closed += 1


@pytest.fixture
def run(tmp_path):
    with open_run(tmp_path / "run", {}) as run:
        yield run


def lines(run, name):
    return [json.loads(line) for line in (run.path / name).read_text().splitlines()]


def test_a_record_is_flat_with_sorted_names(run):
    with MetricsLogger(run) as log:
        log.log(3, "rl", 1, {"b": 2, "a": 0.5, "perf/step_s": 1.5})
    text = (run.path / "metrics.jsonl").read_text()
    assert text == '{"version":1,"step":3,"phase":"rl","index":1,"a":0.5,"b":2.0,"perf/step_s":1.5}\n'


def test_metrics_that_are_not_finite_are_null_and_raise_an_event(run, caplog):
    sink = Remembering()
    with MetricsLogger(run, [sink]) as log:
        log.log(3, "rl", 1, {"kl": math.nan, "loss": 1.0, "ratio": math.inf}, {"reward": [1.0]})
    assert lines(run, "metrics.jsonl")[0] == {
        "version": 1, "step": 3, "phase": "rl", "index": 1, "kl": None, "loss": 1.0, "ratio": None,
    }  # fmt: skip
    (event,) = lines(run, "events.jsonl")
    assert (event["step"], event["kind"], event["level"]) == (3, "non_finite_metric", "warning")
    assert "kl is nan, ratio is inf" in event["message"]
    assert "kl is nan" in caplog.text
    assert sink.calls == [(3, "rl", 1, {"loss": 1.0}, {"reward": [1.0]})]


def test_events_are_recorded_and_logged_at_their_level(run, caplog):
    with MetricsLogger(run) as log:
        log.event(7, "collapse", "error", "All rewards are equal.")
    assert lines(run, "events.jsonl") == [
        {"version": 1, "step": 7, "kind": "collapse", "level": "error", "message": "All rewards are equal."}
    ]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "step 7: All rewards are equal.")
    ]


def test_traces_are_recorded_in_order(run):
    with MetricsLogger(run) as log:
        log.traces([{"a": 1}, {"a": 2}])
        log.traces([])
    assert lines(run, "traces.jsonl") == [{"a": 1}, {"a": 2}]


def test_a_metric_named_like_the_header_is_refused():
    with pytest.raises(ValueError, match=r"\['step'\] are taken"):
        metrics_record(0, "rl", 0, {"step": 1.0})


def test_comparable_records_leave_out_what_depends_on_the_machine():
    record = metrics_record(0, "rl", 0, {"loss": 1.0, "perf/tokens_per_s": 9.0, "performance": 2.0})
    assert comparable(record) == {"version": 1, "step": 0, "phase": "rl", "index": 0, "loss": 1.0, "performance": 2.0}


def test_leaving_the_logger_closes_every_sink(run):
    sink = Remembering()
    with pytest.raises(KeyError), MetricsLogger(run, [sink]):
        raise KeyError
    assert sink.closed == 1
