import io
import logging

from rich.console import Console

from assay.training.metrics.progress import RunProgress, format_seconds


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_without_a_terminal_lines_come_now_and_then_and_at_the_end(caplog):
    clock, file = Clock(), io.StringIO()
    with (
        caplog.at_level(logging.INFO),
        RunProgress(Console(file=file), every_s=10, clock=clock) as progress,
        progress.phase("rl", 20, done=12) as phase,
    ):
        for _ in range(8):
            clock.now += 4
            phase.advance(note="reward 0.5")
    assert [record.getMessage() for record in caplog.records] == [
        "rl 15/20, 20 s left: reward 0.5",
        "rl 18/20, 8 s left: reward 0.5",
        "rl 20/20: reward 0.5",
    ]
    assert file.getvalue() == ""


def test_on_a_terminal_nested_phases_are_bars_and_nothing_is_logged(caplog):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with caplog.at_level(logging.INFO), RunProgress(console, every_s=0) as progress, progress.phase("rl", 3) as rl:
        rl.advance(2, note="reward 0.5")
        with progress.phase("eval", 400) as evaluation:
            evaluation.advance(400)
        rl.advance()
    assert "3/3" in file.getvalue()
    assert "400/400" in file.getvalue()
    assert "reward 0.5" in file.getvalue() or "rl" in file.getvalue()
    assert caplog.records == []


def test_what_a_builder_makes_is_a_phase_each_and_quick_ones_are_not_mentioned(caplog):
    clock = Clock()
    with (
        caplog.at_level(logging.INFO),
        RunProgress(Console(file=io.StringIO()), every_s=10, clock=clock) as progress,
        progress.building() as show,
    ):
        for done in range(1, 5):
            clock.now += 6
            show("training positions", done * 6, 24)
        for done in range(1, 9):
            show("held-out positions", done, 8)
    assert [record.getMessage() for record in caplog.records] == [
        "data 18/24, 4 s left: training positions",
        "data 24/24: training positions",
    ]


def test_durations_are_readable():
    assert [format_seconds(s) for s in (-1, 0.4, 59.4, 185, 7620)] == ["0 s", "0 s", "59 s", "3 min 05 s", "2 h 07 min"]
