"""The page of a report as HTML: one file without scripts, fonts or anything else that is fetched.

Curves and boards are inline SVG, the style sheet is inlined. Every text is escaped, especially a model's; only the
environment's figures are inserted unchanged, and they escape what they show. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from assay.config import Layer, build, resolved
from assay.config.loader import CHANGES_KEY, FILES_KEY, TYPE_KEY
from assay.config.sources import flatten
from assay.config.values import shown
from assay.errors import AssayError
from assay.terminal import inert
from assay.training.config import TrainingConfig
from assay.training.metrics.intervals import Interval
from assay.training.metrics.logger import RATE_RAISED, SETTINGS_CHANGED
from assay.training.report.charts import MINUS, Chart, draw, finite
from assay.training.report.comparison import Policy, difference, direction, signed
from assay.training.run.reader import Answer, RunRecords
from assay.types import Json, Task

MAX_EVENTS = 100
"""Alarms that are listed one by one."""
HEALTH_REPORT = "health_report"
"""Kind of the events that say every few steps how training is going; the charts show the same."""
MAX_TEXT = 600
"""Characters of a prompt or an answer that are shown."""
Figure = Callable[[Task, Sequence[str]], str]
"""Draws a task and the texts of answers to it as an HTML fragment."""
_CSS = Path(__file__).with_name("report.css")


@dataclass(frozen=True)
class Sample:
    """A held-out task with its answers before and after, each with a heading."""

    prompt: str
    sides: Sequence[tuple[str, Sequence[Answer]]]
    task: Task | None = None
    """The task itself, where the environment still poses it: then it can be drawn."""


@dataclass(frozen=True)
class Report:
    """Everything on the page."""

    title: str
    summary: str
    """What was done and what it cost, in a few sentences."""
    plan: str
    """Lines `name: text`; empty where the environment cannot be built."""
    records: RunRecords
    headlines: Sequence[str]
    """What may be said in a sentence each."""
    policies: Sequence[Policy]
    """Columns of the table of held-out metrics."""
    comparisons: Sequence[tuple[Policy, Policy]]
    metrics: Mapping[str, str]
    """Rows of the tables: metric -> words."""
    notes: Sequence[str]
    outcomes: Sequence[Chart]
    health: Sequence[Chart]
    samples: Sequence[Sample]


def render(report: Report, figure: Figure | None) -> str:
    """The page; the same report gives the same page. Without a `figure` the answers are shown as text."""
    body = "".join((
        _header(report),
        _results(report),
        _charts("Learning", report.outcomes),
        _samples(report.samples, figure),
        _charts("Health of the optimisation", report.health),
        _events(report.records.events),
        _settings(report.records.config),
        _versions(report.records.code),
    ))  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)} · Assay report</title><style>{_CSS.read_text(encoding='utf-8')}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _header(report: Report) -> str:
    entries = (line.partition(": ") for line in report.plan.splitlines())
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, _, text in entries)
    plan = f"<section><h2>Plan</h2><dl>{rows}</dl></section>" if rows else ""
    return (
        f'<header><p class="kicker">Assay · training report</p><h1>{escape(report.title)}</h1>'
        f'<p class="soft">{escape(report.summary)}</p></header>{plan}'
    )


def _results(report: Report) -> str:
    if not report.policies:
        return '<section><h2>Held-out results</h2><p class="soft">Nothing was evaluated.</p></section>'
    headlines = "".join(f"<li>{escape(text)}</li>" for text in report.headlines)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)
    return (
        f'<section><h2>Held-out results</h2><ul class="plain">{headlines}</ul>'
        f"{_estimates(report)}{_differences(report)}{notes}</section>"
    )


def _estimates(report: Report) -> str:
    rows = [
        [capital(words), *(_estimate(policy.estimate(name), exact=policy.exact) for policy in report.policies)]
        for name, words in report.metrics.items()
    ]
    return _table(["", *(policy.label for policy in report.policies)], rows)


def _estimate(interval: Interval | None, *, exact: bool) -> str:
    if interval is None:
        return "<td>&ndash;</td>"
    below = "exact" if exact else f"[{interval.low:.3f}, {interval.high:.3f}]".replace("-", MINUS)
    return f"<td><b>{interval.mean:.3f}</b><small>{below}</small></td>"


def _differences(report: Report) -> str:
    if not report.comparisons:
        return ""
    heads = [f"{policy.label} {MINUS} {other.label}" for policy, other in report.comparisons]
    rows = [
        [capital(words), *(_difference(difference(policy, other, name)) for policy, other in report.comparisons)]
        for name, words in report.metrics.items()
    ]
    return _table(["Paired difference", *heads], rows)


def _difference(interval: Interval | None) -> str:
    if interval is None:
        return "<td>&ndash;</td>"
    sign, words = {1: ("sign", "higher"), -1: ("sign lower", "lower"), 0: ("", "not shown to differ")}[
        direction(interval)
    ]
    return f'<td class="{sign}"><b>{signed(interval)}</b><small>{words}</small></td>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], style: str = "") -> str:
    """A table whose first cells are text; the others are given as `<td>` elements."""
    head = "".join(f'<th scope="col">{escape(capital(text))}</th>' for text in heads)
    body = "".join(f"<tr><td>{escape(first)}</td>{''.join(cells)}</tr>" for first, *cells in rows)
    style = f' class="{style}"' if style else ""
    return f'<div class="scroll"><table{style}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _charts(title: str, charts: Sequence[Chart]) -> str:
    drawn = "".join(draw(chart) for chart in charts)
    if not drawn:
        return ""
    both = any(curve.smoothed for chart in charts for curve in map(finite, chart.curves))
    below = '<p class="note">Thin lines show single batches, thick lines their moving mean.</p>' if both else ""
    return f'<section><h2>{escape(title)}</h2>{below}<div class="charts">{drawn}</div></section>'


def _samples(samples: Sequence[Sample], figure: Figure | None) -> str:
    if not samples:
        return ""
    cards = "".join(_sample(sample, figure) for sample in samples)
    return (
        f'<section><h2>Sample answers</h2><p class="note">{len(samples)} held-out tasks, evenly spaced in the data '
        f'set, not picked by hand.</p><div class="samples">{cards}</div></section>'
    )


def _sample(sample: Sample, figure: Figure | None) -> str:
    sides = "".join(_side(sample.task, heading, answers, figure) for heading, answers in sample.sides)
    prompt = escape(inert(sample.prompt[:MAX_TEXT]))
    return f'<article class="sample"><h3><code>{prompt}</code></h3><div class="sides">{sides}</div></article>'


def _side(task: Task | None, heading: str, answers: Sequence[Answer], figure: Figure | None) -> str:
    valid = sum(answer.status == "scored" for answer in answers)
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    mean = f"reward {sum(rewards) / len(rewards):.2f}".replace("-", MINUS) if rewards else "not scored"
    picture = ""
    if figure is not None and task is not None:
        picture = figure(task, [answer.text for answer in answers])
    texts = _answers(answers)
    return f"<div><h4>{escape(heading)}</h4><p>{valid} of {len(answers)} valid · {mean}</p>{picture}{texts}</div>"


def _answers(answers: Sequence[Answer]) -> str:
    """What was said, each answer with its reward and the parts of it."""
    items = (f"<li>{_turns(a) if a.turns else _said(a.text)} <small>{_earned(a)}</small></li>" for a in answers)
    return f'<ul class="answers">{"".join(items)}</ul>'


def _said(text: str) -> str:
    return f"<code>{escape(inert(text.strip()[:MAX_TEXT])) or '&nbsp;'}</code>"


def _turns(answer: Answer) -> str:
    """All turns of an answer in order, each after what the policy was told before it."""
    parts = (
        f"{f'<i>{escape(inert(told.strip()[:MAX_TEXT]))}</i> &rarr; ' if told.strip() else ''}{_said(text)}"
        for told, text in answer.turns
    )
    return " ".join(f"<small>{number}.</small> {part}" for number, part in enumerate(parts, 1))


def _earned(answer: Answer) -> str:
    if answer.reward is None:
        return "not scored"
    named = {"reward": answer.reward, **answer.parts}
    facts = [f"{inert(name, lines=False)} {f'{value:.3g}'.replace('-', MINUS)}" for name, value in named.items()]
    return escape(" · ".join([*facts, *(["invalid"] if answer.status == "invalid" else [])]))


def _events(events: Sequence[Mapping[str, Json]]) -> str:
    # Regular figures, a rate that recovers and changed settings are not alarms, unless the gate was turned off.
    usual = (HEALTH_REPORT, RATE_RAISED, SETTINGS_CHANGED)
    events = [event for event in events if event.get("kind") not in usual or event["level"] != "info"]
    if not events:
        return '<section><h2>Alarms</h2><p class="soft">None.</p></section>'
    items = "".join(
        f"<li>Step {escape(str(event['step']))}, {escape(str(event['level']))}: {escape(str(event['message']))}</li>"
        for event in events[:MAX_EVENTS]
    )
    rest = len(events) - MAX_EVENTS
    more = f'<p class="note">And {rest:,} more in <code>events.jsonl</code>.</p>' if rest > 0 else ""
    return f'<section><h2>Alarms</h2><ul class="plain">{items}</ul>{more}</section>'


def _settings(config: Mapping[str, Json]) -> str:
    found = flatten({key: value for key, value in config.items() if key not in (FILES_KEY, CHANGES_KEY)}, "config.json")
    chosen = {key: value for key, value in found.items() if key.endswith(f".{TYPE_KEY}")}
    try:
        defaults = flatten(resolved(build(TrainingConfig, [Layer("config.json", chosen)])), "defaults")
    except AssayError:  # the code that a setting names is gone: then all settings are listed, without defaults
        defaults = {}
    own = {key: value for key, value in defaults.items() if key not in chosen}
    rows = [
        [key, f"<td><code>{escape(shown(value))}</code></td>", f"<td>{_default(own, key)}</td>"]
        for key, value in found.items()
        if key not in own or own[key] != value
    ]
    table = _table(["setting", "here", "default"], rows, "pairs")
    title = "Settings that differ from the defaults" if defaults else "Settings"
    return f"<section><h2>{title}</h2>{table}</section>"


def _default(defaults: Mapping[str, Json], key: str) -> str:
    return f"<code>{escape(shown(defaults[key]))}</code>" if key in defaults else "&ndash;"


def _versions(code: Mapping[str, Json]) -> str:
    git = code.get("git") or {}
    commit = f"{git['commit']}{', with uncommitted changes' if git.get('dirty') else ''}" if git else None
    found = {"git commit": commit, **code.get("packages", {})} | {n: code.get(n) for n in ("python", "platform")}
    rows = [[name, f"<td>{escape(str(value))}</td>"] for name, value in found.items() if value is not None]
    return f"<section><h2>Versions</h2>{_table(['package', 'version'], rows, 'pairs')}</section>"


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
