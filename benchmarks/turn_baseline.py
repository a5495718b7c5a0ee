"""Bias and variance of the policy gradient under each group baseline, where the policy decides when to stop.

    python benchmarks/turn_baseline.py [--group N] [--turns T]

A task small enough to enumerate (`tests/support/stopping.py`): revise a draft at a cost, or stop and be paid for it.
All groups of N rollouts are enumerated, so mean and variance of the estimate are exact; nothing is sampled. The
estimate is the sum of advantage times score over the turns of a group, divided by N; returns are undiscounted. `mean`,
`leave_one_out` and `turn` are Assay's `group_advantages`, with what it leaves out as constant; the other two are the
formulas that its `turn` could have been:

    turn mean          the return minus the mean at the same turn, the rollout's own included
    turn, lone = G     as `turn`, but a turn that no other rollout reached keeps its whole return (KernelGYM's TRLOO)

`bias` is |E estimate - gradient| / |gradient|, `cosine` that between them, `deviation` the root of the total variance
and `error` the root of the mean squared error, both over |gradient|. The last line is one JSON object, `arms`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.grpo.advantages import group_advantages
from assay.grpo.recipes import Baseline
from common import machine
from support.stopping import Advantages, Path, as_group, exact_gradient, moments, paths, reached, returns

STOPS = (0.2, 0.5, 0.8)
"""Probability of stopping at each turn."""
BASELINES: tuple[Baseline, ...] = ("mean", "leave_one_out", "turn")


def of_assay(baseline: Baseline) -> Advantages:
    """Assay's advantages with a baseline."""
    return lambda group: group_advantages(as_group(group), gamma=1.0, normalize_by_std=False, baseline=baseline)


def turn_mean(group: Sequence[Path]) -> list[list[float]]:
    """Centred on all at the same turn."""
    return _by_turn(group, lambda value, column: value - sum(column) / len(column))


def turn_lone_kept(group: Sequence[Path]) -> list[list[float]]:
    """Centred on the others at the same turn, or on 0 where there are none."""
    return _by_turn(group, lambda g, column: g - (sum(column) - g) / (len(column) - 1) if len(column) > 1 else g)


def _by_turn(group: Sequence[Path], centred: Any) -> list[list[float]]:
    every = [returns(p.rewards).tolist() for p in group]
    columns = [[r[t] for r in every if t < len(r)] for t in range(max(map(len, every)))]
    return [[centred(value, columns[t]) for t, value in enumerate(r)] for r in every]


ARMS: dict[str, Advantages] = {
    **{name: of_assay(name) for name in BASELINES},
    "turn mean": turn_mean,
    "turn, lone = G": turn_lone_kept,
}


def measure(arm: str, turns: int, stop: float, size: int) -> dict[str, Any]:
    """One baseline under one policy."""
    every = paths(turns, stop)
    gradient = exact_gradient(every)
    mean, variance = moments(every, size, ARMS[arm])
    norm, bias = float(np.linalg.norm(gradient)), float(np.linalg.norm(mean - gradient))
    lone = [reached(every, t) * (1 - reached(every, t)) ** (size - 1) for t in range(turns)]
    return {
        "baseline": arm,
        "stop": stop,
        "bias": bias / norm,
        "cosine": float(mean @ gradient / (np.linalg.norm(mean) * norm)),
        "deviation": math.sqrt(variance) / norm,
        "error": math.sqrt(variance + bias**2) / norm,
        "lone_turn_fraction": sum(lone) / sum(reached(every, t) for t in range(turns)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", type=int, default=4, help="rollouts per group; 4 takes seconds, 6 minutes")
    parser.add_argument("--turns", type=int, default=3, help="most turns")
    args = parser.parse_args()
    arms = [measure(arm, args.turns, stop, args.group) for stop in STOPS for arm in ARMS]
    names = f"{'bias':>8s} {'cosine':>8s} {'deviation':>10s} {'error':>8s} {'lone turns':>11s}"
    print(f"{'stop':>5s} {'baseline':18s} {names}")
    for a in arms:
        numbers = f"{a['bias']:8.4f} {a['cosine']:8.4f} {a['deviation']:10.2f} {a['error']:8.2f}"
        print(f"{a['stop']:5.1f} {a['baseline']:18s} {numbers} {a['lone_turn_fraction']:11.3f}")
    print(json.dumps({"arms": arms, "group": args.group, "turns": args.turns, "machine": machine()}))


if __name__ == "__main__":
    main()
