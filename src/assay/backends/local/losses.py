"""Token losses with Tinker's semantics: a sum over tokens, no normalisation of its own.

A surrogate is a function in `SURROGATES`, under its own name. With p the learner's log-probability of a sampled token,
q the behaviour policy's, A the advantage (which carries the batch's normaliser) and r = exp(p - q), its docstring says
what it computes. Thresholds are absolute ratios, and have their defaults in `grpo.recipes`. Source, where a docstring
names no other: Tinker's documentation of losses. Before an exponential, p - q (gspo: its mean) is clamped to
+-`LOG_RATIO_LIMIT`, as verl does, so that a log-probability of -200 cannot make a gradient infinite.

Two terms may be added, each weighted per token by `Datum.weights` (the batch's normaliser): a KL penalty and an entropy
bonus. With d = p - log ref, the estimators of KL(policy || reference) and what their plain gradient is on-policy:

    k1 = d              no gradient in expectation: as a loss it regularises nothing
    k2 = d^2 / 2        the gradient of KL(policy || reference)
    k3 = e^-d - 1 + d   the gradient of KL(reference || policy)
    abs = |d|           of no KL divergence

Of these only k3 has an exponential, so only there is d clamped, and only from below: a token that the reference hardly
knows is pulled back however far the policy has gone.

The unbiased form of k1 and k3 multiplies by r with its gradient, that of k2 by r without: each then has the gradient of
KL(policy || reference), also for samples of an older policy (arXiv 2510.01555, 2512.02556).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from assay.backends.base import LOG_RATIO_LIMIT, KLEstimator, KLTerm, LossSpec, LossTerm, Surrogate
from assay.errors import ConfigError, TrainingError
from assay.types import Datum, FloatArray

F = TypeVar("F", bound=Callable[..., Tensor])


@dataclass(frozen=True)
class Streams:
    """What a loss needs to know of N trained tokens, each [N]; `weights` and `reference` where the data have them.

    `sequences` numbers the sequence that each token belongs to, from 0.
    """

    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    sequences: Tensor
    weights: Tensor | None = None
    reference: Tensor | None = None


def streams_of(data: Sequence[Datum]) -> Streams:
    """The streams of all trained tokens of `data`, in order, on the CPU."""
    places = [np.flatnonzero(datum.mask) for datum in data]

    def column(name: str) -> Tensor | None:
        found = [getattr(datum, name) for datum in data]
        if any(stream is None for stream in found):
            return None
        return torch.from_numpy(np.concatenate([stream[p] for stream, p in zip(found, places, strict=True)]))

    targets, behaviour, advantages = column("targets"), column("logprobs"), column("advantages")
    assert targets is not None and behaviour is not None and advantages is not None
    sequences = torch.from_numpy(np.repeat(np.arange(len(places)), [len(p) for p in places]))
    return Streams(targets, behaviour, advantages, sequences, column("weights"), column("ref_logprobs"))


def trained(logprobs: Sequence[Tensor], data: Sequence[Datum]) -> Tensor:
    """The log-probabilities, [T] for each datum, of the trained tokens alone, [N], with gradient."""
    places = [torch.from_numpy(np.flatnonzero(datum.mask)) for datum in data]
    return torch.cat([x.reshape(-1)[p] for x, p in zip(logprobs, places, strict=True)])


def token_losses(spec: LossSpec, logprobs: Tensor, entropies: Tensor, data: Streams) -> dict[LossTerm, Tensor]:
    """The terms of the loss of each token: `policy`, and `kl` and `entropy` where the spec asks for them.

    Args:
        logprobs: [N] the learner's log-probabilities, with gradient.
        entropies: [N] entropies of the learner's distributions, with gradient where `entropy_coef` is not 0.

    Returns:
        [N] each; the sum of all is what is minimised.

    Raises:
        ValueError: a term is asked for and the data lack `weights` or `reference`.
    """
    terms: dict[LossTerm, Tensor] = {"policy": policy_loss(spec, logprobs, data)}
    if spec.kl is not None:
        if data.reference is None or data.weights is None:
            raise ValueError("a KL term needs data with ref_logprobs and weights")
        terms["kl"] = data.weights * kl_penalty(spec.kl, logprobs, data.behaviour, data.reference)
    if spec.entropy_coef:
        if data.weights is None:
            raise ValueError("an entropy bonus needs data with weights")
        terms["entropy"] = -spec.entropy_coef * data.weights * entropies
    return terms


def surrogate_of(spec: LossSpec) -> Surrogate:
    """The function of a loss.

    Raises:
        ConfigError: it is a name that is not in the table.
    """
    if callable(spec.surrogate):
        return spec.surrogate
    if spec.surrogate not in SURROGATES:
        raise ConfigError(f"loss {spec.surrogate!r} is not one of {', '.join(SURROGATES)}.")
    return SURROGATES[spec.surrogate]


def policy_loss(spec: LossSpec, logprobs: Tensor, data: Streams) -> Tensor:
    """The surrogate of each token, [N].

    Raises:
        ConfigError: a surrogate that was given as a function returned something else than a loss for each token.
    """
    behaviour = within_limit(logprobs, data.behaviour) if callable(spec.surrogate) else data.behaviour
    found = surrogate_of(spec)(logprobs, behaviour, data.advantages, data.sequences, **spec.config)
    if callable(spec.surrogate) and (problem := _not_a_loss(found, logprobs)):
        raise ConfigError(
            f"loss_fn: {spec.name} returned {problem}. A surrogate returns a tensor with the loss of each token, [N] "
            "as logprobs is, computed from logprobs; their sum is minimised."
        )
    return found  # type: ignore[no-any-return]


SURROGATES: dict[str, Callable[..., Tensor]] = {}
"""Name -> function; see `backends.base.Surrogate`."""


def named(function: F) -> F:
    """Enter a surrogate into the table, by its name."""
    SURROGATES[function.__name__] = function
    return function


def log_ratio(logprobs: Tensor, behaviour: Tensor) -> Tensor:
    """`p - q` of each token, within +-`LOG_RATIO_LIMIT`; beyond, its gradient is 0."""
    return (logprobs - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@torch.no_grad()
def within_limit(logprobs: Tensor, behaviour: Tensor) -> Tensor:
    """Behaviour log-probabilities [N], moved to within `LOG_RATIO_LIMIT` of the learner's where they are further off.

    For a surrogate of the caller's own, which takes the exponential of their difference itself.
    """
    gap = logprobs - behaviour
    limited = logprobs - gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.where(gap.abs() <= LOG_RATIO_LIMIT, behaviour, limited)


@named
def cross_entropy(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
    """`-p * A`, of supervised training; A are Tinker's `weights`."""
    return -logprobs * advantages


@named
def importance_sampling(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
    """`-r * A`."""
    return -torch.exp(log_ratio(logprobs, behaviour)) * advantages


@named
def ppo(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    sequences: Tensor,
    *,
    clip_low_threshold: float,
    clip_high_threshold: float,
) -> Tensor:
    """`-min(r * A, clip(r, lo, hi) * A)`."""
    return _clipped(torch.exp(log_ratio(logprobs, behaviour)), advantages, clip_low_threshold, clip_high_threshold)


@named
def cispo(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    sequences: Tensor,
    *,
    clip_low_threshold: float,
    clip_high_threshold: float,
) -> Tensor:
    """`-stop_gradient(clip(r, lo, hi)) * p * A`."""
    clipped = torch.exp(log_ratio(logprobs, behaviour)).clamp(clip_low_threshold, clip_high_threshold)
    return -clipped.detach() * logprobs * advantages


@named
def gspo(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    sequences: Tensor,
    *,
    clip_low_threshold: float,
    clip_high_threshold: float,
) -> Tensor:
    """As ppo, with r = exp(mean over the sequence of p - q) for all its tokens; its gradient is r times that of p.

    Where all tokens of a sequence have one advantage, it has the gradient of the ratio of the sequence; where they
    differ (turns, a penalty in the reward), each token still gets its own. Source: arXiv 2507.18071, section
    4.3 (GSPO-token).
    """
    mean = sequence_mean((logprobs - behaviour).detach(), sequences)
    ratio = torch.exp((mean + (logprobs - logprobs.detach())).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return _clipped(ratio, advantages, clip_low_threshold, clip_high_threshold)


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)


def sequence_mean(values: Tensor, sequences: Tensor) -> Tensor:
    """The mean of [N] values over the tokens of each sequence, at each of its tokens."""
    count = int(sequences.max()) + 1 if len(sequences) else 0
    sums = values.new_zeros(count).index_add(0, sequences, values)
    sizes = torch.bincount(sequences, minlength=count).to(values.dtype)
    return (sums / sizes).index_select(0, sequences)


def kl_penalty(term: KLTerm, logprobs: Tensor, behaviour: Tensor, reference: Tensor) -> Tensor:
    """`coef` times the estimate of each token, [N], with the gradient that the term's form gives it."""
    value = kl_estimate(term.estimator, logprobs - reference)
    if term.unbiased:
        ratio = torch.exp(log_ratio(logprobs, behaviour))
        value = value * (ratio.detach() if term.estimator == "k2" else ratio)
    return term.coef * value


def kl_estimate(estimator: KLEstimator, difference: Tensor) -> Tensor:
    """The estimate of each token from d = log policy - log reference on sampled tokens.

    Source: Schulman, "Approximating KL divergence" (2020), whose k1, k2 and k3 these are.
    """
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        difference = difference.clamp(min=-LOG_RATIO_LIMIT)
        return torch.expm1(-difference) + difference
    return difference.abs()


def _not_a_loss(found: object, logprobs: Tensor) -> str | None:
    """What a surrogate returned instead of a loss for each token, in words; None where it did."""
    if not isinstance(found, Tensor):
        return f"a {type(found).__name__}"
    if found.shape != logprobs.shape:
        return f"a tensor of shape {list(found.shape)} for {len(logprobs)} tokens"
    if found.device != logprobs.device:
        return f"a tensor on {found.device} for tokens on {logprobs.device}"
    if logprobs.requires_grad and not found.requires_grad:
        return "a tensor that does not depend on logprobs, so nothing would be learned from it"
    return None


def try_out(spec: LossSpec) -> None:
    """Call a surrogate that was given as a function on a few made-up tokens, so that a fault is seen before a run.

    Raises:
        ConfigError: it returned something else than a loss for each token, or NaN.
    """
    logprobs = torch.tensor([-1.0, -0.5, -2.0, -0.1, -3.0], requires_grad=True)
    behaviour = torch.tensor([-1.2, -0.5, -1.0, -0.2, -3.5])
    advantages = torch.tensor([0.5, -0.5, 0.25, -0.25, 0.1])
    streams = Streams(torch.arange(5), behaviour, advantages, torch.tensor([0, 0, 1, 1, 1]))
    with torch.enable_grad():
        found = policy_loss(spec, logprobs, streams)
    if bool(torch.isnan(found).any()):
        raise ConfigError(
            f"loss_fn: {spec.name} returned NaN ({found.tolist()}) for logprobs {logprobs.tolist()}, behaviour "
            f"{behaviour.tolist()}, advantages {advantages.tolist()} and the thresholds {dict(spec.config)}."
        )


def nan_of_finite(spec: LossSpec, logprobs: Sequence[FloatArray], data: Sequence[Datum]) -> TrainingError | None:
    """The error for a surrogate that returned NaN for finite inputs; None if its inputs were not finite.

    Args:
        logprobs: the learner's, as `ForwardBackwardOutput.logprobs`.
    """
    columns = [
        np.concatenate([stream[d.mask > 0] for stream, d in zip(streams, data, strict=True)])
        for streams in (logprobs, [d.logprobs for d in data], [d.advantages for d in data])
    ]
    if not all(np.isfinite(column).all() for column in columns):
        return None
    ranges = [
        f"{name} between {column.min():.4g} and {column.max():.4g}"
        for name, column in zip(("logprobs", "behaviour", "advantages"), columns, strict=True)
    ]
    return TrainingError(
        f"loss_fn: {spec.name} returned NaN although all its inputs are finite: {len(columns[0])} tokens "
        f"with {', '.join(ranges)}. The weights were left as they were. Bound what it divides by, takes the logarithm "
        "of or raises to a power."
    )
