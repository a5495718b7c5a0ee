"""verl's own losses, KL estimates and advantages, on the same batches: they are Assay's, or differ by a convention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from assay.backends.base import KLEstimator
from assay.backends.local import losses
from assay.grpo import trainer
from assay.integrations.verl.agent_check import ESTIMATOR
from assay.types import Datum
from support.conformance.changes import Numbers
from support.conformance.comparisons import COMPARISONS
from support.conformance.conventions import ABSENT
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
    assert named == {
        *("deviation", "constant groups", "dual clip", "k3 within 10", "a group of one", "KL in the reward"),
        *("weight of a sequence", "weights that are dropped"),
    }
    agreed = {name for name, v in found.items() if v.named == ()}
    assert {"gspo", "gspo, mean over tokens", "rloo", "k1", "k2", "abs", "k3+"} <= agreed
    assert {found[name].named for name in ("gpg", "bypass, reinforce by token")} == {("constant groups",)}


def test_each_loss_of_verl_is_compared_or_said_to_be_absent() -> None:
    calls = [c.theirs for c in COMPARISONS["verl"]]
    for registry, absent, key in (
        (POLICY_LOSS_REGISTRY, "verl", "mode"),
        (ADV_ESTIMATOR_REGISTRY, "verl, advantages", "estimator"),
    ):
        compared = {call[key] for call in calls if key in call}
        assert compared | set(ABSENT[absent]) == set(registry) - {ESTIMATOR}, "Assay's own is none of verl's"
        assert not compared & set(ABSENT[absent])


def test_a_broken_estimate_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    right = losses.kl_estimate

    def halved(estimator: str, difference: torch.Tensor) -> torch.Tensor:
        return right(estimator, difference) / (2 if estimator == "k2" else 1)  # type: ignore[arg-type]

    monkeypatch.setattr(losses, "kl_estimate", halved)
    broken = {name for name, v in verdicts().items() if v.named is None}
    assert broken == {"k2", "k1+", "k3+", "dr_grpo, k2 in the reward"}


def test_a_penalty_that_is_not_centred_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    right = trainer.add_penalty

    def shifted(data: Sequence[Datum], coef: float, estimator: KLEstimator, discount: float) -> list[Datum]:
        found = right(data, coef, estimator, discount)
        return [replace(d, advantages=d.advantages + np.float32(0.01) * d.mask) for d in found]

    monkeypatch.setattr(trainer, "add_penalty", shifted)
    broken = {f"dr_grpo, {form} in the reward" for form in ("k1", "k2", "k3", "abs")}
    assert {name for name, v in verdicts().items() if v.named is None} == broken
