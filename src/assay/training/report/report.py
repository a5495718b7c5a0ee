"""`report.html`: the plan of a run, its held-out results and its course.

A report is made from what the run directory has committed, so it can be made at any time, also during the run. The
environment adds its baselines and pictures if it can be built and has the same tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.envs.base import BaselineMetrics, EnvData, build_data, iter_builders
from assay.errors import AssayError, EngineError
from assay.storage.files import Writing, replace_file
from assay.training.config import TrainingConfig
from assay.training.metrics.progress import format_seconds
from assay.training.plan import counted, describe
from assay.training.report.comparison import Policy, exact_policy, measured_policy, verdict
from assay.training.report.curves import health_charts, outcome_charts
from assay.training.report.page import Report, Sample, capital, render
from assay.training.report.remarks import remarks
from assay.training.run.changes import in_words
from assay.training.run.directory import RunDirectory
from assay.training.run.reader import Measurement, RunRecords, read_run
from assay.training.run.resume import REPORT
from assay.training.session import num_batches
from assay.types import Task

logger = logging.getLogger(__name__)

SAMPLES = 6
"""Held-out tasks that are shown with their answers."""


async def write_report(run: RunDirectory, config: TrainingConfig, data: EnvData) -> list[str]:
    """Write the report of a run that has just come to its end; returns what must be said of how it ended.

    Raises:
        RunDirectoryError: the run's files are damaged, or the report cannot be written.
    """
    records = read_run(run.path)
    report = run_report(records, config, data, await known_baselines(config, data))
    run.write_file(REPORT, render(report, data.figure))
    return remarks(records)


def renew_report(path: Path, config: TrainingConfig) -> Path:
    """Write the report of the run at `path` again, also while it is in progress; returns its path.

    Args:
        config: the run's config. Where its environment cannot be built, the report has what the run directory holds.

    Raises:
        RunDirectoryError: there is no run, its files are damaged, or the report cannot be written.
    """
    return asyncio.run(_renew(path, config))


async def _renew(path: Path, config: TrainingConfig) -> Path:
    records = read_run(path)
    data: EnvData | None = None
    try:
        data = build_data(config.active_builder, config.build_context())
        report = run_report(records, config, data, await known_baselines(config, data), finished=records.complete)
        page = render(report, data.figure)
    except Exception as error:  # noqa: BLE001 - the user's code failed; the run is there without it
        page = recorded_page(records, error)
    finally:
        if data is not None:
            await data.close()
    return save_page(path, page)


def recorded_page(records: RunRecords, error: Exception) -> str:
    """The report of what the run directory holds alone; `error` says why its environment cannot be built."""
    said = str(error) if isinstance(error, AssayError) else repr(error)
    logger.warning("The report has no plan, baselines or pictures, since the environment cannot be built: %s", said)
    return render(run_report(records, None, None, {}, finished=records.complete), None)


def save_page(path: Path, page: str) -> Path:
    """Put a report in its place, in one step; returns where it is.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    with Writing(path / REPORT, REPORT, len(page)):
        replace_file(path / REPORT, page.encode())
    return path / REPORT


async def known_baselines(config: TrainingConfig, data: EnvData) -> BaselineMetrics:
    """The environment's exact baselines; none where they are for other tasks than those evaluated, or unknown."""
    if data.baseline_policies is None or config.eval.max_tasks is not None:
        return {}
    try:
        return await data.baseline_policies()
    except EngineError as error:
        logger.warning("The report has no baselines: %s", error)
        return {}


def run_report(
    records: RunRecords,
    config: TrainingConfig | None,
    data: EnvData | None,
    baselines: BaselineMetrics,
    *,
    finished: bool = True,
) -> Report:
    """The report of one run.

    Args:
        config, data: None where the environment cannot be built.
        finished: whether the run came to its end.
    """
    measured = measured_policies(records, finished)
    heldout = [] if data is None else [builder.task for builder in iter_builders(data.heldout)]
    same = data is not None and bool(measured) and is_evaluated(heldout, records)
    exact = [exact_policy(words_for(name), metrics, measured[0]) for name, metrics in baselines.items()] if same else []
    names = dict.fromkeys(name for policy in measured for name in policy.values)
    metrics = with_counts({name: words_for(name) for name in names}, measured)
    pairs = [(measured[-1], other) for other in [*measured[:-1], *exact]]
    plan = "" if config is None or data is None else describe(config, num_batches(config, data), len(heldout))
    plan = "\n".join([*([plan] if plan else []), *in_words(records.config)])
    return Report(
        title=records.path.resolve().name,
        summary=summary(records, finished),
        plan=plan,
        records=records,
        headlines=[verdict(policy, other, {"reward": "reward"}) for policy, other in pairs],
        policies=[*measured, *exact],
        comparisons=pairs,
        metrics=metrics,
        notes=heldout_notes(records, exact),
        outcomes=outcome_charts(records, metrics, exact),
        health=health_charts(records),
        samples=choose_samples(records, heldout if same else [], finished),
    )


def measured_policies(records: RunRecords, finished: bool = True) -> list[Policy]:
    """The policies that the run evaluated first and last, named by what had been done to them."""
    warm = any(row["phase"] == "sft" for row in records.metrics)
    if records.first is None:
        return []
    if records.last is None:
        return [measured_policy("after warm-up" if warm else "at the start", records.first)]
    return [measured_policy("before RL", records.first), measured_policy(_after(records.last, finished), records.last)]


def _after(last: Measurement, finished: bool) -> str:
    return "after RL" if finished else f"after {last.index + 1:,} RL batches"


def summary(records: RunRecords, finished: bool = True) -> str:
    """What was done and what it cost, in words; first, what must be said of how it ended."""
    done = Counter(row["phase"] for row in records.metrics)
    cpu, wall = records.training_cpu_s(), format_seconds(records.total("perf/wall_s"))
    so_far = "" if finished else "The run is not finished: it is in progress or was stopped. So far, "
    ended = "".join(f"{remark} " for remark in remarks(records)) if finished else ""
    return (
        f"{ended}{so_far}{counted(done['sft'], 'supervised step')} and {counted(done['rl'], 'RL batch')}. "
        f"{counted(round(cpu), 'CPU second')} of training; {wall} wall-clock time with evaluation, without the CPU "
        "time of verifier processes."
    )


def words_for(name: str) -> str:
    """The name of a metric or of a policy, as words."""
    return name.replace("_", " ")


def with_counts(metrics: Mapping[str, str], policies: Sequence[Policy]) -> dict[str, str]:
    """The metrics' words, followed by the number of tasks where a metric is reported for only some of them."""
    counts = {name: max((len(p.values.get(name, {})) for p in policies), default=0) for name in metrics}
    most = max(counts.values(), default=0)
    return {
        name: words if counts[name] == most else f"{words} ({counts[name]} tasks)" for name, words in metrics.items()
    }


def heldout_notes(records: RunRecords, exact: Sequence[Policy]) -> list[str]:
    """What a reader must know of the held-out table."""
    measured = records.last or records.first
    if measured is None:
        return []
    samples = max(len(task.answers) for task in measured.tasks)
    notes = [
        f"{len(measured.tasks)} held-out tasks, {samples} sampled answers each. Brackets and ± are 95 % intervals over "
        "tasks: the answers to one task are averaged first, and differences are taken task by task. No interval is "
        "corrected for the number of comparisons."
    ]
    if exact:
        names = capital(", ".join(policy.label for policy in exact))
        notes.append(f"{names}: computed from the truth of each of these tasks, without sampling error.")
    errored = sum(answer.status == "errored" for task in measured.tasks for answer in task.answers)
    if errored:
        notes.append(f"{errored} of the last answers could not be scored; no figure includes them.")
    return notes


def is_evaluated(heldout: Sequence[Task], records: RunRecords) -> bool:
    """Whether the run's evaluations were of these held-out tasks, or of the first so many of them."""
    evaluated = [task for m in (records.first, records.last) if m is not None for task in m.tasks]
    if all(t.place < len(heldout) and heldout[t.place].key == t.key for t in evaluated):
        return True
    logger.warning("The held-out tasks are not those of the run; its report has no baselines and no pictures.")
    return False


def choose_samples(
    records: RunRecords, heldout: Sequence[Task], finished: bool = True, count: int = SAMPLES
) -> list[Sample]:
    """`count` evenly spaced held-out tasks (not picked by hand), with the answers of both evaluations.

    Args:
        heldout: the tasks themselves, in data set order; empty where they are not at hand.
    """
    if records.first is None:
        return []
    total = len(records.first.tasks)
    places = sorted({index * total // min(count, total) for index in range(min(count, total))})
    after = {task.place: task for task in records.last.tasks} if records.last is not None else {}
    samples = []
    for first in (records.first.tasks[place] for place in places):
        last = after.get(first.place)
        sides = [("Answers", first.answers)]
        if last is not None and records.last is not None:
            sides = [("Before RL", first.answers), (capital(_after(records.last, finished)), last.answers)]
        task = heldout[first.place] if first.place < len(heldout) else None
        samples.append(Sample(first.prompt, sides, task))
    return samples
