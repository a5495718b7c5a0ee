"""The reward `kernelbench`: a completion's kernel graded for the problem that its sample names.

    assay score --input kernels.jsonl --reward kernelbench            {"response": "```python ...", "problem": "1/3"}

The kernel is untrusted: it runs in the grader's sandbox. What the grader cannot judge is errored, and never a 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from assay.config import Layer, build, resolved
from assay.config.sources import flatten
from assay.errors import DataError
from assay.kernels.config import GraderConfig
from assay.kernels.grader import VERSION
from assay.kernels.pool import GradingPool
from assay.kernels.problems.sources import DatasetSource, Problem, find_problem, load_problems
from assay.kernels.sandboxes import require_packages
from assay.kernels.source_text import parse_reply
from assay.kernels.verdicts import Verdict, VerdictKind
from assay.rewards.base import Sample
from assay.rewards.functions.returned import errored
from assay.types import Json, Score

UNJUDGED: frozenset[VerdictKind] = frozenset({"infra_error", "unsupported", "compiled_not_run"})
"""Verdicts that say nothing of whether a kernel is right."""


class KernelReward:
    """The reward of a kernel: a `DirectReward` (`assay.rewards.base`).

    Args:
        correct: earned by a kernel that is right, by its own work (verdict `ok`).
        format: earned by a completion with a kernel that a compiler takes, right or not.
        grader: settings of `GraderConfig`, by name.
        dataset_src, problems_path, revision: where problems are looked up, as for `assay grade`.

    Raises:
        ConfigError: unknown settings, or impossible ones.
        MissingDependencyError: a package that grading needs is not installed.
    """

    name = "kernelbench"
    asks_judge = False
    parts = ("format", "correct")

    def __init__(
        self,
        correct: float = 1.0,
        format: float = 0.0,
        grader: Mapping[str, Json] | None = None,
        dataset_src: DatasetSource = "shipped",
        problems_path: str | None = None,
        revision: str | None = None,
    ) -> None:
        self.weights = {"correct": float(correct), "format": float(format)}
        self._config = build(GraderConfig, [Layer("options.grader", flatten(grader or {}, "options.grader"))])
        require_packages(self._config)
        self._source = dataset_src, problems_path, revision
        self._levels: dict[int, tuple[Problem, ...]] = {}
        self._pool: GradingPool | None = None
        what = [self.weights, resolved(self._config), VERSION]
        self.fingerprint = f"kernelbench:{hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]}"

    async def evaluate(self, sample: Sample) -> Score:
        """See `DirectReward`. A completion without a kernel is invalid.

        Raises:
            DataError: the sample names no problem, or one that there is not.
        """
        problem = self._problem(sample)
        reply = parse_reply(sample.response)
        if not reply.format_ok:
            evidence = {"problem": problem.key, "message": reply.message}
            return Score("invalid", 0.0, dict.fromkeys(self.parts, 0.0), evidence)
        if self._pool is None:
            self._pool = GradingPool(self._config)
        return score_of_verdict(await self._pool.grade(problem, reply.code), problem.key, self.weights)

    async def close(self) -> None:
        """End the grader; what is scored afterwards starts another."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def _problem(self, sample: Sample) -> Problem:
        named = sample.extra.get("problem")
        level, slash, number = str(named or "").partition("/")
        if not (slash and level.isdigit() and number.isdigit()):
            raise DataError(
                f"The reward kernelbench needs a column `problem` with level/id, such as 1/3, and it is {named!r}. "
                f"The columns are {', '.join(sample.extra) or 'none'}."
            )
        if int(level) not in self._levels:
            dataset_src, path, revision = self._source
            self._levels[int(level)] = load_problems(dataset_src, (int(level),), path, revision)
        return find_problem(self._levels[int(level)], int(level), int(number))


def score_of_verdict(verdict: Verdict, problem: str, weights: Mapping[str, float]) -> Score:
    """The score of a verdict: `invalid` where no compiler takes the kernel, else right or not."""
    if verdict.kind in UNJUDGED:
        return errored("reward", f"problem {problem} could not be graded ({verdict.kind}): {verdict.message}")
    parts = {"format": float(verdict.kind != "compile_error"), "correct": float(verdict.ok)}
    evidence = {
        "problem": problem,
        "verdict": verdict.kind,
        "stage": verdict.stage,
        "message": verdict.message,
        "cheat": verdict.cheat,
    }
    value = sum(weights[name] * part for name, part in parts.items())
    return Score("scored" if parts["format"] else "invalid", value, parts, evidence, cached=verdict.cached)
