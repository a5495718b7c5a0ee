"""The reward `kernelbench`: a completion's kernel graded for the problem that its sample names, scored as in training.

    assay score --input kernels.jsonl --reward kernelbench            {"response": "<KERNEL>...", "problem": "1/3"}

The kernel is untrusted: it runs in the grader's sandbox. What the grader cannot judge is errored, and never a 0. Its
options are the keys of `dataset_builder` that say where problems are, how kernels are graded and what they earn; by
default kernels are graded on this machine, for the problems that Assay ships.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import chz

from assay.config import Layer, build, resolved
from assay.config.sources import flatten
from assay.envs.kernelbench.grading import KernelGrading
from assay.envs.kernelbench.reply import read_reply
from assay.envs.kernelbench.rewards import evaluation, is_unjudged, score_of, signals_of, unjudged
from assay.errors import DataError
from assay.kernels.grader import VERSION
from assay.kernels.pool import GradingPool, require_grader
from assay.kernels.problems.sources import DatasetSource, Problem, find_problem
from assay.rewards.base import Sample
from assay.types import Json, Score


@chz.chz
class KernelRewardOptions(KernelGrading):
    """Options of the reward `kernelbench`."""

    dataset_src: DatasetSource = "shipped"
    """Where problems are looked up: `shipped`, `huggingface`, `local`, `jsonl` or `corpus`."""
    use_modal: bool = False
    """Grade kernels on GPUs at Modal, which needs its tokens; otherwise on this machine, as `grader.device` says."""


class KernelReward:
    """The reward of a kernel: a `DirectReward` (`assay.rewards.base`).

    Args:
        options: settings of `KernelRewardOptions`, by name, nested or dotted.

    Raises:
        ConfigError: unknown settings, or impossible ones.
        MissingDependencyError: a package that grading needs is not installed.
        GradingServiceError: the grading service at `grader.url` does not answer, or is of another version.
    """

    name = "kernelbench"
    asks_judge = False
    parts = ("format", "compile", "correctness", "speed", "length", "thinking")

    def __init__(self, **options: Any) -> None:
        self.options = build(KernelRewardOptions, [Layer("options", flatten(options, "options"))])
        self.options.check_tokens()
        self._config = self.options.grading()
        require_grader(self._config)
        self._levels: dict[int, tuple[Problem, ...]] = {}
        self._pool: GradingPool | None = None
        what = [resolved(self.options), VERSION]
        self.fingerprint = f"kernelbench:{hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]}"

    async def evaluate(self, sample: Sample) -> Score:
        """See `DirectReward`. A completion without a kernel is invalid.

        Raises:
            DataError: the sample names no problem, or one that there is not.
        """
        problem = self._problem(sample)
        reply = read_reply(sample.response)
        verdict = None
        if reply.format_ok:
            if self._pool is None:
                self._pool = GradingPool(self._config)
            verdict = await self._pool.grade(problem, reply.kernel)
        evidence: dict[str, Json] = {
            "problem": problem.key,
            "eval_result": evaluation(verdict, reply.kernel, reply.message),
        }
        if verdict is not None and is_unjudged(verdict, self.options.reward):
            return unjudged(verdict, problem.key, evidence)
        signals = signals_of(verdict, code=reply.kernel, thought=reply.thought)
        return score_of(signals, self.options.rules, evidence, cached=verdict is not None and verdict.cached)

    async def close(self) -> None:
        """End the grader; what is scored afterwards starts another."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def _problem(self, sample: Sample) -> Problem:
        named = sample.extra.get("problem")
        level, slash, number = str(named or "").partition("/")
        if not (slash and _is_number(level) and _is_number(number)):
            raise DataError(
                f"The reward kernelbench needs a column `problem` with level/id, such as 1/3, and it is {named!r:.80}. "
                f"The columns are {', '.join(sample.extra) or 'none'}."
            )
        if int(level) not in self._levels:
            self._levels[int(level)] = self.options.load((int(level),))
        return find_problem(self._levels[int(level)], int(level), int(number))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
