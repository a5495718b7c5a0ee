"""What timed samples of a candidate and a baseline prove: pure functions from measured seconds to a `Timing`.

A sample is one round of K calls. Candidate and baseline alternate sample by sample, in an order drawn in secret, and
each pair gives one ratio, so that drift of the clock rates, other tenants and heat strike both alike. The speedup is
the median of the ratios; its bounds are order statistics, which ask nothing of the noise but independence. Calls are
timed inside the child, where a candidate can lie; the parent's clock over the round says how far. What is rewarded is
the lower bound.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

from assay.kernels.base import TimedAgainst
from assay.kernels.timing.roofline import Work, find_gpu, floor_s
from assay.types import Json

FindingKind = Literal["timer", "deferred", "wrong", "crash", "timeout", "memory", "infra"]
"""`timer`: its events claim far less than the parent's clock saw. `deferred`: its outputs were not there when its clock
stopped. `wrong`: an output of a timed call is wrong. `infra` says nothing about the candidate; the rest is how it
died."""

FORGED = 3.0
"""A candidate whose calls must have taken more than so many times what its events claim has forged them. Less is no
proof (an output that has to be made dense costs time outside of the events), but lowers the bound that is rewarded."""
SPREADS = 6.0
"""How many spreads above its median the overhead of an honest round may be."""
_NORMAL = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Why the candidate has no timing."""

    kind: FindingKind
    evidence: str

    def to_json(self) -> dict[str, Json]:
        """Plain data for a verdict."""
        return {"kind": self.kind, "evidence": self.evidence}


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of calls: seconds of each as the child had them, and of the whole round by the parent's clock."""

    claimed_s: tuple[float, ...]
    round_s: float

    @property
    def beyond_s(self) -> float:
        """Seconds of the round that its calls do not account for."""
        return self.round_s - sum(self.claimed_s)

    @property
    def sane(self) -> bool:
        """Whether the claims could be durations of a part of the round."""
        return all(math.isfinite(s) and s >= 0 for s in self.claimed_s)


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a round takes beyond its calls, learnt from the baseline, whose events can be trusted."""

    median_s: float
    highest_s: float
    """What an honest round stays below, rare hiccups aside."""


def overhead_of(samples: Sequence[Sample]) -> Overhead:
    """The overhead of some samples of the baseline."""
    beyond = [sample.beyond_s for sample in samples]
    middle = median(beyond)
    spread = _NORMAL * median([abs(b - middle) for b in beyond])
    return Overhead(middle, middle + SPREADS * spread)


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its confidence bounds."""

    middle: float
    low: float
    high: float


def median_interval(values: Sequence[float], confidence: float) -> Interval:
    """The median and the order statistics that enclose it with at least this confidence, whatever the distribution.

    Raises:
        ValueError: too few values for any such bounds.
    """
    ordered = sorted(values)
    rank = _rank(len(ordered), confidence)
    if rank == 0:
        raise ValueError(f"{len(ordered)} values are too few to bound the median with confidence {confidence}")
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank])


def _rank(count: int, confidence: float) -> int:
    """The largest k with which the k-th values from both ends enclose the median with this confidence; 0 for none."""
    tail, rank = 0.0, 0
    while rank < count // 2:
        tail += math.comb(count, rank) / 2**count
        if 1 - 2 * tail < confidence:
            break
        rank += 1
    return rank


def fewest_samples(confidence: float) -> int:
    """How many samples it takes to bound a median at all."""
    return next(count for count in range(2, 10_000) if _rank(count, confidence))


@dataclass(frozen=True, slots=True)
class ClockAgreement:
    """How the events of the candidate agree with the parent's clock."""

    overhead_ms: float
    """Of a round of the baseline, beyond its calls."""
    corrected: float
    """Share of the candidate's samples in which the parent's clock was used, for claiming less than it allows."""
    unexplained_ms: float
    """How much longer, at most, the candidate's rounds take beyond their calls than the baseline's: a confidence bound.
    The lower bound of the speedup holds even if the calls took all of it."""
    forged: bool
    """Whether that is so much that its events cannot have been honest."""


def believed_s(sample: Sample, overhead: Overhead) -> float:
    """Seconds of one call: the mean that the events claim, or what the parent's clock leaves where that is more."""
    return max(sum(sample.claimed_s), sample.round_s - overhead.highest_s) / len(sample.claimed_s)


def agreement(samples: Sequence[Sample], baseline: Sequence[Sample], confidence: float) -> ClockAgreement:
    """How a candidate's samples agree with the parent's clock, by what those of the baseline show of that.

    Forging is only called so where it is beyond doubt: almost all of the candidate's rounds take more than twice the
    longest usual overhead, and that is many times what its events claim.
    """
    overhead = overhead_of(baseline)
    usual = median_interval([s.beyond_s for s in baseline], confidence)
    here = median_interval([s.beyond_s for s in samples], confidence)
    claimed = median([sum(s.claimed_s) for s in samples])
    return ClockAgreement(
        overhead_ms=1000 * overhead.median_s,
        corrected=sum(s.beyond_s > overhead.highest_s for s in samples) / len(samples),
        unexplained_ms=1000 * max(0.0, here.high - usual.low),
        forged=here.low > max(2 * overhead.highest_s, overhead.highest_s + (FORGED - 1) * claimed),
    )


def speedup_interval(
    baseline_s: Sequence[float], candidate_s: Sequence[float], confidence: float, resolution: float
) -> Interval:
    """The speedup of paired samples. Bounds are moved apart by `resolution`, the share by which two processes that run
    the same code may differ for good."""
    logs = [math.log(b / c) for b, c in zip(baseline_s, candidate_s, strict=True)]
    found = median_interval(logs, confidence)
    apart = math.log1p(resolution)
    return Interval(math.exp(found.middle), math.exp(found.low - apart), math.exp(found.high + apart))


def secret_order(samples: int, draw: random.Random) -> list[bool]:
    """For each sample, whether the candidate goes first: half of them, in random order."""
    first = [place % 2 == 0 for place in range(samples)]
    draw.shuffle(first)
    return first


def plan_calls(call_s: float, round_s: float, most: int, bytes_per_call: int, budget: int) -> int:
    """Calls in a round: as many as make it last `round_s`, within `most` and what memory allows; 0 if that allows none.

    Args:
        call_s: Seconds of one call of the baseline.
        round_s: Seconds that the calls of a round should take together.
        most: Upper limit.
        bytes_per_call: Bytes of buffers that one call a round takes, over all samples.
        budget: Bytes of buffers there may be.
    """
    wanted = math.ceil(round_s / call_s) if call_s > 0 else most
    return min(max(1, wanted), most, budget // max(1, bytes_per_call))


@dataclass(frozen=True, slots=True)
class Rules:
    """What a conclusion depends on, besides what was measured."""

    confidence: float
    resolution: float
    max_speedup: float
    interference: float
    """Share by which the baseline may be slower beside the candidate than alone."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that two jobs in step gave. `alone`: samples of the baseline before the candidate was there."""

    baseline: TimedAgainst
    device: str
    alone: tuple[Sample, ...]
    baseline_samples: tuple[Sample, ...]
    candidate_samples: tuple[Sample, ...]
    work: Work | None = None
    is_program: bool = False
    """Whether the candidate was timed as a program, by code of ours alone: then its events are as good as the
    baseline's, and what its rounds take besides is the setting up of its memory."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast a candidate is against one baseline. The bounds hold the speedup with the confidence asked for; the
    lower one also allows for what the parent's clock cannot rule out."""

    speedup: float
    lower: float
    upper: float
    baseline: TimedAgainst
    candidate_ms: float
    baseline_ms: float
    samples: int
    calls: int
    """In each sample."""
    device: str
    clock: ClockAgreement
    floor_ms: float | None
    """What no call can be faster than; None where the device or the work is not known."""
    quarantine: str | None
    """Why the speedup must not be rewarded; None when it may be."""
    launched: str = "unknown"
    """How the candidate's kernels were launched: as a `cuda graph`, `one by one`, or by its own `host code`."""

    @property
    def rewardable(self) -> float | None:
        """The speedup that may be rewarded; None in quarantine."""
        return None if self.quarantine else self.lower

    def to_json(self) -> dict[str, Json]:
        """Plain data for a verdict."""
        return asdict(self) | {"rewardable": self.rewardable}


def conclude(measured: Measured, rules: Rules) -> Timing | Finding:
    """What the samples prove."""
    if not all(sample.sane for sample in measured.candidate_samples):
        return Finding("timer", "its events report times that are negative or not numbers")
    trusted = (*measured.alone, *measured.baseline_samples)
    overhead = overhead_of(trusted)
    clock = agreement(measured.candidate_samples, trusted, rules.confidence)
    if clock.forged and not measured.is_program:
        claimed = 1000 * median([sum(s.claimed_s) for s in measured.candidate_samples])
        seen = 1000 * median([s.round_s for s in measured.candidate_samples])
        return Finding(
            "timer",
            f"its events claim {claimed:.4g} ms for the calls of a round that took {seen:.4g} ms by the clock outside, "
            f"of which {clock.overhead_ms:.4g} ms (at most {1000 * overhead.highest_s:.4g}) are overhead",
        )
    if measured.is_program:
        candidate = [_mean(sample) for sample in measured.candidate_samples]
    else:
        candidate = [believed_s(sample, overhead) for sample in measured.candidate_samples]
    baseline = [_mean(sample) for sample in measured.baseline_samples]
    if min(candidate) <= 0 or min(baseline) <= 0:
        return Finding("infra", "a call took no time at all by this clock, so nothing can be compared")
    speedup = speedup_interval(baseline, candidate, rules.confidence, rules.resolution)
    calls = len(measured.candidate_samples[0].claimed_s)
    unexplained = 0.0 if measured.is_program else clock.unexplained_ms / 1000 / calls
    lower = speedup.low * median(candidate) / (median(candidate) + unexplained)
    gpu = find_gpu(measured.device)
    floor = floor_s(measured.work, gpu) if gpu and measured.work else None
    return Timing(
        speedup=speedup.middle,
        lower=lower,
        upper=speedup.high,
        baseline=measured.baseline,
        candidate_ms=1000 * median(candidate),
        baseline_ms=1000 * median(baseline),
        samples=len(candidate),
        calls=calls,
        device=measured.device,
        clock=clock,
        floor_ms=None if floor is None else 1000 * floor,
        quarantine=_quarantine(measured, median(candidate), speedup, floor, rules),
    )


def _mean(sample: Sample) -> float:
    return sum(sample.claimed_s) / len(sample.claimed_s)


def _quarantine(
    measured: Measured, candidate_s: float, speedup: Interval, floor: float | None, rules: Rules
) -> str | None:
    """Why a speedup cannot be trusted, although no cheat was found."""
    if floor is not None and candidate_s < floor:
        return (
            f"a call takes {1000 * candidate_s:.4g} ms; to move and to compute what it must takes a {measured.device} "
            f"at least {1000 * floor:.4g} ms"
        )
    if speedup.low > rules.max_speedup:
        return f"a speedup of {speedup.middle:.3g} is above {rules.max_speedup:g} and needs a human check"
    if len(measured.alone) >= fewest_samples(rules.confidence):
        alone = median_interval([_mean(s) for s in measured.alone], rules.confidence)
        beside = median_interval([_mean(s) for s in measured.baseline_samples], rules.confidence)
        if beside.low > alone.high * (1 + rules.interference):
            return (
                f"the baseline takes {1000 * beside.middle:.4g} ms beside the candidate and {1000 * alone.middle:.4g} "
                "ms alone: the candidate, or something else, slows it"
            )
    return None
