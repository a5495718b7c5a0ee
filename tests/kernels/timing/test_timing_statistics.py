"""What samples prove, on synthetic ones: coverage of the intervals, the two clocks, quarantine, plans."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from assay.errors import ConfigError
from assay.kernels.timing.config import TimingConfig
from assay.kernels.timing.roofline import GPUS, LAUNCH_S, Work, find_gpu, floor_s
from assay.kernels.timing.statistics import (
    Finding,
    Measured,
    Rules,
    Sample,
    Timing,
    believed_s,
    conclude,
    fewest_samples,
    median_interval,
    overhead_of,
    plan_calls,
    secret_order,
    speedup_interval,
)

RULES = Rules(confidence=0.95, resolution=0.02, max_speedup=50.0, interference=0.15)
TRIALS = 600


def pair_times(
    draw: random.Random, samples: int, ratio: float, noise: Callable[[random.Random], float]
) -> tuple[list[float], list[float]]:
    """Baseline and candidate on a machine that drifts by a fifth and changes its clock rate twice."""
    steps = sorted(draw.randrange(samples) for _ in range(2))
    levels = [1.0, draw.uniform(0.7, 1.4), draw.uniform(0.7, 1.4)]
    baseline, candidate = [], []
    for place, leads in enumerate(secret_order(samples, draw)):
        level = levels[sum(place >= step for step in steps)] * (1 + 0.2 * place / samples)
        after = level * (draw.uniform(0.7, 1.4) if place in steps else 1.0)  # a step between the two of a pair
        first, second = level * noise(draw), after * 1.01 * noise(draw)  # whoever is second is a little slower
        c, b = (first, second) if leads else (second, first)
        baseline.append(b)
        candidate.append(c / ratio)
    return baseline, candidate


NOISES: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: math.exp(draw.gauss(0, 0.03)),
    "heavy tails": lambda draw: 1 + 0.01 * abs(draw.gauss(0, 1) / max(1e-3, abs(draw.gauss(0, 1)))),
    "hiccups": lambda draw: math.exp(draw.gauss(0, 0.01)) * (draw.uniform(2, 20) if draw.random() < 0.1 else 1),
    "two levels": lambda draw: draw.choice((1.0, 1.6)) * math.exp(draw.gauss(0, 0.02)),
}


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize("ratio", [1.0, 1.7])
def test_intervals_hold_the_speedup(noise: Callable[[random.Random], float], ratio: float) -> None:
    draw = random.Random(5)
    held, above = 0, 0
    for _ in range(TRIALS):
        found = speedup_interval(*pair_times(draw, 24, ratio, noise), confidence=0.95, resolution=0.0)
        held += found.low <= ratio <= found.high
        above += found.low > ratio
    assert held / TRIALS >= 0.955  # 24 independent pairs give 0.977; this is three standard errors less
    assert above / TRIALS <= 0.03


def test_intervals_are_not_just_wide() -> None:
    draw = random.Random(6)
    widths = [
        found.high / found.low
        for found in (
            speedup_interval(*pair_times(draw, 24, 1.0, NOISES["normal"]), confidence=0.95, resolution=0.0)
            for _ in range(100)
        )
    ]
    assert sorted(widths)[50] < 1.08


@pytest.mark.parametrize(("count", "confidence", "low", "high"), [(6, 0.95, 0, 5), (10, 0.95, 1, 8), (24, 0.95, 6, 17)])
def test_bounds_are_the_known_order_statistics(count: int, confidence: float, low: int, high: int) -> None:
    found = median_interval([float(v) for v in range(count)], confidence)
    assert (found.low, found.high) == (low, high)


def test_too_few_samples_bound_nothing() -> None:
    assert fewest_samples(0.95) == 6
    with pytest.raises(ValueError, match="5 values"):
        median_interval([1.0] * 5, 0.95)


def sampled(
    call_s: float, overhead_s: float, count: int = 12, calls: int = 4, claim: float = 1.0
) -> tuple[Sample, ...]:
    draw = random.Random(int(1e6 * call_s))
    found = []
    for _ in range(count):
        real = [call_s * math.exp(draw.gauss(0, 0.02)) for _ in range(calls)]
        round_s = sum(real) + overhead_s * (1 + 0.1 * abs(draw.gauss(0, 1)))
        found.append(Sample(tuple(claim * r for r in real), round_s))
    return tuple(found)


def measured(candidate: tuple[Sample, ...], **changes: object) -> Measured:
    base = Measured("eager", "cpu", sampled(0.0101e0, 1e-3), sampled(0.01, 1e-3), candidate)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_an_honest_candidate_gets_its_speedup() -> None:
    timing = conclude(measured(sampled(0.005, 1e-3)), RULES)
    assert isinstance(timing, Timing)
    assert 1.9 < timing.lower < timing.speedup < timing.upper < 2.1
    assert timing.rewardable == timing.lower
    assert not timing.clock.corrected
    assert timing.clock.unexplained_ms < 0.3
    assert (timing.samples, timing.calls) == (12, 4)
    assert json.loads(json.dumps(timing.to_json()))["rewardable"] == timing.lower


def test_claims_above_what_the_parent_saw_are_used() -> None:
    timing = conclude(measured(sampled(0.01, 1e-3, claim=1.5)), RULES)
    assert isinstance(timing, Timing)
    assert 0.6 < timing.speedup < 0.7


@pytest.mark.parametrize("claim", [0.0, 0.01, 0.3])
def test_forged_events_are_caught(claim: float) -> None:
    finding = conclude(measured(sampled(0.01, 1e-3, claim=claim)), RULES)
    assert isinstance(finding, Finding)
    assert finding.kind == "timer"
    assert "by the clock outside" in finding.evidence


@pytest.mark.parametrize("claim", [-1.0, float("nan"), float("inf"), float("-inf")])
def test_claims_that_are_no_durations_are_caught(claim: float) -> None:
    finding = conclude(measured(sampled(0.01, 1e-3, claim=claim)), RULES)
    assert isinstance(finding, Finding)
    assert finding.kind == "timer"


@pytest.mark.parametrize("claim", [0.4, 0.6, 0.9])
def test_events_that_claim_a_little_less_gain_nothing(claim: float) -> None:
    timing = conclude(measured(sampled(0.01, 1e-3, claim=claim)), RULES)
    assert isinstance(timing, Timing)
    assert timing.clock.corrected == 1.0
    assert timing.upper < 1.05  # 1 but for the resolution, and for what the overhead's spread hides
    assert timing.lower < 1


@pytest.mark.parametrize("claim", [0.0, 0.2, 0.5, 0.8])
def test_what_the_clock_cannot_see_is_not_rewarded(claim: float) -> None:
    """Calls so short that all of their time drowns in the overhead of a round."""
    honest = sampled(1e-5, 1e-3)
    timing = conclude(measured(sampled(1e-5, 1e-3, claim=claim), alone=honest, baseline_samples=honest), RULES)
    assert not isinstance(timing, Timing) or timing.lower < 1


def test_a_noisy_round_is_no_forgery() -> None:
    """A candidate whose process the machine serves worse than the baseline's: seen on a busy one."""
    noisy = tuple(replace(s, round_s=s.round_s * (1 + place % 3)) for place, s in enumerate(sampled(5e-5, 2e-3, 24)))
    served_worse = tuple(replace(s, round_s=s.round_s + 4e-3) for s in noisy)
    timing = conclude(measured(served_worse, baseline_samples=noisy, alone=()), RULES)
    assert isinstance(timing, Timing)
    assert timing.lower < 0.2


def test_forging_half_of_the_samples_gains_nothing() -> None:
    honest, forged = sampled(0.01, 1e-3), sampled(0.01, 1e-3, claim=0.05)
    timing = conclude(measured((*honest[:6], *forged[6:])), RULES)
    assert not isinstance(timing, Timing) or timing.upper < 1.05


def test_a_hiccup_of_the_round_is_no_forgery() -> None:
    honest = list(sampled(0.01, 1e-3))
    for place in (1, 5, 9):
        honest[place] = replace(honest[place], round_s=honest[place].round_s + 0.5)
    timing = conclude(measured(tuple(honest)), RULES)
    assert isinstance(timing, Timing)
    assert timing.lower < 1 < timing.upper
    assert timing.clock.corrected == 0.25


def test_what_sets_up_the_memory_of_a_program_costs_it_nothing() -> None:
    slow = sampled(0.01, 0.2)
    assert isinstance(conclude(measured(slow), RULES), Finding)  # a module that takes so long has forged its events
    timing = conclude(replace(measured(slow), is_program=True), RULES)
    assert isinstance(timing, Timing)
    assert timing.candidate_ms == pytest.approx(10.0, rel=0.1) and timing.lower > 0.9


def test_overhead_is_learnt_from_the_baseline() -> None:
    overhead = overhead_of(sampled(0.01, 1e-3))
    assert 1e-3 < overhead.median_s < overhead.highest_s < 2.5e-3
    assert believed_s(Sample((0.01,) * 4, 0.041), overhead) == 0.01
    assert believed_s(Sample((0.0,) * 4, 0.041), overhead) > 0.009


H100 = "NVIDIA H100 80GB HBM3"
GIGABYTE = Work(bytes=10**9)


def test_faster_than_memory_is_quarantined() -> None:
    floor = (10**9 - 50e6) / 3350e9
    assert floor_s(GIGABYTE, GPUS["H100"]) == pytest.approx(floor)
    for factor, withheld in ((0.9, True), (1.1, False)):
        timing = conclude(
            measured(
                sampled(factor * floor, 1e-5),
                device=H100,
                work=GIGABYTE,
                alone=sampled(2 * floor, 1e-5),
                baseline_samples=sampled(2 * floor, 1e-5),
            ),
            RULES,
        )
        assert isinstance(timing, Timing)
        assert (timing.rewardable is None) == withheld
        assert (timing.quarantine is not None and "NVIDIA H100" in timing.quarantine) == withheld
        assert timing.floor_ms == pytest.approx(1000 * floor)


def test_floors() -> None:
    gpu = GPUS["A100"]
    assert floor_s(Work(1000), gpu) == LAUNCH_S
    assert floor_s(Work(0, flops=312e12, dtype="bfloat16"), gpu) == pytest.approx(1.0)
    assert floor_s(Work(0, flops=312e12, dtype="float32"), gpu) == pytest.approx(2.0)
    assert floor_s(Work(0, flops=312e12, dtype="int8"), gpu) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", None),
        ("cpu", None),
    ],
)
def test_gpus_are_known_by_the_names_of_their_driver(name: str, key: str | None) -> None:
    assert find_gpu(name) is (GPUS[key] if key else None)


def test_without_a_known_device_there_is_no_floor() -> None:
    timing = conclude(measured(sampled(0.005, 1e-3), device="NVIDIA Unheard-of", work=GIGABYTE), RULES)
    assert isinstance(timing, Timing)
    assert timing.floor_ms is None
    assert timing.rewardable


def test_too_good_is_quarantined() -> None:
    timing = conclude(measured(sampled(0.01 / 60, 1e-4)), RULES)
    assert isinstance(timing, Timing)
    assert timing.rewardable is None
    assert "needs a human check" in str(timing.quarantine)


def test_a_slowed_baseline_is_quarantined() -> None:
    slowed = measured(sampled(0.01, 1e-3), baseline_samples=sampled(0.013, 1e-3))
    timing = conclude(slowed, RULES)
    assert isinstance(timing, Timing)
    assert timing.lower > 1.2
    assert timing.rewardable is None
    assert "slows it" in str(timing.quarantine)
    unknown = conclude(replace(slowed, alone=()), RULES)
    assert isinstance(unknown, Timing)
    assert unknown.rewardable


def test_the_order_is_balanced_and_drawn() -> None:
    orders = {tuple(secret_order(8, random.Random(seed))) for seed in range(200)}
    assert all(sum(order) == 4 for order in orders)
    assert len(orders) > 50
    assert sum(secret_order(7, random.Random(0))) == 4


@pytest.mark.parametrize(
    ("call_ms", "most", "held", "calls"),
    [
        (10.0, 16, 1, 1),
        (1.0, 16, 1, 5),
        (0.01, 16, 1, 16),
        (0.01, 500, 1, 500),
        (1.0, 16, 300, 3),
        (1.0, 16, 2000, 0),
        (0.0, 16, 0, 16),
    ],
)
def test_calls_of_a_sample(call_ms: float, most: int, held: int, calls: int) -> None:
    assert plan_calls(call_ms / 1000, 0.005, most, held, 1000) == calls


@pytest.mark.parametrize(
    "fields",
    [
        {"samples": 5},
        {"samples": 151},
        {"confidence": 1.0},
        {"confidence": 0.0},
        {"warm_ups": -1},
        {"alone": 41},
        {"round_ms": 0.0},
        {"resolution": 1.0},
        {"wall_s": float("inf")},
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        TimingConfig(**fields)  # type: ignore[arg-type]
