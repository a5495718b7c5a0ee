"""verl's own losses, KL estimates and advantages, on the same batches: they are Assay's, or differ by a convention."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from assay.backends.local import losses
from support.conformance.comparisons import Numbers
from support.conformance.judge import Cell, Question, Verdict, cells_of, judge, numbers_of
from support.conformance.verl_side import answer


def answers(asked: Sequence[tuple[Cell, Question]]) -> list[Numbers]:
    return [numbers_of(answer(*question)) for _, question in asked]


def verdicts() -> dict[str, Verdict]:
    """By comparison, on one batch that is far off-policy."""
    return {v.cell.comparison.name: v for v in judge(cells_of("verl", (2.0,), (0,)), answers)}


def test_verl_says_the_same_or_differs_by_a_convention() -> None:
    found = verdicts()
    assert {name: v.difference for name, v in found.items() if v.named is None} == {}
    named = {name for v in found.values() for name in v.named or ()}
    assert named == {"deviation", "constant groups", "dual clip", "k3 within 10", "a group of one"}
    assert {"gspo", "rloo", "k1", "k2", "abs", "k3+"} <= {name for name, v in found.items() if v.named == ()}


def test_a_broken_estimate_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    right = losses.kl_estimate

    def halved(estimator: str, difference: torch.Tensor) -> torch.Tensor:
        return right(estimator, difference) / (2 if estimator == "k2" else 1)  # type: ignore[arg-type]

    monkeypatch.setattr(losses, "kl_estimate", halved)
    assert {name for name, v in verdicts().items() if v.named is None} == {"k2", "k1+", "k3+"}
