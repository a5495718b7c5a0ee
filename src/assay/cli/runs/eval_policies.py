"""Policies that no run trained, measured: an endpoint, a folder of kernels, results of KernelBench."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from assay.cli.runs.eval_settings import NOT_READ, refuse_idle
from assay.cli.runs.measured import Measured, Which, kernels_measured, measured_of, play
from assay.config import load
from assay.config.urls import without_secrets
from assay.envs.base import build_data
from assay.envs.kernelbench.dataset import KernelBenchDatasetBuilder
from assay.envs.kernelbench.evaluation.outcomes import KernelEvaluation, Outcome, ProblemOutcomes, Sample, of_verdict
from assay.envs.kernelbench.evaluation.published import nothing, read_kernels, read_results
from assay.envs.kernelbench.rewards import UNJUDGED
from assay.envs.kernelbench.selection import split_problems
from assay.errors import ConfigError, DataError, TrainingError
from assay.grpo.parity import ParityConfig
from assay.kernels.pool import GradingProgress
from assay.kernels.problems.sources import Problem
from assay.kernels.verdicts import Verdict
from assay.training.endpoint.config import EvaluationConfig, endpoint_of
from assay.training.endpoint.policy import EndpointBackend, MessageRenderer, answered
from assay.training.metrics.progress import RunProgress
from assay.types import Json

NOT_READ_HERE = (
    *NOT_READ,
    *("model_name", "backend", "base_url", "local", "scratch"),
    *("dataset_builder.renderer_name", "dataset_builder.chat"),
)
"""Settings that say nothing about a policy that no run trained."""
OF_SAMPLING = ("endpoint", "max_tokens", "temperature", "eval", "mode", "max_turns", "seed")
"""Settings that are read where something is sampled."""
logger = logging.getLogger(__name__)
_KINDS = "endpoint:URL#MODEL, folder:DIR and results:DIR"


def measure_policy(args: argparse.Namespace, overrides: Sequence[str]) -> Measured:
    """Measure what `--policy` names.

    Raises:
        AssayError: it cannot be measured; nothing was spent where a setting or a file is wrong.
    """
    kind, _, what = args.policy.partition(":")
    if kind not in ("endpoint", "folder", "results") or not what:
        raise ConfigError(f"--policy {without_secrets(args.policy)} is none that can be measured: write {_KINDS}.")
    sampled = kind == "endpoint"
    refuse_idle(overrides, NOT_READ_HERE if sampled else (*NOT_READ_HERE, *OF_SAMPLING))
    config = load(EvaluationConfig, args.config, overrides)
    if sampled:
        return asyncio.run(_endpoint(what, config, Which(args.tasks or "heldout", args.k)))
    builder = config.active_builder
    if not isinstance(builder, KernelBenchDatasetBuilder):
        raise ConfigError(
            f"--policy {kind}: holds kernels, and dataset_builder is none of kernels. Choose kernelbench."
        )
    folder = Path(what).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give the folder of a run of KernelBench, such as runs/NAME.")
    problems: Sequence[Problem] = builder.problems()
    if args.tasks == "heldout":
        problems = split_problems(problems, builder.test_fraction)[1]
    head: dict[str, Json] = {"policy": f"{kind}:{folder}", "tasks": len(problems)}
    if kind == "results":
        times = {"eager": args.eager_times, "compile": args.compile_times}
        found = read_results(folder, problems, {name: path for name, path in times.items() if path is not None})
        return kernels_measured(head, config, found, args.k)
    return asyncio.run(_folder(head, folder, config, builder, problems, args.k))


async def _endpoint(what: str, config: EvaluationConfig, which: Which) -> Measured:
    """Play the tasks with an endpoint's answers."""
    url, model = endpoint_of(what)
    with RunProgress() as progress, progress.building() as show:
        data = build_data(config.active_builder, replace(config.build_context(show), chat=True))
    try:
        tasks = [answered(builder) for builder in which.of(data, config.eval.max_tasks)]
        backend = EndpointBackend(
            url,
            model,
            config.endpoint,
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            cache_dir=config.cache_dir,
        )
        try:
            renderer = MessageRenderer(backend.texts)
            evaluation = await play(config, backend, renderer, tasks, ParityConfig(enabled=False))
            usage = await backend.counters()
        finally:
            await backend.close()
    finally:
        await data.close()
    names = ("calls", "cache_hits", "attempts", "failures", "prompt_tokens", "completion_tokens", "usd")
    if kept := int(usage.get("cache_hits", 0)):
        logger.warning(
            "%d replies are those of an earlier evaluation of this URL and model (cache). If another model answers "
            "there by now, measure again with endpoint.cache=false.",
            kept,
        )
    spent = {name: usage[name] for name in names if name in usage}
    head: dict[str, Json] = {"policy": f"endpoint:{url}#{model}", "calls": spent}
    return measured_of(head, config, evaluation, {"policy": evaluation.per_task}, which.ks)


async def _folder(
    head: Mapping[str, Json],
    folder: Path,
    config: EvaluationConfig,
    builder: KernelBenchDatasetBuilder,
    problems: Sequence[Problem],
    ks: Sequence[int],
) -> Measured:
    """Grade the kernels of a folder. A problem without one counts as failed, as it does in KernelBench."""
    kernels = read_kernels(folder)
    asked = [(one, sample) for one in problems for sample in sorted(kernels.get((one.level, one.id), ()))]
    if not asked:
        held = ", ".join(f"{level}/{number}" for level, number in sorted(kernels)[:5])
        raise DataError(
            f"{folder} holds no kernel of the {len(problems)} chosen problems; it has some of {held}. Choose the "
            "problems that it is of (dataset_builder.level, start_problem, end_problem)."
        )
    pool = builder.pool(config.cache_dir.expanduser())
    try:
        with RunProgress() as progress, progress.phase("grading", len(asked)) as phase:

            def on_progress(done: GradingProgress) -> None:
                phase.advance()

            verdicts = await pool.grade_many(
                ((one, kernels[one.level, one.id][sample]) for one, sample in asked), on_progress
            )
    finally:
        await pool.close()
    _check_judged(verdicts, config.max_errored_fraction)
    graded = [(one.key, kernels[one.level, one.id][sample]) for one, sample in asked]
    outcomes = _outcomes(problems, [(key, code, v) for (key, code), v in zip(graded, verdicts, strict=True)])
    missing = sum((one.level, one.id) not in kernels for one in problems)
    others = len(set(kernels) - {(one.level, one.id) for one in problems})
    report = {**head, "without_kernel": missing, "not_chosen": others}
    return kernels_measured(report, config, KernelEvaluation(outcomes, builder.timed_against), ks)


def _check_judged(verdicts: Sequence[Verdict], most: float) -> None:
    """Raise where more than the share `most` of the kernels could not be graded."""
    failed = [verdict for verdict in verdicts if verdict.kind in UNJUDGED]
    if len(failed) > most * len(verdicts):
        ((kind, said), count) = Counter((v.kind, v.message) for v in failed).most_common(1)[0]
        raise TrainingError(
            f"{len(failed)} of {len(verdicts)} kernels could not be graded (max_errored_fraction={most:g}), so the "
            f"figures of the others cannot be trusted. Most frequent reason ({count}): {kind}: {said}"
        )


def _outcomes(problems: Sequence[Problem], graded: Sequence[tuple[str, str, Verdict]]) -> tuple[ProblemOutcomes, ...]:
    """What came of (problem's key, code, verdict), problem by problem."""
    samples: dict[str, list[Outcome]] = {one.key: [] for one in problems}
    errored: Counter[str] = Counter()
    for key, code, verdict in graded:
        if verdict.kind in UNJUDGED:
            errored[key] += 1
        else:
            samples[key].append(of_verdict(verdict, code))
    found, most = [], max(len(samples[one.key]) + errored[one.key] for one in problems)
    for one in problems:
        judged: tuple[Sample, ...] = tuple((outcome,) for outcome in samples[one.key])
        if not judged and not errored[one.key]:
            judged = nothing(most)
        found.append(ProblemOutcomes(one.level, one.id, one.name, judged, errored[one.key], one.hash))
    return tuple(found)
