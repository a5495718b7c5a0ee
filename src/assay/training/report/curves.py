"""Which charts a report shows: the curves of a run over its supervised steps and its RL batches. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.training.report.charts import Chart, Curve, Level
from assay.training.report.comparison import Policy
from assay.training.run.reader import RunRecords

_BATCHES, _SFT_STEPS = "RL batch", "supervised step"
_HEALTH: Mapping[str, Sequence[tuple[str, str]]] = {
    "Entropy of the policy, nats per token": [("train/entropy", "training")],
    "Gradient norm before clipping": [("train/grad_norm", "training")],
    "Groups with equal rewards, share of the batch": [("rollout/constant_group_fraction", "training")],
    "Completion length, tokens": [("rollout/completion_tokens_mean", "training")],
    "Difference of trainer and sampler, on tokens of the present policy": [
        ("parity/kl", "KL (k3), nats per token"),
        ("parity/ratio_error", "largest |ratio - 1|"),
    ],
    "KL from the policy at the start of RL, nats per token": [("train/kl_div", "training")],
    "Rollouts not scored, share of the batch": [("rollout/errored_fraction", "training")],
}
"""Title -> (metric, label) of its curves, of RL batches."""
_WITHOUT_GATE = {"parity/kl": "train/mismatch_kl", "parity/ratio_error": "train/ratio_error"}
"""What is shown in place of a metric of the parity gate where the gate is off."""


def outcome_charts(records: RunRecords, metrics: Mapping[str, str], baselines: Sequence[Policy]) -> list[Chart]:
    """For each metric (name -> words): its course in training and on held-out tasks, beside the baselines."""
    charts = []
    for name, words in metrics.items():
        levels = [Level(p.label, e.mean) for p in baselines if (e := p.estimate(name)) is not None]
        training = records.curve("reward/mean" if name == "reward" else f"env/{name}", "rl")
        curves = [Curve("training batches", training), heldout_curve(records, name)]
        charts.append(Chart(words[:1].upper() + words[1:], _BATCHES, curves, levels))
    return charts


def health_charts(records: RunRecords) -> list[Chart]:
    """How the optimisation went; a curve that is 0 throughout is left out."""
    found = {
        title: [Curve(label, _measured(records, name), colour) for colour, (name, label) in enumerate(entries)]
        for title, entries in _HEALTH.items()
    }
    charts = [
        Chart(title, _BATCHES, [curve for curve in curves if any(y for _, y in curve.points)])
        for title, curves in found.items()
    ]
    charts.append(
        Chart("Cross-entropy of the warm-up, nats per token", _SFT_STEPS, [sft_curve(records)], unsettled=0.05)
    )
    return charts


def _measured(records: RunRecords, name: str) -> list[tuple[float, float]]:
    return records.curve(name, "rl") or records.curve(_WITHOUT_GATE.get(name, name), "rl")


def sft_curve(records: RunRecords, label: str = "training", colour: int = 0) -> Curve:
    """Loss over the supervised steps."""
    return Curve(label, records.curve("sft/loss", "sft"), colour)


def heldout_curve(records: RunRecords, name: str, label: str = "held-out, 95 % interval", colour: int = 1) -> Curve:
    """A held-out metric over RL batches; what was measured before RL stands at batch 0."""
    points, band = [], []
    for row in records.metrics:
        value = row.get("eval/reward/mean" if name == "reward" else f"eval/env/{name}")
        if value is not None:
            points.append((row["index"] + 1.0 if row["phase"] == "rl" else 0.0, value))
            band.append(row.get(f"eval/ci95/{name}") or 0.0)
    return Curve(label, points, colour, band, dots=True)


def heldout_by_cpu(records: RunRecords, name: str, label: str, colour: int) -> Curve:
    """A held-out metric over the CPU seconds of training, without evaluations, that came before."""
    spent = 0.0
    points, band = [], []
    for row in records.metrics:
        spent += (row.get("perf/cpu_s") or 0.0) - (row.get("perf/eval_cpu_s") or 0.0)
        value = row.get("eval/reward/mean" if name == "reward" else f"eval/env/{name}")
        if value is not None:
            points.append((spent, value))
            band.append(row.get(f"eval/ci95/{name}") or 0.0)
    return Curve(label, points, colour, band, dots=True)
