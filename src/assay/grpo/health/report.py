"""The health report of a training run: the numbers that show trouble coming, as a few aligned lines. Pure.

    KL to reference   0.0213 mean  0.0871 95 %
    reward            0.412 +- 0.310  25/50/75 %: 0.120 0.400 0.700
    ...
    task rook         share 52 %  reward 0.388  25/50/75 %: 0.100 0.350 0.700
                      -0.200 |. :=++*#@| 1.000  counts 2 0 9 20 31 30 44 60 81 120

A number that no step measured is left out, never shown as 0. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np

from assay.grpo.health.trend import History, values

_LABEL = 18
_RAMP = ".:-=+*#%@"
"""Bars of a histogram, from few to many; an empty bin is blank."""


def health_report(history: History, histograms: Mapping[str, Sequence[float]], active: Sequence[str] = ()) -> str:
    """The report on the steps of `history`, as lines of ASCII text.

    Numbers are means over the steps, except where they say that they are the largest or the last. Percentiles of
    rewards, and the tasks' shares, are those of all rewards in `histograms` together, since a mean of percentiles is
    not a percentile.

    Args:
        history: the steps, oldest first.
        histograms: task -> its rewards in these steps.
        active: the alarms that are on.
    """
    rewards = [reward for task in histograms.values() for reward in _finite(task)]
    lines = [
        ("health", f"{len(history)} step{'s' * (len(history) != 1)}"),
        (
            "KL to reference",
            _joined(_mean(history, "kl_div", "{:.4g} mean"), _mean(history, "kl_div_95pct", "{:.4g} 95 %")),
        ),
        ("reward", _joined(_spread(history), _percentiles(rewards))),
        ("clipped tokens", _mean(history, "fraction_clipped", "{:.1%}")),
        (
            "entropy",
            _joined(_mean(history, "entropy", "{:.4g} exact"), _mean(history, "approx_entropy", "{:.4g} sampled")),
        ),
        ("mismatch", _joined(_largest(history, "ratio_error", "{:.3g} largest |ratio - 1|"), _mismatch(history))),
        (
            "gradient norm",
            _joined(_mean(history, "grad_norm", "{:.4g} mean"), _largest(history, "grad_norm", "{:.4g} largest")),
        ),
        ("skipped steps", _skipped(history)),
        ("constant groups", _mean(history, "rollout/constant_group_fraction", "{:.1%}")),
        ("truncated", _mean(history, "rollout/truncated_fraction", "{:.1%}")),
        ("errored", _mean(history, "rollout/errored_fraction", "{:.1%}")),
        ("rollout buffer", _last(history, "rollout_buffer_size")),
        *_task_lines(histograms),
        ("alarms", ", ".join(active) or "none"),
    ]
    return "\n".join(f"{label:<{_LABEL}}{text}" for label, text in lines if text)


def reward_histogram(rewards: Sequence[float], bins: int = 10) -> tuple[list[float], list[int]]:
    """Equal bins from the lowest to the highest finite reward: `bins + 1` edges and the number of rewards in each bin.

    Equal rewards lie in the middle of bins of total width 1; no finite rewards give no edges and no counts.

    Raises:
        ValueError: bins below 1.
    """
    if bins < 1:
        raise ValueError(f"a histogram needs at least one bin, got {bins}")
    finite = _finite(rewards)
    if not finite:
        return [], []
    counts, edges = np.histogram(finite, bins)
    return [float(edge) for edge in edges], [int(count) for count in counts]


def _finite(rewards: Sequence[float]) -> list[float]:
    return [reward for reward in rewards if math.isfinite(reward)]


def _task_lines(histograms: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, str]]:
    """Share of the scored rollouts, rewards and their histogram, for each task with a finite reward."""
    total = sum(map(len, histograms.values()))
    for task in sorted(histograms):
        if rewards := _finite(histograms[task]):
            share, mean = f"share {len(histograms[task]) / total:.0%}", f"reward {fmean(rewards):.4g}"
            yield f"task {task}", _joined(share, mean, _percentiles(rewards))
            yield "", _drawn(histograms[task])


def _drawn(rewards: Sequence[float]) -> str:
    """The histogram as one line: lowest reward, a bar per bin, highest reward, the counts."""
    edges, counts = reward_histogram(rewards)
    if not counts:
        return ""
    bars = "".join(" " if not count else _RAMP[(count * len(_RAMP) - 1) // max(counts)] for count in counts)
    text = f"{edges[0]:.3f} |{bars}| {edges[-1]:.3f}  counts {' '.join(map(str, counts))}"
    lost = len(rewards) - sum(counts)
    return f"{text}  not finite {lost}" if lost else text


def _percentiles(rewards: Sequence[float]) -> str:
    if not rewards:
        return ""
    return f"25/50/75 %: {' '.join(f'{value:.3f}' for value in np.percentile(rewards, (25, 50, 75)))}"


def _spread(history: History) -> str:
    mean, std = _mean(history, "reward/mean", "{:.3f}"), _mean(history, "reward/std", "{:.3f}")
    return f"{mean} +- {std}" if mean and std else mean


def _mismatch(history: History) -> str:
    return _mean(history, "mismatch_kl", "{:.3g} nats/token")


def _skipped(history: History) -> str:
    skipped = sum(step.get("nan_skip", 0.0) > 0 for step in history)
    return f"{skipped} for a non-finite gradient" if skipped else ""


def _mean(history: History, metric: str, text: str) -> str:
    found = values(history, metric)
    return text.format(fmean(found)) if found else ""


def _largest(history: History, metric: str, text: str) -> str:
    found = values(history, metric)
    return text.format(max(found)) if found else ""


def _last(history: History, metric: str) -> str:
    found = values(history, metric)
    return f"{found[-1]:.0f} groups" if found else ""


def _joined(*parts: str) -> str:
    return "  ".join(part for part in parts if part)
