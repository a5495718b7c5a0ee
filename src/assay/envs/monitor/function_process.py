"""Running generated functions: many in one process of their own, and never twice, since outcomes are kept on disk.

The functions are Assay's own, so the process guards against accidents (a function that hangs or fills memory) and not
against malice: do not run a model's code this way.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from assay.envs.monitor import function_child
from assay.errors import EngineError
from assay.types import Json

logger = logging.getLogger(__name__)

TIMEOUT_S = 120.0
"""Longest wait for one process."""


@dataclass(frozen=True, slots=True)
class Job:
    """A function and the arguments to call it with."""

    source: str
    calls: Sequence[Sequence[Json]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call returned, or the name of the error that it raised."""

    value: Json
    error: str | None = None

    def equals(self, other: Outcome) -> bool:
        """Whether both returned the same, told apart as `==` does; a call that raised is equal to nothing."""
        return self.error is None and other.error is None and bool(self.value == other.value)


def run_jobs(jobs: Sequence[Job], cache_dir: Path | None) -> list[list[Outcome]]:
    """Outcomes of every call of every job, in order.

    Args:
        cache_dir: folder of outcomes of earlier calls with equal jobs; None keeps nothing.

    Raises:
        EngineError: the process died or hung.
    """
    text = json.dumps([{"source": job.source, "calls": list(map(list, job.calls))} for job in jobs])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = hashlib.sha256(f"{version}\n{Path(function_child.__file__).read_text()}\n{text}".encode()).hexdigest()
    path = cache_dir / f"{name[:32]}.json" if cache_dir is not None else None
    outcomes = _read(path, jobs)
    if outcomes is None:
        outcomes = _execute(text, jobs)
        if path is not None:
            _write(path, outcomes)
    return [[Outcome(*outcome) for outcome in results] for results in outcomes]


def _execute(text: str, jobs: Sequence[Job]) -> list[list[list[Json]]]:
    with tempfile.TemporaryDirectory(prefix="assay_functions_") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", function_child.__file__],
                input=text,
                capture_output=True,
                text=True,
                cwd=folder,
                env={},
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"The process that runs generated functions gave no answer in {TIMEOUT_S:g} s."
            ) from error
    outcomes: list[list[list[Json]]] = _parsed(done.stdout)
    if done.returncode or not _fits(outcomes, jobs):
        raise EngineError(
            f"The process that runs generated functions ended with status {done.returncode}: "
            f"{done.stderr.strip()[-400:] or 'it said nothing'}. Its measurements are unknown, so no tasks were made."
        )
    return outcomes


def _parsed(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _fits(outcomes: Json, jobs: Sequence[Job]) -> bool:
    return (
        isinstance(outcomes, list)
        and len(outcomes) == len(jobs)
        and all(
            isinstance(found, list) and len(found) == len(job.calls) for found, job in zip(outcomes, jobs, strict=True)
        )
    )


def _read(path: Path | None, jobs: Sequence[Job]) -> list[list[list[Json]]] | None:
    """Outcomes kept earlier; None where there are none, or the file is damaged."""
    if path is None or not path.exists():
        return None
    outcomes = _parsed(path.read_text(encoding="utf-8", errors="replace"))
    if _fits(outcomes, jobs):
        return outcomes  # type: ignore[no-any-return]
    logger.warning("%s is damaged; its functions are run again.", path)
    return None


def _write(path: Path, outcomes: list[list[list[Json]]]) -> None:
    """Keep outcomes; where they cannot be written, the functions are run again the next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(outcomes, file)
        Path(file.name).replace(path)
    except OSError as error:
        logger.warning("Outcomes of generated functions cannot be kept in %s: %s.", path.parent, error)
        with suppress(OSError, NameError):
            Path(file.name).unlink(missing_ok=True)
