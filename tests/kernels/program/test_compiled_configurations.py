"""Configurations that no GPU runs prove nothing: a submission is right in those that compile."""

from __future__ import annotations

from collections.abc import Iterator

import chz
import pytest

from assay.kernels.grader import Grader
from assay.kernels.problems.sources import load_problems
from support.kernel_graders import QUICK, Bench
from support.trials import SNAKE, snaking

TUNED = """
@triton.autotune([triton.Config({"LAZY": lazy, "ROOM": room}) for lazy, room in CONFIGURATIONS], key=[])
@triton.jit
def tuned(x_ptr, f_ptr, y_ptr, n, F, LAZY: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(ROOM >= 0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    if LAZY:
        tl.store(y_ptr + i, x, mask=i < n)
    else:
        a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
        s = tl.sin(a * x)
        tl.store(y_ptr + i, x + s * s / a, mask=i < n)
"""
FORWARD = """
y = torch.empty_like(x)
tuned[(triton.cdiv(x.numel(), 512),)](x, self.frequency, y, x.numel(), x.shape[-1], BLOCK=512)
return y
"""


def submission(configurations: str) -> str:
    return snaking(FORWARD, TUNED.replace("CONFIGURATIONS", configurations))


LACKING = "[(False, -room) for room in range(1, 27)]"
CASES = {
    "some do not compile": ("[(False, -1), (False, 4)]", "ok", "1 of 2 configurations do not compile"),
    "all that compile are right": (f"{LACKING} + [(False, 8)]", "ok", "of 27 configurations do not compile"),
    "the one that compiles is wrong": (f"{LACKING} + [(True, 4)]", "wrong", ""),
    "none compiles": (LACKING, "compile_error", ""),
}


@pytest.fixture(scope="module", params=["right", "all"])
def grader(request: pytest.FixtureRequest, bench: Bench) -> Iterator[Grader]:
    """Compiles what is right, or everything before it is replayed."""
    config = chz.replace(QUICK, compile_check=request.param)
    made = Grader(config, sandbox=bench.sandbox, reference=bench.reference)
    yield made
    bench.wait(made.close())


@pytest.mark.parametrize("name", CASES)
def test_only_configurations_that_compile_count(bench: Bench, grader: Grader, name: str) -> None:
    configurations, kind, said = CASES[name]
    problem = next(one for one in load_problems("shipped", (1,)) if one.key == SNAKE)
    verdict = bench.wait(grader.grade(problem, submission(configurations)))
    assert verdict.kind == kind, verdict
    assert said in str(verdict.evidence.get("compiler"))


REBOUND = """
LEAST = tl.constexpr(0)

@triton.jit
def spared(room, least=LEAST):
    return room >= least

LEAST = tl.constexpr(5)

"""
"""A helper that holds for every ROOM from 0 on to Triton, and for those from 5 on in its text."""


def test_a_configuration_that_the_text_alone_refuses_is_not_passed_over(bench: Bench, grader: Grader) -> None:
    """It is left out of what is replayed, and on a GPU a tuner may choose it."""
    kernel = REBOUND + TUNED.replace("tl.static_assert(ROOM >= 0)", "tl.static_assert(spared(ROOM))")
    problem = next(one for one in load_problems("shipped", (1,)) if one.key == SNAKE)
    for configurations, kind in (("[(False, 8), (False, 9)]", "ok"), ("[(True, 1), (False, 8)]", "unsupported")):
        code = snaking(FORWARD, kernel.replace("CONFIGURATIONS", configurations))
        verdict = bench.wait(grader.grade(problem, code))
        assert verdict.kind == kind, verdict
    assert "Triton reads another kernel in tuned" in verdict.message
