"""TRL's own trainers, on the same batches, say what Assay says, or differ by a convention that has a name.

`benchmarks/conformance.py` has more batches, and verl.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection

import pytest
import torch
from torch import Tensor

from assay.backends.local import losses
from support.conformance.comparisons import COMPARISONS, PAGE
from support.conformance.conventions import ABSENT, CONVENTIONS
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
    assert named == {
        *("deviation", "constant groups", "ratio of a sequence", "mean of the entropy", "KL in the reward"),
        *("weight of a sequence", "weights that are dropped", "masked answers", "ratio in the KL"),
    }
    agreed = {name for name, v in found.items() if v.named == ()}
    assert {"grpo", "dr_grpo", "gspo", "gspo, sum over tokens (luspo)", "k3", "tis, token_truncate"} <= agreed
    assert found["tis, sequence_mask"].named == ("weight of a sequence", "weights that are dropped")


def test_every_convention_is_named_by_a_comparison() -> None:
    used = {name for these in COMPARISONS.values() for c in these for name in c.changes}
    assert used == set(CONVENTIONS)


def test_each_loss_of_trl_is_compared_or_said_to_be_absent() -> None:
    from trl import GRPOTrainer  # takes seconds, and every process collects this file

    tree = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer._compute_loss)))
    asked = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and "loss_type" in ast.unparse(node.left)]
    known = {n.value for node in asked for n in ast.walk(node) if isinstance(n, ast.Constant)}
    compared = {c.theirs["loss_type"] for c in COMPARISONS["trl"] if "loss_type" in c.theirs}
    assert compared | set(ABSENT["trl"]) == known
    assert not compared & set(ABSENT["trl"])


def test_the_page_names_what_is_absent_and_counts_the_cells() -> None:
    page = PAGE.read_text(encoding="utf-8")
    paragraph = page[page.index("Assay has no counterpart of:") :].split("Most are", 1)[0]
    assert set(re.findall("`([a-z_]+)`", paragraph)) - {"normalize_then_sum"} == {n for a in ABSENT.values() for n in a}
    assert f"each of its {sum(len(cells_of(peer)) for peer in COMPARISONS)} cells" in page


def _unclipped(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor, **_: float) -> Tensor:
    return -torch.exp(logprobs - behaviour) * advantages


def test_a_broken_loss_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.SURROGATES, "ppo", _unclipped)
    found = verdicts(["grpo", "dr_grpo", "dapo", "cispo"])
    assert {name for name, v in found.items() if v.named is None} == {"grpo", "dr_grpo", "dapo"}
