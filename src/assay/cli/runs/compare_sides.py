"""The two sides of a comparison: an evaluation of a run, or a file of `assay eval --output`, as values per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from assay.config.sources import flatten
from assay.envs.kernelbench.evaluation.figures import per_problem
from assay.envs.kernelbench.evaluation.outcomes import KernelEvaluation
from assay.envs.kernelbench.evaluation.published import read_json
from assay.errors import DataError
from assay.estimates import usual_ks
from assay.terminal import inert
from assay.training.report.comparison import by_key, measured_policy
from assay.training.run.ledger import place_in_words
from assay.training.run.reader import Measurement, evaluated_steps, measurement
from assay.training.run.rollouts import open_rollouts
from assay.types import Json

Method = Literal["t", "bootstrap"]
"""How intervals are made: Student's t for means of rewards; problems drawn again for shares and speedups of kernels."""


MEASURING = ("max_tokens", "temperature", "mode", "max_turns")
"""Settings that decide how a policy is measured, beside those of the environment."""
NOT_MEASURING = (
    *(
        "batch_size",
        "group_size",
        "num_epochs",
        "shuffle",
        "renderer_name",
        "workers",
        "cache",
        "cache_path",
        "cache_mb",
    ),
    *("max_prepared", "uses_per_draw", "sft_path", "sft_max_characters", "test_fraction", "levels", "level"),
    *("start_problem", "end_problem", "problems_path", "dataset_src", "revision"),
)
"""Settings of an environment that do not; the problems are compared by themselves."""
MOST_SHOWN = 200
"""Characters of a setting that differs."""


@dataclass(frozen=True)
class Side:
    """One evaluation."""

    label: str
    about: Mapping[str, Json]
    """What it is, for JSON."""
    when: str
    """What it is, in words."""
    names: Mapping[str, str]
    """Key of each task that was posed -> what to call it, in the order of the evaluation."""
    values: Mapping[str, Mapping[str, float]]
    """Metric -> key of a task -> value; the metric that decides first."""
    main: str = "reward"
    """The metric that decides."""
    method: Method = "t"
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Dotted key -> value of what decides how a policy was measured, where it is known."""

    def to_json(self) -> dict[str, Json]:
        """What it is."""
        return {"label": self.label, **self.about, "tasks": len(self.names)}


def measured_otherwise(a: Side, b: Side) -> list[str]:
    """The settings under which the two were measured differently, in words: `max_tokens: 512 -> 1024`."""
    if not a.settings or not b.settings:
        return []
    keys = sorted({*a.settings, *b.settings})
    return [
        inert(f"{key}: {a.settings.get(key)} -> {b.settings.get(key)}"[:MOST_SHOWN], lines=False)
        for key in keys
        if a.settings.get(key) != b.settings.get(key)
    ]


def _measuring(config: Json) -> dict[str, Json]:
    """What of the settings that a file keeps decides how a policy is measured."""
    if not isinstance(config, dict):
        return {}
    builder = "multiturn_dataset_builder" if config.get("multiturn_dataset_builder") else "dataset_builder"
    flat = flatten(config, "the file") if all(isinstance(key, str) for key in config) else {}
    return {
        key.removeprefix("multiturn_"): value
        for key, value in flat.items()
        if key in MEASURING or (key.startswith(f"{builder}.") and key.rpartition(".")[2] not in NOT_MEASURING)
    }


def sides(a: Path, b: Path | None, step: int | None) -> tuple[Side, Side]:
    """The two evaluations: those of two files; or A's first and last (or that of `step`) without B, else one of each
    run.

    Raises:
        RunDirectoryError: there is no such run.
        DataError: it has no such evaluation, a file is damaged, or a file is to be compared with a run.
    """
    if a.is_file() or (b is not None and b.is_file()):
        return _of_files(a, b, step)
    if b is not None:
        one, other = (
            _of_run(label, _evaluation(path, step)) for label, path in zip(_labels(a, b), (a, b), strict=True)
        )
        return one, other
    before, after = _evaluation(a, None, first=True), _evaluation(a, step)
    if before.step == after.step:
        raise DataError(
            f"{a} has been evaluated only once so far (after step {before.step}), so there is nothing to compare it "
            "with. Give a second run, or wait for the next evaluation (eval_every)."
        )
    return _of_run("before", before), _of_run("after", after)


def _labels(a: Path, b: Path) -> tuple[str, str]:
    names = (a.resolve().name, b.resolve().name)
    labels = names if names[0] != names[1] else (str(a), str(b))
    return inert(labels[0], lines=False), inert(labels[1], lines=False)


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


def _of_run(label: str, found: Measurement) -> Side:
    tasks = by_key(found)
    place = place_in_words(found.step, found.phase, found.index)
    when = place if found.phase == "start" else f"after {place}"
    about: dict[str, Json] = {"step": found.step, "phase": found.phase, "index": found.index}
    names = {key: task.name or key for key, task in tasks.items()}
    return Side(label, about, when, names, measured_policy(label, found).values)


def _of_files(a: Path, b: Path | None, step: int | None) -> tuple[Side, Side]:
    """Two kernel evaluations, as files."""
    for path in (a, b):
        if path is not None and not path.exists():
            raise DataError(f"{path} does not exist. Give a file of `assay eval --output`.")
    if b is None or not (a.is_file() and b.is_file()):
        raise DataError(
            "A file of `assay eval --output` is compared with another such file. Write one of the run with `assay eval "
            "--run DIR --output FILE`."
        )
    if step is not None:
        raise DataError("--step chooses an evaluation of a run, and these are files. Remove it.")
    what = "`assay eval ... --output FILE`"
    held = [read_json(path, what) for path in (a, b)]
    one, other = (KernelEvaluation.from_json(data, str(path)) for data, path in zip(held, (a, b), strict=True))
    hashes = {problem.key: problem.hash for problem in one.problems if problem.hash}
    for problem in other.problems:
        if problem.hash and hashes.get(problem.key, problem.hash) != problem.hash:
            raise DataError(
                f"problem {problem.key} is another one in {b} than in {a}: its text has changed. Evaluate both on the "
                "same problems (dataset_builder.revision)."
            )
    most = min(one.max_samples, other.max_samples)
    ks = usual_ks(most)
    labels = _labels(a, b)
    settings = [_measuring(data.get("config")) for data in held]
    return _of_kernels(labels[0], a, one, ks, settings[0]), _of_kernels(labels[1], b, other, ks, settings[1])


def _of_kernels(
    label: str, path: Path, found: KernelEvaluation, ks: Sequence[int], settings: Mapping[str, Json]
) -> Side:
    samples = f"{found.max_samples} sample{'s' if found.max_samples != 1 else ''}"
    turns = f" of up to {found.max_turns} turns" if found.max_turns > 1 else ""
    about: dict[str, Json] = {"file": str(path), "samples": found.max_samples, "timed": list(found.timed)}
    names = {problem.key: f"{problem.key} {problem.name}" for problem in found.problems}
    return Side(label, about, f"with {samples}{turns}", names, per_problem(found, ks), "correct", "bootstrap", settings)
