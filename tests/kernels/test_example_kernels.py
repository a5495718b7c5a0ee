"""The kernels in `examples/kernels`: graded `ok` on the problem that each one names, and compiled for a GPU."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from assay.kernels.config import GraderConfig
from support.kernel_graders import Bench
from support.kernelbench_data import ROOT, shipped

EXAMPLES = ROOT / "examples" / "kernels"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_the_example_kernels_are_ok_by_the_command_that_they_name(bench: Bench, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    [command] = [line.strip() for line in text.splitlines() if line.strip().startswith("assay grade --problem")]
    words = shlex.split(command)
    assert ROOT / words[words.index("--kernel") + 1] == path
    verdict = bench.grade(shipped()[words[words.index("--problem") + 1]], text, GraderConfig(cache=False))
    assert verdict.ok and verdict.compiled, verdict
