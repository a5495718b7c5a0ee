"""`assay check`: known answers played through an environment, and what is wrong with it. Without a model."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence

from assay.cli.options import add_config
from assay.envs.base import BuildContext, DatasetBuilder, build_data
from assay.envs.checks.deadline import Begin, deadline, unlimited
from assay.envs.checks.plays import builders_of, play_all
from assay.envs.checks.report import CheckReport, Earned, report_of
from assay.errors import ConfigError
from assay.terminal import inert

FOUND = 3
"""Exit status where something is wrong: 1 and 2 say that nothing was checked."""
MOST_PLAYED = 32
DEADLINE_S = 300.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "task", nargs="?", metavar="FILE:Name|NAME", help="an environment of your own, or chess, monitor, rows"
    )
    add_config(parser)
    parser.add_argument(
        "--tasks", type=_positive, default=MOST_PLAYED, metavar="N", help=f"tasks to play (default {MOST_PLAYED})"
    )
    parser.add_argument(
        "--deadline",
        type=_seconds,
        default=DEADLINE_S,
        metavar="S",
        help=f"seconds that making the data sets, or playing one answer, may take (default {DEADLINE_S:g})",
    )
    parser.add_argument("--json", action="store_true", help="print the whole report as one JSON object")
    parser.add_argument("--help", "-h", action="help", help="show this message")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Check, print the report, and say in the exit status whether all is well."""
    from assay.training.config import load_config

    if args.task is None and not args.config:
        raise ConfigError("Say what to check: `assay check FILE:Name`, chess, monitor, rows, or --config FILE.")
    chosen = [f"dataset_builder={args.task}"] if args.task is not None else []
    config = load_config(args.config, [*chosen, *overrides])
    context = config.build_context()
    name = type(config.active_builder).__name__
    with deadline(args.deadline) as begin:
        report = asyncio.run(check(config.active_builder, context, args.tasks, begin))
    print(json.dumps({"environment": name, **report.to_json()}) if args.json else inert(describe(name, report)))
    return FOUND if report.problems else 0


async def check(builder: DatasetBuilder, context: BuildContext, tasks: int, begin: Begin = unlimited) -> CheckReport:
    """Build the data sets of an environment, play answers to `tasks` of its training tasks, and look at all of them.

    Raises:
        AssayError: the data sets cannot be built.
    """
    begin(f"Making the data sets of {type(builder).__name__}")
    data = build_data(builder, context)
    try:
        plays = await play_all(builders_of(data, tasks), builder.gold, context.max_turns, begin)
        begin("Looking at all tasks")
        return report_of(data, plays, context.max_turns)
    finally:
        begin("Closing the data sets")
        await data.close()


def describe(name: str, report: CheckReport) -> str:
    """The report in words, for a terminal."""
    lines = [
        f"{name}: {report.train:,} training tasks, {report.heldout:,} held out. {report.played} of them were played, "
        "each answer twice.",
        "",
        f"{'answer':<10}{'mean':>11}{'lowest':>11}{'highest':>11}{'plays':>8}{'invalid':>9}{'errored':>9}",
        *(_row(kind, earned) for kind, earned in report.earned.items() if earned.plays),
    ]
    if report.median_s is not None and report.max_s is not None:
        lines += ["", f"One score takes {_time(report.median_s)} (median; at most {_time(report.max_s)})."]
    lines += ["", *(f"Note: {note}" for note in report.notes)]
    for number, problem in enumerate(report.problems, 1):
        lines += [f"{number}. {problem.kind}: {problem.message}", f"   {problem.cure}"]
    if not report.problems:
        lines.append("Nothing wrong was found.")
    return inert("\n".join(lines))


def _row(kind: str, earned: Earned) -> str:
    figures = "".join(f"{_figure(value):>11}" for value in (earned.mean, earned.low, earned.high))
    return f"{kind:<10}{figures}{earned.plays:>8}{earned.invalid:>9}{earned.errored:>9}"


def _figure(value: float | None) -> str:
    """A reward in at most 10 characters."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.2f} ms"


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 1e6:
        raise argparse.ArgumentTypeError("above 0, at most 1,000,000")
    return seconds


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number
