"""Rejection sampling: the right kernels that a run wrote in training, as examples to imitate.

A row has the columns of Assay's own solutions (`assay index build` reads it), and beside them what a reply answered and
how it was sampled: `prompt` and `completion` as messages, `problem`, `verdict`, `run` and its place in the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from assay.cli.runs.measured import KERNELS
from assay.envs.kernelbench.dataset import KernelBenchDatasetBuilder
from assay.envs.kernelbench.generated import GeneratedKernelsBuilder
from assay.errors import ConfigError, DataError
from assay.kernels.problems.sources import Problem
from assay.retrieval.code_text import code_hash
from assay.rollouts.renderers.thinking import Reply
from assay.storage.files import encode_json, replace_file
from assay.training.config import TrainingConfig
from assay.training.run.rollouts import Rollout, Turn, read_rollouts
from assay.types import Json


@dataclass
class Samples:
    """What a run wrote that is right, each kernel once; and how much was passed over, and why."""

    most: int
    rows: list[dict[str, Json]] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _taken: Counter[str] = field(default_factory=Counter)

    def add(self, rollout: Rollout, turn: Turn, problem: Problem, language: str) -> None:
        """Take the kernel of a turn, if it is right and not there yet."""
        result: Mapping[str, Json] = turn.verdict.evidence.get("eval_result") or {}
        kind = str((result.get("metadata") or {}).get("kind") or "not judged")
        kernel = str(turn.verdict.evidence.get("kernel") or "")
        place = (problem.key, code_hash(kernel))
        if kind != "ok" or result.get("correctness") is not True or result.get("cheated") or not kernel:
            self.passed_over[kind.replace("_", " ")] += 1
        elif turn.stop_reason == "length":
            self.passed_over["cut off"] += 1
        elif place in self._seen:
            self.passed_over["the same kernel again"] += 1
        elif self._taken[problem.key] >= self.most:
            self.passed_over[f"beyond {self.most} of a problem"] += 1
        else:
            self._seen.add(place)
            self._taken[problem.key] += 1
            self.rows.append(_row(rollout, turn, problem, language))

    def summary(self) -> str:
        """In a line."""
        problems = f"{len(self._taken)} problem{'s' if len(self._taken) != 1 else ''}"
        said = ", ".join(f"{count:,} {reason}" for reason, count in self.passed_over.most_common())
        return f"{len(self.rows):,} right kernels of {problems}{f'; passed over: {said}' if said else ''}"


def _row(rollout: Rollout, turn: Turn, problem: Problem, language: str) -> dict[str, Json]:
    result = turn.verdict.evidence["eval_result"]
    reply = Reply(turn.text or "", turn.thought).whole
    return {
        "name": f"level_{problem.level}/{problem.name}",
        "language": language,
        "torch_code": problem.code,
        "kernel_code": turn.verdict.evidence["kernel"],
        "correct": True,
        "speedup": result.get("speedup"),
        "source": f"run {rollout.run}",
        "prompt": [{"role": message.role, "content": message.content} for message in turn.messages],
        "completion": [{"role": "assistant", "content": reply}],
        "problem": {"level": problem.level, "problem_id": problem.id, "name": problem.name, "hash": problem.hash},
        "verdict": result,
        **{name: getattr(rollout, name) for name in ("run", "step", "group", "sample")},
        "turn": turn.turn,
        "policy_version": turn.policy_version,
    }


def export_samples(run: Path, config: TrainingConfig, target: Path, most: int) -> str:
    """Write the right kernels of a run's training rollouts; those of evaluations would teach held-out problems.

    Args:
        run: run directory.
        config: its config.
        target: a file of JSON lines, which is replaced.
        most: kernels of one problem.

    Returns:
        What was written, in words.

    Raises:
        ConfigError: the run is of another environment, or the target is a file of the run's.
        DataError: there is no right kernel, or a problem is another one now than when the run was done.
        RunDirectoryError: there is no run, a file of it is damaged, or the target cannot be written.
    """
    builder = config.active_builder
    if not isinstance(builder, KernelBenchDatasetBuilder | GeneratedKernelsBuilder):
        raise ConfigError(
            f"--samples keeps kernels for problems in the KernelBench format, and {run} had a "
            f"{type(builder).__name__}. Give a run with dataset_builder=kernelbench or kernelbench_generated."
        )
    if target.resolve() in {path.resolve() for path in run.iterdir()}:
        raise ConfigError(f"The samples would overwrite {target}, which belongs to the run. Choose another file.")
    samples = Samples(most)
    problems = _problems(builder, config.seed)
    for rollout, turn in _answers(run):
        problem, posed = problems.get(rollout.task.partition(":")[0], (None, ""))
        if problem is None or not any(posed.strip("\n") in message.content for message in turn.messages):
            raise DataError(
                f"the problem {rollout.task!r:.80} of {run} is another one now, or gone. Give the data set of the run "
                f"({_settings_of_problems(builder)})."
            )
        samples.add(rollout, turn, problem, builder.backend)
    if not samples.rows:
        raise DataError(f"{run} has {samples.summary()}, so nothing was written. Train longer, or on easier problems.")
    replace_file(target, b"".join(encode_json(row) + b"\n" for row in samples.rows))
    return f"{target}: {samples.summary()}."


def _problems(
    builder: KernelBenchDatasetBuilder | GeneratedKernelsBuilder, seed: int
) -> dict[str, tuple[Problem, str]]:
    """Key -> problem, and the text that its prompts hold: a generated problem may hide a part of its module."""
    if isinstance(builder, GeneratedKernelsBuilder):
        return {problem.key: (problem, task.prompt[-1].content) for problem, task in builder.training_problems(seed)}
    return {problem.key: (problem, problem.code) for problem in builder.problems()}


def _settings_of_problems(builder: KernelBenchDatasetBuilder | GeneratedKernelsBuilder) -> str:
    if isinstance(builder, GeneratedKernelsBuilder):
        return "seed, dataset_builder.num_train, hidden"
    return "dataset_builder.dataset_src, problems_path, revision"


def _answers(run: Path) -> Iterator[tuple[Rollout, Turn]]:
    """The judged turns of committed training rollouts."""
    for rollout in read_rollouts(run, committed=True):
        if rollout.env in KERNELS and rollout.split == "train":
            yield from ((rollout, turn) for turn in rollout.turns if turn.text is not None)
