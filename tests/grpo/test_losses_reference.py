"""The gradient of every optimizer step is that of a slow reference: one sequence, one token at a time, in float64.

The reference is written from the papers and the documented formulas. Of Assay it uses the records and nothing else: the
logits are those of the Hugging Face model itself, unpadded, and what a setting means is said here once more.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.backends.local import forward
from assay.grpo.config import GRPOConfig
from assay.grpo.recipes import RECIPES
from assay.grpo.trainer import GRPOTrainer
from assay.types import Completion, Score, Trajectory, TrajectoryGroup, Transition
from support.off_policy import KL, LENGTH, MADE_UP, a_backend, distributions, models, rollouts, update
from support.scripted import task

# What each name stands for, from the papers. `all`: a mean over all that was sampled, as in an expectation over
# questions, where groups with equal rewards add 0; without it, over what dynamic sampling (DAPO, MiniMax-M1) leaves.

ALGORITHMS: dict[str, dict[str, Any]] = {
    # Tinker: the plain importance-weighted policy gradient, PPO's clip, and MiniMax-M1's clipped weight.
    "importance_sampling": {"aggregation": "token"},
    "ppo": {"low": 0.8, "high": 1.2, "aggregation": "token"},
    "cispo": {"low": 0.0, "high": 4.0, "std": True, "aggregation": "token"},
    # DeepSeekMath eq. 3: z-scores, 1/G sum_i 1/|o_i| sum_t.
    "grpo": {"low": 0.8, "high": 1.2, "std": True, "aggregation": "sequence", "all": True},
    # Dr. GRPO: neither the deviation nor the length divides.
    "dr_grpo": {"low": 0.8, "high": 1.2, "aggregation": "constant", "all": True},
    # DAPO eq. 8: clip higher, mean over all tokens.
    "dapo": {"low": 0.8, "high": 1.28, "std": True, "aggregation": "token"},
    # GSPO eq. 5: one ratio per sequence, the geometric mean of its tokens'.
    "gspo": {"low": 1 - 3e-4, "high": 1 + 4e-4, "std": True, "aggregation": "sequence", "all": True},
    # Back to basics: REINFORCE with the mean of the others as baseline.
    "rloo": {"baseline": "leave_one_out", "aggregation": "constant", "all": True},
}
DEFAULTS: dict[str, Any] = {
    "loss_fn": "grpo",
    "baseline": "mean",
    "std": False,
    "all": False,
    "constant_length": None,
    "entropy_coef": 0.0,
    "mask_truncated": False,
    "kl_coef": 0.0,
    "kl_estimator": "kl3",
    "kl_placement": "loss",
    "kl_unbiased": False,
    "kl_discount_factor": 0.0,
    "tis_cap": 0.0,
    "temperature": 1.0,
    "gamma": 1.0,
    "remove_constant_reward_groups": True,
}


def settings_of(case: Mapping[str, Any]) -> dict[str, Any]:
    given = {**DEFAULTS, **ALGORITHMS[case.get("loss_fn", "grpo")], **case}
    if case.get("normalize_advantages_by_std") is not None:
        given["std"] = case["normalize_advantages_by_std"]
    if "count_constant_groups" in case:
        given["all"] = case["count_constant_groups"]
    thresholds = case.get("loss_fn_config", {})
    given["low"] = thresholds.get("clip_low_threshold", given.get("low"))
    given["high"] = thresholds.get("clip_high_threshold", given.get("high"))
    return given


# The reference.


@dataclass
class Sampled:
    """One sampled token of a sequence: its place, and what is known of it."""

    place: int
    behaviour: float
    advantage: float
    weight: float = 1.0
    logprob: Any = None
    entropy: Any = None
    reference: float = 0.0


@dataclass
class Line:
    """A training sequence."""

    tokens: list[int]
    sampled: list[Sampled]


def advantages_of(group: TrajectoryGroup, s: Mapping[str, Any]) -> list[list[float]] | None:
    """One per turn of each trajectory; none of trajectories with a turn that could not be scored."""
    returns: list[list[float]] = []
    for trajectory in group.trajectories:
        rewards = [turn.score.value for turn in trajectory.transitions]
        if any(r is None for r in rewards) or trajectory.stop_reason == "errored":
            returns.append([])
            continue
        turns = len(rewards)
        returns.append([sum(s["gamma"] ** (u - t) * rewards[u] for u in range(t, turns)) for t in range(turns)])
    everything = [r for turns in returns for r in turns]
    if not everything or len([turns for turns in returns if turns]) < 2 or len(set(everything)) == 1:
        return None
    if s["baseline"] == "turn":
        return by_turn(returns, s["std"])
    deviation = float(np.std(everything)) if s["std"] else 1.0
    out = []
    for i, turns in enumerate(returns):
        compared = everything
        if s["baseline"] == "leave_one_out":
            compared = [r for j, others in enumerate(returns) for r in others if j != i]
        out.append([(r - sum(compared) / len(compared)) / deviation for r in turns])
    return out


def by_turn(returns: Sequence[Sequence[float]], std: bool) -> list[list[float]]:
    """KernelGYM's turn-level leave-one-out: A = (G - mean) n / (n - 1) over the n rollouts at a turn; 0 for n = 1."""
    out = [[0.0] * len(turns) for turns in returns]
    around = []
    for t in range(max(len(turns) for turns in returns)):
        there = [i for i, turns in enumerate(returns) if t < len(turns)]
        if len(there) < 2:
            continue
        mean = sum(returns[i][t] for i in there) / len(there)
        for i in there:
            around.append(returns[i][t] - mean)
            out[i][t] = around[-1] * len(there) / (len(there) - 1)
    deviation = math.sqrt(sum(a * a for a in around) / len(around)) if std else 1.0
    return [[a / deviation for a in turns] for turns in out]


def sequences_of(trajectory: Trajectory, advantages: Sequence[float], s: Mapping[str, Any]) -> list[Line]:
    """Turns that extend each other are one sequence; one that does not begins another."""
    out: list[Line] = []
    if not advantages:
        return []
    for turn, advantage in zip(trajectory.transitions, advantages, strict=True):
        prompt, completion = list(turn.prompt_tokens), turn.completion
        if not out or prompt[: len(out[-1].tokens)] != out[-1].tokens:
            out.append(Line([], []))
        sequence = out[-1]
        sequence.tokens = prompt + list(completion.tokens)
        if s["mask_truncated"] and completion.stop_reason == "length":
            continue
        for i, behaviour in enumerate(completion.logprobs):
            sequence.sampled.append(Sampled(len(prompt) + i, behaviour, advantage))
    return [sequence for sequence in out if sequence.sampled]


@functools.cache
def fixed(model: Any, tokens: tuple[int, ...], temperature: float) -> Tensor:
    """`distributions` of a model that no test changes."""
    with torch.no_grad():
        return distributions(model, list(tokens), temperature)


def estimate(name: str, d: Any) -> Any:
    """Of KL(policy || reference), from d = log policy - log reference."""
    exp = torch.exp if isinstance(d, Tensor) else math.exp
    if name in ("k1", "kl1"):
        return d
    if name in ("k2", "kl3"):
        return d * d / 2
    if name in ("k3", "kl2"):
        return exp(-d) - 1 + d
    assert name == "abs"
    return abs(d)


def surrogate(s: Mapping[str, Any], token: Sampled, sequence: Line) -> Tensor:
    """What one token adds to the objective, to be minimised, before the normaliser."""
    gap, a = token.logprob - token.behaviour, token.advantage
    if s["loss_fn"] == "gspo":
        # GSPO-token (eq. 13): the value of the sequence's ratio, the gradient of the token's own.
        mean = sum(t.logprob.item() - t.behaviour for t in sequence.sampled) / len(sequence.sampled)
        gap = mean + token.logprob - token.logprob.item()
    ratio = torch.exp(gap)
    if s["low"] is None:
        return -ratio * a
    bounded = min(max(ratio.item(), s["low"]), s["high"])
    if s["loss_fn"] == "cispo":
        return -bounded * token.logprob * a
    # The smaller of r * A and clip(r) * A; where the clipped is smaller, there is no gradient.
    return -ratio * a if ratio.item() * a <= bounded * a else -torch.tensor(bounded * a, dtype=torch.float64)


def reference_loss(groups: Sequence[TrajectoryGroup], s: Mapping[str, Any], networks: Mapping[str, Any]) -> Tensor:
    """The loss of one optimizer step. `networks`: the policy, the policy that admitted the groups, the reference."""
    sequences: list[Line] = []
    uncomputed: list[Line] = []
    for group in groups:
        advantages = advantages_of(group, s)
        kept = sequences if advantages is not None or not s["remove_constant_reward_groups"] else uncomputed
        for i, trajectory in enumerate(group.trajectories):
            scored = trajectory.stop_reason != "errored"
            zeros = [0.0] * len(trajectory.transitions) if scored else []
            kept += sequences_of(trajectory, zeros if advantages is None else advantages[i], s)
    if not s["all"]:
        uncomputed = []
    for sequence in sequences:
        now = distributions(networks["policy"], sequence.tokens, s["temperature"])
        reference, admitted = (
            fixed(networks[name], tuple(sequence.tokens), s["temperature"]) for name in ("reference", "admitted")
        )
        for token in sequence.sampled:
            identity = sequence.tokens[token.place]
            token.logprob = now[token.place - 1, identity]
            token.entropy = -(now[token.place - 1].exp() * now[token.place - 1]).sum()
            token.reference = float(reference[token.place - 1, identity])
            if s["tis_cap"]:
                trainer = float(admitted[token.place - 1, identity])
                token.weight = min(math.exp(trainer - token.behaviour), s["tis_cap"])
                token.behaviour = trainer
            if s.get("behaviour_unknown"):
                token.behaviour = float(admitted[token.place - 1, identity])
    tokens = [t for sequence in sequences for t in sequence.sampled]
    if s["kl_coef"] and s["kl_placement"] == "reward":
        own = {id(t): estimate(s["kl_estimator"], t.behaviour - t.reference) for t in tokens}
        mean = sum(own.values()) / len(tokens)
        charges = {}
        for sequence in sequences:
            for t in sequence.sampled:
                later = [u for u in sequence.sampled if u.place >= t.place]
                factors = [s["kl_discount_factor"] ** (u.place - t.place) for u in later]
                charges[id(t)] = sum(
                    f * s["kl_coef"] * (mean - own[id(u)]) for f, u in zip(factors, later, strict=True)
                )
        for t in tokens:
            t.advantage += charges[id(t)]
    total = torch.zeros((), dtype=torch.float64)
    for sequence in sequences:
        for token in sequence.sampled:

            def mean(more: Sequence[Line], sequence: Line = sequence) -> float:
                return {
                    "token": len(tokens) + sum(len(line.sampled) for line in more),
                    "sequence": (len(sequences) + len(more)) * len(sequence.sampled),
                    "constant": (len(sequences) + len(more)) * (s["constant_length"] or 0),
                }[s["aggregation"]]

            loss = token.weight * surrogate(s, token, sequence) / mean(uncomputed)
            if s["kl_coef"] and s["kl_placement"] == "loss":
                penalty = estimate(s["kl_estimator"], token.logprob - token.reference)
                if s["kl_unbiased"]:
                    ratio = torch.exp(token.logprob - token.behaviour)
                    penalty = penalty * (ratio.detach() if s["kl_estimator"] in ("k2", "kl3") else ratio)
                loss = loss + s["kl_coef"] * penalty / mean([])
            loss = loss - s["entropy_coef"] * token.entropy / mean([])
            total = total + loss
    return total


def reference_gradient(groups: Sequence[TrajectoryGroup], s: Mapping[str, Any], networks: Mapping[str, Any]) -> Tensor:
    policy = networks["policy"]
    policy.zero_grad()
    reference_loss(groups, s, networks).backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.requires_grad])


# What is compared with it.


def ratios_by_sign(groups: Sequence[TrajectoryGroup], s: Mapping[str, Any], model: Any) -> Counter[tuple[str, str]]:
    """How many tokens have a ratio on which side of the clip range, by the sign of their advantage."""
    found: Counter[tuple[str, str]] = Counter()
    for group in groups:
        for trajectory, turns in zip(group.trajectories, advantages_of(group, s) or [], strict=False):
            for sequence in sequences_of(trajectory, turns, s):
                table = distributions(model, sequence.tokens, s["temperature"]).detach()
                for t in sequence.sampled:
                    ratio = math.exp(float(table[t.place - 1, sequence.tokens[t.place]]) - t.behaviour)
                    side = "below" if ratio < 0.8 else "above" if ratio > 1.28 else "inside"
                    found["good" if t.advantage > 0 else "bad", "far" if ratio > 4 else side] += 1
    return found


CASES: dict[str, dict[str, Any]] = {
    **{name: {"loss_fn": name, **(LENGTH if row.aggregation == "constant" else {})} for name, row in RECIPES.items()},
    # Overrides of a recipe's parts.
    "grpo by token": {"aggregation": "token"},
    "grpo by constant": {"aggregation": "constant", **LENGTH},
    "dapo by sequence": {"loss_fn": "dapo", "aggregation": "sequence"},
    "gspo by token": {"loss_fn": "gspo", "aggregation": "token"},
    "gspo by constant": {"loss_fn": "gspo", "aggregation": "constant", **LENGTH},
    "rloo by token": {"loss_fn": "rloo", "aggregation": "token"},
    "grpo with the others as baseline": {"baseline": "leave_one_out"},
    "grpo without std": {"normalize_advantages_by_std": False},
    "ppo with std": {"loss_fn": "ppo", "normalize_advantages_by_std": True},
    "rloo with std": {"loss_fn": "rloo", "normalize_advantages_by_std": True, **LENGTH},
    "ppo with thresholds": {"loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": 0.5, "clip_high_threshold": 2}},
    "cispo with thresholds": {"loss_fn": "cispo", "loss_fn_config": {"clip_high_threshold": 1.2}},
    "gspo with thresholds": {"loss_fn": "gspo", "loss_fn_config": {"clip_low_threshold": 0.7}},
    "discounted turns": {"gamma": 0.4},
    "the others at the same turn": {"baseline": "turn", "gamma": 0.4},
    "the others at the same turn, without std": {"loss_fn": "ppo", "baseline": "turn"},
    "constant groups not counted": {"count_constant_groups": False, **KL},
    "constant groups not counted, dr_grpo": {"loss_fn": "dr_grpo", "count_constant_groups": False, **LENGTH},
    "constant groups counted": {"loss_fn": "dapo", "count_constant_groups": True, **KL, "entropy_coef": 0.1},
    "constant groups counted, kept": {"loss_fn": "dr_grpo", "remove_constant_reward_groups": False, **LENGTH},
    "constant groups kept": {"remove_constant_reward_groups": False, **KL},
    "truncated masked": {"mask_truncated": True, **KL, "entropy_coef": 0.1},
    "truncated masked, gspo": {"loss_fn": "gspo", "mask_truncated": True},
    "at a temperature": {"temperature": 0.7, **KL, "entropy_coef": 0.1},
    "at a high temperature": {"loss_fn": "dapo", "temperature": 1.6, **KL, "kl_placement": "reward"},
    "behaviour unknown": {"behaviour_unknown": True, **KL, "kl_unbiased": True},
    # The KL penalty in the loss ...
    **{f"{e} in the loss": {"loss_fn": "dapo", **KL, "kl_estimator": e} for e in ("k1", "k2", "k3", "abs")},
    **{f"{e} in the loss by its own name": {**KL, "kl_estimator": e} for e in ("kl1", "kl2", "kl3")},
    **{f"{e} unbiased": {"loss_fn": "cispo", **KL, "kl_estimator": e, "kl_unbiased": True} for e in ("k1", "k2", "k3")},
    "k3 unbiased, gspo": {"loss_fn": "gspo", **KL, "kl_estimator": "k3", "kl_unbiased": True},
    "k2 in the loss by constant": {"loss_fn": "dr_grpo", **LENGTH, **KL},
    # ... and in the reward.
    **{f"{e} in the reward": {**KL, "kl_estimator": e, "kl_placement": "reward"} for e in ("k1", "k2", "k3", "abs")},
    "k1 in the reward, discounted": {**KL, "kl_estimator": "k1", "kl_placement": "reward", "kl_discount_factor": 0.9},
    "k1 in the reward, gspo": {"loss_fn": "gspo", **KL, "kl_estimator": "k1", "kl_placement": "reward"},
    "k1 in the reward, rloo": {"loss_fn": "rloo", **LENGTH, **KL, "kl_estimator": "k1", "kl_placement": "reward"},
    "entropy bonus": {"entropy_coef": 0.2},
    "entropy bonus by constant": {"loss_fn": "dr_grpo", "entropy_coef": 0.2, **LENGTH},
    # The sampler is another one than the trainer.
    "tis": {"loss_fn": "dapo", "tis_cap": 2.0},
    "tis and kl": {"loss_fn": "ppo", "tis_cap": 1.5, **KL, "kl_unbiased": True, "entropy_coef": 0.1},
    "tis and kl in the reward": {
        **{"loss_fn": "ppo", "tis_cap": 1.5, **KL, "kl_estimator": "k1", "kl_placement": "reward"},
    },
}


def error(found: Tensor, want: Tensor) -> float:
    assert want.norm() > 1e-3, "the gradient of this case must not vanish"
    return float((found - want).norm() / want.norm())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_the_reference(name: str) -> None:
    s = settings_of(CASES[name])
    groups = rollouts(s["temperature"])
    recorder = update(a_backend(), groups, CASES[name])
    assert len(recorder.gradients) == 1
    assert error(recorder.gradients[0], reference_gradient(groups, s, models())) < 1e-4


def test_every_loss_has_a_reference() -> None:
    assert set(ALGORITHMS) == set(RECIPES), "write down here what the paper of the new loss says"


def test_the_rollouts_of_this_test_are_clipped_on_both_sides_with_both_signs() -> None:
    s, groups = settings_of({}), rollouts(1.0)
    found = ratios_by_sign(groups, s, models()["policy"])
    for sign in ("good", "bad"):
        for side in ("below", "inside", "above", "far"):
            assert found[sign, side] >= 2, (sign, side, found)
    split = [sequences_of(t, [0.0] * len(t.transitions), s) for g in groups for t in g.trajectories]
    assert max(len(parts) for parts in split) == 2, "one trajectory must be split where its history was rewritten"


@pytest.mark.parametrize("local", [{"micro_batch_tokens": 1}, {"use_gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("chunk", [1, 1000])
def test_recomputed_activations_and_chunked_logits_have_the_same_gradient(
    local: dict[str, Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "LOGIT_CHUNK", 40 * chunk)
    case = {"loss_fn": "gspo", **KL, "kl_estimator": "k3", "kl_unbiased": True, "entropy_coef": 0.3, "temperature": 1.3}
    groups = rollouts(1.3)
    recorder = update(a_backend(**local), groups, case)
    assert error(recorder.gradients[0], reference_gradient(groups, settings_of(case), models())) < 1e-4


LATER: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gspo": {"loss_fn": "gspo"},
    "dapo, tis, kl": {"loss_fn": "dapo", "tis_cap": 2.0, **KL, "entropy_coef": 0.1},
    "ppo, tis, kl in the reward": {
        **{"loss_fn": "ppo", "tis_cap": 1.5, **KL, "kl_estimator": "k1", "kl_placement": "reward"},
        "kl_discount_factor": 0.5,
    },
    "k3 unbiased by constant": {"loss_fn": "dr_grpo", **LENGTH, **KL, "kl_estimator": "k3", "kl_unbiased": True},
    "behaviour unknown": {"behaviour_unknown": True},
}


@pytest.mark.parametrize("name", LATER)
def test_later_steps_on_the_same_rollouts_have_a_normaliser_of_their_own_and_the_old_behaviour(name: str) -> None:
    case, substeps, epochs = LATER[name], 2, 2
    groups, admitted = rollouts(1.0), models()["admitted"]
    steps = {"learning_rate": 0.02, "num_substeps": substeps, "rollout_epochs": epochs, "weight_decay": 0.0}
    recorder = update(a_backend(), groups, case, **steps)
    s = settings_of(case)
    split = [g for g in groups if s["all"] or advantages_of(g, s) is not None]
    assert len(split) == (5 if s["all"] else 4)
    halves = [split[:2], split[2:]] * epochs
    assert len(recorder.gradients) == len(halves)
    moved = 0.0
    for found, policy, half in zip(recorder.gradients, recorder.models, halves, strict=True):
        want = reference_gradient(half, settings_of(case), {**models(), "policy": policy})
        moved = max((a - b).abs().max().item() for a, b in zip(policy.parameters(), admitted.parameters(), strict=True))
        assert error(found, want) < 1e-4
    assert moved > 0.02, "the later steps must see another policy"


def test_the_reference_is_in_the_published_form_on_a_case_done_by_hand() -> None:
    # One group of two: rewards 1 and 0, ratios 2 and 1, 2 and 4 tokens. GRPO clips the first at 1.2.
    backend, policy = a_backend(), models()["policy"]
    prompt = (3, 1, 2)
    said = [(5, 6), (7, 8, 9, 10)]
    pair = []
    for tokens, log_ratio, reward in zip(said, (math.log(2), 0.0), (1.0, 0.0), strict=True):
        table = distributions(policy, [*prompt, *tokens], 1.0).detach()
        exact = [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)]
        completion = Completion(tokens, tuple(p - log_ratio for p in exact), "stop", 0)
        turn = Transition(prompt, completion, "", Score("scored", reward))
        pair.append(Trajectory(task("a"), (turn,), "done", 0))
    group = TrajectoryGroup(task("a"), tuple(pair))
    losses = {
        "grpo": -(1.2 - 1.0) / 2,
        "dapo": -(2 * 1.28 - 4 * 1.0) / 6,
        "dr_grpo": -(2 * 1.2 - 4 * 1.0) * 0.5 / (2 * 10),
        "gspo": -((1 + 4e-4) - 1.0) / 2,
        "rloo": -(2 * 2.0 - 4 * 1.0) / (2 * 10),
        "importance_sampling": -(2 * 2.0 - 4 * 1.0) * 0.5 / 6,
        "ppo": -(2 * 1.2 - 4 * 1.0) * 0.5 / 6,
    }
    for name, want in losses.items():
        s = {**settings_of({"loss_fn": name}), "constant_length": 10}
        assert reference_loss([group], s, models()).item() == pytest.approx(want, abs=1e-9), name
        config = GRPOConfig(
            loss_fn=name,
            kl_coef=0.0,
            constant_length=10 if s["aggregation"] == "constant" else None,
            learning_rate=0.0,
            parity=MADE_UP,
        )
        trainer = GRPOTrainer.over(backend, config)
        assert asyncio.run(trainer.update([group])).metrics["loss"] == pytest.approx(want, abs=1e-6), name
    errored = replace(group, trajectories=(*group.trajectories, replace(pair[0], stop_reason="errored")))
    trainer = GRPOTrainer.over(backend, GRPOConfig(kl_coef=0.0, learning_rate=0.0, parity=MADE_UP))
    assert asyncio.run(trainer.update([errored])).metrics["loss"] == pytest.approx(losses["grpo"], abs=1e-6)
