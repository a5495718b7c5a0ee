"""A client of `assay serve` that begins again and again, over the SDK: trains an adapter, samples from it, saves it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tinker
from tinker import types

RANK = 8
ROUNDS = 3
PROMPTS, SAMPLES, TOKENS = 4, 2, 48
"""Of each round: prompts, samples of each, tokens of each."""
SEQUENCES, LENGTH = 6, 40
"""Of each round: training sequences, and their tokens."""
SAME = 1e-3
"""Nats by which rounding may change a log-probability where other rows share the batch."""
PAUSE_S = 1.0

Sample = tuple[list[int], list[float]]


@dataclass
class Episode:
    """What a client got of its server."""

    client: int
    samples: list[Sample] = field(default_factory=list)
    weights: str = ""
    """Where the adapter was saved."""

    @property
    def tokens(self) -> int:
        return sum(len(tokens) for tokens, _ in self.samples)


@dataclass
class Account:
    """What a process of clients has done."""

    episodes: list[Episode] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0


def play(url: str, model: str, clients: Sequence[int], until: float | None) -> Account:
    """Be some clients, one after the other; once, or again and again until a time of the monotonic clock."""
    account = Account(began=time.monotonic())
    while True:
        for client in clients:
            try:
                account.episodes.append(episode(url, model, client))
            except Exception as error:  # noqa: BLE001 - counted, and named in the result
                account.errors.append(f"{type(error).__name__}: {error}"[:300])
                time.sleep(PAUSE_S)
        if until is None or time.monotonic() > until:
            break
    account.ended = time.monotonic()
    return account


def episode(url: str, model: str, client: int) -> Episode:
    """A session with a new adapter, some steps with samples after each, and what it came to."""
    found = Episode(client)
    service = tinker.ServiceClient(base_url=url, api_key=f"tml-client-{client}")
    training = service.create_lora_training_client(model, rank=RANK, seed=client).result()
    for number in range(ROUNDS):
        loss = ("cross_entropy", "importance_sampling")[number % 2]
        computed = training.forward_backward(data(client, number, loss), loss)
        stepped = training.optim_step(types.AdamParams(learning_rate=1e-2, eps=1e-6))
        computed.result()
        stepped.result()
        sampler = training.save_weights_and_get_sampling_client().result()
        found.samples += samples(sampler, client, number)
    found.weights = training.save_state("end").result().path
    service.close("success").result()  # which takes the adapter out of the server's memory
    return found


def data(client: int, number: int, loss: str) -> list[types.Datum]:
    """A batch that no other client has."""
    rng = np.random.default_rng([client, number])
    made = []
    for _ in range(SEQUENCES):
        tokens = rng.integers(1, 60, LENGTH + 1)
        inputs: dict[str, Any] = {"target_tokens": tokens[1:].astype(np.int64)}
        advantages = rng.normal(size=LENGTH).astype(np.float32)
        if loss == "cross_entropy":
            inputs["weights"] = np.ones(LENGTH, np.float32)
        else:
            inputs |= {"advantages": advantages, "logprobs": np.full(LENGTH, -4.0, np.float32)}
        made.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1].tolist()), loss_fn_inputs=inputs))
    return made


def samples(sampler: Any, client: int, number: int) -> list[Sample]:
    """What the adapter now answers, all asked for at once."""
    rng = np.random.default_rng([client, number, 1])
    calls = []
    for place in range(PROMPTS):
        prompt = types.ModelInput.from_ints(rng.integers(1, 60, 12).tolist())
        params = types.SamplingParams(max_tokens=TOKENS, seed=1000 * number + place, stop=[])
        calls.append(sampler.sample(prompt, SAMPLES, params))
    return [(list(s.tokens), list(s.logprobs)) for call in calls for s in call.result().sequences]


def belongs(found: Sample, alone: Sample) -> bool:
    """Whether a sample is the one that the client gets alone: the same tokens with the same log-probabilities, up to
    where rounding may have drawn another token, which it does not do at once."""
    same = next((n for n, (a, b) in enumerate(zip(found[0], alone[0], strict=True)) if a != b), len(alone[0]))
    return same > 0 and bool(np.abs(np.subtract(found[1][:same], alone[1][:same])).max() < SAME)
