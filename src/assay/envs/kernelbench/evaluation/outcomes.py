"""What came of every answer of an evaluation: plain data that figures are made of, and that is kept as JSON.

evaluation = of_rollouts(groups, timed=("eager",))
KernelEvaluation.from_json(evaluation.to_json()) == evaluation
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from assay.envs.kernelbench.rewards import MOST_SPEEDUP, evaluation
from assay.errors import DataError
from assay.kernels.base import TimedAgainst
from assay.kernels.verdicts import KINDS, Verdict
from assay.types import Json, Trajectory, TrajectoryGroup

VERSION = 1
"""Format of an evaluation as JSON."""
NO_KERNEL = "format_error"
"""Kind of an answer without a kernel to grade; the others are kinds of verdicts."""
BASELINES: tuple[TimedAgainst, ...] = get_args(TimedAgainst)
MOST_PROBLEMS, MOST_SAMPLES, MOST_TURNS = 100_000, 10_000, 1000
"""Larger evaluations are not read."""
MOST_NAME = 500
"""Characters of a problem's name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one answer."""

    kind: str
    compiled: bool = False
    speedups: Mapping[str, float] = field(default_factory=dict)
    """Baseline -> measured speedup over it; without those that were withheld."""
    lower: Mapping[str, float] = field(default_factory=dict)
    """Baseline -> the lower bound of that speedup, where one was measured."""

    @property
    def correct(self) -> bool:
        """Whether the kernel is right, by its own work."""
        return self.kind == "ok"

    def to_json(self) -> dict[str, Json]:
        """Plain data."""
        speeds = {"speedups": dict(self.speedups)} if self.speedups else {}
        return {
            "kind": self.kind,
            "compiled": self.compiled,
            **speeds,
            **({"lower": dict(self.lower)} if self.lower else {}),
        }


Sample = tuple[Outcome, ...]
"""The turns of one rollout."""


@dataclass(frozen=True, slots=True)
class ProblemOutcomes:
    """What came of the samples of one problem."""

    level: int
    id: int
    name: str
    samples: tuple[Sample, ...]
    """Those that were judged, each with at least one turn."""
    errored: int = 0
    """Samples that could not be judged, which says nothing about the policy."""
    hash: str = ""
    """SHA-256 of the problem's module, where it is known."""

    @property
    def key(self) -> str:
        """`level/id`."""
        return f"{self.level}/{self.id}"

    def to_json(self) -> dict[str, Json]:
        """Plain data."""
        samples = [[outcome.to_json() for outcome in sample] for sample in self.samples]
        head = {"level": self.level, "id": self.id, "name": self.name, "hash": self.hash}
        return {**head, "errored": self.errored, "samples": samples}


@dataclass(frozen=True, slots=True)
class KernelEvaluation:
    """One evaluation: its problems, ordered by level and id, and what kernels were timed against."""

    problems: tuple[ProblemOutcomes, ...]
    timed: tuple[str, ...] = ()
    """Baselines; none where speed was not measured."""

    @property
    def max_turns(self) -> int:
        """Turns of the longest rollout."""
        return max((len(sample) for problem in self.problems for sample in problem.samples), default=1)

    @property
    def max_samples(self) -> int:
        """Judged samples of the problem with the most."""
        return max((len(problem.samples) for problem in self.problems), default=0)

    def to_json(self) -> dict[str, Json]:
        """Plain data."""
        problems = [problem.to_json() for problem in self.problems]
        return {"version": VERSION, "timed": list(self.timed), "problems": problems}

    @classmethod
    def from_json(cls, data: Json, source: str) -> KernelEvaluation:
        """Inverse of `to_json`.

        Args:
            data: what a file holds.
            source: the file, for messages.

        Raises:
            DataError: it holds something else.
        """
        if not isinstance(data, dict) or not isinstance(data.get("problems"), list):
            raise DataError(f"{source} is no evaluation of kernels. Write one with `assay eval ... --output FILE`.")
        if data.get("version") != VERSION:
            raise DataError(
                f"{source} has format version {data.get('version')!r:.20}, and this Assay reads {VERSION}. Evaluate "
                "again with this version."
            )
        try:
            timed = _names(data.get("timed", []))
            problems = [_problem(one) for one in _list(data["problems"], MOST_PROBLEMS)]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{source} is damaged: {error}. Evaluate again, or restore the file.") from None
        keys = [problem.key for problem in problems]
        if len(set(keys)) < len(keys):
            raise DataError(f"{source} has a problem twice, so it is damaged. Evaluate again, or restore the file.")
        return cls(tuple(problems), timed)


def _list(value: Json, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"a list of at most {most:,} was expected")
    return value


def _names(value: Json) -> tuple[str, ...]:
    names = tuple(_list(value, len(BASELINES)))
    if not set(names) <= set(BASELINES):
        raise ValueError(f"baselines are {', '.join(BASELINES)}")
    return names


def _count(value: Json, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"a number up to {most:,} was expected, not {value!r:.40}")
    return value


def _problem(data: Mapping[str, Json]) -> ProblemOutcomes:
    samples = tuple(
        tuple(_outcome(turn) for turn in _list(sample, MOST_TURNS)) for sample in _list(data["samples"], MOST_SAMPLES)
    )
    if not all(samples):
        raise ValueError("a sample without a turn")
    level, number = _count(data["level"], 10**6), _count(data["id"], 10**9)
    name, digest = str(data["name"])[:MOST_NAME], str(data.get("hash", ""))[:64]
    return ProblemOutcomes(level, number, name, samples, _count(data["errored"], MOST_SAMPLES), digest)


def _outcome(data: Mapping[str, Json]) -> Outcome:
    kind = data["kind"]
    if kind not in (*KINDS, NO_KERNEL):
        raise ValueError(f"{kind!r:.40} is no kind of verdict")
    speeds = {
        name: {baseline: _speedup(value) for baseline, value in (data.get(name) or {}).items()}
        for name in ("speedups", "lower")
    }
    _names([*speeds["speedups"]])
    _names([*speeds["lower"]])
    return Outcome(kind, data["compiled"] is True, speeds["speedups"], speeds["lower"])


def _speedup(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is no speedup")
    if not 0 < value <= MOST_SPEEDUP:
        raise ValueError(f"{value:g} is no speedup")
    return float(value)


def of_verdict(verdict: Verdict, code: str) -> Outcome:
    """The outcome of a kernel that was graded."""
    return of_record(evaluation(verdict, code))


def of_record(record: Mapping[str, Json]) -> Outcome:
    """The outcome that the record of a turn tells (`eval_result` of traces)."""
    metadata = record.get("metadata") or {}
    told = metadata.get("speedups") or {}
    measured = {name: value for name, value in told.items() if value.get("speedup")}
    lower = {name: value["lower"] for name, value in measured.items() if value.get("lower")}
    return Outcome(
        metadata.get("kind", NO_KERNEL),
        bool(record.get("compiled")),
        {name: value["speedup"] for name, value in measured.items()},
        lower,
    )


def of_rollouts(groups: Sequence[TrajectoryGroup], timed: Sequence[str] = ()) -> KernelEvaluation:
    """The outcomes of an evaluation's rollouts.

    Args:
        groups: one per problem.
        timed: what right kernels were timed against.
    """
    found = [_of_group(group) for group in groups]
    return KernelEvaluation(tuple(sorted(found, key=lambda problem: (problem.level, problem.id))), tuple(timed))


def _of_group(group: TrajectoryGroup) -> ProblemOutcomes:
    payload = group.task.payload
    judged = [rollout for rollout in group.trajectories if not rollout.errored and rollout.transitions]
    return ProblemOutcomes(
        payload["level"],
        payload["problem_id"],
        payload["name"],
        tuple(map(_sample, judged)),
        len(group.trajectories) - len(judged),
        payload.get("hash", ""),
    )


def _sample(rollout: Trajectory) -> Sample:
    return tuple(of_record(turn.score.evidence.get("eval_result") or {}) for turn in rollout.transitions)
