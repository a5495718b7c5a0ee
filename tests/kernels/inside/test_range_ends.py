"""Draws of whole numbers that reach both ends of their range."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from assay.kernels.inside.problem.range_ends import RangeEnds
from assay.kernels.numerics.reference import ReferenceProcess

LABELS = """
import torch
import torch.nn.functional as F

batch, classes = 4, 1000


class Model(torch.nn.Module):
    def forward(self, x, labels):
        return F.cross_entropy(x, labels, reduction="none")


def get_inputs():
    return [torch.randn(batch, classes), torch.randint(0, classes, (batch,))]


def get_init_inputs():
    return []
"""


def test_both_ends_are_drawn_in_place_of_the_first_and_the_last() -> None:
    plain, drawn = [], []
    for found in (plain, drawn):
        torch.manual_seed(3)
        with RangeEnds() if found is drawn else torch.no_grad():  # type: ignore[no-untyped-call]
            found += [
                torch.randint(0, 1000, (4, 5)),
                torch.randint(7, (1,)),
                torch.randint(low=-3, high=9, size=(3,), dtype=torch.int32),
                torch.randint(0, 2, (0,)),
                torch.randn(3),
            ]
    ends = [(int(each.view(-1)[0]), int(each.view(-1)[-1])) for each in drawn[:3]]
    assert ends == [(0, 999), (6, 6), (-3, 8)]
    for one, other in zip(plain, drawn, strict=True):
        assert one.dtype == other.dtype and torch.equal(one.view(-1)[1:-1], other.view(-1)[1:-1])
    assert torch.equal(plain[-1], drawn[-1])


def test_families_of_few_labels_have_the_first_and_the_last_one(reference_process: ReferenceProcess) -> None:
    result = reference_process.evaluate(LABELS, input_seed=5, weight_seed=1, precision="float32")
    labels = {case.family: case.inputs[1].array() for case in result.cases}  # type: ignore[union-attr]
    assert {0, 999} <= {int(each) for found in labels.values() for each in found}
    assert {0, 999} <= set(labels["permuted"].tolist())
