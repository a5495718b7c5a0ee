"""What calls to a judge need from the machine: the API key, the cache file, open files for connections."""

from __future__ import annotations

import logging
from pathlib import Path

from assay.errors import ConfigError
from assay.rewards.client.reply_cache import ReplyCache, default_cache_path
from assay.rewards.config import EngineConfig, JudgeConfig
from assay.transport.keys import read_key
from assay.types import Check

logger = logging.getLogger(__name__)


def api_key(judge: JudgeConfig) -> str:
    """The judge's API key from its environment variable; empty if the endpoint needs none.

    Raises:
        ConfigError: the variable is not set, or holds something that cannot be a key.
    """
    if not judge.api_key_env:
        return ""
    key = read_key(judge.api_key_env)
    if not key:
        raise ConfigError(
            f"{judge.api_key_env} is not set, so the judge at {judge.base_url} would refuse every call. export "
            f"{judge.api_key_env}=..., or set judge.api_key_env to the variable that holds the key, or leave it empty "
            "(judge.api_key_env=) for an endpoint that needs no key. A reward that asks no judge sets asks_judge = "
            "False and needs no key; a reward function never needs one."
        )
    return key


def key_check(judge: JudgeConfig) -> Check:
    """Whether the judge's API key is there. The key itself is never shown."""
    cure = (
        f"export {judge.api_key_env}=..., or set judge.api_key_env to the variable that holds the key; rewards that "
        "ask no judge need none"
    )
    try:
        found = api_key(judge)
    except ConfigError:
        return Check("API key", False, f"{judge.api_key_env} holds no API key for {judge.base_url}", cure)
    said = f"{judge.api_key_env} holds one for {judge.base_url}" if found else f"{judge.base_url} needs no API key"
    return Check("API key", True, said)


def check_prices(judge: JudgeConfig, config: EngineConfig) -> None:
    """Check that a budget in money can be enforced.

    Raises:
        ConfigError: the judge has no prices, so that nothing would ever seem to be spent.
    """
    if config.budget_usd is not None and not (
        judge.usd_per_million_prompt_tokens or judge.usd_per_million_completion_tokens
    ):
        raise ConfigError(
            f"budget_usd={config.budget_usd:g} cannot be enforced: the price of {judge.model} is unknown. Set "
            "judge.usd_per_million_prompt_tokens and judge.usd_per_million_completion_tokens, or use budget_tokens."
        )


def endpoint_of(judge: JudgeConfig) -> str:
    """The endpoint as requests are keyed by it."""
    return judge.base_url.rstrip("/")


def open_cache(config: EngineConfig, cache_dir: Path | None) -> ReplyCache | None:
    """The reply cache that the settings ask for, or None.

    Raises:
        CacheError: the file cannot be opened or made.
    """
    if not config.cache:
        return None
    path = config.cache_path or (cache_dir / "rewards.sqlite" if cache_dir is not None else default_cache_path())
    return ReplyCache(path, config.cache_max_mb)


def connection_limit(config: EngineConfig) -> int:
    """`max_in_flight`, as far as the process may open connections."""
    allowed = allow_open_files(config.max_in_flight + 64) - 64
    if allowed < config.max_in_flight:
        logger.warning(
            "max_in_flight=%d needs as many open connections, but this process may open %d files. Using %d; raise the "
            "limit with `ulimit -n`.",
            config.max_in_flight,
            allowed + 64,
            max(1, allowed),
        )
    return max(1, min(allowed, config.max_in_flight))


def allow_open_files(wanted: int) -> int:
    """Raise the process's limit of open files to `wanted` and more where it may; returns the limit."""
    try:
        import resource
    except ImportError:  # no such limit on this platform
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted += 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (OSError, ValueError):  # macOS has a lower limit than the one it tells
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else soft
