"""The metrics of a training step's optimizer steps, pooled over all of them. Pure.

Percentiles are taken over the pooled tokens, never averaged over passes. A metric that the step cannot give is absent,
never 0. In a run the names begin with `train/`. What the rollouts say before any training is
`assay.grpo.rollout_metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.backends.base import LOG_RATIO_LIMIT
from assay.grpo.buffer import BufferedGroup
from assay.grpo.kl import estimates
from assay.grpo.recipes import CLIP, Recipe
from assay.types import Datum, FloatArray


@dataclass(frozen=True)
class Pass:
    """One optimizer step: its data, what the backend found before it, and what the optimizer said."""

    groups: Sequence[BufferedGroup]
    """The groups behind the data, in their order."""
    advantages: Sequence[FloatArray]
    """The data's advantages before importance weights and the normaliser, a KL penalty in the reward included."""

    data: Sequence[Datum]
    logprobs: Sequence[FloatArray]
    """The learner's log-probabilities before the step."""
    metrics: Mapping[str, float]
    """Of the backend: `loss`, `nan_skip`, and what it knows of `kl_loss`, `entropy`, `grad_norm`."""
    fresh: bool
    """Whether the data were sampled by exactly the policy that was trained."""

    @property
    def stepped(self) -> bool:
        """Whether the optimizer step was taken."""
        return not self.metrics["nan_skip"]


def pass_metrics(passes: Sequence[Pass], recipe: Recipe) -> dict[str, float]:
    """Metrics of the optimizer steps of a training step together; only `optimizer_steps` if there are none."""
    metrics = {"optimizer_steps": float(sum(p.stepped for p in passes))}
    if not passes:
        return metrics
    now, behaviour = _pooled([(p.data, p.logprobs) for p in passes])
    gap = _limited(now - behaviour)
    metrics |= _means([p.metrics for p in passes])
    metrics |= {
        "tokens": float(len(now)),
        "kl_behaviour": float(np.mean(estimates("k3", behaviour, now))),
        "logprob_ratio_min": float(np.exp(gap.min())),
        "logprob_ratio_max": float(np.exp(gap.max())),
        "approx_entropy": float(-now.mean()),
        "fraction_positive_advantages": float(np.mean(_trained(passes, "advantages") > 0)),
    }
    fresh = [p for p in passes if p.fresh]
    if fresh:
        metrics |= mismatch(*_pooled([(p.data, p.logprobs) for p in fresh]))
    if set(CLIP) <= set(recipe.thresholds):
        ratios = np.concatenate([_ratios(p, recipe) for p in passes])
        metrics["fraction_clipped"] = float(clipped(recipe, ratios, _trained(passes, "advantages")).mean())
    if all(d.ref_logprobs is not None for p in passes for d in p.data):
        kl = estimates("k3", now, _trained(passes, "ref_logprobs"))
        low, high = np.percentile(kl, [5, 95])
        metrics |= {"kl_div": float(kl.mean()), "kl_div_5pct": float(low), "kl_div_95pct": float(high)}
    return metrics


def mismatch(trainer: FloatArray, sampler: FloatArray) -> dict[str, float]:
    """How far trainer and sampler are apart on tokens of the present policy: two arrays [N] of log-probabilities.

    `ratio_error` is max |trainer / sampler - 1|, `mismatch_kl` the k3 estimate of KL(sampler || trainer); ratios are
    limited as in the losses (`LOG_RATIO_LIMIT`).
    """
    gap = _limited(trainer - sampler)
    return {
        "ratio_error": float(np.max(np.abs(np.expm1(gap)))),
        "mismatch_kl": float(np.mean(np.expm1(gap) - gap)),
    }


def clipped(recipe: Recipe, ratios: FloatArray, advantages: FloatArray) -> npt.NDArray[np.bool_]:
    """Which of N tokens the loss clips, from their ratios [N] (as the loss sees them) and advantages [N].

    min(r * A, clip(r) * A) chooses the clipped term, whose gradient is 0, where the ratio is outside on the side that
    the advantage pushes to. `cispo` clips its weights on either side, whatever the advantage.
    """
    low, high = (recipe.thresholds[name] for name in CLIP)
    below, above = ratios < low, ratios > high
    if recipe.surrogate == "cispo":
        return below | above
    return (below & (advantages < 0)) | (above & (advantages > 0))


def trained_logprobs(data: Sequence[Datum], logprobs: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Of the N trained tokens of the data, in float64: the given log-probabilities, and the behaviour policy's."""
    return _pooled([(data, logprobs)])


def _pooled(parts: Sequence[tuple[Sequence[Datum], Sequence[FloatArray]]]) -> tuple[FloatArray, FloatArray]:
    pairs = [
        (now[d.mask > 0], d.logprobs[d.mask > 0])
        for data, logprobs in parts
        for d, now in zip(data, logprobs, strict=True)
    ]
    now, behaviour = (np.concatenate(column).astype(np.float64) for column in zip(*pairs, strict=True))
    return now, behaviour  # type: ignore[return-value]


def _trained(passes: Sequence[Pass], stream: str) -> FloatArray:
    found: FloatArray = np.concatenate([getattr(d, stream)[d.mask > 0] for p in passes for d in p.data])
    return found


def _ratios(one: Pass, recipe: Recipe) -> FloatArray:
    """The policy ratio of each trained token as the loss sees it."""
    gaps = [(now - d.logprobs)[d.mask > 0] for d, now in zip(one.data, one.logprobs, strict=True)]
    if recipe.ratio == "sequence":
        gaps = [np.full_like(gap, gap.mean()) for gap in gaps if len(gap)]
    ratios: FloatArray = np.exp(_limited(np.concatenate(gaps)))
    return ratios


def _limited(gap: FloatArray) -> FloatArray:
    return np.clip(gap, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _means(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for record in records for name in record)
    return {n: float(np.mean([r[n] for r in records if n in r])) for n in names}
