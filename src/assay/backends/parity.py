"""Whether a sampler and a trainer are the same policy: both log-probabilities of the same tokens, compared.

A sampler that is not the policy that is trained (weights that were not handed over, another temperature, padding that
is attended to, tokens shifted by a template) makes every ratio, and so every gradient and every score, silently wrong.
Pure; imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.backends.base import Precision, Tokenizer
from assay.types import Completion, Datum, FloatArray, IntArray

TAIL = 0.99
"""The quantile of |log-ratio| that is judged: what hides in fewer tokens is caught by the mean KL, if it is large."""
LONGEST_TEXT = 40
"""Characters shown of a token."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What sampler and trainer may differ by, in nats."""

    kl: float
    """Mean KL divergence of the sampler from the trainer (k3) per token, the worst token left out."""
    tail: float
    """99th percentile of |log-ratio| over tokens."""
    token: float | None = None
    """|ratio - 1| of the worst token; None sets no limit."""


LIMITS: dict[Precision, Limits] = {
    "float32": Limits(kl=1e-5, tail=1e-3),
    "tf32": Limits(kl=1e-3, tail=0.1),
    "bfloat16": Limits(kl=5e-3, tail=0.3),
    "other": Limits(kl=0.02, tail=1.0),
}
"""By the coarser precision of the two sides; rounding stays well below."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The token that the two disagree on most."""

    token: int
    sequence: int
    """Its sequence, among those compared."""
    place: int
    """Its place among the sampled tokens of the sequence, from 0."""
    of: int
    """Sampled tokens of the sequence."""
    before: int
    """Tokens before it, prompt included."""
    sampler: float
    trainer: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far sampler and trainer are apart on some tokens."""

    tokens: int
    kl: float
    """See `Limits`; infinite where a log-probability is not finite."""
    tail: float
    """See `Limits`."""
    worst: Worst

    @property
    def token(self) -> float:
        """|ratio - 1| of the worst token."""
        with np.errstate(over="ignore"):
            return float(abs(np.expm1(np.float64(self.worst.trainer) - self.worst.sampler)))

    def agrees(self, limits: Limits) -> bool:
        """Whether they are the same policy, but for rounding. A single token never decides, unless it has a limit."""
        within = self.kl <= limits.kl and self.tail <= limits.tail
        return within and (limits.token is None or self.token <= limits.token)


def compare(data: Sequence[Datum], trainer: Sequence[FloatArray]) -> Comparison | None:
    """Hold the sampler's log-probabilities, `Datum.logprobs`, against the trainer's on the tokens that were sampled.

    Args:
        trainer: per datum [T], aligned with its targets.

    Returns:
        None where no token was sampled.
    """
    places = [np.flatnonzero(datum.mask) for datum in data]
    if not sum(map(len, places)):
        return None
    known, now = _joined([d.logprobs for d in data], places), _joined(trainer, places)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = now - known
        k3 = np.expm1(gap) - gap
    size = np.where(np.isnan(gap), np.inf, np.abs(gap))
    at = int(size.argmax())
    finite = bool(np.isfinite(size).all())
    # A router of a mixture of experts can flip at one token by rounding alone: not by itself a reason to stop.
    kl = float(np.delete(k3, at).mean()) if finite and len(k3) > 1 else float(k3[0]) if finite else np.inf
    tail = float(np.quantile(size, TAIL, method="lower")) if finite else np.inf
    return Comparison(len(size), kl, tail, _worst(data, places, at, float(known[at]), float(now[at])))


def _joined(streams: Sequence[FloatArray], places: Sequence[IntArray]) -> np.ndarray:
    return np.concatenate([s[p] for s, p in zip(streams, places, strict=True)]).astype(np.float64)


def _worst(data: Sequence[Datum], places: Sequence[IntArray], at: int, sampler: float, trainer: float) -> Worst:
    ends = np.cumsum([len(p) for p in places])
    sequence = int(np.searchsorted(ends, at, side="right"))
    position = places[sequence]
    place = at - int(ends[sequence] - len(position))
    target = int(position[place])
    token = int(data[sequence].targets[target])
    return Worst(token, sequence, place, len(position), target + 1, sampler, trainer)


def in_words(found: Comparison, limits: Limits, tokenizer: Tokenizer | None) -> str:
    """What differs, with both numbers of the worst token and the limits that were passed."""
    worst = found.worst
    text = "" if tokenizer is None else f"{tokenizer.decode([worst.token])[:LONGEST_TEXT]!r}, "
    numbers = f"a KL of {found.kl:.3g} nats per token (limit {limits.kl:g}), a 99th percentile of the log-ratio of "
    numbers += f"{found.tail:.3g} (limit {limits.tail:g})"
    if limits.token is not None:
        numbers += f", a largest |ratio - 1| of {found.token:.3g} (limit {limits.token:g})"
    return (
        f"on {found.tokens} tokens: {numbers}. Worst token ({text}id {worst.token}): log-probability "
        f"{worst.sampler:.5g} by the sampler and {worst.trainer:.5g} by the trainer, sampled token {worst.place + 1} "
        f"of {worst.of} in its sequence, with {worst.before} tokens before it"
    )


def choose(data: Sequence[Datum], tokens: int, seed: int) -> list[int]:
    """Sequences (by index) that are worth comparing, of about so many sampled tokens together.

    First the one with the shortest prompt and the longest one, where faults of padding, windows and positions show;
    then others in an order that `seed` and the data decide. These two are taken whole, whatever their length.
    """
    some = [i for i, datum in enumerate(data) if datum.mask.any()]
    if not some:
        return []
    order = np.random.default_rng(seed).permutation(len(some))
    chosen = dict.fromkeys(
        [min(some, key=lambda i: (data[i].prompt_length, i)), max(some, key=lambda i: (len(data[i]), -i))]
    )
    total = sum(int(data[i].mask.sum()) for i in chosen)
    for i in (some[k] for k in order):
        if total >= tokens:
            break
        if i not in chosen:
            chosen[i] = None
            total += int(data[i].mask.sum())
    return sorted(chosen)


def sampled_datum(prompt: Sequence[int], completion: Completion) -> Datum:
    """A training sequence of one completion, with an advantage of 1."""
    ids = np.array([*prompt, *completion.tokens], np.int64)
    mask = np.zeros(len(ids) - 1, np.float32)
    start = max(0, len(prompt) - 1)
    mask[start:] = 1
    logprobs = np.zeros_like(mask)
    logprobs[start:] = completion.logprobs[len(completion.tokens) - (len(mask) - start) :]
    return Datum(ids[:-1], ids[1:], logprobs, mask.copy(), mask, weights=mask.copy())
