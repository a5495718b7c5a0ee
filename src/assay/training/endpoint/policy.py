"""A policy that an OpenAI-compatible endpoint speaks for, as a backend that can only be sampled.

Backends speak tokens and endpoints speak messages: here a token stands for a whole conversation or a whole reply, which
`Texts` numbers. So the same rollouts are played as with a model of one's own. Calls go through the reward engine's
client: its limits, retries, cache and budget. What is asked depends on the prompt and the sample's seed alone, so an
evaluation that is repeated, or was interrupted, is answered from the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from assay.backends.base import Backend, Capabilities
from assay.envs.base import Env, EnvGroupBuilder, GroupScorer, StepResult
from assay.errors import ConfigError, JudgeError, ModelError, RewardError
from assay.rewards.base import FATAL, Caller, CallFailure, Reply, Request
from assay.rewards.client.client import Client
from assay.rewards.client.offline import OfflineCaller
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.renderers.thinking import KNOWN_TAGS, Thinking
from assay.rollouts.renderers.thinking import Reply as Read
from assay.training.endpoint.config import EndpointConfig
from assay.transport.http import require_parser
from assay.transport.keys import read_key
from assay.types import Completion, Json, Message, SamplingParams, Score, Task, Trajectory

_UNBOUNDED = 1_000_000_000
"""Tokens of a context that the endpoint, and not this backend, limits."""


class Unanswered(str):
    """In place of a reply that the endpoint did not give: why it did not."""

    __slots__ = ()


class Texts:
    """Conversations and replies by number, both ways."""

    def __init__(self) -> None:
        self._conversations: list[tuple[Message, ...]] = []
        self._numbers: dict[tuple[Message, ...], int] = {}
        self._replies: list[str] = []

    def number(self, conversation: tuple[Message, ...]) -> int:
        """The number of a conversation; equal ones have one."""
        if conversation not in self._numbers:
            self._numbers[conversation] = len(self._conversations)
            self._conversations.append(conversation)
        return self._numbers[conversation]

    def conversation(self, number: int) -> tuple[Message, ...]:
        """The conversation with a number."""
        return self._conversations[number]

    def keep(self, reply: str) -> int:
        """The number of a reply."""
        self._replies.append(reply)
        return len(self._replies) - 1

    def reply(self, number: int) -> str:
        """The reply with a number."""
        return self._replies[number]


class MessageRenderer(Renderer):
    """Messages as they are; later prompts are the whole conversation."""

    rewrites = True

    def __init__(self, texts: Texts) -> None:
        self.stop: tuple[int, ...] = ()
        self._texts = texts
        self._thinking = Thinking(*KNOWN_TAGS[0])

    def start(self, messages: Sequence[Message]) -> list[int]:
        """See `Renderer`: one number."""
        return [self._texts.number(tuple(messages))]

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Never asked, since prompts are rewritten."""
        raise ModelError("an endpoint's prompts are whole conversations")

    def completion(self, text: str) -> list[int]:
        """Never asked, since an endpoint is not trained."""
        raise ModelError("an endpoint has no tokens to train on")

    def text(self, tokens: Sequence[int]) -> str:
        """See `Renderer`."""
        return self._texts.reply(tokens[0])

    def read(self, text: str) -> Read:
        """See `Renderer`: what a model thought aloud stands between `<think>` and `</think>`."""
        return Read(text) if isinstance(text, Unanswered) else self._thinking.read(text)

    def said(self, text: str) -> Message:
        """See `Renderer`: earlier thoughts are left out."""
        return Message("assistant", self.read(text).answer)


class EndpointBackend(Backend):
    """A backend over an endpoint. Close it.

    Raises:
        ConfigError: its key is not set.
        MissingDependencyError: the extra `rewards` is not installed.
        CacheError: the cache cannot be opened.
    """

    capabilities = Capabilities(
        losses=frozenset(),
        terms=frozenset(),
        lora=False,
        full_weights=False,
        exact_resume=False,
        batch_invariant=True,
    )
    tokenizer: Any = None
    policy_version = 0
    context_length = _UNBOUNDED
    vocab_size = _UNBOUNDED

    def __init__(
        self, url: str, model: str, config: EndpointConfig, *, max_tokens: int, temperature: float, cache_dir: Path
    ) -> None:
        judge, engine = config.judge(url, model, max_tokens), config.engine()
        self.texts = Texts()
        self._model = model
        self._temperature: dict[str, Json] = {"temperature": temperature} if config.send_temperature else {}
        self._limit = config.max_tokens_key
        if not config.offline:
            require_parser()
            _require_key(config, url)
        make: Callable[..., Caller] = OfflineCaller if config.offline else Client
        self._caller = make(judge, engine, cache_dir.expanduser())

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        """See `Backend`.

        Raises:
            JudgeError: the endpoint refuses every call (key, model, quota), or the budget is spent.
        """
        calls = {
            asyncio.create_task(self._call(prompt[0], params, seed)): place
            for place, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        }
        waiting = set(calls)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for call in done:
                    yield calls[call], call.result()
        finally:
            for call in waiting:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def counters(self) -> dict[str, float]:
        """What the calls came to: `calls`, `cache_hits`, `prompt_tokens`, `completion_tokens`, `usd`, ..."""
        return await self._caller.counters()

    async def close(self) -> None:
        """End the calls under way. Safe to call twice."""
        await self._caller.close()

    async def _call(self, number: int, params: SamplingParams, seed: int) -> Completion:
        asked: dict[str, Json] = {self._limit: params.max_tokens, **self._temperature}
        # The seed makes each sample a question of its own for the cache.
        request = Request(self._model, self.texts.conversation(number), asked, version="policy", replica=seed)
        outcome = await self._caller.call(request)
        if isinstance(outcome, CallFailure) and outcome.kind in FATAL:
            raise JudgeError(
                f"{outcome.message}. No figure is given, since the samples that are missing could change it. What was "
                "answered is cached: repair the cause (or raise the budget) and run the same command again."
            )
        reply: str = outcome.text if isinstance(outcome, Reply) else Unanswered(outcome.message)
        cut = isinstance(outcome, Reply) and outcome.finish_reason == "length"
        return Completion((self.texts.keep(reply),), (0.0,), "length" if cut else "stop", 0)

    async def forward_backward(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: an endpoint is not trained."""
        raise ModelError("a policy behind an endpoint can be evaluated and not trained")

    optim_step = discard_gradient = logprobs = freeze_reference = refresh_reference = forward_backward
    save_state = load_state = forward_backward


def _require_key(config: EndpointConfig, url: str) -> None:
    """Refuse to ask an endpoint without the key that it needs.

    Raises:
        ConfigError: its variable is not set, or holds something that cannot be a key.
    """
    if config.api_key_env and not read_key(config.api_key_env):
        raise ConfigError(
            f"{config.api_key_env} is not set, so {url} would refuse every call. Export it, set endpoint.api_key_env "
            "to the variable that holds the key, or leave that empty (endpoint.api_key_env=) for an endpoint that "
            "needs no key."
        )


def answered(builder: EnvGroupBuilder) -> EnvGroupBuilder:
    """The builder of a group whose rollouts are errored where the endpoint gave no reply: that is no answer."""
    return _ScoredGroup(builder) if isinstance(builder, GroupScorer) else _Group(builder)


@dataclass
class _Group:
    inner: EnvGroupBuilder
    task: Task = field(init=False)

    def __post_init__(self) -> None:
        self.task = self.inner.task

    async def make(self, n: int) -> list[Env]:
        return [_AnsweredEnv(env) for env in await self.inner.make(n)]


@dataclass
class _ScoredGroup(_Group):
    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        assert isinstance(self.inner, GroupScorer), "answered() made it for one"
        return await self.inner.score_group(trajectories)


@dataclass
class _AnsweredEnv:
    env: Env

    @property
    def whole_replies(self) -> bool:
        return bool(getattr(self.env, "whole_replies", False))

    async def reset(self) -> list[Message]:
        return await self.env.reset()

    async def step(self, text: str) -> StepResult:
        if isinstance(text, Unanswered):
            raise RewardError(str(text))
        return await self.env.step(text)
