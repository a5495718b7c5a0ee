"""The demo's report: that of the trained run, with the control and the other policies beside it."""

from __future__ import annotations

from dataclasses import replace

from assay.cli.demo.outcome import Outcome, cost_notes
from assay.training.report.charts import Chart, Level
from assay.training.report.curves import health_charts, heldout_by_cpu, outcome_charts, sft_curve
from assay.training.report.page import Report, capital
from assay.training.report.report import heldout_notes

ILLEGAL_NOTE = "An answer that is illegal or cannot be read neither keeps a win nor counts as a best move."


def demo_report(outcome: Outcome, report: Report) -> Report:
    """The report of the demo, made from that of its trained run."""
    baselines = [policy for policy in outcome.policies.values() if policy.exact]
    steps = len(outcome.control.curve("sft/loss", "sft"))
    by_cpu = [
        Chart(
            f"{capital(words)}, held-out, against CPU time",
            "CPU seconds of training",
            [
                heldout_by_cpu(outcome.trained, name, "warm-up, then GRPO", 1),
                heldout_by_cpu(outcome.control, name, "warm-up alone", 0),
            ],
            [Level(policy.label, e.mean) for policy in baselines if (e := policy.estimate(name)) is not None],
        )
        for name, words in list(outcome.metrics.items())[:2]
    ]
    health = health_charts(outcome.trained)
    loss = replace(
        health[-1], curves=[sft_curve(outcome.trained, "before GRPO", 1), sft_curve(outcome.control, "alone")]
    )
    return replace(
        report,
        title="Demo: chess moves by GRPO",
        summary=" ".join(cost_notes(outcome)),
        plan=f"{report.plan}\nControl: {steps:,} supervised steps and no GRPO: as much CPU time as warm-up and GRPO.",
        headlines=outcome.verdicts,
        policies=list(outcome.policies.values()),
        comparisons=list(outcome.comparisons.values()),
        metrics=outcome.metrics,
        notes=[*heldout_notes(outcome.trained, baselines), ILLEGAL_NOTE],
        outcomes=[*by_cpu, *outcome_charts(outcome.trained, outcome.metrics, baselines)],
        health=[*health[:-1], loss],
    )
