from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from assay.config import resolved
from assay.envs.base import EnvData
from assay.errors import EngineError
from assay.training.config import EvalConfig, SFTConfig, TrainingConfig
from assay.training.metrics.intervals import mean_ci95, paired_difference_ci95
from assay.training.metrics.logger import MetricsLogger
from assay.training.metrics.traces import trace_records
from assay.training.report.charts import Chart, Curve
from assay.training.report.curves import health_charts
from assay.training.report.page import MAX_EVENTS, _answers, _charts, render
from assay.training.report.report import SAMPLES, known_baselines, run_report, summary, write_report
from assay.training.run.reader import Answer, RunRecords, read_run
from assay.types import Completion, Message, Score, Task, Trajectory, TrajectoryGroup, Transition
from support.tiny_run import kill, run, tiny
from support.toy_run import open_run

HOSTILE = "<script>alert(1)</script><img src=x onerror='alert(2)'>\"'&"
BEFORE = [[0.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.0, 0.0]]
AFTER = [[1.0, 0.5], [0.5, 1.0], [1.0, None], [0.5, 0.0]]
"""Rewards of two samples of each of four tasks; None could not be scored."""


@dataclass(frozen=True)
class Posed:
    """A held-out task; nothing is ever sampled in these tests."""

    task: Task


@dataclass(frozen=True)
class Tasks:
    """A data set of one batch."""

    tasks: Sequence[Task]

    def __len__(self) -> int:
        return 1

    def batch(self, index: int) -> Sequence[Posed]:
        return [Posed(task) for task in self.tasks]


@dataclass
class Drawn:
    """A figure that remembers what it was asked to draw."""

    calls: list[tuple[str, list[str]]] = field(default_factory=list)

    def __call__(self, task: Task, answers: Sequence[str]) -> str:
        self.calls.append((task.id, list(answers)))
        return f"<figure><svg></svg>{''.join(f'<p>{escape(a)}</p>' for a in answers)}</figure>"


def tasks(count: int = len(BEFORE), text: str = "task") -> list[Task]:
    return [Task("toy", f"{text} {i}", (Message("user", f"{text} {i}"),)) for i in range(count)]


def environment(heldout: Sequence[Task], **parts: object) -> EnvData:
    return EnvData(train=Tasks(heldout), heldout=Tasks(heldout), **parts)


def config_of(path: Path, sft: int = 2, **changes: object) -> TrainingConfig:
    return TrainingConfig(log_path=path, sft=SFTConfig(num_steps=sft), **changes)


def groups(posed: Sequence[Task], rewards: Sequence[Sequence[float | None]], text: str) -> list[TrajectoryGroup]:
    made = []
    for task, samples in zip(posed, rewards, strict=True):
        rollouts = []
        for index, reward in enumerate(samples):
            status = "scored" if reward else "invalid"
            score = Score("errored", None) if reward is None else Score(status, reward, {"right": reward})
            metrics = {} if reward is None else {"legal": float(reward > 0)}
            completion = Completion((1, 2), (-0.5, -0.5), "stop", 0)
            turns = (Transition((1,), completion, f"{text} {index}", score, metrics),)
            rollouts.append(Trajectory(task, turns, "errored" if reward is None else "done", index))
        made.append(TrajectoryGroup(task, tuple(rollouts)))
    return made


async def save(path: Path) -> None:
    path.mkdir()


async def record(
    config: TrainingConfig,
    posed: Sequence[Task],
    *,
    sft: int = 2,
    rl: int = 3,
    evaluate: bool = True,
    text: str = "answer",
    events: Sequence[str] = (),
) -> None:
    """Fill a run directory through the code that runs use, with made-up numbers."""
    with open_run(config.log_path, resolved(config)) as run_, MetricsLogger(run_) as log:

        def evaluated(phase: str, index: int, rewards: list[list[float | None]], when: str) -> dict[str, float]:
            made = groups(posed, rewards, f"{when} {text}")
            header = {"run_id": run_.run_id, "step": run_.next_step, "phase": phase, "index": index}
            log.traces(trace_records(made, split="eval", **header))
            return {"eval/reward/mean": 0.25, "eval/ci95/reward": 0.1, "perf/eval_cpu_s": 1.0}

        async def step(phase: str, index: int, metrics: dict[str, float], checkpoint: bool = False) -> None:
            metrics |= {"perf/cpu_s": 2.0, "perf/wall_s": 3.0}
            log.log(run_.next_step, phase, index, metrics)
            parts = {"save": save, "state": {}} if checkpoint else {}
            await run_.commit(phase, index, metrics, **parts)

        first = evaluated("start", 0, BEFORE, "before") if evaluate and not sft else {}
        await step("start", 0, first, checkpoint=True)
        for message in events:
            log.event(0, "alarm", "warning", message)
        for index in range(sft):
            last = evaluate and index + 1 == sft
            await step("sft", index, {"sft/loss": 2.0} | (evaluated("sft", index, BEFORE, "before") if last else {}))
        for index in range(rl):
            last = evaluate and index + 1 == rl
            metrics = {"reward/mean": 0.5, "env/legal": 0.5, "train/entropy": 1.0, "train/grad_norm": float("nan")}
            await step("rl", index, metrics | (evaluated("rl", index, AFTER, "after") if last else {}))
        log.close()


def page_of(config: TrainingConfig, data: EnvData) -> str:
    async def make() -> str:
        report = run_report(read_run(config.log_path), config, data, await known_baselines(config, data))
        return render(report, data.figure)

    return asyncio.run(make())


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.partition("</style>")[2]))


class Inspector(HTMLParser):
    """Collects elements and attributes, and checks that elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def random_policy() -> dict[str, dict[str, list[float]]]:
    return {"random_legal": {"reward": [0.25, 0.5, 0.5, 0.125], "legal": [1.0, 1.0, 1.0, 1.0]}}


def test_held_out_numbers_are_paired_by_task_and_leave_out_what_could_not_be_scored(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    asyncio.run(record(config, tasks()))
    text = text_of(page_of(config, environment(tasks(), baseline_policies=random_policy)))
    before, after = [0.0, 0.5, 0.5, 0.0], [0.75, 0.75, 1.0, 0.25]
    for values in (before, after):
        found = mean_ci95(values)
        assert f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]".replace("-", "\N{MINUS SIGN}") in text
    gain = paired_difference_ci95(before, after)
    assert gain.low > 0
    assert f"After RL, against before RL: higher in reward by {gain.mean:.3f} ± {gain.half_width:.3f}." in text
    to_random = paired_difference_ci95([0.25, 0.5, 0.5, 0.125], after)
    assert f"{to_random.mean:+.3f} ± {to_random.half_width:.3f}" in text
    assert "0.344 exact" in text
    assert "1 of the last answers could not be scored" in text
    assert "4 held-out tasks, 2 sampled answers each" in text


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run <b>&", wandb_project=HOSTILE)
    posed = tasks(text=HOSTILE)
    asyncio.run(record(config, posed, text=HOSTILE, events=[HOSTILE]))
    for figure in (None, Drawn()):
        page = page_of(config, environment(posed, figure=figure))
        found = Inspector(page)
        assert found.tags.isdisjoint({"script", "img", "link", "iframe", "object", "b>"})
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        assert page.count(escape(HOSTILE)) >= 4


def test_nothing_is_fetched(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    asyncio.run(record(config, tasks()))
    page = page_of(config, environment(tasks()))
    assert not {name for name, _ in Inspector(page).attributes} & {"src", "href", "srcset", "action", "data", "poster"}
    assert "url(" not in page
    assert "@import" not in page
    assert "://" not in page


@pytest.mark.parametrize(
    ("sft", "rl", "evaluate", "seen", "unseen"),
    [
        (2, 3, True, ["Before RL", "After RL", "Cross-entropy of the warm-up"], ["Nothing was evaluated"]),
        (0, 3, True, ["Before RL", "After RL", "Entropy of the policy"], ["Cross-entropy of the warm-up"]),
        (2, 0, True, ["After warm-up", "Answers"], ["After RL", "Entropy of the policy"]),
        (2, 3, False, ["Nothing was evaluated", "Entropy of the policy"], ["Sample answers", "held-out tasks,"]),
        (0, 0, False, ["0 supervised steps and 0 RL batches"], ["Learning"]),
    ],
)
def test_a_run_may_lack_any_part(
    tmp_path: Path, sft: int, rl: int, evaluate: bool, seen: list[str], unseen: list[str]
) -> None:
    config = config_of(tmp_path / "run", sft)
    asyncio.run(record(config, tasks(), sft=sft, rl=rl, evaluate=evaluate))
    page = page_of(config, environment(tasks(), baseline_policies=random_policy))
    Inspector(page)
    text = text_of(page)
    assert [part for part in seen if part not in text] == []
    assert [part for part in unseen if part in text] == []


def test_samples_are_evenly_spaced_and_drawn_with_both_sets_of_answers(tmp_path: Path) -> None:
    config, posed, figure = config_of(tmp_path / "run"), tasks(), Drawn()
    asyncio.run(record(config, posed))
    page_of(config, environment(posed, figure=figure))
    assert len(figure.calls) == 2 * len(posed) <= 2 * SAMPLES
    assert figure.calls[2:4] == [
        ("task 1", ["before answer 0", "before answer 1"]),
        ("task 1", ["after answer 0", "after answer 1"]),
    ]


def test_another_data_set_lends_neither_baselines_nor_samples(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    asyncio.run(record(config, tasks()))
    others = environment(tasks(text="elsewhere"), baseline_policies=random_policy, figure=Drawn())
    text = text_of(page_of(config, others))
    assert "random legal" not in text
    assert "task 0" in text and "elsewhere" not in text  # the prompts are the run's own
    assert "After RL" in text


def test_baselines_that_are_of_other_tasks_or_unknown_are_left_out(tmp_path: Path) -> None:
    async def broken() -> dict[str, dict[str, list[float]]]:
        raise EngineError("the engine died")

    data = environment(tasks(), baseline_policies=random_policy)
    some = config_of(tmp_path, eval=EvalConfig(max_tasks=2))
    assert asyncio.run(known_baselines(some, data)) == {}
    assert asyncio.run(known_baselines(config_of(tmp_path), replace(data, baseline_policies=broken))) == {}
    assert list(asyncio.run(known_baselines(config_of(tmp_path), data))) == ["random_legal"]


def test_alarms_settings_and_versions_are_listed(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", learning_rate=3e-4)
    asyncio.run(record(config, tasks(), events=[f"alarm {i}" for i in range(MAX_EVENTS + 7)]))
    text = text_of(page_of(config, environment(tasks())))
    assert "alarm 5" in text
    assert "alarm 101" not in text
    assert "And 10 more in events.jsonl" in text  # three of them: the gradient norm was not a number
    assert "learning_rate 0.0003 0.0001" in text
    assert "temperature" not in text.partition("Settings that differ")[2]
    assert re.search(r"torch \d", text)


def test_the_report_can_be_made_again(tmp_path: Path) -> None:
    config, data = config_of(tmp_path / "run"), environment(tasks(), baseline_policies=random_policy)
    asyncio.run(record(config, tasks()))

    async def make() -> None:
        with open_run(config.log_path, resolved(config)) as opened:
            await write_report(opened, config, data)

    # Reopened at its last checkpoint, the start, the run has lost what came after it.
    asyncio.run(make())
    page = (config.log_path / "report.html").read_text(encoding="utf-8")
    assert page == page_of(config, data)
    assert "Nothing was evaluated" in page


def test_every_finished_run_has_a_report(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run")
    kill(config, "assay.training.run.directory", "RunDirectory.finish", 1)
    killed = (config.log_path / "report.html").read_text(encoding="utf-8")
    (config.log_path / "report.html").unlink()
    run(config)
    page = (config.log_path / "report.html").read_text(encoding="utf-8")
    assert page == killed
    text = text_of(page)
    assert all(
        words in text
        for words in ("Before RL", "After RL", "Length", "dataset_builder.type support.toy_env:ToyBuilder")
    )


def test_an_answer_is_shown_with_its_reward_and_its_parts(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    asyncio.run(record(config, tasks()))
    page = page_of(config, environment(tasks()))
    assert not {"\N{CHECK MARK}", "\N{BALLOT X}"} & set(page)
    text = text_of(page)
    assert "before answer 0 reward 0 \N{MIDDLE DOT} right 0 \N{MIDDLE DOT} invalid" in text
    assert "after answer 1 reward 1 \N{MIDDLE DOT} right 1" in text
    assert "not scored" in text


def test_a_run_in_progress_is_reported_as_far_as_it_is_committed(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    asyncio.run(record(config, tasks(), rl=3))
    with (config.log_path / "metrics.jsonl").open("a") as file:
        file.write('{"version":1,"step":99,"phase":"rl","ind')
    with (config.log_path / "traces.jsonl").open("a") as file:
        file.write("half a line")
    report = run_report(read_run(config.log_path), config, environment(tasks()), {}, finished=False)
    text = text_of(render(report, None))
    assert "The run is not finished" in text and "3 RL batches" in text
    assert "After 3 RL batches, against before RL" in text and "After RL" not in text


def test_events_with_anything_in_them_stay_text(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    asyncio.run(record(config, tasks()))
    records = read_run(config.log_path)
    event = {"step": HOSTILE, "level": HOSTILE, "message": HOSTILE}
    report = run_report(replace(records, events=[event]), config, environment(tasks()), {})
    page = render(report, None)
    assert page.count(escape(HOSTILE)) >= 3 and HOSTILE not in page


def test_regular_health_reports_are_no_alarms(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    asyncio.run(record(config, tasks()))
    records = read_run(config.log_path)
    regular = {"step": 9, "kind": "health_report", "level": "info", "message": "entropy 0.92 exact"}
    alarm = {"step": 10, "kind": "entropy_floor", "level": "warning", "message": "The entropy is low."}
    for events, said in (([regular, alarm], "The entropy is low."), ([regular], "None.")):
        text = text_of(render(run_report(replace(records, events=events), config, environment(tasks()), {}), None))
        assert said in text.partition("Alarms")[2] and "0.92 exact" not in text


def test_the_note_on_thin_lines_stands_only_where_a_curve_has_both() -> None:
    def page(points: int) -> str:
        curve = Curve("training batches", [(i, i % 3) for i in range(points)])
        return _charts("Learning", [Chart("Reward", "RL batch", [curve])])

    assert "Thin lines" in page(60) and "Thin lines" not in page(12)


def test_trainer_and_sampler_are_compared_on_tokens_of_the_present_policy_only(tmp_path: Path) -> None:
    row = {"phase": "rl", "train/kl_behaviour": 0.5, "train/mismatch_kl": 0.25}
    rows = [{**row, "index": i, "parity/kl": 1e-7} for i in range(3)]
    records = RunRecords(tmp_path, {}, {}, rows, [], None, None)
    (chart,) = [c for c in health_charts(records) if c.title.startswith("Difference of trainer and sampler")]
    assert [y for curve in chart.curves for _, y in curve.points] == [1e-7] * 3
    without = [{k: v for k, v in row.items() if k != "parity/kl"} for row in rows]
    (chart,) = [c for c in health_charts(replace(records, metrics=without)) if c.title.startswith("Difference")]
    assert [y for curve in chart.curves for _, y in curve.points] == [0.25] * 3


def test_one_of_anything_is_counted_in_the_singular(tmp_path: Path) -> None:
    rows = [{"phase": "rl", "index": 0, "perf/cpu_s": 1.2, "perf/wall_s": 1.0}]
    records = RunRecords(tmp_path, {}, {}, rows, [], None, None)
    assert "0 supervised steps and 1 RL batch. 1 CPU second of training" in summary(records)


def test_a_card_shows_all_turns_of_an_answer(tmp_path: Path) -> None:
    turns = (("", "first <try>"), ("too low", "second"))
    html = _answers([Answer("second", "scored", 1.0, {}, turns), Answer("only", "scored", 0.0)])
    places = [html.index(text) for text in ("first &lt;try&gt;", "<i>too low</i>", "second", "only")]
    assert places == sorted(places) and html.count("<small>1.</small>") == 1


def test_turns_of_evaluations_are_read_with_what_was_told_between(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", sft=0)
    (task,) = tasks(1)
    said = Completion((1, 2), (-0.5, -0.5), "stop", 0)
    turns = (
        Transition((1,), said, "4", Score("scored", 0.0)),
        Transition((1, 2), said, "7", Score("scored", 1.0), messages=(Message("user", "higher"),)),
    )

    async def write() -> None:
        with open_run(config.log_path, resolved(config)) as run_, MetricsLogger(run_) as log:
            played = [TrajectoryGroup(task, (Trajectory(task, turns, "done", 0),))]
            log.traces(trace_records(played, split="eval", run_id="x", step=-1, phase="start", index=0))
            await run_.commit("start", 0, {}, save=save, state={})

    asyncio.run(write())
    first = read_run(config.log_path).first
    assert first is not None
    assert first.tasks[0].answers[0].turns == (("", "4"), ("higher", "7"))
