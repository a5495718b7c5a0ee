"""`assay compare`: two evaluations on the same held-out tasks, task by task. Is the gain noise?"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.cli.options import no_settings
from assay.cli.runs.compare_sides import Method, Side, measured_otherwise, sides
from assay.errors import DataError
from assay.estimates import estimate, sign_flip_p
from assay.terminal import clipped, inert
from assay.training.metrics.intervals import Interval, paired_difference_ci95, t_quantile_975
from assay.training.report.comparison import direction
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
    p: float
    """Two-sided p-value of the paired permutation test: random signs of the differences."""
    method: Method = "t"

    @property
    def tasks(self) -> int:
        """Tasks compared."""
        return self.better + self.worse + self.equal

    @property
    def amount(self) -> str:
        """The difference with its interval; empty bounds are left out."""
        i = self.interval
        if i is None:
            return f"{self.after - self.before:+.3f}"
        if self.method == "bootstrap":
            return f"{i.mean:+.3f} [{i.low:+.3f}, {i.high:+.3f}]"
        return f"{i.mean:+.3f} \u00b1 {i.half_width:.3f}"

    def to_json(self) -> dict[str, Json]:
        """As JSON data."""
        i = self.interval
        bounds = {"low": None, "high": None} if i is None else {"low": i.low, "high": i.high}
        counts = {name: getattr(self, name) for name in ("tasks", "better", "worse", "equal")}
        return {
            "before": self.before,
            "after": self.after,
            "difference": self.after - self.before,
            **bounds,
            "p": self.p,
            **counts,
        }


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "a", type=Path, metavar="A", help="run directory (`log_path` of the run), or a file of `assay eval --output`"
    )
    parser.add_argument(
        "b",
        type=Path,
        nargs="?",
        metavar="B",
        help="the run, or the file, to compare with A; without it, the first evaluation of A is compared with its last",
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
        answer["measured_otherwise"] = measured_otherwise(a, b)
        print(json.dumps({**answer, "verdict": answer_to(rows[0]), "largest_changes": changed}, indent=2))
        return 0
    # A file or a pipe has no width, and p is what comes last.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in report_lines(a, b, shared, rows):
        print(clipped(line, width) if width and line.startswith(" ") else line)
    return 0


def common_tasks(a: Side, b: Side) -> list[str]:
    """Keys of the tasks that both evaluations pose, in A's order.

    Raises:
        DataError: too few for a comparison.
    """
    ours, theirs = a.names, b.names
    common = [key for key in ours if key in theirs]
    if len(common) < max(1, math.ceil(ENOUGH * min(len(ours), len(theirs)))):
        raise DataError(
            f"{a.label} and {b.label} were evaluated on different tasks: {len(common)} of {len(ours)} and "
            f"{len(theirs)} are the same. A comparison needs the same tasks; keep the data source, its seed and "
            "eval.max_tasks as they are."
        )
    return common


def differences(a: Side, b: Side, shared: Sequence[str]) -> list[Difference]:
    """Each metric that both have on any of the shared tasks, the one that decides first.

    Raises:
        DataError: no task has that one in both.
    """
    before, after = a.values, b.values
    found = []
    for name in [name for name in before if name in after]:
        tasks = [task for task in shared if task in before[name] and task in after[name]]
        if tasks:
            pairs = [before[name][t] for t in tasks], [after[name][t] for t in tasks]
            found.append(_difference(name, *pairs, a.method))
    if not found or found[0].metric != a.main:
        raise DataError(f"No task has a {a.main} in both {a.label} and {b.label}: their answers could not be scored.")
    return found


def _difference(metric: str, before: Sequence[float], after: Sequence[float], method: Method) -> Difference:
    gains = [b - a for a, b in zip(before, after, strict=True)]
    better, worse = sum(gain > _EQUAL for gain in gains), sum(gain < -_EQUAL for gain in gains)
    n = len(gains)
    p = sign_flip_p([gain if abs(gain) > _EQUAL else 0.0 for gain in gains])
    means = sum(before) / n, sum(after) / n
    return Difference(metric, *means, _interval(before, after, method), better, worse, n - better - worse, p, method)


def _interval(before: Sequence[float], after: Sequence[float], method: Method) -> Interval | None:
    if len(before) < 2:
        return None
    if method == "t":
        return paired_difference_ci95(before, after)
    found = estimate([b - a for a, b in zip(before, after, strict=True)])
    assert found is not None, "there are two values"
    # Where all differences are equal, drawing them again says nothing; how few there are is looked at elsewhere.
    low, high = (found.mean if bound is None else bound for bound in (found.low, found.high))
    return Interval(found.mean, low, high, found.n)


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
    amount = row.amount
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
    """The tasks whose deciding metric changed most, largest first."""
    ours, theirs = a.values[a.main], b.values[b.main]
    rows: list[dict[str, Json]] = [
        {"task": b.names[key], "key": key, "before": before, "after": after}
        for key in shared
        for before, after in [(ours.get(key), theirs.get(key))]
        if before is not None and after is not None and abs(after - before) > _EQUAL
    ]
    return heapq.nlargest(LARGEST, rows, key=lambda row: abs(row["after"] - row["before"]))


def report_lines(a: Side, b: Side, shared: Sequence[str], rows: Sequence[Difference]) -> Iterator[str]:
    """The comparison for a terminal; lines that may be cut to its width are indented."""
    for side in (a, b):
        yield f"{side.label}: evaluated {side.when} on {len(side.names)} tasks"
    if len(shared) < max(len(a.names), len(b.names)):
        yield f"Only the {len(shared)} tasks that both have are compared."
    yield from (f"Measured otherwise: {one}" for one in measured_otherwise(a, b))
    yield answer_to(rows[0])
    yield ""
    wide = max(len(inert(row.metric, lines=False)) for row in rows)
    room = max(17, *(len(row.amount) for row in rows))
    yield f"  {'':{wide}}  {'before':>9}  {'after':>9}  {'difference':>{room}}  better  worse  equal  {'p':>6}"
    for row in rows:
        name = inert(row.metric, lines=False)
        counts = f"{row.better:>6}  {row.worse:>5}  {row.equal:>5}  {row.p:>6.3f}"
        yield f"  {name:{wide}}  {row.before:>9.3f}  {row.after:>9.3f}  {row.amount:>{room}}  {counts}"
    changed = largest_changes(a, b, shared)
    if changed:
        yield ""
        yield f"Largest changes of {a.main}:"
        yield from (f"  {_change(row)}" for row in changed)
    if len(rows) > 1:
        yield ""
        yield "Each interval and p stands alone: none is corrected for the number of metrics."


def _change(row: Mapping[str, Json]) -> str:
    return f"{row['before']:.3f} \u2192 {row['after']:.3f}  {inert(str(row['task']), lines=False)}"
