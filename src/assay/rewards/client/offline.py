"""Callers without a network or a key: one answers only from the cache, one refuses every call."""

from __future__ import annotations

from pathlib import Path

from assay.errors import ConfigError
from assay.rewards.base import CallFailure, Outcome, Request
from assay.rewards.client.resources import endpoint_of, open_cache
from assay.rewards.config import EngineConfig, JudgeConfig


class OfflineCaller:
    """A `Caller` over the reply cache of a judge.

    Raises:
        ConfigError: the settings have no cache.  CacheError: it cannot be opened.
    """

    def __init__(self, judge: JudgeConfig, config: EngineConfig, cache_dir: Path | None = None) -> None:
        cache = open_cache(config, cache_dir)
        if cache is None:
            raise ConfigError("offline=true answers from the cache, but cache=false turns it off.")
        self._cache = cache
        self._endpoint = endpoint_of(judge)
        self._hits = self._misses = 0

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        """See `Caller.call`."""
        stored = self._cache.get(request.key(self._endpoint))
        if stored is not None:
            self._hits += 1
            return stored.reply()
        self._misses += 1
        return CallFailure("not_cached", f"{self._cache.path} holds no reply of {request.model} to this request")

    async def forget(self, request: Request) -> None:
        """Keep the reply: it cannot be asked for again."""

    async def counters(self) -> dict[str, float]:
        """See `Caller.counters`."""
        return {"calls": 0.0, "cache_hits": float(self._hits), "not_cached": float(self._misses)}

    async def close(self) -> None:
        """See `Caller.close`."""
        self._cache.close()


class NobodyToAsk:
    """The `Caller` of a reward that says it asks no judge (`asks_judge` is false): no key, no connection, no cache."""

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        """A failure: such a reward should make no calls."""
        return CallFailure("reward", f"a reward whose asks_judge is false asked {request.model}")

    async def forget(self, request: Request) -> None:
        """Nothing is stored."""

    async def counters(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    async def close(self) -> None:
        """Nothing is open."""
