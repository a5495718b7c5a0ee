"""Verdicts on disk, by everything that determines them: problem, candidate, settings, versions.

The cache keeps verdicts that say something about the candidate. It does not keep failures of the grader, refused
problems, or timeouts: on a loaded machine a slow kernel may time out that would not elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import chz

from assay.config.schema import settings
from assay.kernels.config import GPU_VERDICT, VERDICT, GraderConfig
from assay.kernels.devices import gpu_models
from assay.kernels.verdicts import Verdict
from assay.storage.keyed_store import KeyedStore, default_path
from assay.storage.sqlite_file import Contents
from assay.types import Json

logger = logging.getLogger(__name__)

VERDICTS = Contents(
    store="cache of verdicts",
    items="verdicts",
    made_again="graded again",
    cure="choose another file with cache_path=..., or grade without one: cache=false (--no-cache)",
)
NOT_KEPT = frozenset({"infra_error", "timeout"})


def cache_key(problem: str, code: str, config: GraderConfig, grader_version: str) -> str:
    """SHA-256 (hex) of what determines a verdict. `problem` is what tells the problem and its sizes from
    others (`scaling.task_key`)."""
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

    def __init__(self, path: Path, max_mb: int) -> None:
        """Open the file, making it if needed.

        Raises:
            CacheError: it can neither be opened nor replaced.
        """
        self._store = KeyedStore(path, max_mb, VERDICTS)
        self._said_unreadable = False

    def get(self, key: str) -> Verdict | None:
        """The verdict kept under `key`; an unreadable one counts as none, and is dropped."""
        value = self._store.get(key)
        if value is None:
            return None
        verdict = decoded(value)
        if verdict is None:
            self._store.drop(key)
            if not self._said_unreadable:
                self._said_unreadable = True
                logger.warning(
                    "%s holds verdicts that this version cannot read: most likely an older one kept them. They are "
                    "dropped when they are read, and the candidates are graded again.",
                    self._store.path,
                )
        return verdict

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict, if it is of a kind that is kept."""
        if verdict.kind not in NOT_KEPT and verdict.stage != "problem":
            self._store.put([(key, encoded(verdict))])

    def close(self) -> None:
        """Write what is unwritten. Safe to call twice."""
        self._store.close()


def encoded(verdict: Verdict) -> bytes:
    """As JSON in UTF-8."""
    return json.dumps(verdict.to_json()).encode()


def decoded(value: bytes) -> Verdict | None:
    """Inverse of `encoded`, marked as `cached`; None for anything else."""
    try:
        fields = json.loads(value)
        return Verdict.from_json({**fields, "cached": True})
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None


def open_cache(config: GraderConfig) -> VerdictCache | None:
    """The cache that the settings ask for: the file that they name, or `kernels.sqlite` in the user's cache folder.

    Raises:
        CacheError: it cannot be had; the message says how to do without.
    """
    if not config.cache:
        return None
    path = Path(os.path.expanduser(config.cache_path)) if config.cache_path else default_path("kernels.sqlite")
    return VerdictCache(path, config.cache_mb)
