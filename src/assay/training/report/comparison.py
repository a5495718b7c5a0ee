"""Policies compared on the same held-out tasks, and which differences can be claimed. Pure.

The unit is the task: a policy has one value per task and metric. Differences are taken task by task, so that hard and
easy tasks cancel out. A difference is claimed only where its 95 % interval excludes 0; each interval stands alone,
without a correction for the number of comparisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.training.metrics.intervals import Interval, mean_ci95, paired_difference_ci95, wilson_ci95
from assay.training.report.charts import MINUS
from assay.training.run.reader import HeldoutTask, Measurement

Values = Mapping[str, Mapping[str, float]]
"""Metric name -> task -> the policy's mean on the task."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy and its values; `exact` where they were computed and not sampled."""

    label: str
    values: Values
    exact: bool = False

    def estimate(self, metric: str) -> Interval | None:
        """Mean of a metric over the tasks that report it, with its interval; None where none does.

        An interval for other tasks of the same kind: also an exact policy has one.
        """
        values = list(self.values.get(metric, {}).values())
        if not values:
            return None
        if values[0] in (0.0, 1.0) and len(set(values)) == 1:  # the t interval would have no width
            return wilson_ci95(round(sum(values)), len(values))
        return mean_ci95(values)


def measured_policy(label: str, measurement: Measurement) -> Policy:
    """A policy as evaluated; equal problems of two evaluations have equal names, wherever they stand."""
    values: dict[str, dict[str, float]] = {}
    for key, task in by_key(measurement).items():
        for name, value in task.values.items():
            values.setdefault(name, {})[key] = value
    return Policy(label, values)


def by_key(measurement: Measurement) -> dict[str, HeldoutTask]:
    """The tasks by their keys; a problem that is posed again has its number behind the key."""
    seen: Counter[str] = Counter()
    found: dict[str, HeldoutTask] = {}
    for task in measurement.tasks:
        seen[task.key] += 1
        found[task.key if seen[task.key] == 1 else f"{task.key}#{seen[task.key]}"] = task
    return found


def exact_policy(label: str, metrics: Mapping[str, Sequence[float]], like: Policy) -> Policy:
    """A policy whose values are known for the held-out tasks on which `like` was measured.

    `metrics` has values in data set order, without the tasks that do not report a metric. Where their number is that of
    `like`, they are of the same tasks; else it is unknown whose they are, and they cannot be compared in pairs.
    """
    values: dict[str, dict[str, float]] = {}
    for name, column in metrics.items():
        tasks = list(like.values.get(name, {}))
        if len(tasks) != len(column):
            tasks = [f"unknown task {index}" for index in range(len(column))]
        values[name] = dict(zip(tasks, column, strict=True))
    return Policy(label, values, exact=True)


def difference(policy: Policy, other: Policy, metric: str) -> Interval | None:
    """Mean of `policy - other` over the tasks that both report; None below two such tasks."""
    ours, theirs = policy.values.get(metric, {}), other.values.get(metric, {})
    common = [task for task in ours if task in theirs]
    if len(common) < 2:
        return None
    return paired_difference_ci95([theirs[task] for task in common], [ours[task] for task in common])


def direction(interval: Interval) -> int:
    """What may be claimed of a difference: 1 (above 0), -1 (below 0), or 0 where its interval includes 0.

    Rounding errors of sums do not count.
    """
    return (interval.low > _ROUNDING) - (interval.high < -_ROUNDING)


def verdict(policy: Policy, other: Policy, metrics: Mapping[str, str]) -> str:
    """One sentence on how `policy` stands to `other` in each metric (name -> words), claiming what intervals allow."""
    higher, lower, open_, unknown = [], [], [], []
    for name, words in metrics.items():
        interval = difference(policy, other, name)
        if interval is None:
            unknown.append(words)
            continue
        amount = f"{abs(interval.mean):.3f} ± {interval.half_width:.3f}"
        if direction(interval) > 0:
            higher.append(f"{words} by {amount}")
        elif direction(interval) < 0:
            lower.append(f"{words} by {amount}")
        else:
            open_.append(f"{words} ({signed(interval)})")
    parts = [
        f"{heading} {_listed(entries)}"
        for heading, entries in (
            ("higher in", higher),
            ("lower in", lower),
            ("not shown to differ in", open_),
            ("not comparable in", unknown),
        )
        if entries
    ]
    text = f"{policy.label}, against {other.label}: {'; '.join(parts) or 'nothing was measured'}."
    return text[:1].upper() + text[1:]


def signed(interval: Interval) -> str:
    """A difference with its sign and half-width: `+0.106 ± 0.030`."""
    return f"{interval.mean:+.3f} ± {interval.half_width:.3f}".replace("-", MINUS)


def _listed(entries: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([*([", ".join(entries[:-1])] if len(entries) > 1 else []), entries[-1]])
