"""Assay's records as the SDK's, and back. What a server answers is checked here before anything trusts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tinker

from assay.backends.base import AdamParams
from assay.backends.seeds import SEEDS
from assay.errors import ServiceError
from assay.types import Completion, Datum, FloatArray, SamplingParams

ROUNDING = 1e-3
"""Nats by which rounding may lift a log-probability above 0."""
CHANCE = -30.0
"""Logarithm of the chance below which samples of a request are not equal by chance."""


@dataclass(frozen=True)
class Asked:
    """Completions that are asked for together; `rooms` are the most tokens that each may have."""

    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    rooms: Sequence[int]
    seeds: Sequence[int]


def model_input(tokens: Sequence[int]) -> tinker.ModelInput:
    """Tokens as the SDK has them."""
    return tinker.ModelInput.from_ints([int(token) for token in tokens])


def sampling_params(params: SamplingParams, room: int, seed: int) -> tinker.SamplingParams:
    """How one completion is sampled, in at most `room` tokens. No stop token means none, not even the model's own."""
    return tinker.SamplingParams(
        max_tokens=min(params.max_tokens, room),
        seed=seed % SEEDS,
        stop=list(params.stop),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
    )


def adam_params(params: AdamParams) -> tinker.AdamParams:
    """The optimizer's settings, which have the same names and meanings."""
    return tinker.AdamParams(
        learning_rate=params.learning_rate,
        beta1=params.beta1,
        beta2=params.beta2,
        eps=params.eps,
        weight_decay=params.weight_decay,
        grad_clip_norm=params.grad_clip_norm,
    )


def supervised(data: Sequence[Datum], weights: Sequence[FloatArray]) -> list[tinker.Datum]:
    """Data of `cross_entropy`."""
    return [_datum(d, {"weights": w.astype(np.float32)}) for d, w in zip(data, weights, strict=True)]


def rollouts(data: Sequence[Datum]) -> list[tinker.Datum]:
    """Data of the policy-gradient losses; a token that is not trained has an advantage of 0."""
    return [
        _datum(d, {"logprobs": d.logprobs * d.mask, "advantages": (d.advantages * d.mask).astype(np.float32)})
        for d in data
    ]


def _datum(datum: Datum, inputs: dict[str, FloatArray]) -> tinker.Datum:
    tensors = {name: tinker.TensorData.from_numpy(array) for name, array in inputs.items()}
    tensors["target_tokens"] = tinker.TensorData.from_numpy(datum.targets.astype(np.int64))
    return tinker.Datum(model_input=model_input(datum.tokens.tolist()), loss_fn_inputs=tensors)


def completion(sequence: tinker.SampledSequence, params: SamplingParams, room: int, version: int) -> Completion:
    """A sampled sequence.

    Raises:
        ServiceError: it is not what was asked for: training on it would be wrong.
    """
    tokens, logprobs = [int(t) for t in sequence.tokens], sequence.logprobs
    limit = min(params.max_tokens, room)
    if logprobs is None or len(logprobs) != len(tokens):
        count = "no" if logprobs is None else str(len(logprobs))
        raise ServiceError(f"The server sampled {len(tokens)} tokens and gave {count} log-probabilities for them.")
    if not 0 < len(tokens) <= limit:
        raise ServiceError(f"The server sampled {len(tokens)} tokens where 1 to {limit} were asked for.")
    values = np.asarray(logprobs, np.float64)
    if not np.isfinite(values).all() or values.max() > ROUNDING:
        raise ServiceError("The server gave log-probabilities of sampled tokens that are not finite or above 0.")
    stops = [place for place, token in enumerate(tokens) if token in params.stop]
    if stops and stops[0] != len(tokens) - 1:
        raise ServiceError(
            f"The server sampled on behind stop token {tokens[stops[0]]}: it does not honour stop tokens."
        )
    if not stops and len(tokens) < limit:
        raise ServiceError(
            f"The server ended a completion after {len(tokens)} of {limit} tokens without its stop token, so training "
            "could not teach where to stop."
        )
    return Completion(tuple(tokens), tuple(float(x) for x in logprobs), "stop" if stops else "length", version)


def check_drawn_apart(sequences: Sequence[tinker.SampledSequence], params: SamplingParams) -> None:
    """Refuse samples of one request that are copies of one sample: a group without differences trains nothing. What
    was not drawn from the whole distribution may well be equal, and is not looked at.

    Raises:
        ServiceError: all are equal, and that is too unlikely for samples that were drawn one by one.
    """
    first, *others = sequences
    whole = params.temperature == 1 and params.top_k < 0 and params.top_p == 1
    if not whole or any(list(s.tokens) != list(first.tokens) for s in others):
        return
    # The chance that the others come out as the first did.
    if len(others) * sum(first.logprobs or ()) < CHANCE:
        raise ServiceError(
            f"The server gave one sample {len(sequences)} times where as many were asked for with a seed, so a group "
            "would have nothing to compare. Set tinker.group_requests=false: each is then asked for with its own seed."
        )


def target_logprobs(outputs: Sequence[dict[str, tinker.TensorData]], data: Sequence[Datum]) -> list[FloatArray]:
    """The policy's log-probability of every target, per datum [T], 0 where masked.

    Raises:
        ServiceError: the server gave another number of them, or none.
    """
    if len(outputs) != len(data):
        raise ServiceError(f"The server computed {len(outputs)} of {len(data)} training sequences.")
    found = []
    for output, datum in zip(outputs, data, strict=True):
        if "logprobs" not in output:
            raise ServiceError("The server gave no log-probabilities of the training sequences.")
        values = np.asarray(output["logprobs"].to_numpy(), np.float32).reshape(-1)
        if len(values) != len(datum):
            raise ServiceError(f"The server gave {len(values)} log-probabilities for {len(datum)} targets.")
        found.append(np.where(datum.mask > 0, values, np.float32(0)))
    return found


def prompt_logprobs(found: Sequence[float | None], datum: Datum) -> FloatArray:
    """A sampler's log-probabilities of a whole sequence as those of the datum's targets, [T], 0 where masked.

    Raises:
        ServiceError: the server gave another number of them, or left out one that is needed.
    """
    if len(found) != len(datum) + 1:
        raise ServiceError(f"The server gave {len(found)} log-probabilities for {len(datum) + 1} tokens.")
    values = np.array([np.nan if x is None else x for x in found[1:]], np.float32)
    values = np.where(datum.mask > 0, values, np.float32(0))
    if not np.isfinite(values).all():
        raise ServiceError("The server left out log-probabilities of tokens that are trained.")
    return values
