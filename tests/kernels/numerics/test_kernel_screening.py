"""Screening: each reason by a small problem run for real, what passes, and the published problems known to be empty."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from assay.kernels.arrays import Array, host_tensor
from assay.kernels.numerics import secret_inputs
from assay.kernels.numerics.families import FAMILIES
from assay.kernels.numerics.rearranged import moved_outputs, only_moves
from assay.kernels.numerics.reference import ReferenceProcess, ReferenceResult, fit_problem, screening_of
from assay.kernels.numerics.screening import Case, Screening, screen
from assay.kernels.numerics.secret_inputs import InputBank
from assay.kernels.problems.scaling import scale, unscaled
from assay.kernels.problems.sources import find_problem, load_problems, make_problem
from support.kernelbench_data import PUBLISHED, needs_published, shipped


def module(forward: str, init: str = "pass", inputs: str = "[torch.rand(6, 40)]") -> str:
    return f"""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, *rest):
        {forward}


def get_inputs():
    return {inputs}


def get_init_inputs():
    return []
"""


LINEAR = "self.linear = nn.Linear(40, 30)"
STATE = 'self.register_buffer("mean", torch.zeros(40))'
DEGENERATE = {
    "no_output": module("return torch.empty(0)"),
    "non_finite": module("return torch.log(x - 2.0)"),
    "stateful": module("self.mean.mul_(0.9).add_(0.1 * x.mean(0)); return torch.sin(x - self.mean)", STATE),
    "nondeterministic": module("return nn.functional.dropout(x, 0.5, training=True)"),
    "zero": module("return torch.relu(-x.abs())"),
    "constant": module("return x * 0.0 + 2.5"),
    "input_independent": module("return torch.arange(40.0) * torch.ones_like(x)"),
    "identity": module("return torch.nn.functional.dropout(x, 0.5, training=False)"),
    "weight_independent": module("self.linear(x); return torch.sin(x)", LINEAR),
    "tolerance_exceeds_signal": module("return 1000.0 + 1e-3 * torch.tanh(x) + x.mean()"),
}


@pytest.mark.parametrize("reason", DEGENERATE)
def test_each_reason_by_a_problem(reference_process: ReferenceProcess, reason: str) -> None:
    result = reference_process.evaluate(DEGENERATE[reason], input_seed=3, weight_seed=0, for_screening=True)
    found = screening_of(result)
    assert found.reason == reason and not found.rewarded and found.detail
    assert found.to_json()["reason"] == reason


EARNEST = {
    "a product": module("return self.linear(x)", LINEAR),
    "a scalar": module("return x.square().mean()"),
    "whole numbers": module("return x.argmax(dim=1)"),
    "a domain of positive numbers": module("return torch.sqrt(x)"),
    "several outputs": module("return x.sum(dim=0), {'top': x.max(), 'bits': x > 0.3}"),
    "a product that saturates on large inputs": module("return torch.sigmoid(x * 3)"),
    "complex numbers": module("return torch.fft.rfft(x)"),
    "two inputs of which one is a mask": module(
        "return x.masked_fill(rest[0], -1.0)", inputs="[torch.rand(6, 40), torch.ones(6, 40).triu().bool()]"
    ),
}


@pytest.mark.parametrize("name", EARNEST)
def test_real_problems_pass(reference_process: ReferenceProcess, name: str) -> None:
    result = reference_process.evaluate(EARNEST[name], input_seed=3, weight_seed=0, for_screening=True)
    found = screening_of(result)
    assert found.rewarded, found


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("x.sub_(1e-5 * rest[0]); return torch.sin(rest[0])", "tolerance_exceeds_signal"),
        ("x.sub_(5e-3 * rest[0]); return torch.sin(rest[0])", None),
        ("x.sub_(1e-5 * rest[0]); return torch.sin(rest[0]), x", None),  # shown, and judged as an output
    ],
)
def test_a_change_of_an_input_must_be_more_than_the_tolerance(
    reference_process: ReferenceProcess, forward: str, reason: str | None
) -> None:
    code = module(forward, inputs="[torch.rand(6, 40) + 1, torch.rand(6, 40)]")
    result = reference_process.evaluate(code, input_seed=3, weight_seed=0, for_screening=True)
    found = screening_of(result)
    assert found.reason == reason and ("changes input 0" in found.detail) == bool(reason), found


def test_families_that_prove_nothing_are_named(reference_process: ReferenceProcess) -> None:
    saturated = reference_process.evaluate(
        module("return torch.clamp(x - 0.5, 0, 1)"), input_seed=0, weight_seed=0, for_screening=True
    )
    assert screening_of(saturated).rewarded
    fussy = reference_process.evaluate(
        module("return x / ((x >= 0).all() & (x.std() > 0.27) & (x.std() < 0.32))"),
        **{"input_seed": 0, "weight_seed": 0, "for_screening": True},
    )
    assert set(screening_of(fussy).dropped_families) == {"signed", "large", "sparse"}


def test_a_domain_of_positive_numbers_costs_no_family(reference_process: ReferenceProcess) -> None:
    roots = reference_process.evaluate(
        EARNEST["a domain of positive numbers"], input_seed=0, weight_seed=0, for_screening=True
    )
    assert screening_of(roots).dropped_families == ()


def case(family: str, exact: Array, rounded: Array | None = None) -> Case:
    return Case(family, (host_tensor([1.0, 2.0], "float32"),), (exact,), (exact if rounded is None else rounded,))


def test_a_reference_that_drowns_in_its_own_rounding_is_refused() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(100)
    noisy = case("given", exact, exact + 0.1 * rng.standard_normal(100))
    assert screen([noisy]).reason == "tolerance_exceeds_signal"
    quiet = case("given", exact, exact + 1e-6)
    found = screen([quiet, case("signed", exact * 2, exact * 3)])
    assert found.rewarded and found.dropped_families == ("signed",)


def test_whole_numbers_that_hang_on_rounding_decide_nothing() -> None:
    exact = np.arange(20)
    flipped = exact.copy()
    flipped[3] = 0
    assert screen([case("given", exact, flipped)]).reason == "tolerance_exceeds_signal"
    assert screen([case("given", exact)]).rewarded


def test_nothing_to_compare_is_refused() -> None:
    assert screen([]).reason == "no_output"
    assert screen([Case("given", (), (), ())]).reason == "no_output"


def test_shipped_problems_are_all_worth_a_reward(reference_process: ReferenceProcess) -> None:
    refused = {}
    for key, problem in shipped().items():
        result = reference_process.evaluate(problem.code, input_seed=11, weight_seed=0, for_screening=True)
        if screening_of(result).reason:
            refused[key] = screening_of(result)
    assert not refused


PUBLISHED_EMPTY = {23: "tolerance_exceeds_signal", 36: "constant", 80: "zero"}


@needs_published
@pytest.mark.parametrize("number", PUBLISHED_EMPTY)
def test_published_problems_that_are_empty(reference_process: ReferenceProcess, number: int) -> None:
    problem = find_problem(load_problems("jsonl", (2,), PUBLISHED), 2, number)
    result = reference_process.evaluate(scale(problem, 32).code, input_seed=0, weight_seed=0, for_screening=True)
    assert screening_of(result).reason == PUBLISHED_EMPTY[number]


@needs_published
def test_a_published_problem_that_only_large_and_sparse_inputs_fill(reference_process: ReferenceProcess) -> None:
    problem = find_problem(load_problems("jsonl", (2,), PUBLISHED), 2, 9)
    fitted = fit_problem(problem, reference_process)
    assert fitted.screening.rewarded
    assert set(fitted.screening.constant_families) == set(FAMILIES) - {"large", "sparse"}


def test_losses_are_scalars_and_worth_a_reward(reference_process: ReferenceProcess) -> None:
    inputs = "[torch.rand(8, 40), torch.randint(0, 2, (8, 40)).float() * 2 - 1]"
    hinge = module("return torch.mean(torch.clamp(1 - x * rest[0], min=0))", inputs=inputs)
    squared = module("return torch.mean((x - rest[0]) ** 2)", inputs="[torch.rand(8, 40), torch.rand(8, 40)]")
    for code in (hinge, squared):
        result = reference_process.evaluate(code, input_seed=1, weight_seed=0, for_screening=True)
        assert result.outputs == (("float32", ()),)
        assert screening_of(result).rewarded


def test_weights_that_start_at_zero_count_for_nothing_until_they_are_moved(reference_process: ReferenceProcess) -> None:
    code = module("return x + self.bias", "self.bias = nn.Parameter(torch.zeros(40))")
    still = reference_process.evaluate(code, input_seed=1, weight_seed=0, for_screening=True)
    moved = reference_process.evaluate(code, input_seed=1, weight_seed=0, for_screening=True, perturb_weights=True)
    assert screening_of(still).reason == "identity"
    assert screening_of(moved).rewarded


CLAMPED = make_problem(
    2, 83, "83_like", module("return torch.clamp(self.linear(x).abs().min() - 1e9, min=0.0)", LINEAR), "here"
)


def test_a_minimum_clamped_to_zero_is_refused_at_every_size(reference_process: ReferenceProcess) -> None:
    assert fit_problem(CLAMPED, reference_process).screening.reason == "zero"


def test_a_problem_is_screened_beside_the_event_loop(
    reference_process: ReferenceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def watched(result: ReferenceResult) -> Screening:
        threads.append(threading.current_thread())
        return screening_of(result)

    monkeypatch.setattr(secret_inputs, "screening_of", watched)
    asyncio.run(InputBank(unscaled(shipped()["1/1"]), reference_process).ready())
    assert threads and threading.main_thread() not in threads


MOVES = {
    "a mask": ("x * torch.tril(torch.ones_like(x))", True),
    "repeated elements": ("nn.functional.interpolate(x[None], scale_factor=2, mode='nearest')", True),
    "the other way round": ("x.flip(0), x[:, ::2]", True),
    "beside zeros": ("torch.cat([torch.zeros_like(x), x.t().reshape(6, 40)])", True),
    "windows": ("nn.functional.unfold(x[None, None], 3)", True),
    "positive ones alone": ("torch.relu(x)", False),
    "the largest": ("x.max(1).values", False),
    "in order": ("x.sort(1).values", False),
    "beside a sum": ("x, x.sum(1)", False),
    "a sign": ("-x", False),
    "a rounding": ("x.bfloat16().float()", False),
    "one of forty": ("torch.cat([x[:, 1:], torch.sin(x[:, :1])], 1)", False),
}


@pytest.mark.parametrize("what", MOVES)
def test_a_reference_that_only_moves_elements_is_known_by_its_values(
    reference_process: ReferenceProcess, what: str
) -> None:
    returned, expected = MOVES[what]
    code = module(f"return {returned}", inputs="[torch.randn(6, 40)]")
    result = reference_process.evaluate(code, input_seed=3, weight_seed=0)
    assert only_moves(result.cases) is expected
    assert not only_moves(result.cases[:1])


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("x, x.sum(1)", ()),
        ("x.t().contiguous(), x.sum(1), x.flip(0)", (0, 2)),
        ("-x, x.exp()", ()),
        ("x.roll(1, 0)", (0,)),
    ],
)
def test_outputs_that_only_have_elements_of_inputs_are_known(
    reference_process: ReferenceProcess, returned: str, expected: tuple[int, ...]
) -> None:
    code = module(f"return {returned}", inputs="[torch.randn(6, 40)]")
    assert moved_outputs(reference_process.evaluate(code, input_seed=3, weight_seed=0).cases) == expected
