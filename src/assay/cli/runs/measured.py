"""What an evaluation is made of: which tasks, the rollouts, the figures, and where they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from assay.backends.base import Backend
from assay.config import resolved
from assay.envs.base import EnvData, EnvGroupBuilder, iter_builders
from assay.envs.kernelbench.evaluation.figures import means, notes, summary, tag_of
from assay.envs.kernelbench.evaluation.outcomes import KernelEvaluation, of_rollouts
from assay.envs.kernelbench.evaluation.published import holds_kernels, kernels_of
from assay.errors import ConfigError, DataError
from assay.estimates import estimate, pass_at_k, usual_ks
from assay.grpo.parity import ParityConfig
from assay.rollouts.renderers.base import Renderer
from assay.storage.files import check_writable, encode_json, replace_file
from assay.training.config import TrainingConfig
from assay.training.evaluate import Evaluation, PerTask, check_errored, evaluate
from assay.training.metrics.progress import RunProgress
from assay.training.metrics.sinks import TensorBoardSink
from assay.types import Json, SamplingParams, TrajectoryGroup

KERNELS = ("kernelbench", "kernelbench_generated")
"""`Task.env` of kernel problems, of which further figures are given."""


@dataclass(frozen=True)
class Which:
    """The tasks that are measured, and the k of pass@k."""

    tasks: Literal["heldout", "all"] = "heldout"
    ks: tuple[int, ...] = ()
    """None for powers of 2."""

    def of(self, data: EnvData, most: int | None) -> list[EnvGroupBuilder]:
        """The tasks, held-out ones first, at most `most`.

        Raises:
            DataError: there are none.
        """
        found = [*iter_builders(data.heldout), *(_once(data) if self.tasks == "all" else ())][:most]
        if not found:
            raise DataError("This environment has no held-out tasks. Measure on all with --tasks all.")
        return found


HELDOUT = Which()


def _once(data: EnvData) -> Iterator[EnvGroupBuilder]:
    """The training tasks of one pass."""
    seen = set()
    for builder in iter_builders(data.train):
        if (key := builder.task.key) in seen:
            return
        seen.add(key)
        yield builder


@dataclass(frozen=True)
class Measured:
    """What was measured."""

    report: Mapping[str, Json]
    """What is printed."""
    samples: Mapping[str, Json] = field(default_factory=dict)
    """What is kept besides in a file: every sample, so that evaluations can be compared."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Figures by their TensorBoard tags."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """File name in KernelBench's layout -> kernel."""


async def play(
    config: TrainingConfig,
    backend: Backend,
    renderer: Renderer,
    tasks: Sequence[EnvGroupBuilder],
    parity: ParityConfig,
) -> Evaluation:
    """Play the tasks with a policy.

    Raises:
        TrainingError: too many rollouts could not be scored.
    """
    with RunProgress() as progress, progress.phase("eval", len(tasks)) as phase:
        evaluation = await evaluate(
            backend,
            renderer,
            tasks,
            SamplingParams(config.max_tokens, config.temperature),
            samples=config.eval.samples_per_task,
            max_turns=config.build_context().max_turns,
            seed=config.seed,
            parity=parity,
            advance=phase.advance,
        )
    check_errored(evaluation.groups, config.max_errored_fraction, "the evaluation")
    return evaluation


def measured_of(
    head: Mapping[str, Json],
    config: TrainingConfig,
    evaluation: Evaluation,
    policies: Mapping[str, PerTask],
    ks: Sequence[int],
) -> Measured:
    """The figures of rollouts.

    Args:
        head: what was evaluated.
        config: its settings.
        evaluation: the rollouts.
        policies: metrics per task of the policy, and of others whose metrics are known.
        ks: the k of pass@k.
    """
    report: dict[str, Json] = {
        **head,
        "tasks": len(evaluation.groups),
        "samples_per_task": config.eval.samples_per_task,
        "metrics": {name: _intervals(per_task) for name, per_task in policies.items()},
    }
    scalars = {f"eval/{name}": value["mean"] for name, value in report["metrics"]["policy"].items()}
    if all(group.task.env in KERNELS for group in evaluation.groups):
        return _of_kernels(report, scalars, config, evaluation.groups, ks)
    if found := pass_at(evaluation.groups, ks):
        report["pass_at"] = found
        scalars |= {f"eval/pass@{k}/{n}": e["mean"] for n, each in found.items() for k, e in each.items()}
    return Measured(report, _settings(config), scalars)


def _settings(config: TrainingConfig) -> dict[str, Json]:
    """What a file says of how it was measured."""
    return {"assay": version("assay-rl"), "config": resolved(config)}


def _intervals(per_task: PerTask) -> dict[str, Json]:
    """Means over tasks with their bootstrap intervals: those of a share stay in [0, 1]."""
    found = {name: estimate(values) for name, values in per_task.items()}
    return {name: one.to_json() for name, one in found.items() if one is not None}


def pass_at(groups: Sequence[TrajectoryGroup], ks: Sequence[int] = ()) -> dict[str, Json]:
    """pass@k of each metric that is 0 or 1 for every rollout, such as whether an answer is right."""
    counted: dict[str, list[list[float]]] = {}
    for group in groups:
        values: dict[str, list[float]] = {}
        for rollout in group.trajectories:
            if rollout.reward is not None:
                for name, value in {"reward": rollout.reward, **rollout.transitions[-1].metrics}.items():
                    values.setdefault(name, []).append(value)
        for name, found in values.items():
            counted.setdefault(name, []).append(found)
    report: dict[str, Json] = {}
    for name, tasks in counted.items():
        if all(value in (0.0, 1.0) for task in tasks for value in task):
            each = {}
            for k in ks or usual_ks(max(map(len, tasks))):
                at = estimate([pass_at_k(len(task), int(sum(task)), k) for task in tasks if len(task) >= k])
                each[str(k)] = None if at is None else at.to_json()
            report[name] = {k: at for k, at in each.items() if at is not None}
    return report


def _of_kernels(
    report: Mapping[str, Json],
    scalars: Mapping[str, float],
    config: TrainingConfig,
    groups: Sequence[TrajectoryGroup],
    ks: Sequence[int],
) -> Measured:
    timed = getattr(config.active_builder, "timed_against", ())
    return kernels_measured(report, config, of_rollouts(groups, timed), ks, scalars, kernels_of(groups))


def kernels_measured(
    head: Mapping[str, Json],
    config: TrainingConfig,
    evaluation: KernelEvaluation,
    ks: Sequence[int],
    scalars: Mapping[str, float] | None = None,
    kernels: Mapping[str, str] | None = None,
) -> Measured:
    """The figures of a kernel evaluation.

    Args:
        head: what is reported besides.
        config: its settings.
        evaluation: what came of the samples.
        ks: the k of pass@k.
        scalars: further figures for TensorBoard.
        kernels: file name -> kernel.
    """
    report = {**head, "figures": summary(evaluation, ks), "notes": notes(evaluation)}
    tagged = {tag_of(name): value for name, value in means(evaluation, ks).items()}
    kept = {**_settings(config), **evaluation.to_json()}
    return Measured(report, kept, {**(scalars or {}), **tagged}, kernels or {})


def check_places(output: Path | None, tensorboard: Path | None, kernels: Path | None) -> None:
    """Refuse places that could not be made or written to, before anything is measured.

    Raises:
        ConfigError: one is such; or `kernels` has kernels already, which would be taken for samples of this evaluation.
    """
    if output is not None and output.is_dir():
        raise ConfigError(f"--output {output} is a folder. Give a file, such as {output / 'eval.json'}.")
    if kernels is not None and kernels.is_dir() and holds_kernels(kernels):
        raise ConfigError(
            f"--kernels {kernels} holds kernels already, which would be taken for samples of this evaluation. Give a "
            "new folder."
        )
    for folder in (output and output.parent, tensorboard, kernels):
        try:
            if folder is not None:
                check_writable(folder)
        except OSError as error:
            raise ConfigError(f"{folder} could not be written to: {error.strerror}. Give another place.") from error


def write(measured: Measured, output: Path | None, tensorboard: Path | None, step: int, kernels: Path | None) -> None:
    """Write what was measured where it was asked for.

    Raises:
        RunDirectoryError: a file cannot be written.
        MissingDependencyError: tensorboardX is not installed.
    """
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        replace_file(output, encode_json({**measured.report, **measured.samples}, indent=2) + b"\n")
    if kernels is not None:
        kernels.mkdir(parents=True, exist_ok=True)
        for name, source in measured.kernels.items():
            replace_file(kernels / name, source.encode(errors="replace"), durable=False)
    if tensorboard is not None:
        tensorboard.mkdir(parents=True, exist_ok=True)
        sink = TensorBoardSink(tensorboard)
        try:
            sink.log(step, "rl", 0, dict(sorted(measured.scalars.items())), {})
        finally:
            sink.close()
