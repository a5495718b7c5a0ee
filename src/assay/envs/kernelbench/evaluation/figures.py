"""The figures that are published of kernel writers, from what came of their samples. Pure.

    pass@k     probability that one of k samples is right: unbiased (`assay.estimates.pass_at_k`)
    fast_p     share of samples that are right and faster than p times the baseline, strictly; fast_0 asks for right
               ones. With one sample per problem it is KernelBench's own.
    best@k     the same of k samples, each the best of its first t turns

Each problem gives one value and intervals resample problems. Speed that was not measured has no figure, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from assay.envs.kernelbench.evaluation.outcomes import (
    NO_KERNEL,
    KernelEvaluation,
    Outcome,
    ProblemOutcomes,
    Sample,
)
from assay.estimates import estimate, pass_at_k, usual_ks
from assay.kernels.base import TimedAgainst
from assay.types import Json

THRESHOLDS = (0.0, 1.0, 1.2, 2.0)
"""The p of fast_p."""
REPORTED: tuple[TimedAgainst, ...] = ("eager", "compile")
"""Baselines that every summary names, timed or not."""
WORDS: Mapping[str, str] = {"eager": "eager PyTorch", "compile": "torch.compile", "graph": "a CUDA graph of PyTorch"}

Test = Callable[[Outcome], bool]
RATES: Mapping[str, Test] = {
    "format_rate": lambda o: o.kind != NO_KERNEL,
    "compile_rate": lambda o: o.compiled,
    "correct_rate": lambda o: o.correct,
    "cheat_rate": lambda o: o.kind == "cheat",
}
"""Shares of all answers."""
GEOMETRIC = "speedup_geometric_mean"
Value = Callable[[ProblemOutcomes], float | None]
"""A problem's value of some metric; None where it has none."""


def is_fast(p: float, baseline: str, *, surely: bool = False) -> Test:
    """Whether a kernel is right and, for p above 0, faster than p times a baseline.

    With `surely`, the lower bound of its speedup is asked, in place of the speedup itself.
    """

    def test(outcome: Outcome) -> bool:
        known = outcome.lower if surely else outcome.speedups
        return outcome.correct and (p == 0 or known.get(baseline, 0.0) > p)

    return test


def passing(problem: ProblemOutcomes, test: Test, k: int, turns: int) -> float | None:
    """Probability that one of `k` samples has an answer that passes in its first `turns`; None with fewer samples."""
    n = len(problem.samples)
    if n < k:
        return None
    return pass_at_k(n, sum(any(map(test, sample[:turns])) for sample in problem.samples), k)


def share(problem: ProblemOutcomes, test: Test) -> float | None:
    """Share of all answers to a problem, over samples and turns, that pass."""
    answers = [outcome for sample in problem.samples for outcome in sample]
    return sum(map(test, answers)) / len(answers) if answers else None


def _passing(test: Test, k: int, turns: int) -> Value:
    return lambda problem: passing(problem, test, k, turns)


def _share(test: Test) -> Value:
    return lambda problem: share(problem, test)


def _speedup(baseline: str, scale: Callable[[float], float] = float) -> Value:
    """A problem's mean speedup on some scale, over its right samples; None where none has one."""

    def value(problem: ProblemOutcomes) -> float | None:
        found = [scale(s) for sample in problem.samples if (s := best_speedup(sample, baseline)) is not None]
        return sum(found) / len(found) if found else None

    return value


def best_speedup(sample: Sample, baseline: str) -> float | None:
    """The best speedup of a sample's right kernels; None where none has one."""
    return max((o.speedups[baseline] for o in sample if o.correct and baseline in o.speedups), default=None)


def summary(evaluation: KernelEvaluation, ks: Sequence[int] = ()) -> dict[str, Json]:
    """All figures: of all problems together (`all`), and of each level (`level1`, ...).

    Args:
        evaluation: what came of the samples.
        ks: the k of pass@k and best@k; powers of 2 where none are given.
    """
    ks = tuple(ks) or usual_ks(evaluation.max_samples)
    return {name: _block(problems, evaluation, ks) for name, problems in _parts(evaluation).items()}


def _parts(evaluation: KernelEvaluation) -> dict[str, tuple[ProblemOutcomes, ...]]:
    """All problems, and those of each level."""
    levels = sorted({problem.level for problem in evaluation.problems})
    of_level = {f"level{level}": tuple(p for p in evaluation.problems if p.level == level) for level in levels}
    return {"all": evaluation.problems, **of_level}


def notes(evaluation: KernelEvaluation) -> list[str]:
    """What is to be said of the figures: what was not measured, and why some of them are null."""
    return list(_notes(evaluation))


def _notes(evaluation: KernelEvaluation) -> Iterator[str]:
    if missing := [WORDS[name] for name in REPORTED if name not in evaluation.timed]:
        yield (
            f"Speed was not measured against {' or '.join(missing)}, so these figures are null. On a GPU set "
            "dataset_builder.measure_performance=true and dataset_builder.grader.baselines=eager,compile."
        )
    if empty := sum(not problem.samples for problem in evaluation.problems):
        all_ = len(evaluation.problems)
        yield f"{empty} of {all_} problems have no sample that could be judged, and are in no figure."
    if errored := sum(problem.errored for problem in evaluation.problems):
        yield f"{errored} samples could not be judged, and are in no figure."
    for baseline in evaluation.timed:
        if withheld := _withheld(evaluation.problems, baseline):
            yield (
                f"{withheld} right kernels have no speedup over {WORDS[baseline]} (it was withheld, or not measured); "
                "they count as right, and as no faster than anything."
            )


def _block(problems: Sequence[ProblemOutcomes], evaluation: KernelEvaluation, ks: Sequence[int]) -> dict[str, Json]:
    judged = [problem for problem in problems if problem.samples]
    turns = evaluation.max_turns
    return {
        "problems": len(problems),
        "judged_problems": len(judged),
        "samples": sum(len(problem.samples) for problem in judged),
        "errored_samples": sum(problem.errored for problem in problems),
        **{name: _over(judged, _share(test)) for name, test in RATES.items()},
        "pass_at": {str(k): _over(judged, _passing(is_fast(0, ""), k, turns)) for k in ks},
        "fast_p": {name: _fast(judged, evaluation, name, 1, turns) for name in _baselines(evaluation)},
        "fast_p_lower": {name: _surely_fast(judged, name, turns) for name in evaluation.timed},
        "speedup": {name: _speedups(judged, evaluation, name) for name in _baselines(evaluation)},
        "best_at": [_best(judged, evaluation, k, t) for t in range(1, turns + 1) for k in ks],
    }


def _baselines(evaluation: KernelEvaluation) -> tuple[str, ...]:
    return (*REPORTED, *(name for name in evaluation.timed if name not in REPORTED))


def _over(problems: Sequence[ProblemOutcomes], value: Value) -> Json:
    """The estimate of a value over the problems that have it; null where none has."""
    found = estimate([v for problem in problems if (v := value(problem)) is not None])
    return None if found is None else found.to_json()


def _fast(
    problems: Sequence[ProblemOutcomes], evaluation: KernelEvaluation, baseline: str, k: int, turns: int
) -> dict[str, Json]:
    """fast_p for each p: k samples, the best of their first `turns`; null where speed decides and was not measured."""
    return {
        f"{p:g}": (
            _over(problems, _passing(is_fast(p, baseline), k, turns))
            if p == 0 or baseline in evaluation.timed
            else None
        )
        for p in THRESHOLDS
    }


def _surely_fast(problems: Sequence[ProblemOutcomes], baseline: str, turns: int) -> Json:
    """fast_p by the lower bounds of speedups; null where they are not known, as in results of others."""
    if not any(baseline in o.lower for problem in problems for sample in problem.samples for o in sample):
        return None
    tests = {f"{p:g}": is_fast(p, baseline, surely=True) for p in THRESHOLDS[1:]}
    return {p: _over(problems, _passing(test, 1, turns)) for p, test in tests.items()}


def _best(problems: Sequence[ProblemOutcomes], evaluation: KernelEvaluation, k: int, turns: int) -> dict[str, Json]:
    fast = {name: _fast(problems, evaluation, name, k, turns) for name in evaluation.timed}
    correct = _over(problems, _passing(is_fast(0, ""), k, turns))
    return {"turns": turns, "samples": k, "correct": correct, "fast_p": fast or None}


def _speedups(problems: Sequence[ProblemOutcomes], evaluation: KernelEvaluation, baseline: str) -> Json:
    """Mean and geometric mean of the speedups of right kernels, over the problems with one."""
    if baseline not in evaluation.timed:
        return None
    geometric = _over(problems, _speedup(baseline, math.log))
    if geometric is not None:
        bounds = {name: None if value is None else math.exp(value) for name, value in geometric.items()}
        geometric = {**bounds, "n": geometric["n"]}
    return {
        "mean": _over(problems, _speedup(baseline)),
        "geometric_mean": geometric,
        "withheld": _withheld(problems, baseline),
    }


def _withheld(problems: Sequence[ProblemOutcomes], baseline: str) -> int:
    answers = (outcome for problem in problems for sample in problem.samples for outcome in sample)
    return sum(outcome.correct and baseline not in outcome.speedups for outcome in answers)


def per_problem(evaluation: KernelEvaluation, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    """Metric -> problem -> value, for comparisons in pairs; the metric that matters most first.

    Args:
        evaluation: what came of the samples.
        ks: the k of pass@k beyond 1.
    """
    turns = evaluation.max_turns
    metrics: dict[str, Value] = {
        "correct": _passing(is_fast(0, ""), 1, turns),
        **{f"pass@{k}": _passing(is_fast(0, ""), k, turns) for k in ks if k > 1},
        "compile_rate": _share(RATES["compile_rate"]),
    }
    for name in evaluation.timed:
        metrics |= {f"fast_{p:g} ({name})": _passing(is_fast(p, name), 1, turns) for p in THRESHOLDS[1:]}
        metrics[f"log2 speedup ({name})"] = _speedup(name, math.log2)
    return {
        name: {p.key: v for p in evaluation.problems if (v := value(p)) is not None} for name, value in metrics.items()
    }


def means(evaluation: KernelEvaluation, ks: Sequence[int] = ()) -> dict[str, float]:
    """The figures of a summary that are followed over a training, without intervals: `all/pass@1`, `level1/fast_1.2`.

    Figures of speed are there for each baseline that was timed; those of eager PyTorch have no ending.
    """
    values = _followed(evaluation, tuple(ks) or usual_ks(evaluation.max_samples))
    found = {}
    for part, problems in _parts(evaluation).items():
        judged = [problem for problem in problems if problem.samples]
        for name, value in values.items():
            known = [v for problem in judged if (v := value(problem)) is not None]
            if known:
                mean = sum(known) / len(known)
                found[f"{part}/{name}"] = math.exp(mean) if name.startswith(GEOMETRIC) else mean
    return found


def _followed(evaluation: KernelEvaluation, ks: Sequence[int]) -> dict[str, Value]:
    turns, right = evaluation.max_turns, is_fast(0, "")
    found = {name: _share(test) for name, test in RATES.items()}
    found |= {f"pass@{k}": _passing(right, k, turns) for k in ks}
    found["fast_0"] = _passing(right, 1, turns)
    for baseline in evaluation.timed:
        end = "" if baseline == "eager" else f"_{baseline}"
        found |= {f"fast_{p:g}{end}": _passing(is_fast(p, baseline), 1, turns) for p in THRESHOLDS[1:]}
        found |= {f"speedup_mean{end}": _speedup(baseline), f"{GEOMETRIC}{end}": _speedup(baseline, math.log)}
    return found


def tag_of(name: str) -> str:
    """The tag under which TensorBoard shows one of `means`: `Eval/Level1/Pass@1`, `Eval/All/Fast1.2x`, ..."""
    part, _, metric = name.partition("/")
    return f"Eval/{part.capitalize()}/{_TAGS.get(metric) or metric.capitalize()}"


_ENDS = ("", *(f"_{name}" for name in WORDS if name != "eager"))
_TAGS: Mapping[str, str] = {
    "format_rate": "FormatRate",
    "compile_rate": "CompileRate",
    "correct_rate": "CorrectRate",
    "cheat_rate": "CheatRate",
    **{f"fast_{p:g}{end}": f"Fast{p:g}x{end}" for p in THRESHOLDS for end in _ENDS},
    **{f"speedup_mean{end}": f"MeanSpeedup{end}" for end in _ENDS},
    **{f"{GEOMETRIC}{end}": f"GeometricMeanSpeedup{end}" for end in _ENDS},
}
"""Name of a figure in `means` -> its tag; `pass@k` is `Pass@k`."""
MOST_SAMPLES = 128
"""Samples of a problem up to which `pass@k` has a tag in training."""
FIGURES = (*_TAGS, *(f"pass@{k}" for k in range(1, MOST_SAMPLES + 1)))
"""Names that `means` may have."""
