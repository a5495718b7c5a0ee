"""Problems under other names and constants are found; other problems are not taken for them."""

from __future__ import annotations

import itertools
import json

import pytest

from assay.kernels.problems.sources import read_shipped
from assay.retrieval.duplicates import near_duplicates, signature
from support.kernelbench_data import PUBLISHED, needs_published
from support.synthetic_problems import disguised, recipes, write_module

SHIPPED = {problem.key: problem.code for problem in read_shipped()}


@pytest.mark.parametrize("key", sorted(SHIPPED))
def test_a_problem_under_other_names_and_constants_is_found(key: str) -> None:
    code = SHIPPED[key]
    other = disguised(code)
    assert other != code
    assert near_duplicates(signature(code), signature(other))


def test_no_two_shipped_problems_are_one_but_the_gates() -> None:
    """SwiGLU is the other's gate with one more product."""
    made = {key: signature(code) for key, code in SHIPPED.items()}
    pairs = {frozenset((a, b)) for a, b in itertools.combinations(made, 2) if near_duplicates(made[a], made[b])}
    assert pairs <= {frozenset(("2/1", "3/1"))}


def test_one_operator_less_or_other_makes_another_problem() -> None:
    for place, recipe in enumerate(recipes(150, 3)):
        own = signature(write_module(recipe, place))
        for seed in range(1000, 5000, 1000):
            assert near_duplicates(own, signature(write_module(recipe, place + seed))), recipe
        assert not near_duplicates(own, signature(write_module((*recipe[:-1], "hardsigmoid", "erf"), place))), recipe
        assert not near_duplicates(own, signature(write_module((*recipe, "sort"), place))), recipe


def test_modules_that_call_nothing_are_compared_by_their_text() -> None:
    one = "class A:\n    def forward(self, x):\n        return x[0] if x is None else x"
    other = "class B:\n    def forward(self, a, b):\n        while a < b:\n            a = b[a]\n        return a, b, a"
    assert near_duplicates(signature(one), signature(one.replace("x", "renamed")))
    assert not near_duplicates(signature(one), signature(other))


FAMILIES = ("matmul", "matrix", "conv_standard", "conv_transposed", "mlp", "vgg", "densenet", "lstm", "gru", "resnet")
FAMILIES += ("gemm_scale_batchnorm", "norm", "efficientnet")
"""Parts of the names of published problems that are one computation at several sizes, or nearly."""


@needs_published
def test_of_the_published_problems_only_those_of_one_family_are_one() -> None:
    rows = [json.loads(line) for line in PUBLISHED.read_text().splitlines()]
    made = {f"{row['level']}/{row['name']}": signature(row["code"]) for row in rows}
    for row in rows:
        own = made[f"{row['level']}/{row['name']}"]
        assert near_duplicates(own, signature(disguised(row["code"]))), row["name"]
    found = [(a, b) for a, b in itertools.combinations(made, 2) if near_duplicates(made[a], made[b])]
    strangers = [(a, b) for a, b in found if not any(part in a.lower() and part in b.lower() for part in FAMILIES)]
    assert all({"matmul", "matrix"} & {p for p in FAMILIES if p in (a + b).lower()} for a, b in strangers), strangers
    assert len(found) < 0.01 * len(rows) ** 2 / 2
