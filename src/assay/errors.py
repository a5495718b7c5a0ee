"""One hierarchy of errors; every failure has a kind and a boundary.

A message says what happened, why it matters and what to do. Each class also inherits the standard-library class that
callers already catch (`ValueError`, `RuntimeError`, ...), so `except ValueError` keeps working around Assay.
The command line prints an `AssayError` as its message alone; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Mapping


def first_line(error: BaseException) -> str:
    """The first line of what an error says; the name of its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def pip_install(*extras: str) -> str:
    """What installs extras of this distribution, which no package index has."""
    return f"pip install '.[{','.join(extras)}]' in a checkout of Assay"


class AssayError(Exception):
    """Base of every error that Assay raises on purpose."""

    exit_code = 1
    """Exit status of the command line when this error ends it."""


class ConfigError(AssayError, ValueError):
    """A setting is unknown, of the wrong type, or impossible together with another one."""

    exit_code = 2


class DataError(AssayError, ValueError):
    """Input data (a FEN, a PGN, an openings file, a data set) cannot be read as what it should be."""


class MissingDependencyError(AssayError, ImportError):
    """An optional package or program is not installed. The message names what to install."""


class EngineError(AssayError, RuntimeError):
    """A verifier program (such as Stockfish) is missing, died or hung; its answer is unknown, not wrong."""


class DeadlineError(AssayError, TimeoutError):
    """What is being checked did not come to an end in the time that it was given."""

    exit_code = 3


class SandboxError(AssayError, RuntimeError):
    """Untrusted code cannot be run safely here: the machine lacks a feature, or a harness cannot be loaded."""


class GradingServiceError(AssayError, RuntimeError):
    """A grading service cannot be used: it does not answer, is of another version, or refuses every grade."""


class RewardError(AssayError, RuntimeError):
    """Rewards cannot be computed honestly: too many samples failed, or the host asked that any failure raise."""


class JudgeError(RewardError):
    """A judge refuses every call: wrong key, unknown model, exhausted quota or budget. What was answered is cached."""


class UnreadableReplyError(RewardError):
    """No verdict can be read from a judge's replies; those at `places` (all, when none are named) are asked again."""

    def __init__(self, message: str, places: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.places = places


class CacheError(AssayError, RuntimeError):
    """What is kept on disk between runs cannot be opened or written. What it held before is untouched."""


class ModelError(AssayError, RuntimeError):
    """A model or tokenizer cannot be loaded or cannot do what the run asks of it."""


class ServiceError(AssayError, RuntimeError):
    """A service that holds the model does not answer, refuses, or lost what it was asked.

    `lost`: the session or the request is gone, and another session may do better; otherwise it would hear the same.
    """

    def __init__(self, message: str, *, lost: bool = False) -> None:
        super().__init__(message)
        self.lost = lost


class ReferenceModelError(AssayError, RuntimeError):
    """A problem's reference model cannot be evaluated, so there is nothing to compare with; `kind` says why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """`error` (it raised), `ended` (it ended its own process), `timeout`, `memory`, `too_large` (its output), or
        `crash` (the process that runs references died or was closed, which says nothing about the problem)."""


class RunDirectoryError(AssayError, RuntimeError):
    """A run directory is damaged, foreign, locked or unwritable. Nothing in it was changed."""


class CheckpointError(RunDirectoryError):
    """A checkpoint is incomplete or does not match its manifest."""


class TrainingError(AssayError, RuntimeError):
    """Training cannot go on honestly (too many errored scores, a non-finite gradient, nothing to learn from)."""


class NonFiniteGradientError(TrainingError):
    """A gradient is NaN or infinite; the optimizer step was not taken and the weights are as they were."""


class HealthError(TrainingError):
    """The health of a run asks for more than a warning; `findings` says why (`assay.grpo.health.rules.Finding`).

    The step that raised it was done; `metrics` are what it measured, where a trainer was used by itself.
    """

    exit_code = 3

    def __init__(
        self, message: str, findings: tuple[object, ...] = (), metrics: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(message)
        self.findings = findings
        self.metrics = dict(metrics or {})
