"""A host's sampler as the policy that `assay.rollouts.play` asks, with the host's budget checked before each turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from assay.errors import DataError, ModelError
from assay.types import Completion, SamplingParams


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a host sampled: token ids (the drawn stop token among them), and their log-probabilities where it knows."""

    tokens: Sequence[int]
    logprobs: Sequence[float] | None = None
    policy_version: int = 0


class HostPolicy(Protocol):
    """How a host samples: the one thing that an adapter must bring."""

    async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
        """One completion of at most `params.max_tokens` tokens, which ends on one of `params.stop` where it draws one.

        What it raises ends the rollout and is raised to the host: a policy that fails is no failure of a task.
        """
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens that a training row of the host has room for."""

    prompt: int
    """Most tokens of the prompt that a row begins with."""
    response: int
    """Most tokens of a row after that: completions, and what the environment says between them."""


class PromptTooLong(DataError):
    """The first prompt of a rollout does not fit into a row."""


class Seat:
    """The policy of one rollout. See `assay.rollouts.Policy`."""

    def __init__(self, policy: HostPolicy, budget: Budget) -> None:
        self._policy, self._budget = policy, budget
        self._begun = 0
        """Length of the prompt that the present row begins with."""
        self._seen: tuple[int, ...] = ()
        """The present row's tokens so far."""

    def room(self, prompt: Sequence[int]) -> int:
        """Most tokens that a completion of this prompt may have: the rest of the row that the prompt goes on with, or
        a whole response where it begins a row."""
        if self._continues(prompt):
            return self._budget.response - (len(prompt) - self._begun)
        return self._budget.response if len(prompt) <= self._budget.prompt else 0

    async def complete(self, prompt: Sequence[int], params: SamplingParams, seed: int, *, last: bool) -> Completion:
        """See `assay.rollouts.Policy`.

        Raises:
            PromptTooLong: there is no room for this prompt.
            ModelError: what the host sampled cannot be used.
        """
        room = self.room(prompt)
        if room < 1:
            raise PromptTooLong(
                f"The prompt has {len(prompt)} tokens, and the host's rows hold {self._budget.prompt} of a prompt and "
                f"{self._budget.response} after it, so the policy could not answer. It is not cut: raise the host's "
                "prompt length, or leave such tasks out."
            )
        if not self._continues(prompt):
            self._begun = len(prompt)
        asked = replace(params, max_tokens=min(params.max_tokens, room))
        completion = completion_of(await self._policy.sample(prompt, asked, seed), asked)
        self._seen = (*prompt, *completion.tokens)
        return completion

    def _continues(self, prompt: Sequence[int]) -> bool:
        return bool(self._seen) and tuple(prompt[: len(self._seen)]) == self._seen


def completion_of(sampled: Sampled, params: SamplingParams) -> Completion:
    """What a host sampled as a completion; unknown log-probabilities are NaN.

    Raises:
        ModelError: more tokens than were asked for, ids that are not whole numbers, or another number of
            log-probabilities.
    """
    tokens = tuple(sampled.tokens)
    if len(tokens) > params.max_tokens:
        raise ModelError(
            f"The host sampled {len(tokens)} tokens where at most {params.max_tokens} were asked for, so the row would "
            "outgrow its budget. Pass params.max_tokens on to the sampler."
        )
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise ModelError("The host sampled token ids that are not whole numbers (int). Convert arrays with tolist().")
    logprobs = (math.nan,) * len(tokens) if sampled.logprobs is None else tuple(map(float, sampled.logprobs))
    if len(logprobs) != len(tokens):
        raise ModelError(
            f"The host gave {len(logprobs)} log-probabilities for {len(tokens)} tokens. Give one for each sampled "
            "token, or None where they are unknown."
        )
    stopped = bool(tokens) and tokens[-1] in params.stop
    return Completion(tokens, logprobs, "stop" if stopped else "length", sampled.policy_version)
