"""What the demo found: four policies on the same held-out tasks, the claims about them, and what it cost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from assay.errors import TrainingError
from assay.training.metrics.intervals import Interval
from assay.training.report.comparison import Policy, difference, measured_policy, verdict
from assay.training.report.report import with_counts
from assay.training.run.reader import RunRecords
from assay.types import Json

METRICS: Mapping[str, str] = {
    "reward": "reward",
    "keeps_win": "wins kept",
    "best": "best moves",
    "legal": "legal moves",
}
"""Metrics that the demo reports -> their names in its tables."""
RESULT = "result.json"
PARTS = 5
"""Parts of GRPO, of equal length, for which the share of constant groups is given."""
VERSION = 2
"""Of `result.json` and `sessions.jsonl`."""
BASELINES: Mapping[str, str] = {"random_legal": "random legal mover"}
"""Exact baselines -> their names in words."""
_SAME_CPU = 0.98
"""Share of the trained run's CPU time from which the control counts as having had as much."""


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

    @property
    def constant_groups(self) -> list[float]:
        """Share of GRPO's groups whose answers all earned the same, in each fifth of its batches."""
        return _by_parts([share for _, share in self.trained.curve("rollout/constant_group_fraction", "rl")])

    @property
    def constant_group_rewards(self) -> list[float]:
        """Mean reward in the constant groups, in each fifth of the batches that had any."""
        return _by_parts([reward for _, reward in self.trained.curve("rollout/constant_group_reward", "rl")])


def _by_parts(values: Sequence[float]) -> list[float]:
    """Means over `PARTS` parts of equal length, in order, without empty ones."""
    bounds = [round(part * len(values) / PARTS) for part in range(PARTS + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(bounds)]
    return [fmean(part) for part in parts if part]


def outcome_of(
    trained: RunRecords, control: RunRecords, exact: Sequence[Policy], sessions: Sequence[Mapping[str, Json]]
) -> Outcome:
    """The outcome of two finished runs, beside policies whose values are `exact`.

    Raises:
        TrainingError: a run was not evaluated.
    """
    if trained.first is None or trained.last is None or control.first is None:
        raise TrainingError(f"The runs in {trained.path.parent} were not evaluated: there are no held-out tasks.")
    grpo = measured_policy("GRPO", trained.last)
    named = [(policy.label.replace(" ", "_"), policy) for policy in exact]
    policies = {
        **{name: replace(policy, label=BASELINES.get(name, policy.label)) for name, policy in named},
        "warm_up": measured_policy("warm-up alone", trained.first),
        "same_cpu": measured_policy("same-CPU warm-up", control.first),
        "grpo": grpo,
    }
    metrics = with_counts({name: words for name, words in METRICS.items() if name in grpo.values}, [grpo])
    return Outcome(trained, control, policies, metrics, sessions)


def costs(outcome: Outcome) -> dict[str, Json]:
    """Seconds spent and analyses made, by name.

    `cpu_s`, `verifier_cpu_s` and `wall_s` are sums over all sessions but those that were killed outright. `cpu_s` is
    that of all processes, from their start; the other CPU times are of training steps alone.
    """
    trained, control = outcome.trained, outcome.control
    fresh = [_analyses(records, cached=False) for records in (trained, control)]
    known = [_analyses(records, cached=True) for records in (trained, control)]
    return {
        "warm_up_cpu_s": trained.training_cpu_s("sft"),
        "grpo_cpu_s": trained.training_cpu_s("rl"),
        "control_cpu_s": control.training_cpu_s(),
        "evaluation_cpu_s": trained.total("perf/eval_cpu_s") + control.total("perf/eval_cpu_s"),
        "verified_prompts": sum(fresh),
        "cached_prompts": sum(known),
        **{name: sum(session[name] for session in outcome.sessions) for name in ("verifier_cpu_s", "cpu_s", "wall_s")},
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
    """What the numbers cost, in words; and whether the control had its share."""
    cost = costs(outcome)
    given, taken = cost["control_cpu_s"], cost["warm_up_cpu_s"] + cost["grpo_cpu_s"]
    notes = [
        f"CPU seconds of training: {cost['warm_up_cpu_s']:.0f} of warm-up and {cost['grpo_cpu_s']:.0f} of GRPO, beside "
        f"{given:.0f} of the control; evaluations took {cost['evaluation_cpu_s']:.0f} more. "
        f"Stockfish is not in them: it analysed {cost['verified_prompts']:,} positions "
        f"({cost['cached_prompts']:,} more came from its cache) in {cost['verifier_cpu_s']:.0f} CPU seconds of its own "
        "processes.",
        f"All processes together took {cost['cpu_s']:.0f} CPU seconds and {cost['wall_s'] / 60:.1f} minutes by the "
        "clock.",
    ]
    if given < _SAME_CPU * taken:
        notes.append(
            f"The control had only {given / taken:.0%} of the CPU time of warm-up and GRPO, so its comparison favours "
            "GRPO. Batches cost more than the first ones, from which its number of steps was chosen."
        )
    return notes


def result_record(outcome: Outcome) -> dict[str, Json]:
    """`result.json`: every estimate and difference with its 95 % interval over tasks, the verdicts and the costs."""
    tasks = outcome.trained.last.tasks if outcome.trained.last is not None else ()
    return {
        "version": VERSION,
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
        "constant_groups": outcome.constant_groups,
        "constant_group_rewards": outcome.constant_group_rewards,
        "control_steps": len(outcome.control.curve("sft/loss", "sft")),
        **costs(outcome),
    }


def _plain(interval: Interval | None) -> Json:
    if interval is None:
        return None
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "tasks": interval.n}


def read_sessions(path: Path) -> list[dict[str, Json]]:
    """The sessions of a demo so far, from its file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
