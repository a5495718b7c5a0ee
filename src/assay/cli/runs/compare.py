"""`assay compare`: two evaluations on the same held-out tasks, task by task. Is the gain noise?"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.cli.options import no_settings
from assay.errors import DataError
from assay.terminal import clipped, inert
from assay.training.metrics.intervals import Interval, paired_difference_ci95, t_quantile_975
from assay.training.report.comparison import by_key, direction, measured_policy
from assay.training.run.ledger import place_in_words
from assay.training.run.reader import Measurement, evaluated_steps, measurement
from assay.training.run.rollouts import open_rollouts
from assay.types import Json

LARGEST = 5
"""Tasks whose reward changed most that are listed."""
ENOUGH = 0.5
"""Share of the smaller evaluation's tasks that both must have; with fewer, they measure different things."""
FEWEST = 6
"""Tasks from which a difference may be claimed. With fewer, even if all changed in the same direction, that has a
probability above 5 % by chance (sign test, two-sided: 2 / 2^n); and if all changed by the same amount, as rewards of 0
and 1 do, the t interval has no width at all."""
_EQUAL = 1e-9
"""Rewards that differ by less are equal: sums in another order round otherwise."""


@dataclass(frozen=True, slots=True)
class Side:
    """One evaluation of one run."""

    label: str
    measured: Measurement

    def to_json(self) -> dict[str, Json]:
        """What it is."""
        m = self.measured
        return {"label": self.label, "step": m.step, "phase": m.phase, "index": m.index, "tasks": len(m.tasks)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric on the tasks that both evaluations have a value for: `after - before`, task by task."""

    metric: str
    before: float
    after: float
    interval: Interval | None
    """Paired, 95 %; None for a single task."""
    better: int
    worse: int
    equal: int

    @property
    def tasks(self) -> int:
        """Tasks compared."""
        return self.better + self.worse + self.equal

    def to_json(self) -> dict[str, Json]:
        """As JSON data."""
        i = self.interval
        bounds = {"low": None, "high": None} if i is None else {"low": i.low, "high": i.high}
        counts = {name: getattr(self, name) for name in ("tasks", "better", "worse", "equal")}
        return {"before": self.before, "after": self.after, "difference": self.after - self.before, **bounds, **counts}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("a", type=Path, metavar="A", help="run directory (`log_path` of the run)")
    parser.add_argument(
        "b",
        type=Path,
        nargs="?",
        metavar="B",
        help="the run to compare with A; without it, the first evaluation of A is compared with its last",
    )
    parser.add_argument("--step", type=int, metavar="N", help="the evaluation after step N (default: the last one)")
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print how the later, or the second, compares with the other."""
    no_settings(overrides, "compare")
    a, b = sides(args.a, args.b, args.step)
    shared = common_tasks(a, b)
    rows = differences(a, b, shared)
    if args.json:
        changed = largest_changes(a, b, shared)
        metrics = {row.metric: row.to_json() for row in rows}
        answer = {"a": a.to_json(), "b": b.to_json(), "common_tasks": len(shared), "metrics": metrics}
        print(json.dumps({**answer, "verdict": answer_to(rows[0]), "largest_changes": changed}, indent=2))
        return 0
    width = shutil.get_terminal_size().columns
    for line in report_lines(a, b, shared, rows):
        print(clipped(line, width) if line.startswith(" ") else line)
    return 0


def sides(a: Path, b: Path | None, step: int | None) -> tuple[Side, Side]:
    """The two evaluations: A's first and last (or that of `step`) without B, else one of each run.

    Raises:
        RunDirectoryError: there is no such run.
        DataError: it has no such evaluation.
    """
    if b is not None:
        names = (a.resolve().name, b.resolve().name)
        labels = names if names[0] != names[1] else (str(a), str(b))
        return tuple(  # type: ignore[return-value]
            Side(inert(label, lines=False), _evaluation(path, step)) for label, path in zip(labels, (a, b), strict=True)
        )
    before, after = _evaluation(a, None, first=True), _evaluation(a, step)
    if before.step == after.step:
        raise DataError(
            f"{a} has been evaluated only once so far (after step {before.step}), so there is nothing to compare it "
            "with. Give a second run, or wait for the next evaluation (eval_every)."
        )
    return Side("before", before), Side("after", after)


def _evaluation(run: Path, step: int | None, *, first: bool = False) -> Measurement:
    rollouts = open_rollouts(run, committed=True)
    steps = evaluated_steps(rollouts)
    listed = ", ".join(map(str, steps))
    if not steps:
        raise DataError(
            f"{run} holds no evaluation, so it cannot be compared. Set eval_every, or wait for the first one."
        )
    if step is not None and step not in steps:
        raise DataError(f"{run} has no evaluation after step {step}; it has those after steps {listed}.")
    return measurement(rollouts, step if step is not None else steps[0 if first else -1])


def common_tasks(a: Side, b: Side) -> list[str]:
    """Keys of the tasks that both evaluations pose, in A's order.

    Raises:
        DataError: too few for a comparison.
    """
    ours, theirs = by_key(a.measured), by_key(b.measured)
    common = [key for key in ours if key in theirs]
    if len(common) < max(1, math.ceil(ENOUGH * min(len(ours), len(theirs)))):
        raise DataError(
            f"{a.label} and {b.label} were evaluated on different tasks: {len(common)} of {len(ours)} and "
            f"{len(theirs)} are the same. A comparison needs the same tasks; keep the data source, its seed and "
            "eval.max_tasks as they are."
        )
    return common


def differences(a: Side, b: Side, shared: Sequence[str]) -> list[Difference]:
    """Each metric that both have on any of the shared tasks, the reward first.

    Raises:
        DataError: no task has a reward in both.
    """
    before, after = (measured_policy(side.label, side.measured).values for side in (a, b))
    found = []
    for name in [name for name in before if name in after]:
        tasks = [task for task in shared if task in before[name] and task in after[name]]
        if tasks:
            found.append(_difference(name, [before[name][t] for t in tasks], [after[name][t] for t in tasks]))
    if not found or found[0].metric != "reward":
        raise DataError(f"No task has a reward in both {a.label} and {b.label}: their answers could not be scored.")
    return found


def _difference(metric: str, before: Sequence[float], after: Sequence[float]) -> Difference:
    gains = [b - a for a, b in zip(before, after, strict=True)]
    better, worse = sum(gain > _EQUAL for gain in gains), sum(gain < -_EQUAL for gain in gains)
    interval = paired_difference_ci95(before, after) if len(gains) > 1 else None
    n = len(gains)
    return Difference(metric, sum(before) / n, sum(after) / n, interval, better, worse, n - better - worse)


def answer_to(row: Difference) -> str:
    """Whether a difference is noise, in words: what its interval allows to say."""
    if row.interval is None:
        return "One task cannot tell a difference from noise."
    if row.tasks < FEWEST and (row.better or row.worse):
        return (
            f"{row.tasks} tasks cannot tell a difference from noise: {row.metric} changed by "
            f"{row.interval.mean:+.3f}, but by chance alone all of so few would change in the same direction more than "
            f"once in 20 times. Evaluate on {FEWEST} tasks or more."
        )
    amount = f"{row.interval.mean:+.3f} \u00b1 {row.interval.half_width:.3f}"
    over = f"95 % interval over {row.tasks} tasks"
    if direction(row.interval) > 0:
        return f"Not noise: {row.metric} rose by {amount} ({over}, without 0)."
    if direction(row.interval) < 0:
        return f"Not noise, but a loss: {row.metric} fell by {amount} ({over}, without 0)."
    if not row.better and not row.worse:
        return f"No difference: {row.metric} is equal on each of {row.tasks} tasks."
    needed = _tasks_needed(row.interval)
    more = f" A difference of this size would need about {needed:,} tasks to be told from noise." if needed else ""
    return f"It may be noise: {row.metric} changed by {amount} ({over}, with 0 inside).{more}"


def _tasks_needed(interval: Interval) -> int | None:
    """Tasks at which an interval around this mean would end at about 0; None if that does not help."""
    if abs(interval.mean) <= _EQUAL:
        return None
    error = interval.half_width / t_quantile_975(interval.n - 1)
    needed = math.ceil(interval.n * (1.96 * error / interval.mean) ** 2)
    return max(needed, interval.n + 1) if needed <= 1_000_000 else None


def largest_changes(a: Side, b: Side, shared: Sequence[str]) -> list[dict[str, Json]]:
    """The tasks whose reward changed most, largest first."""
    ours, theirs = by_key(a.measured), by_key(b.measured)
    rows: list[dict[str, Json]] = [
        {"task": theirs[key].name, "key": theirs[key].key, "before": before, "after": after}
        for key in shared
        for before, after in [(ours[key].values.get("reward"), theirs[key].values.get("reward"))]
        if before is not None and after is not None and abs(after - before) > _EQUAL
    ]
    return heapq.nlargest(LARGEST, rows, key=lambda row: abs(row["after"] - row["before"]))


def report_lines(a: Side, b: Side, shared: Sequence[str], rows: Sequence[Difference]) -> Iterator[str]:
    """The comparison for a terminal; lines that may be cut to its width are indented."""
    for side in (a, b):
        m = side.measured
        place = place_in_words(m.step, m.phase, m.index)
        when = place if m.phase == "start" else f"after {place}"
        yield f"{side.label}: evaluated {when} on {len(m.tasks)} tasks"
    if len(shared) < max(len(a.measured.tasks), len(b.measured.tasks)):
        yield f"Only the {len(shared)} tasks that both have are compared."
    yield answer_to(rows[0])
    yield ""
    wide = max(len(inert(row.metric, lines=False)) for row in rows)
    yield f"  {'':{wide}}  {'before':>9}  {'after':>9}  {'difference':>17}  better  worse  equal"
    for row in rows:
        i = row.interval
        change = f"{row.after - row.before:+.3f}" if i is None else f"{i.mean:+.3f} \u00b1 {i.half_width:.3f}"
        name = inert(row.metric, lines=False)
        counts = f"{row.better:>6}  {row.worse:>5}  {row.equal:>5}"
        yield f"  {name:{wide}}  {row.before:>9.3f}  {row.after:>9.3f}  {change:>17}  {counts}"
    changed = largest_changes(a, b, shared)
    if changed:
        yield ""
        yield "Largest changes of reward:"
        yield from (f"  {_change(row)}" for row in changed)
    if len(rows) > 1:
        yield ""
        yield "Each interval stands alone: none is corrected for the number of metrics."


def _change(row: Mapping[str, Json]) -> str:
    return f"{row['before']:.3f} \u2192 {row['after']:.3f}  {inert(str(row['task']), lines=False)}"
