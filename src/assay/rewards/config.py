"""Settings of the reward engine: the judge, speed, budget, and how failures are handled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import chz

from assay.config import MAY_CHANGE, Above, AtLeast, AtMost, Settings, UsedWhen, refuse
from assay.config.urls import has_user, is_url, without_secrets

FailurePolicy = Literal["drop", "raise", "constant", "group_mean"]


@chz.chz
class JudgeConfig(Settings):
    """An OpenAI-compatible chat endpoint and how to ask it."""

    base_url: Annotated[str, MAY_CHANGE] = "https://api.openai.com/v1"
    """Root of the API; `/chat/completions` is added."""
    model: str = "gpt-4o-mini"
    """Model that judges."""
    api_key_env: Annotated[str, MAY_CHANGE] = "OPENAI_API_KEY"
    """Environment variable that holds the API key; empty for an endpoint that needs no key."""
    temperature: Annotated[float, AtLeast(0)] = 0.0
    """Sampling temperature of the judge."""
    max_tokens: Annotated[int, AtLeast(1)] = 256
    """Most tokens of one reply."""
    votes: Annotated[int, AtLeast(1)] = 1
    """Replies drawn per question; the verdict is their mean."""
    usd_per_million_prompt_tokens: Annotated[float, AtLeast(0), MAY_CHANGE] = 0.0
    """Price of a million prompt tokens, for the cost and the budget; 0 leaves it out."""
    usd_per_million_completion_tokens: Annotated[float, AtLeast(0), MAY_CHANGE] = 0.0
    """Price of a million completion tokens."""

    @chz.validate
    def _possible(self) -> None:
        refuse(_judge_problems(self))


@chz.chz
class EngineConfig(Settings):
    """How fast calls are made, how long they may take, what they may cost, and how failures are handled."""

    max_in_flight: Annotated[int, Above(0)] = 256
    """Most calls in flight; below this the engine finds by itself how many the judge accepts."""
    start_in_flight: Annotated[int, Above(0), UsedWhen("offline", False)] = 60
    """Calls in flight before anything is known about the judge."""
    adaptive: Annotated[bool, UsedWhen("offline", False)] = True
    """Adapt the number of calls in flight; false keeps `start_in_flight`."""
    requests_per_minute: Annotated[int | None, Above(0), UsedWhen("offline", False)] = None
    """Known quota of requests; null relies on what the judge's headers and refusals say."""
    tokens_per_minute: Annotated[int | None, Above(0), UsedWhen("offline", False)] = None
    """Known quota of tokens (prompt and reply together)."""
    attempt_timeout_s: Annotated[float, Above(0), UsedWhen("offline", False)] = 120.0
    """Longest wait for one attempt, in seconds."""
    call_deadline_s: Annotated[float, Above(0), UsedWhen("offline", False)] = 900.0
    """Longest that one call is retried, in seconds, waits included; then its sample is errored."""
    batch_deadline_s: Annotated[float | None, Above(0)] = None
    """Longest that one batch takes, in seconds; samples without a score by then are errored."""
    reread_limit: Annotated[int, AtLeast(0)] = 2
    """How often a judge is asked again when no verdict can be read from its reply."""
    hedge_fraction: Annotated[float, AtLeast(0), AtMost(0.5), UsedWhen("offline", False)] = 0.05
    """Most extra calls, as a share of all, sent beside calls that take far longer than others; 0 never hedges."""
    cache: bool = True
    """Keep replies on disk and never pay for the same one twice."""
    offline: bool = False
    """Answer only from the cache and never ask the judge; a call that is not cached makes its sample errored. Needs no
    key."""
    cache_path: Annotated[Path | None, UsedWhen("cache", True)] = None
    """Cache file; null means `rewards.sqlite` in the run's cache folder, or in the user's."""
    cache_max_mb: Annotated[int, Above(0), UsedWhen("cache", True)] = 4096
    """Size beyond which the replies used longest ago are dropped."""
    budget_usd: Annotated[float | None, Above(0), UsedWhen("offline", False)] = None
    """Money that may be spent; needs the judge's prices. Reaching it stops the run."""
    budget_tokens: Annotated[int | None, Above(0), UsedWhen("offline", False)] = None
    """Tokens that may be spent. Reaching it stops the run."""
    on_failure: FailurePolicy = "drop"
    """What a host gets for a sample that could not be scored: `drop` (no reward: the sample is excluded from its
    group), `raise`, `constant` (`failure_value`), or `group_mean` (the mean of the group's other samples)."""
    failure_value: Annotated[float | None, UsedWhen("on_failure", "constant")] = None
    """Reward of a failed sample with `on_failure=constant`."""
    max_failure_rate: Annotated[float, AtLeast(0), AtMost(1)] = 0.25
    """Share of a batch that may fail; beyond it the batch raises, because an outage must not be trained on. 1 never
    raises."""

    @chz.validate
    def _possible(self) -> None:
        refuse(_engine_problems(self))


def _judge_problems(config: JudgeConfig) -> Iterator[str]:
    shown = without_secrets(config.base_url)
    if not config.base_url.startswith(("http://", "https://")):
        yield f"base_url={shown!r} must start with http:// or https://."
    elif has_user(config.base_url):
        yield "base_url holds a user name or a password, which it would carry into logs. Use api_key_env."
    elif "?" in config.base_url or "#" in config.base_url:
        yield (
            f"base_url={shown!r} must not have ? or # (what follows is not shown here: it may be a key), since "
            "/chat/completions is added. Remove them, and name the variable with the key in api_key_env."
        )
    elif not is_url(config.base_url):
        yield f"base_url={shown!r} is not a URL. Check its host."
    if not config.model:
        yield "model is empty: name the model that judges."
    if config.votes > 1 and config.temperature == 0:
        yield f"votes={config.votes} at temperature=0 asks for one answer {config.votes} times. Raise temperature."


def _engine_problems(config: EngineConfig) -> Iterator[str]:
    if config.on_failure == "constant" and config.failure_value is None:
        yield "on_failure=constant gives failed samples failure_value, which is not set. Set it to a reward."
    if config.offline and not config.cache:
        yield "offline=true answers from the cache, but cache=false turns it off. Change one of them."
    if config.start_in_flight > config.max_in_flight:
        yield f"start_in_flight={config.start_in_flight} is above max_in_flight={config.max_in_flight}."
