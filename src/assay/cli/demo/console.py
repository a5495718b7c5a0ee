"""The demo's words on the terminal: what is going to happen, the results, and where to look next."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.cli.demo.outcome import RESULT, Outcome, cost_notes
from assay.envs.base import EnvData
from assay.training.config import TrainingConfig
from assay.training.report.comparison import Policy
from assay.training.report.page import capital
from assay.training.run.resume import REPORT


def say(console: Console, text: str, style: str = "") -> None:
    """A line that is not wrapped, so that paths in it can be copied."""
    console.print(escape(text), style=style, highlight=False, soft_wrap=True)


def introduce(console: Console, config: TrainingConfig, data: EnvData) -> None:
    """What the demo does, for a reader who sees it for the first time."""
    say(console, "A small language model learns to choose better chess moves on this machine.", "bold")
    say(
        console,
        "It starts from random weights, reads a position as text and answers with a move. A chess engine checks every "
        "answer, and the reward says how good it was.",
    )
    say(console, f"Task: {config.active_builder.describe()}")
    if data.sft is not None:
        example = data.sft.batch(0, 1)[0]
        say(console, f"Example: {example.prompt[-1].content}  ->  {example.completion.strip()}")
    say(console, f"Everything is kept in {config.log_path}. Ctrl-C stops the demo; the same command goes on with it.")


def show(console: Console, outcome: Outcome, root: Path, run: Path) -> None:
    """The results, and where to look next."""
    console.print()
    console.print(_table(outcome))
    for text in outcome.verdicts:
        say(console, text)
    console.print()
    shares = ", ".join(f"{share:.0%}" for share in outcome.constant_groups)
    say(console, f"Constant groups (all answers earned the same: nothing to learn), by fifths of GRPO: {shares}.")
    if rewards := outcome.constant_group_rewards:
        say(
            console,
            f"Their mean reward went from {rewards[0]:.2f} to {rewards[-1]:.2f}, high where solved.",
        )
    for text in cost_notes(outcome):
        say(console, text)
    console.print()
    say(console, "Where to look next", "bold")
    for command, what in (
        ("assay show", "what the model answered, and what each answer earned"),
        ("assay view", "the same as a page in your browser"),
        ("assay report", "the report of this run alone"),
    ):
        say(console, f"  {f'{command} {run}':34}  {what}")
    say(console, f"  {root / REPORT!s:34}  the whole comparison, with curves and boards")
    say(console, f"  {root / RESULT!s:34}  all figures")


def _table(outcome: Outcome) -> Table:
    tasks = len(outcome.trained.last.tasks) if outcome.trained.last is not None else 0
    title = f"Results on {tasks:,} held-out positions, with 95 % intervals"
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("")
    for policy in outcome.policies.values():
        table.add_column(capital(policy.label), justify="right")
    for metric, words in outcome.metrics.items():
        table.add_row(capital(words), *(_estimate(policy, metric) for policy in outcome.policies.values()))
    return table


def _estimate(policy: Policy, metric: str) -> str:
    interval = policy.estimate(metric)
    if interval is None:
        return "-"
    return f"{interval.mean:.3f} exact" if policy.exact else f"{interval.mean:.3f} ± {interval.half_width:.3f}"
