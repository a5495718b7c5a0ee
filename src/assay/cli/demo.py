"""`assay demo`: a small chess model learns on this machine, and a report says what it learned and what it did not.

Two runs of the `chess` preset share a folder: `grpo` (warm-up, then GRPO) and the control `sft_only`, which spends the
same CPU time on warm-up alone, with its own learning-rate decay. Both are judged on the same held-out positions, beside
a mover of random legal moves, whose results are exact. The same command goes on where an interruption left it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import chz
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.envs.base import build_data
from assay.errors import ConfigError, RunDirectoryError, TrainingError
from assay.storage.files import Writing, encode_json, replace_file
from assay.training.config import TrainingConfig, load_config
from assay.training.loop import train
from assay.training.metrics.intervals import Interval
from assay.training.report.charts import Chart, Level
from assay.training.report.comparison import Policy, difference, direction, measured_policy, signed, verdict
from assay.training.report.curves import health_charts, heldout_by_cpu, outcome_charts, sft_curve
from assay.training.report.page import Report, capital, render
from assay.training.report.report import heldout_notes, known_baselines, run_report, with_counts
from assay.training.run.reader import RunRecords, read_run
from assay.training.run.resume import REPORT, Refusal
from assay.training.session import plan_run
from assay.types import Json

logger = logging.getLogger(__name__)

PRESET = "chess"
LOG_PATH = "runs/demo"
"""Folder of the demo's runs and results, unless `log_path` says otherwise."""
GRPO, CONTROL = "grpo", "sft_only"
"""Folders of the two runs."""
RESULT, SESSIONS = "result.json", "sessions.jsonl"
METRICS: Mapping[str, str] = {
    "legal": "legal moves",
    "reward": "reward",
    "keeps_win": "wins kept",
    "best": "best moves",
}
"""Metrics that the demo reports -> their names in its tables."""
_BASELINES: Mapping[str, str] = {"random legal": "random legal mover"}
ILLEGAL_NOTE = "An answer that is illegal or cannot be read keeps no win and is no best move."
_VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """What the demo found. `policies` are by name: the baselines, `warm_up`, `same_cpu` and `grpo`."""

    trained: RunRecords
    control: RunRecords
    policies: Mapping[str, Policy]
    metrics: Mapping[str, str]
    sessions: Sequence[Mapping[str, Json]]

    @property
    def comparisons(self) -> dict[str, tuple[Policy, Policy]]:
        """The policy after GRPO beside each other one, by name."""
        grpo = self.policies["grpo"]
        return {f"grpo - {name}": (grpo, other) for name, other in self.policies.items() if other is not grpo}

    @property
    def verdicts(self) -> list[str]:
        """One sentence for each comparison."""
        return [verdict(policy, other, self.metrics) for policy, other in self.comparisons.values()]


def arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Run or go on with the demo; print the result and write it beside the runs. Returns the exit status.

    Args:
        overrides: `key=value` settings on top of the preset; `log_path` is the folder of the whole demo.

    Raises:
        AssayError: the demo cannot start or go on; what has been done is kept.
    """
    console = Console()
    config = load_config(PRESET, [f"log_path={LOG_PATH}", *overrides])
    root = config.log_path.expanduser()
    check_settings(config)
    check_folder(root)
    _say(console, "1 of 2", f"Warm-up, then GRPO, in {root / GRPO}")
    _train(root, GRPO, config)
    trained = read_run(root / GRPO)
    control = control_config(config, trained)
    _say(
        console, "2 of 2", f"Control: {control.sft.num_steps:,} supervised steps, as much CPU time, in {root / CONTROL}"
    )
    _train(root, CONTROL, control)
    outcome = asyncio.run(_conclude(root, config, trained))
    _show(console, outcome, root)
    return 0


def check_settings(config: TrainingConfig) -> None:
    """Refuse settings under which there would be nothing to compare.

    Raises:
        ConfigError: the settings have no warm-up or no RL.
    """
    if config.sft.num_steps < 1:
        raise ConfigError("sft.num_steps=0: the demo compares GRPO with more warm-up. Set it to 1 or more.")
    if config.max_batches == 0:
        raise ConfigError("max_batches=0: the demo shows what GRPO adds to the warm-up. Set it to 1 or more.")


def check_folder(root: Path) -> None:
    """Refuse a folder that holds something other than a demo.

    Raises:
        RunDirectoryError: it does.
    """
    ours = {GRPO, CONTROL, REPORT, RESULT, SESSIONS}
    found = {entry.name.removesuffix(".tmp") for entry in root.iterdir()} if root.is_dir() else set()
    if foreign := sorted(found - ours):
        raise RunDirectoryError(
            f"{root} holds something other than a demo ({', '.join(foreign[:5])}), which its results could overwrite. "
            "Set log_path to a new or empty directory."
        )


def control_config(config: TrainingConfig, trained: RunRecords) -> TrainingConfig:
    """The control: warm-up alone, for as many steps as take the CPU time of the trained run's warm-up and GRPO.

    The time of a step is the median one, which the first steps of a process and a busy machine do not raise: in doubt
    the control gets more. Evaluations are not counted. Checkpoints are as many as those of the trained run's warm-up.

    Raises:
        TrainingError: the trained run has no measured CPU time.
    """
    times = [cpu for _, cpu in trained.curve("perf/cpu_s", "sft")]
    if not times:
        raise TrainingError(f"{trained.path} has no warm-up steps whose CPU time could be matched. Run the demo anew.")
    steps = max(1, round(trained.training_cpu_s() / median(times)))
    save_every = max(1, round(config.sft.save_every * steps / config.sft.num_steps))
    sft = chz.replace(config.sft, num_steps=steps, save_every=save_every)
    return chz.replace(config, sft=sft, max_batches=0, resume_from_batch=None)


def _train(root: Path, name: str, config: TrainingConfig) -> None:
    config = chz.replace(config, log_path=root / name)
    plan = plan_run(config)
    if isinstance(plan, Refusal):
        raise _other_settings(root, plan.changes) if plan.changes else plan.error
    if plan.is_complete:
        logger.info("The run in %s is complete.", config.log_path)
        return
    with _session(root, name):
        train(config)


def _other_settings(root: Path, changes: Sequence[str]) -> RunDirectoryError:
    listed = "\n".join(f"  {change}" for change in changes)
    return RunDirectoryError(
        f"{root} holds a demo with other settings, whose results are not those of the new ones:\n{listed}\n"
        f"Remove {root} to run the demo anew, or set log_path to another directory."
    )


@contextmanager
def _session(root: Path, name: str) -> Iterator[None]:
    """Note what a session of a run took, also where it is interrupted: wall time, and CPU time of ended processes."""
    started, engines = time.monotonic(), _children_cpu_s()
    try:
        yield
    finally:
        wall, cpu = time.monotonic() - started, _children_cpu_s() - engines
        path = root / SESSIONS
        if root.is_dir():
            with Writing(path, path.name), path.open("ab") as file:
                file.write(
                    encode_json({"version": _VERSION, "run": name, "wall_s": wall, "verifier_cpu_s": cpu}) + b"\n"
                )


def _sessions(root: Path) -> list[dict[str, Json]]:
    path = root / SESSIONS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _children_cpu_s() -> float:
    """CPU seconds of this process's child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def _conclude(root: Path, config: TrainingConfig, trained: RunRecords) -> Outcome:
    """Compare the policies, and write the result and the report."""
    control = read_run(root / CONTROL)
    if trained.first is None or trained.last is None or control.first is None:
        raise TrainingError(f"The runs in {root} were not evaluated: there are no held-out tasks to compare on.")
    data = build_data(config.active_builder, config.build_context())
    try:
        report = run_report(trained, config, data, await known_baselines(config, data))
        grpo = measured_policy("GRPO", trained.last)
        exact = [policy for policy in report.policies if policy.exact]
        policies = {
            **{p.label.replace(" ", "_"): replace(p, label=_BASELINES.get(p.label, p.label)) for p in exact},
            "warm_up": measured_policy("warm-up alone", trained.first),
            "same_cpu": measured_policy("same-CPU warm-up", control.first),
            "grpo": grpo,
        }
        metrics = with_counts({name: words for name, words in METRICS.items() if name in grpo.values}, [grpo])
        outcome = Outcome(trained, control, policies, metrics, _sessions(root))
        page = render(demo_report(outcome, report), data.figure)
    finally:
        await data.close()
    with Writing(root, "the demo's results"):
        replace_file(root / REPORT, page.encode())
        replace_file(root / RESULT, encode_json(result_record(outcome), indent=2) + b"\n")
    return outcome


def demo_report(outcome: Outcome, report: Report) -> Report:
    """The report of the trained run, with the control and the other policies beside it."""
    baselines = [policy for policy in outcome.policies.values() if policy.exact]
    steps = len(outcome.control.curve("sft/loss", "sft"))
    by_cpu = [
        Chart(
            f"{capital(words)}, held-out, against CPU time",
            "CPU seconds of training",
            [
                heldout_by_cpu(outcome.trained, name, "warm-up, then GRPO", 1),
                heldout_by_cpu(outcome.control, name, "warm-up alone", 0),
            ],
            [Level(policy.label, e.mean) for policy in baselines if (e := policy.estimate(name)) is not None],
        )
        for name, words in list(outcome.metrics.items())[:2]
    ]
    health = health_charts(outcome.trained)
    loss = replace(
        health[-1], curves=[sft_curve(outcome.trained, "before GRPO", 1), sft_curve(outcome.control, "alone")]
    )
    return replace(
        report,
        title="Demo: chess moves by GRPO",
        summary=" ".join(cost_notes(outcome)),
        plan=f"{report.plan}\nControl: {steps:,} supervised steps and no RL: as much CPU time as warm-up and GRPO.",
        headlines=outcome.verdicts,
        policies=list(outcome.policies.values()),
        comparisons=list(outcome.comparisons.values()),
        metrics=outcome.metrics,
        notes=[*heldout_notes(outcome.trained, baselines), ILLEGAL_NOTE],
        outcomes=[*by_cpu, *outcome_charts(outcome.trained, outcome.metrics, baselines)],
        health=[*health[:-1], loss],
    )


def costs(outcome: Outcome) -> dict[str, Json]:
    """Seconds spent and analyses made, by name.

    Wall time and the CPU time of verifiers are those of all sessions but the ones that were killed outright.
    """
    trained, control = outcome.trained, outcome.control
    fresh = [_analyses(records, cached=False) for records in (trained, control)]
    known = [_analyses(records, cached=True) for records in (trained, control)]
    return {
        "warm_up_cpu_s": trained.training_cpu_s("sft"),
        "grpo_cpu_s": trained.training_cpu_s("rl"),
        "control_cpu_s": control.training_cpu_s(),
        "evaluation_cpu_s": trained.total("perf/eval_cpu_s") + control.total("perf/eval_cpu_s"),
        "verifier_cpu_s": sum(session["verifier_cpu_s"] for session in outcome.sessions),
        "verified_prompts": sum(fresh),
        "cached_prompts": sum(known),
        "wall_s": sum(session["wall_s"] for session in outcome.sessions),
    }


def _analyses(records: RunRecords, *, cached: bool) -> int:
    """Prompts whose verdicts were computed for this run, or came from an earlier one's cache."""
    total = 0.0
    for row in records.metrics:
        for prefix, share in (("", "perf/score_cached_fraction"), ("eval/", "perf/eval/score_cached_fraction")):
            groups, known = row.get(f"{prefix}rollout/groups"), row.get(share)
            if groups is not None and known is not None:
                total += groups * (known if cached else 1 - known)
    return round(total)


def cost_notes(outcome: Outcome) -> list[str]:
    """What the numbers cost, in words."""
    cost = costs(outcome)
    return [
        f"CPU seconds of training: {cost['warm_up_cpu_s']:.0f} of warm-up and {cost['grpo_cpu_s']:.0f} of GRPO, beside "
        f"{cost['control_cpu_s']:.0f} of the control; evaluations took {cost['evaluation_cpu_s']:.0f} more. "
        f"Stockfish is not in them: it analysed {cost['verified_prompts']:,} positions "
        f"({cost['cached_prompts']:,} more came from its cache) in {cost['verifier_cpu_s']:.0f} CPU seconds of its own "
        "processes.",
        f"All runs together took {cost['wall_s'] / 60:.1f} minutes by the clock.",
    ]


def result_record(outcome: Outcome) -> dict[str, Json]:
    """`result.json`: every estimate and difference with its 95 % interval over tasks, the verdicts and the costs."""
    tasks = outcome.trained.last.tasks if outcome.trained.last is not None else ()
    return {
        "version": _VERSION,
        "tasks": len(tasks),
        "samples_per_task": max((len(task.answers) for task in tasks), default=0),
        "policies": {
            name: {metric: _plain(policy.estimate(metric)) for metric in outcome.metrics}
            for name, policy in outcome.policies.items()
        },
        "differences": {
            name: {metric: _plain(difference(policy, other, metric)) for metric in outcome.metrics}
            for name, (policy, other) in outcome.comparisons.items()
        },
        "verdicts": outcome.verdicts,
        "control_steps": len(outcome.control.curve("sft/loss", "sft")),
        **costs(outcome),
    }


def _plain(interval: Interval | None) -> Json:
    if interval is None:
        return None
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "tasks": interval.n}


def _say(console: Console, heading: str, text: str) -> None:
    """A line that is not wrapped, so that paths in it can be copied."""
    console.print(f"[bold]{heading}[/bold]  {escape(text)}", highlight=False, soft_wrap=True)


def _show(console: Console, outcome: Outcome, root: Path) -> None:
    console.print()
    console.print(_table("Held-out positions", outcome, differences=False))
    console.print(_table("Differences, position by position", outcome, differences=True))
    for text in (*outcome.verdicts, *cost_notes(outcome)):
        console.print(text, highlight=False)
    console.print()
    _say(console, "Report ", str(root / REPORT))
    _say(console, "Numbers", str(root / RESULT))


def _table(title: str, outcome: Outcome, *, differences: bool) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("")
    columns = outcome.comparisons if differences else outcome.policies
    for column in columns.values():
        label = f"GRPO - {column[1].label}" if isinstance(column, tuple) else column.label
        table.add_column(capital(label), justify="right")
    for metric, words in outcome.metrics.items():
        cells = [_difference(*c, metric) if isinstance(c, tuple) else _estimate(c, metric) for c in columns.values()]
        table.add_row(capital(words), *cells)
    return table


def _estimate(policy: Policy, metric: str) -> str:
    interval = policy.estimate(metric)
    if interval is None:
        return "-"
    return f"{interval.mean:.3f} exact" if policy.exact else f"{interval.mean:.3f} ± {interval.half_width:.3f}"


def _difference(policy: Policy, other: Policy, metric: str) -> str:
    interval = difference(policy, other, metric)
    if interval is None:
        return "-"
    colour = {1: "green", -1: "yellow", 0: "dim"}[direction(interval)]
    return f"[{colour}]{signed(interval)}[/{colour}]"
