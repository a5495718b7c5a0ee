"""What is compared with each peer, and how a convention changes each side.

A comparison says which settings of Assay's and of the peer's are to mean the same. Where numbers differ, the settings
of a convention are put in on either side: it explains the difference only if the numbers are then equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from assay.grpo.recipes import Recipe
from support.conformance.assay_side import Found
from support.conformance.cases import LONGEST, RAGGED, Case, near_reference

Peer = Literal["trl", "verl"]
Settings = Mapping[str, Any]
Ours = Settings | Sequence[tuple[float, Settings]]
"""Settings of `GRPOConfig`, or several of which the losses are added with these factors."""
Numbers = Found | Tensor
"""A loss with its gradients, or advantages."""
PAGE = Path(__file__).parents[3] / "docs" / "grpo.md"


@dataclass(frozen=True)
class Change:
    """What a convention changes on each side, and of the batch, so that both then follow it."""

    ours: Ours | None = None
    theirs: Settings = field(default_factory=dict)
    case: Callable[[Case], Case] = lambda case: case
    found: Callable[[Numbers, Case], Numbers] = lambda found, case: found
    """What becomes of Assay's numbers."""


@dataclass(frozen=True)
class Comparison:
    """One loss, or one kind of advantages."""

    name: str
    peer: Peer
    ours: Settings
    theirs: Settings
    changes: Mapping[str, Change] = field(default_factory=dict)
    """Convention -> what puts both on its ground."""
    advantages: bool = False
    """Whether advantages are compared, not the loss of given ones."""
    values: bool = True
    """Whether the value of a loss is compared beside its gradient."""
    rloo: bool = False
    """Whether TRL's is its RLOO trainer."""
    batch: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `make_case`."""


COUNTED: Settings = {"count_constant_groups": True}
KEPT: Settings = {"remove_constant_reward_groups": False}
LENGTH: Settings = {"constant_length": LONGEST}
WIDE = {"clip_ratio_low": 1.0, "clip_ratio_high": 1e9, "clip_ratio_c": 1e12}
"""verl's clip where nothing is clipped."""
UNBOUNDED = {"clip_ratio_c": 1e12}


def dual_clip() -> Recipe:
    """The loss of one's own that docs/grpo.md shows, with verl's bound."""
    code = re.search(r"```python\n(# mine.py.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    shown: dict[str, Any] = {}
    exec(code[1], shown)
    return Recipe(shown["dual_clip"], {"low": 0.8, "high": 1.2, "most": 3.0}, aggregation="token")


def sequence_ratio(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
    """The clipped loss of each sequence's own ratio, at its first token: what TRL's RLOO means."""
    sums = torch.zeros(int(sequences.max()) + 1, dtype=logprobs.dtype).index_add(0, sequences, logprobs - behaviour)
    first = torch.tensor([int((sequences == s).nonzero()[0]) for s in range(len(sums))])
    ratio, a = sums.exp(), advantages[first]
    return torch.zeros_like(logprobs).index_add(0, first, -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a))


def _counts(ours: Settings) -> dict[str, Change]:
    return {"constant groups": Change({**ours, **COUNTED})}


def _trl() -> list[Comparison]:
    def loss(name: str, ours: Settings, theirs: Settings, **more: Any) -> Comparison:
        changes = _counts(ours) if not more.get("changes") and name in ("dapo", "ppo", "cispo", "dual clip") else {}
        return Comparison(name, "trl", ours, theirs, **{"changes": changes, **more})

    tis = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0}
    entropy, bonus = {"entropy_coef": 0.1}, {"entropy_coef": 0.1}
    grpo, dr_grpo = {"loss_fn": "grpo"}, {"loss_fn": "dr_grpo", **LENGTH}
    by_tokens: Settings = {"loss_fn": "ppo", **KEPT}
    losses = [
        loss("grpo", grpo, {"loss_type": "grpo"}),
        loss("dr_grpo", dr_grpo, {"loss_type": "dr_grpo"}),
        loss("dapo", {"loss_fn": "dapo"}, {"loss_type": "dapo", "epsilon_high": 0.28}),
        loss("ppo", {"loss_fn": "ppo"}, {"loss_type": "bnpo"}),
        loss("cispo", {"loss_fn": "cispo"}, {"loss_type": "cispo", "epsilon_high": 4.0}),
        loss(
            "gspo",
            {"loss_fn": "gspo"},
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ),
        loss("dual clip", {"loss_fn": dual_clip()}, {"loss_type": "bnpo", "delta": 3.0}),
        loss(
            "rloo",
            {"loss_fn": "rloo", "constant_length": 1},
            {},
            rloo=True,
            values=False,
            changes={
                "ratio of a sequence": Change(
                    {
                        "loss_fn": Recipe(sequence_ratio, baseline="leave_one_out", aggregation="constant"),
                        **{"constant_length": 1, **COUNTED},
                    }
                )
            },
        ),
        loss(
            "k3", {**grpo, **KEPT, "kl_coef": 0.3, "kl_estimator": "k3"},
            {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False},
        ),
        loss(
            "k3 unbiased", {**grpo, **KEPT, "kl_coef": 0.3, "kl_estimator": "k3", "kl_unbiased": True},
            {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": True},
        ),
        loss("entropy by token", {**by_tokens, **entropy}, {"loss_type": "bnpo", **bonus}),
        loss("tis", {**grpo, "tis_cap": 2.0}, {"loss_type": "grpo", "importance_weights": tis}),
    ]  # fmt: skip
    for name, ours, kind in (("sequence", grpo, "grpo"), ("constant", dr_grpo, "dr_grpo")):
        change = Change([(1, {**ours, **KEPT}), (1, {**by_tokens, **entropy}), (-1, by_tokens)])
        losses.append(
            loss(
                f"entropy by {name}", {**ours, **KEPT, **entropy}, {"loss_type": kind, **bonus},
                changes={"mean of the entropy": change},
            )
        )  # fmt: skip
    deviation = {"deviation": Change(found=lambda found, case: _sample_deviation(found, case, 1e-4))}
    return [
        *losses,
        *(
            Comparison(
                f"advantages {name}{', some rewards unknown' if unknown else ''}",
                "trl",
                ours,
                theirs,
                advantages=True,
                batch={"unknown": unknown},
                **more,
            )
            for unknown in (False, True)
            for name, ours, theirs, more in (
                ("grpo", {"loss_fn": "grpo"}, {"scale_rewards": "group"}, {"changes": deviation}),
                ("dr_grpo", dr_grpo, {"scale_rewards": "none"}, {}),
                ("rloo", {"loss_fn": "rloo", **LENGTH}, {"normalize_advantages": False}, {"rloo": True}),
            )
        ),
    ]


def _verl() -> list[Comparison]:
    token, sequence, constant = (
        {"mode": "vanilla", "loss_agg_mode": "token-mean"},
        {"mode": "vanilla", "loss_agg_mode": "seq-mean-token-mean"},
        {"mode": "vanilla", "loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": LONGEST},
    )
    bounded = {"dual clip": Change(theirs=UNBOUNDED)}
    narrow = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    grpo, dr_grpo = {"loss_fn": "grpo"}, {"loss_fn": "dr_grpo", **LENGTH}
    plain: Settings = {"loss_fn": "importance_sampling", **KEPT}

    def loss(name: str, ours: Settings, theirs: Settings, changes: Mapping[str, Change], **more: Any) -> Comparison:
        return Comparison(name, "verl", ours, theirs, changes, **more)

    def tokens(name: str, ours: Settings, theirs: Settings, **changes: Change) -> Comparison:
        return loss(name, ours, theirs, {**_counts(ours), **changes})

    near = {"k3 within 10": Change(case=near_reference)}
    forms = [
        loss(
            form, {**plain, "kl_coef": 0.3, "kl_estimator": form}, {**token, **WIDE, "kl": (form, 0.3)},
            near if form == "k3" else {},
        )
        for form in ("k1", "k2", "k3", "abs")
    ]  # fmt: skip
    straight = [
        loss(
            form, {**plain, "kl_coef": 0.3, "kl_estimator": "k2"}, {**token, **WIDE, "kl": (form, 0.3)}, {},
            values=False,
        )
        for form in ("k1+", "k3+")
    ]  # fmt: skip
    estimators: list[tuple[str, Settings, Settings, dict[str, Change]]] = [
        ("grpo", grpo, {"estimator": "grpo"}, {"deviation": Change(found=_verl_deviation)}),
        ("grpo vectorized", grpo, {"estimator": "grpo_vectorized"}, {"deviation": Change(found=_verl_deviation)}),
        ("dr_grpo", dr_grpo, {"estimator": "grpo", "norm_adv_by_std_in_grpo": False}, {}),
        ("rloo", {"loss_fn": "rloo", **LENGTH}, {"estimator": "rloo"}, {}),
        ("rloo vectorized", {"loss_fn": "rloo", **LENGTH}, {"estimator": "rloo_vectorized"}, {}),
    ]
    alone = {"a group of one": Change(found=_lone_reward)}
    return [
        tokens("importance_sampling", {"loss_fn": "importance_sampling"}, {**token, **WIDE}),
        tokens("ppo", {"loss_fn": "ppo"}, token, **bounded),
        tokens("dapo", {"loss_fn": "dapo"}, {**token, "clip_ratio_high": 0.28}, **bounded),
        tokens("cispo", {"loss_fn": "cispo"}, {**token, "mode": "cispo", "clip_ratio_low": 1, "clip_ratio_high": 3}),
        tokens("dual clip", {"loss_fn": dual_clip()}, token),
        loss("grpo", grpo, sequence, bounded),
        loss("dr_grpo", dr_grpo, constant, bounded),
        loss("gspo", {"loss_fn": "gspo"}, {**sequence, "mode": "gspo", **narrow}, {}),
        loss("rloo", {"loss_fn": "rloo", **LENGTH}, {**constant, **WIDE}, {}),
        *forms,
        *straight,
        loss("entropy by token", {**plain, "entropy_coef": 0.1}, {**token, **WIDE, "entropy_coeff": 0.1}, {}),
        *(
            loss(f"entropy by {name}", {**ours, **KEPT, "entropy_coef": 0.1}, {**theirs, "entropy_coeff": 0.1}, bounded)
            for name, ours, theirs in (("sequence", grpo, sequence), ("constant", dr_grpo, constant))
        ),
        loss("tis", {**grpo, "tis_cap": 2.0}, {**sequence, "tis": 2.0}, bounded),
        *(
            Comparison(
                f"advantages {name}{', ragged groups' if sizes else ''}", "verl", ours, theirs,
                {**changes, **(alone if sizes else {})}, advantages=True, batch=sizes,
            )
            for sizes in ({}, {"sizes": RAGGED})
            for name, ours, theirs, changes in estimators
        ),
    ]  # fmt: skip


def _sample_deviation(found: Numbers, case: Case, epsilon: float) -> Tensor:
    """Advantages divided by the sample deviation plus an epsilon, where they were by the population's."""
    assert isinstance(found, Tensor)
    out = found.clone()
    for group in case["group"].unique():
        rows = case["group"] == group
        known = case["rewards"][rows & ~case["rewards"].isnan()]
        if len(known) > 1:
            out[rows] *= known.std(correction=0) / (known.std(correction=1) + epsilon)
    return out


def _verl_deviation(found: Numbers, case: Case) -> Tensor:
    return _sample_deviation(found, case, 1e-6)


def _lone_reward(found: Numbers, case: Case) -> Tensor:
    """Advantages where a lone rollout has its reward."""
    assert isinstance(found, Tensor)
    alone = torch.bincount(case["group"])[case["group"]] == 1
    return torch.where(alone, case["rewards"], found)


COMPARISONS: Mapping[Peer, list[Comparison]] = {"trl": _trl(), "verl": _verl()}
