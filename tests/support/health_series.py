"""Series of training metrics with known health: made-up runs with realistic noise, and the ways in which they go wrong.

Levels and noise of the healthy ones cover what runs of the chess preset and of the toy environment show: an entropy
that falls to a plateau, a KL that rises to one and whose mean is at the mercy of single tokens, parts of the reward
that improve at different rates under the noise of each batch, steps without any informative group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Step = dict[str, float]
GROUPS, ROLLOUTS = 16, 128
OF_UPDATE = ("entropy", "approx_entropy", "kl_div", "kl_div_95pct", "grad_norm", "loss", "ratio_error", "mismatch_kl")
"""Metrics that a step without an informative group lacks."""


@dataclass
class Curves:
    """The noiseless course of a healthy run, by step. A failure changes them from its onset on."""

    entropy: np.ndarray
    kl: np.ndarray
    clipped: np.ndarray
    constant: np.ndarray
    truncated: np.ndarray
    grad_norm: np.ndarray
    ratio_error: np.ndarray
    parts: dict[str, np.ndarray]


def curves(rng: np.random.Generator, steps: int) -> Curves:
    """A healthy run, drawn at random."""
    t = np.arange(steps)

    def towards(first: float, last: float, slowest: float) -> np.ndarray:
        return last + (first - last) * np.exp(-t / rng.uniform(30, slowest))

    entropy = rng.uniform(0.5, 2.5)
    parts = {
        "part/right": towards(rng.uniform(0.05, 0.3), rng.uniform(0.4, 0.8), 150),
        "part/format": towards(rng.uniform(0.1, 0.2), 0.2, 100),
        # A part that the policy trades away a little, as it may.
        "part/brief": towards(0.1, rng.uniform(0.07, 0.1), 400),
    }
    return Curves(
        entropy=towards(entropy, entropy * rng.uniform(0.2, 0.8), 400),
        kl=towards(0.0, np.exp(rng.uniform(math.log(0.01), math.log(0.5))), 300),
        clipped=np.full(steps, rng.choice([0.0, rng.uniform(0.01, 0.12)])),
        constant=towards(rng.uniform(0, 0.2), rng.uniform(0.1, 0.65), 400),
        truncated=towards(rng.uniform(0, 0.4), rng.uniform(0, 0.1), 200),
        grad_norm=towards(1.0, rng.uniform(0.3, 3.0), 300) * np.exp(rng.uniform(-3, 1)),
        ratio_error=np.full(steps, np.exp(rng.uniform(math.log(1e-6), math.log(0.5)))),
        parts=parts,
    )


def observe(of: Curves, rng: np.random.Generator) -> list[Step]:
    """What the metrics of a run with these curves show: the curves under the noise of finite batches."""
    steps = len(of.entropy)
    correlation, size = rng.uniform(0, 0.6), rng.uniform(0.02, 0.08)
    wander = _wandering(rng, steps, correlation)
    odd = np.where(rng.random(steps) < 0.03, rng.uniform(2, 15, steps), 1.0)
    difficulty = rng.normal(0, 0.03, steps)
    return [_step(of, rng, i, size * wander[i], odd[i], difficulty[i]) for i in range(steps)]


def _wandering(rng: np.random.Generator, steps: int, correlation: float) -> np.ndarray:
    noise, out, last = rng.normal(size=steps), np.zeros(steps), 0.0
    for i in range(steps):
        last = correlation * last + math.sqrt(1 - correlation**2) * noise[i]
        out[i] = last
    return out


def _step(of: Curves, rng: np.random.Generator, i: int, wander: float, odd: float, difficulty: float) -> Step:
    groups = int(rng.binomial(GROUPS, 1 - min(1.0, of.constant[i])))
    parts = {n: curve[i] + difficulty * curve[i] + rng.normal(0, 0.02) for n, curve in of.parts.items()}
    entropy = of.entropy[i] * math.exp(wander)
    scarce = math.sqrt(GROUPS / max(1, groups))
    step = {
        "rollout/constant_group_fraction": 1 - groups / GROUPS,
        "groups": float(groups),
        "rollout/truncated_fraction": rng.binomial(ROLLOUTS, min(1.0, of.truncated[i])) / ROLLOUTS,
        "nan_skip": 0.0,
        "reward/mean": sum(parts.values()),
        "reward/std": 0.35 * math.exp(rng.normal(0, 0.1)),
        **parts,
    }
    if not groups:
        return step
    return step | {
        "entropy": entropy,
        "approx_entropy": entropy * math.exp(rng.normal(0, 0.05)),
        "kl_div": of.kl[i] * math.exp(rng.normal(0, 0.25)) * odd,
        "kl_div_95pct": 3.3 * of.kl[i] * math.exp(rng.normal(0, 0.2)),
        "grad_norm": of.grad_norm[i] * scarce * math.exp(rng.normal(0, 0.35)),
        "loss": rng.normal(0, 0.01),
        "ratio_error": of.ratio_error[i] * math.exp(rng.normal(0, 0.4)),
        "mismatch_kl": (0.1 * of.ratio_error[i]) ** 2 * math.exp(rng.normal(0, 0.5)),
        "fraction_clipped": min(1.0, of.clipped[i] * math.exp(rng.normal(0, 0.3))),
    }


def healthy(seed: int, steps: int) -> list[Step]:
    """The metrics of a healthy run."""
    rng = np.random.default_rng([seed, 0])
    return observe(curves(rng, steps), rng)


def failing(kind: str, seed: int, steps: int = 300) -> tuple[list[Step], int]:
    """The metrics of a run that goes wrong, and the step where it begins to."""
    rng = np.random.default_rng([seed, 1 + list(FAILURES).index(kind)])
    of = curves(rng, steps)
    onset = int(rng.integers(steps // 4, steps // 2))
    spoil, finish = FAILURES[kind]
    spoil(of, onset, rng)
    series = observe(of, rng)
    finish(series, onset)
    return series, onset


def _after(of: Curves, onset: int) -> np.ndarray:
    return np.maximum(0.0, np.arange(len(of.entropy)) - onset)


def _decay(of: Curves, onset: int, steps: float) -> None:
    for curve in of.parts.values():
        curve *= np.exp(-_after(of, onset) / steps)


def _kl_runaway(of: Curves, onset: int, rng: np.random.Generator) -> None:
    growth = np.minimum(2 ** (_after(of, onset) / rng.uniform(2, 8)), 1e3)
    of.kl = np.minimum((of.kl + 0.02) * growth, 30.0)
    lost = np.clip((of.kl - 1.0) / 3.0, 0, 0.95)
    of.parts = {name: curve * (1 - lost) for name, curve in of.parts.items()}


def _entropy_collapse(of: Curves, onset: int, rng: np.random.Generator) -> None:
    of.entropy *= np.exp(-_after(of, onset) / rng.uniform(6, 40))
    of.constant = np.maximum(of.constant, np.exp(-of.entropy / 0.02))


def _reward_hacking(of: Curves, onset: int, rng: np.random.Generator) -> None:
    share = 1 - np.exp(-_after(of, onset) / rng.uniform(8, 40))
    of.parts["part/right"] = of.parts["part/right"] * (1 - 0.9 * share)
    of.parts["part/brief"] = of.parts["part/brief"] + rng.uniform(0.4, 1.0) * share


def _constant_rewards(of: Curves, onset: int, rng: np.random.Generator) -> None:
    of.constant[onset:] = rng.uniform(0.97, 1.0)


def _mismatch(of: Curves, onset: int, rng: np.random.Generator) -> None:
    of.ratio_error[onset:] = rng.uniform(1.5, 5.0)
    _decay(of, onset, 60)


def _gradient_explosion(of: Curves, onset: int, rng: np.random.Generator) -> None:
    of.grad_norm[onset:] = 2.0 + of.grad_norm[onset:] * 1.5 ** np.minimum(_after(of, onset)[onset:], 30) * 20
    _decay(of, onset, 20)


def _truncation(of: Curves, onset: int, rng: np.random.Generator) -> None:
    of.truncated = of.truncated + (1 - of.truncated) * (1 - np.exp(-_after(of, onset) / rng.uniform(5, 20)))
    _decay(of, onset, 40)


def _clipping(of: Curves, onset: int, rng: np.random.Generator) -> None:
    of.clipped[onset:] = rng.uniform(0.45, 0.9)
    _decay(of, onset, 60)


def _nothing(of: Curves, onset: int, rng: np.random.Generator) -> None:
    pass


def _not_finite(series: list[Step], onset: int) -> None:
    for step in series[onset:]:
        step.update({"loss": math.nan, "grad_norm": math.nan, "nan_skip": 1.0})


FAILURES: Mapping[str, tuple[Callable[[Curves, int, np.random.Generator], None], Callable[[list[Step], int], None]]] = {
    kind: (spoil, _not_finite if kind == "non_finite" else lambda series, onset: None)
    for kind, spoil in {
        "kl_runaway": _kl_runaway,
        "entropy_collapse": _entropy_collapse,
        "reward_hacking": _reward_hacking,
        "constant_rewards": _constant_rewards,
        "non_finite": _nothing,
        "mismatch": _mismatch,
        "gradient_explosion": _gradient_explosion,
        "truncation": _truncation,
        "clipping": _clipping,
    }.items()
}
"""Kind -> (what it does to the curves, what it does to the metrics)."""

RULES_OF: Mapping[str, frozenset[str]] = {
    "kl_runaway": frozenset({"kl_runaway", "kl_tail", "policy_collapse"}),
    "entropy_collapse": frozenset({"entropy_slope", "entropy_floor", "policy_collapse"}),
    "reward_hacking": frozenset({"part_divergence"}),
    "constant_rewards": frozenset({"constant_groups"}),
    "non_finite": frozenset({"non_finite"}),
    "mismatch": frozenset({"mismatch"}),
    "gradient_explosion": frozenset({"grad_norm", "reward_shift"}),
    "truncation": frozenset({"truncation"}),
    "clipping": frozenset({"clip_fraction"}),
}
"""Kind -> the rules that name it; an alarm of another rule is no catch."""

CALM = {"kl_div": 0.1, "kl_div_95pct": 0.4, "entropy": 1.0, "fraction_clipped": 0.05, "grad_norm": 0.5}
CALM |= {"ratio_error": 1e-5, "mismatch_kl": 1e-6, "reward/mean": 0.4}
CALM |= {"rollout/constant_group_fraction": 0.3, "rollout/truncated_fraction": 0.1}
"""One step that nothing is wrong with."""


def steady(steps: int = 20, **metrics: float | Sequence[float]) -> list[Step]:
    """A history in which each metric is constant or takes the given values, the last of them at the last step."""
    columns = {n: [v] * steps if isinstance(v, int | float) else list(v) for n, v in metrics.items()}
    return [{n.replace("__", "/"): float(column[i]) for n, column in columns.items()} for i in range(steps)]
