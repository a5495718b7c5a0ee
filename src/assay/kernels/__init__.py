"""KernelBench: write a GPU kernel that does what a PyTorch module does; a grader that does not trust it judges it.

verdicts = grade_many([(problem, code), ...])            anywhere, without an event loop
async with GradingPool(GraderConfig()) as pool:          inside one
    verdict = await pool.grade(problem, code)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.kernels.config import GraderConfig
    from assay.kernels.grader import Grader
    from assay.kernels.pool import GradingPool, GradingProgress, grade_many
    from assay.kernels.problems.sources import Problem, find_problem, load_problems, make_problem, read_problem_file
    from assay.kernels.source_text import ParsedReply, parse_reply
    from assay.kernels.verdicts import Verdict
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Grader",
    "GraderConfig",
    "GradingPool",
    "GradingProgress",
    "ParsedReply",
    "Problem",
    "Verdict",
    "find_problem",
    "grade_many",
    "load_problems",
    "make_problem",
    "parse_reply",
    "read_problem_file",
]
