"""Whether the timing of kernels can be trusted: A/A intervals, a slower kernel, cheats, evaluations per minute.

    python benchmarks/kernel_timing.py [--device cpu|cuda] [--trials N] [--baseline eager|compile]

A/A: the reference is timed against itself, each time through the whole protocol and the real sandbox; its interval
should contain 1 in at least 95 % of the trials. `simulated` is the same for intervals of synthetic samples with drift,
steps of the clock rate and heavy tails. A/B: a candidate that does all the work twice. Cheats: `timing_cheats.CHEATS`;
one is caught if it ends in a finding of the expected kind. With `--device cuda` all of it runs on the GPU, whose
devices (/dev/nvidia*) are passed into the sandbox. On a CPU the figures say that the protocol works, and how noisy
this machine is; everything is kept on one core, so that both sides have the same. Trials go on for `--seconds` at most.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np

from assay.kernels.arrays import Value, host_tensor
from assay.kernels.base import TimedAgainst
from assay.kernels.devices import nvidia_devices
from assay.kernels.numerics.tolerance import Tolerance
from assay.kernels.sandboxes import PCI
from assay.kernels.timing.config import TimingConfig
from assay.kernels.timing.jobs import TimedProblem
from assay.kernels.timing.roofline import Work
from assay.kernels.timing.statistics import Finding, Timing, secret_order, speedup_interval
from assay.kernels.timing.stopwatch import Stopwatch
from assay.sandbox.local import LocalConfig, LocalSandbox
from common.timing_cheats import CHEATS, HONEST, REFERENCE

SIMULATIONS = 2000
TWICE = HONEST.replace(
    "return torch.tanh(self.layer(x))", "torch.tanh(self.layer(x))\n        return torch.tanh(self.layer(x))"
)


def problem(rows: int, width: int) -> TimedProblem:
    """tanh of a linear layer at some size."""
    draw = np.random.default_rng()

    def inputs() -> tuple[Value, ...]:
        return (host_tensor(draw.standard_normal((rows, width), dtype=np.float32), "float32"),)

    size = 4 * (2 * rows * width + width * width)
    return TimedProblem(
        REFERENCE,
        (width,),
        inputs,
        (("float32", (rows, width)),),
        (Tolerance(1e-4, 1e-4),),
        work=Work(size, 2.0 * rows * width * width),
    )


def simulated_share(samples: int, confidence: float) -> float:
    """Share of synthetic A/A intervals that contain 1."""
    draw = random.Random(0)
    held = 0
    for _ in range(SIMULATIONS):
        baseline, candidate = [], []
        step, level = draw.randrange(samples), draw.uniform(0.7, 1.4)
        for place, leads in enumerate(secret_order(samples, draw)):
            rate = (level if place >= step else 1.0) * (1 + 0.2 * place / samples)
            pair = [rate * math.exp(draw.gauss(0, 0.02)) for _ in range(2)]
            if draw.random() < 0.1:
                pair[draw.randrange(2)] *= draw.uniform(2, 20)
            pair[1] *= 1.01
            candidate.append(pair[0] if leads else pair[1])
            baseline.append(pair[1] if leads else pair[0])
        found = speedup_interval(baseline, candidate, confidence, 0.0)
        held += found.low <= 1 <= found.high
    return held / SIMULATIONS


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """All figures."""
    gpu = options.device == "cuda"
    baseline: TimedAgainst = options.baseline
    devices = nvidia_devices() if gpu else ()
    timed = problem(8192, 4096) if gpu else problem(256, 256)
    config = TimingConfig(device=options.device, memory_mb=65536)
    if not gpu:
        config = TimingConfig(device="cpu", memory_mb=4096, samples=16, warm_ups=1, alone=6, max_calls=4, round_ms=4.0)
    async with LocalSandbox(LocalConfig(workers=2, devices=devices, readable=PCI if gpu else ())) as sandbox:
        stopwatch = Stopwatch(sandbox, config)
        await stopwatch.time(HONEST, timed, baseline)  # starts the workers
        begin = time.perf_counter()
        trials: list[Timing | Finding] = []
        while len(trials) < options.trials and time.perf_counter() < begin + options.seconds:
            trials.append(await stopwatch.time(HONEST, timed, baseline))
        took_s = time.perf_counter() - begin
        twice = await stopwatch.time(TWICE, timed, baseline)
        caught = {}
        for name, (source, kinds) in CHEATS.items():
            outcome = await stopwatch.time(source, timed, baseline)
            caught[name] = isinstance(outcome, Finding) and outcome.kind in kinds
            print(f"{name}: {outcome.to_json()}", file=sys.stderr)
    good = [trial for trial in trials if isinstance(trial, Timing)]
    for trial in trials:
        print(f"A/A: {trial.to_json()}", file=sys.stderr)
    print(f"A/B: {twice.to_json()}", file=sys.stderr)
    return {
        "device": good[0].device if good else options.device,
        "baseline": baseline,
        "aa_trials": len(trials),
        "aa_failed": len(trials) - len(good),
        "aa_contains_one": sum(t.lower <= 1 <= t.upper for t in good),
        "aa_rewarded_above_one": sum((t.rewardable or 0) > 1 for t in good),
        "aa_width": middle([t.upper / t.lower for t in good]),
        "aa_call_ms": middle([t.baseline_ms for t in good]),
        "aa_overhead_ms": middle([t.clock.overhead_ms for t in good]),
        "aa_unexplained_ms": middle([t.clock.unexplained_ms for t in good]),
        "aa_quarantined": sum(t.quarantine is not None for t in good),
        "simulations": SIMULATIONS,
        "simulated_contains_one": simulated_share(config.samples, config.confidence),
        "ab_expected": 0.5,
        **(
            {"ab_speedup": twice.speedup, "ab_lower": twice.lower, "ab_upper": twice.upper}
            if isinstance(twice, Timing)
            else {}
        ),
        "timing_exploits": len(caught),
        "caught": sum(caught.values()),
        "missed": [name for name, was in caught.items() if not was],
        "evals_per_minute": 60 * len(trials) / took_s,
    }


def middle(values: Sequence[float]) -> float | None:
    """The median, None of nothing."""
    return statistics.median(values) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--trials", type=int, default=0, help="A/A comparisons; 0 means 20 on a CPU, 100 on a GPU")
    parser.add_argument("--seconds", type=float, default=0.0, help="of A/A; 0 means 60 on a CPU, 1800 on a GPU")
    parser.add_argument("--baseline", choices=("eager", "compile"), default="eager")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    options.trials = options.trials or (100 if gpu else 20)
    options.seconds = options.seconds or (1800 if gpu else 60)
    if not gpu:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps({"load_before": round(os.getloadavg()[0], 2), **asyncio.run(measure(options))}))


if __name__ == "__main__":
    main()
