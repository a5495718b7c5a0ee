"""A sample of the catalogue through the grader: of every family of attacks some, and of the unusual kernels some.

`python benchmarks/kernel_grading.py` grades all of it.
"""

from __future__ import annotations

import hashlib

import chz
import pytest
from benchmarks.common.submissions import FAMILIES, Submission, read_submissions

from support.kernel_graders import QUICK, Bench
from support.kernelbench_data import ATTACKS, UNUSUAL, shipped

SHIPPED = shipped()
TWO_SIZES = chz.replace(QUICK, scale="fit")
COMPILED = chz.replace(TWO_SIZES, compile_check="right")
"""What is right so far is compiled: of some attacks only the compiler tells."""
EVERY_ATTACK = read_submissions(ATTACKS)
ONE_OF = 20
"""Of so many attacks of a family one is graded here, and two at least."""
FEWEST = 2


def in_mixed_order(found: Submission) -> str:
    """The same order everywhere, in which names mean nothing: a new file takes nobody's place but one."""
    return hashlib.sha256(found.id.encode()).hexdigest()


def sample(family: str) -> list[Submission]:
    """Attacks of a family on shipped problems, without those that are there to use up their time."""
    found = [attack for attack in EVERY_ATTACK if attack.family == family and attack.problem in SHIPPED]
    quick = [a for a in found if "timeout" not in a.expect and not a.needs and a.backend == "triton"]
    return sorted(quick, key=in_mixed_order)[: max(FEWEST, len(found) // ONE_OF)]


SAMPLE = [attack for family in sorted(FAMILIES) for attack in sample(family)]
CONTROLS = sorted(read_submissions(UNUSUAL), key=in_mixed_order)[3::7]


@pytest.mark.parametrize("attack", SAMPLE, ids=lambda attack: attack.id)
def test_an_attack_gets_a_verdict_that_its_file_accepts(bench: Bench, attack: Submission) -> None:
    verdict = bench.grade(SHIPPED[attack.problem], attack.code, COMPILED)
    assert verdict.kind in attack.expect, verdict


@pytest.mark.parametrize("honest", CONTROLS, ids=lambda honest: honest.id)
def test_an_unusual_kernel_is_ok(bench: Bench, honest: Submission) -> None:
    verdict = bench.grade(SHIPPED[honest.problem], honest.code, TWO_SIZES)
    assert verdict.ok, verdict


def test_the_sample_has_every_family() -> None:
    assert {attack.family for attack in SAMPLE} == FAMILIES
    assert len(SAMPLE) >= 50
