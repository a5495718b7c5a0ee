"""Verdicts on disk, by everything that determines them: problem, candidate, settings, versions.

Kept are verdicts that say something of the candidate. Failures of the grader and refused problems are not, nor are
timeouts, which a loaded machine makes of slow kernels.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import chz

from assay.config.schema import settings
from assay.errors import CacheError
from assay.kernels.config import GPU_VERDICT, VERDICT, GraderConfig
from assay.kernels.devices import gpu_models
from assay.kernels.verdicts import Verdict
from assay.rewards.cache import ReplyCache, StoredReply, default_cache_path
from assay.types import Json

NOT_KEPT = frozenset({"infra_error", "timeout"})


def default_path() -> Path:
    """`kernels.sqlite` beside the reply cache of the reward engine."""
    return default_cache_path().with_name("kernels.sqlite")


def cache_key(problem: str, code: str, config: GraderConfig, grader_version: str) -> str:
    """SHA-256 (hex) of what determines a verdict. `problem` names the problem by its hash."""
    parts = [
        problem,
        hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest(),
        settings_of(config),
        grader_version,
        _installed("torch"),
        _installed("triton"),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def settings_of(config: GraderConfig) -> dict[str, Json]:
    """Every setting that a verdict depends on, and which GPU it was given on."""
    known = settings(GraderConfig)
    found: dict[str, Json] = {name: getattr(config, name) for name in known if VERDICT in known[name].marks}
    if config.device == "cuda":
        found |= {name: getattr(config, name) for name in known if GPU_VERDICT in known[name].marks}
        found["gpus"] = list(gpu_models()) if config.run_on == "local" else [config.modal.modal_gpu_type]
    if config.run_on == "modal":
        found["modal_timeout"] = config.modal.modal_timeout
    if config.measure_performance:
        found["baselines"] = list(config.baselines)
        found["timing"] = {name: getattr(config.timing, name) for name in chz.chz_fields(config.timing)}
    return found


@functools.cache
def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class VerdictCache:
    """Verdicts by key. Any number of processes may have the file open; damage is moved aside, not raised."""

    def __init__(self, path: Path | None, max_mb: int) -> None:
        """Open the file, making it if needed.

        Raises:
            CacheError: it can neither be opened nor replaced.
        """
        self._replies = ReplyCache(path or default_path(), max_mb)

    def get(self, key: str) -> Verdict | None:
        """The verdict kept under `key`; an unreadable one counts as none."""
        stored = self._replies.get(key)
        if stored is None:
            return None
        try:
            return Verdict.from_json(json.loads(stored.text) | {"cached": True})
        except (ValueError, TypeError):
            self._replies.drop(key)
            return None

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict, if it is of a kind that is kept."""
        if verdict.kind not in NOT_KEPT and verdict.stage != "problem":
            self._replies.put([(key, StoredReply(json.dumps(verdict.to_json())))])

    def close(self) -> None:
        """Write what is unwritten. Safe to call twice."""
        self._replies.close()


def open_cache(config: GraderConfig) -> VerdictCache | None:
    """The cache that the settings ask for.

    Raises:
        CacheError: it cannot be had; the message says how to do without.
    """
    if not config.cache:
        return None
    try:
        return VerdictCache(Path(os.path.expanduser(config.cache_path)) if config.cache_path else None, config.cache_mb)
    except CacheError as error:
        raise CacheError(f"no cache of verdicts: {error} Or grade without one: cache=false (--no-cache).") from error
