"""What is compared with each peer.

A comparison says which settings of Assay's and of the peer's are to mean the same, and which conventions may explain a
difference, each with the `Change` that puts both on its ground.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.grpo.recipes import Recipe
from support.conformance.cases import LONGEST, RAGGED, near_reference
from support.conformance.changes import (
    Change,
    Settings,
    charged_to_rewards,
    dropped_outside,
    lone_reward,
    masked_are_counted,
    sample_deviation,
    sequence_ratio,
    sequence_ratio_in_kl,
    weight_of_sequence,
)

Peer = Literal["trl", "verl"]
PAGE = Path(__file__).parents[3] / "docs" / "grpo.md"


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
HIGHER: Settings = {"loss_fn_config": {"clip_high_threshold": 1.28}}
SUMS: Settings = {"aggregation": "constant", "constant_length": 1}
"""A sum over tokens, a mean over sequences."""


def dual_clip() -> Recipe:
    """The loss of one's own that docs/grpo.md shows, with verl's bound."""
    code = re.search(r"```python\n(# mine.py.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    shown: dict[str, Any] = {}
    exec(code[1], shown)
    return Recipe(shown["dual_clip"], {"low": 0.8, "high": 1.2, "most": 3.0}, aggregation="token")


RLOO = Change({"loss_fn": Recipe(sequence_ratio, baseline="leave_one_out", aggregation="constant"), **COUNTED})
"""What TRL's RLOO means."""
K3 = {"kl_coef": 0.3, "kl_estimator": "k3"}


def _trl() -> list[Comparison]:
    grpo, dr_grpo = {"loss_fn": "grpo"}, {"loss_fn": "dr_grpo", **LENGTH}
    gspo = {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}

    counted = {"constant groups": Change(COUNTED)}

    def loss(name: str, ours: Settings, theirs: Settings, changes: Mapping[str, Change] | None = None) -> Comparison:
        return Comparison(name, "trl", ours, theirs, changes or {})

    return [
        loss("grpo", grpo, {"loss_type": "grpo"}),
        loss("grpo, clip-higher", {**grpo, **HIGHER}, {"loss_type": "grpo", "epsilon_high": 0.28}),
        loss("dr_grpo", dr_grpo, {"loss_type": "dr_grpo"}),
        loss("dapo", {"loss_fn": "dapo"}, {"loss_type": "dapo", "epsilon_high": 0.28}, counted),
        loss("ppo", {"loss_fn": "ppo"}, {"loss_type": "bnpo"}, counted),
        loss("cispo", {"loss_fn": "cispo"}, {"loss_type": "cispo", "epsilon_high": 4.0}, counted),
        loss("gspo", {"loss_fn": "gspo"}, gspo),
        loss("gspo, sum over tokens (luspo)", {"loss_fn": "gspo", **SUMS}, {**gspo, "loss_type": "luspo"}),
        loss("dual clip", {"loss_fn": dual_clip()}, {"loss_type": "bnpo", "delta": 3.0}, counted),
        Comparison(
            "rloo", "trl", {"loss_fn": "rloo", "constant_length": 1}, {}, {"ratio of a sequence": RLOO},
            rloo=True, values=False,
        ),
        *_trl_kl(grpo, gspo),
        *_trl_entropy(grpo, dr_grpo),
        *_trl_weights(grpo),
        loss(
            "grpo, cut answers masked", {**grpo, "mask_truncated": True, **KEPT},
            {"loss_type": "grpo", "mask_truncated_completions": True},
            {"masked answers": Change(found=masked_are_counted)},
        ),
        loss(
            "ppo, cut answers masked", {"loss_fn": "ppo", "mask_truncated": True, **KEPT},
            {"loss_type": "bnpo", "mask_truncated_completions": True},
        ),
        *_trl_advantages(grpo, dr_grpo),
    ]  # fmt: skip


def _trl_kl(grpo: Settings, gspo: Settings) -> list[Comparison]:
    plain = {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False}
    unbiased = {"kl_unbiased": True, **K3, **KEPT}
    rewarded = {"kl_coef": 0.3, "kl_estimator": "k1", "kl_placement": "reward"}
    return [
        Comparison("k3", "trl", {**grpo, **KEPT, **K3}, plain),
        Comparison("k3 unbiased", "trl", {**grpo, **unbiased}, {**plain, "use_bias_correction_kl": True}),
        Comparison(
            "k3 unbiased with gspo", "trl", {"loss_fn": "gspo", **unbiased},
            {**gspo, "beta": 0.3, "use_bias_correction_kl": True}, {"ratio in the KL": sequence_ratio_in_kl(0.3)},
        ),
        Comparison(
            "rloo, k1 in the reward", "trl", {"loss_fn": "rloo", "constant_length": 1, **rewarded}, {"beta": 0.3},
            {"KL in the reward": charged_to_rewards("k1", 0.3), "ratio of a sequence": RLOO}, rloo=True, values=False,
        ),
    ]  # fmt: skip


def _trl_entropy(grpo: Settings, dr_grpo: Settings) -> list[Comparison]:
    """The entropy bonus, which Assay weights as it does the loss."""
    by_tokens: Settings = {"loss_fn": "ppo", **KEPT}
    entropy = {"entropy_coef": 0.1}
    found = [Comparison("entropy by token", "trl", {**by_tokens, **entropy}, {"loss_type": "bnpo", **entropy})]
    for name, ours, kind in (("sequence", grpo, "grpo"), ("constant", dr_grpo, "dr_grpo")):
        change = Change([(1, {**ours, **KEPT}), (1, {**by_tokens, **entropy}), (-1, by_tokens)])
        theirs, changes = {"loss_type": kind, **entropy}, {"mean of the entropy": change}
        found.append(Comparison(f"entropy by {name}", "trl", {**ours, **KEPT, **entropy}, theirs, changes))
    return found


def _trl_weights(grpo: Settings) -> list[Comparison]:
    """Truncated importance sampling in all of TRL's modes; `sequence_mask` at 3 is its default."""
    whole = {"weight of a sequence": weight_of_sequence("sampler", "behaviour")}

    def tis(mode: str, cap: float, changes: Mapping[str, Change]) -> Comparison:
        weights = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": cap}
        theirs = {"loss_type": "grpo", "importance_weights": weights}
        return Comparison(f"tis, {mode}", "trl", {**grpo, "tis_cap": cap}, theirs, changes)

    def dropped(cap: float) -> dict[str, Change]:
        return {"weights that are dropped": dropped_outside(0, cap)}

    return [
        tis("token_truncate", 2.0, {}),
        tis("token_mask", 2.0, dropped(2.0)),
        tis("sequence_truncate", 2.0, whole),
        tis("sequence_mask", 3.0, {**whole, **dropped(3.0)}),
    ]


def _trl_advantages(grpo: Settings, dr_grpo: Settings) -> list[Comparison]:
    rloo = {"loss_fn": "rloo", **LENGTH}
    return [
        Comparison(
            f"advantages {name}{', some rewards unknown' if unknown else ''}", "trl", ours, theirs, changes,
            advantages=True, rloo=ours is rloo, batch={"unknown": unknown},
        )
        for unknown in (False, True)
        for name, ours, theirs, changes in (
            ("grpo", grpo, {"scale_rewards": "group"}, {"deviation": sample_deviation(1e-4)}),
            ("dr_grpo", dr_grpo, {"scale_rewards": "none"}, {}),
            ("rloo", rloo, {"normalize_advantages": False}, {}),
        )
    ]  # fmt: skip


TOKEN: Settings = {"mode": "vanilla", "loss_agg_mode": "token-mean"}
SEQUENCE: Settings = {"mode": "vanilla", "loss_agg_mode": "seq-mean-token-mean"}
CONSTANT: Settings = {"mode": "vanilla", "loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": LONGEST}
SUM: Settings = {"mode": "vanilla", "loss_agg_mode": "seq-mean-token-sum"}
"""verl's means."""
BOUNDED = {"dual clip": Change(theirs={"clip_ratio_c": 1e12})}
PLAIN: Settings = {"loss_fn": "importance_sampling", **KEPT}


def _verl() -> list[Comparison]:
    narrow = {"mode": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    higher, to_four = {"clip_ratio_high": 0.28}, {"clip_ratio_low": 1, "clip_ratio_high": 3}
    grpo, dr_grpo = {"loss_fn": "grpo"}, {"loss_fn": "dr_grpo", **LENGTH}
    counted = {"constant groups": Change(COUNTED)}

    def loss(name: str, ours: Settings, theirs: Settings, changes: Mapping[str, Change]) -> Comparison:
        return Comparison(name, "verl", ours, theirs, changes)

    return [
        loss("importance_sampling", {"loss_fn": "importance_sampling"}, {**TOKEN, **WIDE}, counted),
        loss("ppo", {"loss_fn": "ppo"}, TOKEN, {**counted, **BOUNDED}),
        loss("ppo, sum over tokens", {"loss_fn": "ppo", **SUMS, **COUNTED}, SUM, BOUNDED),
        loss("dapo", {"loss_fn": "dapo"}, {**TOKEN, **higher}, {**counted, **BOUNDED}),
        loss("cispo", {"loss_fn": "cispo"}, {**TOKEN, "mode": "cispo", **to_four}, counted),
        loss("dual clip", {"loss_fn": dual_clip()}, TOKEN, counted),
        loss("grpo", grpo, SEQUENCE, BOUNDED),
        loss("grpo, clip-higher", {**grpo, **HIGHER}, {**SEQUENCE, **higher}, BOUNDED),
        loss("dr_grpo", dr_grpo, CONSTANT, BOUNDED),
        loss("gspo", {"loss_fn": "gspo"}, {**SEQUENCE, **narrow}, {}),
        loss("gspo, mean over tokens", {"loss_fn": "gspo", "aggregation": "token"}, {**TOKEN, **narrow}, {}),
        loss("rloo", {"loss_fn": "rloo", **LENGTH}, {**CONSTANT, **WIDE}, {}),
        *_verl_without_old(counted),
        *_verl_kl(dr_grpo),
        loss("entropy by token", {**PLAIN, "entropy_coef": 0.1}, {**TOKEN, **WIDE, "entropy_coeff": 0.1}, {}),
        *(
            loss(f"entropy by {name}", {**ours, **KEPT, "entropy_coef": 0.1}, {**theirs, "entropy_coeff": 0.1}, BOUNDED)
            for name, ours, theirs in (("sequence", grpo, SEQUENCE), ("constant", dr_grpo, CONSTANT))
        ),
        *_verl_weights(grpo),
        *_verl_advantages(grpo, dr_grpo),
    ]  # fmt: skip


def _verl_without_old(counted: Mapping[str, Change]) -> list[Comparison]:
    """Losses without log-probabilities of the trainer's own from before the step: the ratio is to the sampler."""
    bypass = {**TOKEN, "mode": "bypass_mode"}
    whole = {"weight of a sequence": weight_of_sequence("behaviour", "now")}

    def reinforce(name: str, clip: tuple[float, float], theirs: Settings, changes: Mapping[str, Change]) -> Comparison:
        low, high = clip
        ours = {"loss_fn": "cispo", "loss_fn_config": {"clip_low_threshold": low, "clip_high_threshold": high}}
        return Comparison(name, "verl", ours, theirs, {**counted, **changes})

    def correction(kind: str | None) -> Settings:
        return {"correction": {"loss_type": "reinforce", "rollout_is": kind, "rollout_is_threshold": 2.0}}

    return [
        Comparison(
            "bypass, ppo", "verl", {"loss_fn": "ppo"}, {**bypass, "correction": {"loss_type": "ppo_clip"}},
            {**counted, **BOUNDED},
        ),
        reinforce("bypass, reinforce", (1, 1), {**bypass, **correction(None)}, {}),
        reinforce("bypass, reinforce by token", (0, 2), {**bypass, **correction("token")}, {}),
        reinforce("bypass, reinforce by sequence", (0, 2), {**bypass, **correction("sequence")}, whole),
        reinforce("gpg", (1, 1), {**TOKEN, "mode": "gpg"}, {}),
    ]  # fmt: skip


def _verl_kl(dr_grpo: Settings) -> list[Comparison]:
    """Every form of the penalty, in the loss and in the reward.

    Where the penalty is in the reward, one side charges as the other does: verl each token its own, or, below a
    deviation, Assay the whole rollout.
    """
    near = {"k3 within 10": Change(case=near_reference)}
    found = [
        Comparison(
            form, "verl", {**PLAIN, "kl_coef": 0.3, "kl_estimator": "k2" if "+" in form else form},
            {**TOKEN, **WIDE, "kl": (form, 0.3)}, near if form == "k3" else {}, values="+" not in form,
        )
        for form in ("k1", "k2", "k3", "abs", "k1+", "k3+")
    ]  # fmt: skip
    for form in ("k1", "k2", "k3", "abs"):
        rewarded = {"kl_coef": 0.3, "kl_estimator": form, "kl_placement": "reward"}
        by_token = {"estimator": "grpo", "norm_adv_by_std_in_grpo": False, "penalty": (form, 0.3)}
        as_ours = Change(theirs={"advantages": {**by_token, "charged_to_tokens": True}})
        near_sampled = {"k3 within 10": Change(case=lambda case: near_reference(case, "behaviour"))}
        bounded = {**BOUNDED, **(near_sampled if form == "k3" else {})}
        found += [
            Comparison(
                f"dr_grpo, {form} in the reward", "verl", {**dr_grpo, **rewarded, **KEPT},
                {**CONSTANT, "advantages": by_token}, {"KL in the reward": as_ours, **bounded},
            ),
            Comparison(
                f"grpo, {form} in the reward", "verl", {"loss_fn": "grpo", **rewarded},
                {**SEQUENCE, "advantages": {"estimator": "grpo", "penalty": (form, 0.3)}},
                {"KL in the reward": charged_to_rewards(form, 0.3), "deviation": sample_deviation(1e-6), **bounded},
                values=False,
            ),
        ]  # fmt: skip
    return found


def _verl_weights(grpo: Settings) -> list[Comparison]:
    whole = {"weight of a sequence": weight_of_sequence("sampler", "behaviour")}
    dropped = {"weights that are dropped": dropped_outside(0.5, 2.0)}
    return [
        Comparison(
            f"tis by {name}", "verl", {**grpo, "tis_cap": 2.0},
            {**SEQUENCE, "tis": {"rollout_is": kind, "rollout_is_threshold": bounds}}, {**changes, **BOUNDED},
        )
        for name, kind, bounds, changes in (
            ("token", "token", 2.0, {}),
            ("sequence", "sequence", 2.0, whole),
            ("token, IcePop", "token", "0.5_2.0", dropped),
        )
    ]  # fmt: skip


def _verl_advantages(grpo: Settings, dr_grpo: Settings) -> list[Comparison]:
    deviation = {"deviation": sample_deviation(1e-6)}
    alone = {"a group of one": Change(found=lone_reward)}
    estimators: list[tuple[str, Settings, Settings, dict[str, Change]]] = [
        ("grpo", grpo, {"estimator": "grpo"}, deviation),
        ("grpo vectorized", grpo, {"estimator": "grpo_vectorized"}, deviation),
        ("dr_grpo", dr_grpo, {"estimator": "grpo", "norm_adv_by_std_in_grpo": False}, {}),
        ("rloo", {"loss_fn": "rloo", **LENGTH}, {"estimator": "rloo"}, {}),
        ("rloo vectorized", {"loss_fn": "rloo", **LENGTH}, {"estimator": "rloo_vectorized"}, {}),
    ]
    return [
        Comparison(
            f"advantages {name}{', ragged groups' if sizes else ''}", "verl", ours, theirs,
            {**changes, **(alone if sizes else {})}, advantages=True, batch=sizes,
        )
        for sizes in ({}, {"sizes": RAGGED})
        for name, ours, theirs, changes in estimators
    ]  # fmt: skip


COMPARISONS: Mapping[Peer, list[Comparison]] = {"trl": _trl(), "verl": _verl()}
