"""How many submissions are recorded, replayed and judged as they should be, without a value in their host code's sight.

    python benchmarks/kernel_programs.py [--folder exploits/honest ...] [--data kernelbench.jsonl] [--only TEXT]

Each submission is recorded in one sandboxed process, held against the rules for programs, replayed in another on secret
inputs, and compared. Problems are those of the files' headers, or of a first line `# 1/4`. The last line of output is a
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

from assay.errors import DataError, ReferenceModelError
from assay.kernels.config import GraderConfig
from assay.kernels.numerics.reference import ReferenceProcess, fit_problem
from assay.kernels.numerics.secret_inputs import InputBank
from assay.kernels.problems.scaling import unscaled
from assay.kernels.problems.sources import Problem, load_problems, read_jsonl
from assay.kernels.program.trial import Outcome, trial
from assay.kernels.sandboxes import local_sandbox
from assay.sandbox.base import Limits
from common.submissions import read_submission

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "data" / "kernelbench.jsonl"
_LIMITS = Limits(wall_s=20, cpu_s=20)


def read_folder(folder: Path) -> list[tuple[str, str, str, str]]:
    """Name, problem, precision and text of each submission below a folder; CUDA sources are left out."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        try:
            submission = read_submission(path)
        except DataError:
            line = re.match(r"# (\d+/\d+)", code)
            found += [(path.stem, line[1], "float32", code)] if line else []
            continue
        if submission.backend == "triton" and not submission.needs:
            found.append((submission.id, submission.problem, "float32", code))
    return found


class Draws:
    """Draws of the problems, made once each."""

    def __init__(self, problems: dict[str, Problem], process: ReferenceProcess) -> None:
        self._problems, self._process = problems, process
        self._banks: dict[str, InputBank] = {}

    async def take(self, key: str):
        """A draw of a problem, or None where it cannot be graded."""
        if key not in self._problems:
            return None
        if key not in self._banks:
            self._banks[key] = await asyncio.to_thread(self._make, key)
        return await self._banks[key].take()

    def _make(self, key: str) -> InputBank:
        if not key.startswith("kernelbench"):
            return InputBank(unscaled(self._problems[key]), self._process, draws=1, uses=1000, updates=True)
        fitted = fit_problem(self._problems[key], self._process)
        screening = fitted.screening
        return InputBank(fitted.scaled, self._process, draws=1, uses=1000, screening=screening, updates=True)


async def run(folders: list[Path], data: Path, only: str) -> dict[str, object]:
    """Try them all; returns the figures."""
    problems = {problem.key: problem for problem in load_problems("shipped", (1, 2, 3))}
    if data.exists():
        problems |= {f"kernelbench {problem.key}": problem for problem in read_jsonl(data)}
    figures: dict[str, object] = {}
    sandbox = local_sandbox(GraderConfig(workers=1))
    try:
        with ReferenceProcess() as process:
            draws = Draws(problems, process)
            for folder in folders:
                figures[folder.name] = await run_folder(folder, only, draws, sandbox)
    finally:
        await sandbox.close()
    return figures


async def run_folder(folder: Path, only: str, draws: Draws, sandbox) -> dict[str, object]:
    ends: Counter[str] = Counter()
    cpu, told = [], Counter()
    for name, key, precision, code in read_folder(folder):
        if only not in name:
            continue
        try:
            draw = await draws.take(key)
        except ReferenceModelError as error:
            draw = None
            print(f"{name}: {error}", file=sys.stderr)
        if draw is None:
            ends["no_problem"] += 1
            continue
        outcome = await trial(sandbox, code, draw, _LIMITS, precision)
        ends[outcome.end] += 1
        cpu.append(1000 * outcome.cpu_s)
        told.update({finding.rule for finding in outcome.findings})
        print(line_of(name, outcome), file=sys.stderr)
    found = {
        "ends": dict(ends),
        "findings": dict(told),
        "cpu_ms_median": round(statistics.median(cpu), 1) if cpu else 0,
    }
    return found


def line_of(name: str, outcome: Outcome) -> str:
    said = f"{name}: {outcome.end} {outcome.cpu_s * 1000:.0f} ms {outcome.message[:240]!r}"
    told = "; ".join(f"[{finding.rule}] {finding.message}" for finding in outcome.findings)
    return f"{said} (line {outcome.line}) {told[:300]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folders = [ROOT / "exploits" / "honest", ROOT / "benchmarks" / "kernel_solutions"]
    parser.add_argument("--folder", type=Path, nargs="*", default=folders, help="where submissions lie")
    parser.add_argument("--data", type=Path, default=PUBLISHED, help="the published problems, as JSON lines")
    parser.add_argument("--only", default="", help="only those whose name has this in it")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(run(options.folder, options.data, options.only))))


if __name__ == "__main__":
    main()
