"""Write docs/metrics.md from the table of metrics, or with --check say whether it is current (exit status 1 if not)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from assay.training.metrics.names import SECTIONS, Section
from gen_config_docs import write_or_check

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

This page is generated from `assay.training.metrics.names` by `make docs`; edit the table there, not this page.

A run writes one flat record per step to `metrics.jsonl`, and the same to TensorBoard and Weights & Biases. Beside the
metrics a record has `version`, `step` (global, -1 before the first), `phase` (`start`, `sft`, `rl`) and `index` (within
the phase). A quantity has one name. What a step cannot measure is absent, never 0; a number that is not finite is null
and raises an event. `<tag>`, `<metric>` and the like stand for names that the environment gives.

Every `tensorboard_log_histograms_every` batches TensorBoard also gets the distributions of `reward`, of `reward/<task>`
by type of task, and of `completion_tokens`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(line for section in SECTIONS for line in _section(section))])


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}\n"
    yield f"{section.note}\n"
    yield "| Metric | Meaning |"
    yield "| --- | --- |"
    yield from (f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in section.metrics.items())
    yield ""


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), "the table of metrics"))
