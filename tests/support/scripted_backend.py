"""A backend without a model: completions are hashes of prompt and seed, and each takes a time of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.backends.base import Backend, Capabilities
from assay.rollouts.seeds import derive
from assay.types import Completion, SamplingParams

END = 0


class Letters:
    """A tokenizer with a token per character; 0 ends a text."""

    eos_token_id: int | None = END

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(t) for t in token_ids)


@dataclass
class Call:
    """One call: its prompts, and the places that were yielded."""

    prompts: list[tuple[int, ...]]
    seeds: list[int]
    yielded: list[int] = field(default_factory=list)


class ScriptedBackend(Backend):
    """Samples only. `most_s` bounds the time of a completion; what is drawn depends on prompt and seed alone."""

    def __init__(self, *, batch_invariant: bool = True, cohort_tokens: int = 64, most_s: float = 1.0) -> None:
        self.capabilities = Capabilities(
            losses=frozenset(),
            terms=frozenset(),
            lora=False,
            full_weights=False,
            exact_resume=False,
            batch_invariant=batch_invariant,
            cohort_tokens=cohort_tokens,
        )
        self.tokenizer: Any = Letters()
        self.policy_version = 0
        self.context_length = 1000
        self.vocab_size = 128
        self.calls: list[Call] = []
        self.open = 0
        """Calls in flight."""
        self.most_open = 0
        self._most_s = most_s

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        call = Call([tuple(p) for p in prompts], list(seeds))
        self.calls.append(call)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            answers = [self.answer(p, params, s) for p, s in zip(prompts, seeds, strict=True)]
            now = 0.0
            for wait, place in sorted((self.seconds(s), place) for place, s in enumerate(seeds)):
                await asyncio.sleep(wait - now)
                now = wait
                call.yielded.append(place)
                yield place, answers[place]
        finally:
            self.open -= 1

    def seconds(self, seed: int) -> float:
        """How long the completion of a seed takes."""
        return self._most_s * (derive("latency", seed) % 1000) / 1000

    def answer(self, prompt: Sequence[int], params: SamplingParams, seed: int) -> Completion:
        """The completion."""
        bits = derive(*prompt, seed)
        length = 1 + bits % params.max_tokens
        tokens = tuple(ord("a") + (bits >> (8 + 3 * i)) % 3 for i in range(length))
        stopped = length < params.max_tokens
        said = (*tokens, END) if stopped else tokens
        return Completion(said, (-1.0,) * len(said), "stop" if stopped else "length", self.policy_version)
