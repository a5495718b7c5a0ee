"""The generated family: its solutions are right, its mistakes are not, and no held-out composition is trained on."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest

from assay.envs.kernelbench.family.compositions import Split, compositions
from assay.envs.kernelbench.family.examples import PERFECT, Skill, attempt
from assay.envs.kernelbench.family.modules import Kernel, problem_text, right_lines, solution_text
from assay.envs.kernelbench.family.operators import OPERATORS
from assay.envs.kernelbench.family.tokens import PIECES
from assay.kernels import GraderConfig, grade_many, make_problem

QUICK = GraderConfig(workers=1, cache=False, compile_check="off", scale="none", num_correct_trials=2)
SOLVED = [*islice(compositions(7, "train"), 5), *islice(compositions(7, "heldout"), 2)]


def test_solutions_are_right_and_mistakes_are_not() -> None:
    problems = [make_problem(1, place, "family", problem_text(one), "generated") for place, one in enumerate(SOLVED, 1)]
    right = [(problem, solution_text(one)) for problem, one in zip(problems, SOLVED, strict=True)]
    assert [verdict.kind for verdict in grade_many(right, QUICK)] == ["ok"] * len(SOLVED)
    wrong = [
        (problem, Kernel(one, right_lines(one.names), mistaken=frozenset({"x"})).text())
        for problem, one in zip(problems, SOLVED, strict=True)
    ]
    assert not any(verdict.ok for verdict in grade_many(wrong[:2], QUICK))


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_compositions_depend_on_the_seed_alone_and_keep_to_their_side(split: Split) -> None:
    one, again = (list(islice(compositions(3, split), 100)) for _ in range(2))
    assert one == again != list(islice(compositions(4, split), 100))
    assert {composition.split for composition in one} == {split}
    assert all(2 <= len(composition.statements) <= 4 for composition in one)


def test_no_held_out_composition_is_trained_on() -> None:
    trained = {one.signature for one in islice(compositions(1, "train"), 1000)}
    assert trained.isdisjoint(one.signature for one in islice(compositions(2, "heldout"), 500))


def test_beginners_make_mistakes_and_experts_make_none() -> None:
    rng = np.random.default_rng(0)
    for one in SOLVED:
        assert attempt(one, PERFECT, rng).text() == solution_text(one)
    drawn = [attempt(one, Skill(), rng).text() == solution_text(one) for one in SOLVED * 40]
    assert 0.05 < sum(drawn) / len(drawn) < 0.5


def test_a_module_is_a_hundred_tokens_at_most_and_no_character_is_lost() -> None:
    pieces = re.compile(PIECES)
    for one in islice(compositions(5, "train"), 300):
        for text in (problem_text(one), solution_text(one)):
            found = pieces.findall(text)
            rest = len(pieces.sub("", text))
            assert len(found) + rest <= 100, text


def test_every_operator_has_a_place_in_the_text() -> None:
    assert all("{b}" in "".join(one.triton) for one in OPERATORS.values() if one.kind == "binary")
    assert not any("{b}" in "".join(one.triton) for one in OPERATORS.values() if one.kind != "binary")
