"""TRL's own trainers, on the same batches, say what Assay says, or differ by a convention that has a name.

`benchmarks/conformance.py` has more batches, and verl.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import Tensor

from assay.backends.local import losses
from support.conformance.comparisons import COMPARISONS
from support.conformance.conventions import CONVENTIONS
from support.conformance.judge import Cell, Verdict, cells_of, judge, trl_answers


def verdicts(names: Collection[str], spread: float = 2.0) -> dict[str, Verdict]:
    """By comparison, on one batch that is far off-policy."""
    cells: list[Cell] = [cell for cell in cells_of("trl", (spread,), (0,)) if cell.comparison.name in names]
    found = {v.cell.comparison.name: v for v in judge(cells, trl_answers)}
    assert len(found) == len(names)
    return found


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_trl_says_the_same_or_differs_by_a_convention() -> None:
    found = verdicts({c.name for c in COMPARISONS["trl"]})
    assert {name: v.difference for name, v in found.items() if v.named is None} == {}
    named = {name for v in found.values() for name in v.named or ()}
    assert named == {"deviation", "constant groups", "ratio of a sequence", "mean of the entropy"}
    assert {"grpo", "dr_grpo", "gspo", "k3", "tis"} <= {name for name, v in found.items() if v.named == ()}


def test_every_convention_is_named_by_a_comparison() -> None:
    used = {name for these in COMPARISONS.values() for c in these for name in c.changes}
    assert used == set(CONVENTIONS)


def _unclipped(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor, **_: float) -> Tensor:
    return -torch.exp(logprobs - behaviour) * advantages


def test_a_broken_loss_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.SURROGATES, "ppo", _unclipped)
    found = verdicts(["grpo", "dr_grpo", "dapo", "cispo"])
    assert {name for name, v in found.items() if v.named is None} == {"grpo", "dr_grpo", "dapo"}
