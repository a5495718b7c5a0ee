"""Where tests find problems, submissions and, where it is there, the published data set."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.kernels.problems.sources import Problem, load_problems

ROOT = Path(__file__).parents[2]
ATTACKS = ROOT / "exploits" / "attacks"
HONEST = ROOT / "exploits" / "honest"
UNUSUAL = ROOT / "exploits" / "unusual"
SOLUTIONS = ROOT / "benchmarks" / "kernel_solutions"
PUBLISHED = ROOT.parent / "shared" / "data" / "kernelbench.jsonl"

needs_published = pytest.mark.skipif(not PUBLISHED.exists(), reason=f"the published problems are not at {PUBLISHED}")

TINY = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.relu(x) * self.scale


batch_size = 64
features = 4096


def get_inputs():
    return [torch.rand(batch_size, features)]


def get_init_inputs():
    return [1.5]
"""
"""A problem with one batch size, one other size and no weights."""


def shipped() -> dict[str, Problem]:
    """The shipped problems by `level/id`."""
    return {problem.key: problem for problem in load_problems("shipped", (1, 2, 3))}
