"""Settings of an evaluation: those of a run, and of the endpoint where one is evaluated. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import chz

from assay.config import Above, AtLeast, AtMost, Settings, UsedWhen, refuse
from assay.config.urls import is_url, kept_secrets, without_secrets
from assay.errors import ConfigError
from assay.rewards.config import EngineConfig, JudgeConfig
from assay.training.config import TrainingConfig


@chz.chz
class EndpointConfig(Settings):
    """How an endpoint is asked: its key, limits, retries, cache and budget. Its URL and model are the policy's."""

    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key; empty for an endpoint that needs no key."""
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Under which name an endpoint takes `max_tokens`; OpenAI's reasoning models take the second."""
    send_temperature: bool = True
    """Send `temperature`; some reasoning models refuse it."""
    usd_per_million_prompt_tokens: Annotated[float, AtLeast(0)] = 0.0
    """Price of a million prompt tokens, for the cost and the budget."""
    usd_per_million_completion_tokens: Annotated[float, AtLeast(0)] = 0.0
    """Price of a million completion tokens."""
    budget_usd: Annotated[float | None, Above(0), UsedWhen("offline", False)] = None
    """Money that may be spent; needs the prices. Reaching it ends the evaluation; what was answered is cached."""
    budget_tokens: Annotated[int | None, Above(0), UsedWhen("offline", False)] = None
    """Tokens that may be spent. Reaching it ends the evaluation; what was answered is cached."""
    max_in_flight: Annotated[int, Above(0), UsedWhen("offline", False)] = 64
    """Most calls in flight; below this, how many the endpoint accepts is found by itself."""
    requests_per_minute: Annotated[int | None, Above(0), UsedWhen("offline", False)] = None
    """Known quota of requests; null relies on what headers and refusals say."""
    tokens_per_minute: Annotated[int | None, Above(0), UsedWhen("offline", False)] = None
    """Known quota of tokens (prompt and reply together)."""
    attempt_timeout_s: Annotated[float, Above(0), UsedWhen("offline", False)] = 600.0
    """Longest wait for one attempt, in seconds."""
    call_deadline_s: Annotated[float, Above(0), UsedWhen("offline", False)] = 3600.0
    """Longest that one call is retried, in seconds, waits included; then its rollout is errored."""
    hedge_fraction: Annotated[float, AtLeast(0), AtMost(0.5), UsedWhen("offline", False)] = 0.0
    """Most extra calls, as a share of all, sent beside calls that take far longer than others."""
    cache: bool = True
    """Keep replies on disk: the same evaluation again costs nothing, and an interrupted one goes on."""
    cache_path: Annotated[Path | None, UsedWhen("cache", True)] = None
    """Cache file; null means `rewards.sqlite` in `cache_dir`."""
    offline: bool = False
    """Answer only from the cache; a call that is not cached makes its rollout errored. Needs no key."""

    @chz.validate
    def _possible(self) -> None:
        refuse(_impossible(self))

    def engine(self) -> EngineConfig:
        """The settings of the client that asks."""
        path = self.cache_path.expanduser() if self.cache_path is not None else None
        if self.offline:
            return EngineConfig(offline=True, cache_path=path)
        return EngineConfig(
            max_in_flight=self.max_in_flight,
            start_in_flight=min(EngineConfig().start_in_flight, self.max_in_flight),
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            attempt_timeout_s=self.attempt_timeout_s,
            call_deadline_s=self.call_deadline_s,
            hedge_fraction=self.hedge_fraction,
            cache=self.cache,
            cache_path=path,
            budget_usd=self.budget_usd,
            budget_tokens=self.budget_tokens,
        )

    def judge(self, url: str, model: str, max_tokens: int) -> JudgeConfig:
        """The endpoint as the client takes it.

        Raises:
            ConfigError: `url` is none, or holds a secret.
        """
        return JudgeConfig(
            base_url=url,
            model=model,
            api_key_env=self.api_key_env,
            max_tokens=max_tokens,
            usd_per_million_prompt_tokens=self.usd_per_million_prompt_tokens,
            usd_per_million_completion_tokens=self.usd_per_million_completion_tokens,
        )


@chz.chz
class EvaluationConfig(TrainingConfig):
    """Settings of an evaluation of a policy that no run trained: those of a run, and `endpoint.*`."""

    endpoint: EndpointConfig = chz.field(default_factory=EndpointConfig)
    """How an endpoint is asked (`--policy endpoint:URL#MODEL`)."""


def _impossible(config: EndpointConfig) -> Iterator[str]:
    if config.budget_usd is not None and not (
        config.usd_per_million_prompt_tokens or config.usd_per_million_completion_tokens
    ):
        yield (
            f"budget_usd={config.budget_usd:g} cannot be enforced: the endpoint's prices are unknown. Set "
            "usd_per_million_prompt_tokens and usd_per_million_completion_tokens, or use budget_tokens."
        )
    if config.offline and not config.cache:
        yield "offline=true answers from the cache, but cache=false turns it off. Change one of them."


def endpoint_of(text: str) -> tuple[str, str]:
    """URL and model of `URL#MODEL`.

    Raises:
        ConfigError: it is something else, or the URL holds a secret.
    """
    url, found, model = text.rpartition("#")
    if not found or not model.strip() or not is_url(url) or not url.startswith(("http://", "https://")):
        shown = without_secrets(url or text)
        raise ConfigError(
            f"endpoint:{shown} names no endpoint. Write endpoint:URL#MODEL, such as "
            "endpoint:http://localhost:8000/v1#Qwen/Qwen2.5-Coder-7B-Instruct."
        )
    refuse(kept_secrets("the endpoint's URL", url))
    return url.rstrip("/"), model
