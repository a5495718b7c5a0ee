"""How many correct Triton solutions of published problems the grader takes for right.

    python benchmarks/kernelbench_solutions.py [--data kernelbench.jsonl] [--compile-check off]

The solutions lie in benchmarks/kernel_solutions, written for the problems of levels 1 and 2. Each is graded like any
candidate, at the sizes that the grader picks; `two_sizes` counts those graded at another one too, `published_size`
those recorded at the size of their problem. The last line of output is a JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

from assay.kernels.config import GraderConfig
from assay.kernels.pool import GradingPool
from assay.kernels.problems.sources import read_jsonl
from common.submissions import read_submissions

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "data" / "kernelbench.jsonl"


async def grade(data: Path, compile_check: str) -> dict[str, object]:
    """Grade them all; returns the figures."""
    problems = {f"kernelbench {problem.key}": problem for problem in read_jsonl(data)}
    solutions = [s for s in read_submissions(ROOT / "benchmarks" / "kernel_solutions") if s.problem in problems]
    async with GradingPool(GraderConfig(cache=False, compile_check=compile_check)) as pool:
        verdicts = await pool.grade_many((problems[s.problem], s.code) for s in solutions)
    refused, unseen = {}, {}
    for solution, verdict in zip(solutions, verdicts, strict=True):
        if not verdict.ok:
            refused[solution.id] = f"{verdict.kind} {verdict.cheat}".strip()
            print(f"{solution.id}: {verdict.kind} {verdict.cheat} {verdict.message[:300]}", file=sys.stderr)
        published = str(verdict.evidence.get("published", ""))
        if published.startswith("not looked at"):
            unseen[solution.id] = published[:200]
    levels = Counter(s.problem.split()[1].partition("/")[0] for s in solutions)
    return {
        "solutions": len(solutions),
        "by_level": dict(sorted(levels.items())),
        "ok": sum(verdict.ok for verdict in verdicts),
        "two_sizes": sum(verdict.evidence.get("sizes") == 2 for verdict in verdicts),
        "published_size": sum(verdict.evidence.get("published") == "recorded" for verdict in verdicts),
        "not_at_published_size": unseen,
        "compiled_for_sm_90": sum(verdict.compiled is True for verdict in verdicts),
        "not_ok": refused,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=PUBLISHED, help="the published problems, as JSON lines")
    parser.add_argument("--compile-check", default="right", choices=("right", "all", "off"))
    options = parser.parse_args()
    if not options.data.exists():
        print(json.dumps({"skipped": f"the published problems are not at {options.data}"}))
        return
    print(json.dumps(asyncio.run(grade(options.data, options.compile_check))))


if __name__ == "__main__":
    main()
