"""`assay score --input`: a file of completions scored with any reward, as a stream.

One JSON object per line: `response` (or `completion`), and optionally `ground_truth` (or `answer`), `data_source`,
`prompt` (text or messages) and `extra_info`. Any further key is a column, as the keys of `extra_info` are. The scores
come out in the order of the input, each as soon as those before it are there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from assay.errors import ConfigError, DataError
from assay.integrations.common.scoring import HostScorer, sample_of
from assay.integrations.common.settings import HostConfig
from assay.rewards import Sample
from assay.types import Json, Message, Score, messages_of

logger = logging.getLogger(__name__)

FIELDS = ("response", "completion", "ground_truth", "data_source", "prompt", "extra_info")
"""Keys that are not columns."""


def score_file(source: Path, target: Path, config: HostConfig) -> Mapping[str, Json]:
    """Score every completion in `source` and write one JSON object per line to `target`.

    Returns:
        JSON data: `samples`, how many of them were `scored`, `invalid`, `errored` or `cached`, `mean` reward, the
        mean of each of its `parts`, costs; where some were errored, `failures` (kind -> how many) and `first_failure`,
        in words.

    Raises:
        DataError: the file does not exist, `target` is the same one, or a line is not a JSON object or has no
            `response`.
        ConfigError: a failure policy, which would have no effect here.
        JudgeError, RewardError: see `RewardEngine.score_many`. What was scored before is in a file beside `target`,
            which the log names.
    """
    if not source.is_file():
        raise DataError(f"The file {source} does not exist. --input takes a file of JSON lines.")
    if source.resolve() == target.resolve():
        raise DataError(f"The scores would overwrite {source}, which holds the samples. Choose another --output.")
    if (policy := config.engine.on_failure) != "drop":
        raise ConfigError(
            f"engine.on_failure={policy} would have no effect: a file of scores says which samples have none. Set it "
            "to drop."
        )
    return asyncio.run(_score_file(source, target, HostScorer(config)))


async def _score_file(source: Path, target: Path, scorer: HostScorer) -> Mapping[str, Json]:
    tally = _Tally()
    waiting: dict[int, Score] = {}
    partial = target.with_name(f"{target.name}.partial")
    try:
        with _opened(partial) as file:
            async for index, score in scorer.engine.stream(read_samples(source)):
                waiting[index] = score
                while (ready := waiting.pop(tally.samples, None)) is not None:
                    _write(file, tally.samples, ready)
                    tally.add(ready)
        os.replace(partial, target)
        counters = scorer.engine.counters()
    finally:
        scorer.close()
        _leave(partial, tally.samples)
    cost = {name: int(counters.get(name, 0.0)) for name in ("calls", "prompt_tokens", "completion_tokens")}
    usd = counters.get("usd", 0.0)
    return {"input": str(source), "output": str(target), **tally.summary(), **cost, "usd": usd}


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise DataError(f"Cannot write {path}: {error.strerror}. Choose another --output.") from error


def _leave(partial: Path, written: int) -> None:
    """After a failure, keep scores that were written, and say where; an empty file is of no use."""
    if not partial.exists():
        return
    if written:
        logger.warning("The scores of the first %s samples are in %s.", f"{written:,}", partial)
    else:
        partial.unlink()


def read_samples(source: Path) -> Iterator[Sample]:
    """The samples of a file, one by one.

    Raises:
        DataError: see `score_file`.
    """
    try:
        with source.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _sample(line, f"{source}, line {number}")
    except OSError as error:
        raise DataError(f"Cannot read {source}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is not UTF-8 text ({error.reason} at byte {error.start}).") from error


def _sample(line: str, where: str) -> Sample:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is not valid JSON ({error}). Each line must be one JSON object with a `response`."
        ) from error
    response = row.get("response", row.get("completion")) if isinstance(row, dict) else None
    if not isinstance(response, str):
        raise DataError(f"{where} has no `response` text. Each line must be one JSON object with a `response`.")
    extra = row.get("extra_info") or {}
    columns = {name: value for name, value in row.items() if name not in FIELDS}
    if isinstance(extra, dict) and (twice := sorted(columns.keys() & extra.keys())):
        raise DataError(f"{where} has {twice[0]!r} twice: beside extra_info and in it. Leave one of them out.")
    return sample_of(
        response,
        row.get("ground_truth", row.get("answer")),
        row.get("data_source") or "",
        {**columns, **extra} if isinstance(extra, dict) else extra,
        _prompt(row.get("prompt"), where),
    )


def _prompt(prompt: Json, where: str) -> tuple[Message, ...]:
    try:
        return () if prompt is None else messages_of(prompt)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {str(error)[:200]}.") from None


def _write(file: TextIO, index: int, score: Score) -> None:
    record = {
        "index": index,
        "status": score.status,
        "score": score.value,
        "parts": dict(score.parts),
        "evidence": dict(score.evidence),
        "usage": dict(score.usage),
        "cached": score.cached,
        "verifier": score.fingerprint,
    }
    file.write(json.dumps(record) + "\n")


@dataclass
class _Tally:
    """Sums over the scores written."""

    samples: int = 0
    cached: int = 0
    total: float = 0.0
    by_status: Counter[str] = field(default_factory=Counter)
    parts: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Part of the score -> its sum, and how many scores have it."""
    failures: Counter[str] = field(default_factory=Counter)
    first_failure: str = ""

    def add(self, score: Score) -> None:
        """Count one score."""
        self.samples += 1
        self.cached += score.cached
        self.total += score.value or 0.0
        self.by_status[score.status] += 1
        for name, value in score.parts.items() if score.value is not None else ():
            total, count = self.parts.get(name, (0.0, 0))
            self.parts[name] = (total + value, count + 1)
        if score.status == "errored":
            self.failures[str(score.evidence.get("failure", "unknown"))] += 1
            self.first_failure = self.first_failure or str(score.evidence.get("message", "no message"))

    def summary(self) -> dict[str, Json]:
        """As JSON data."""
        valued = self.samples - self.by_status["errored"]
        counts = {status: self.by_status[status] for status in ("scored", "invalid", "errored")}
        failed = {"failures": dict(self.failures.most_common()), "first_failure": self.first_failure}
        return {
            "samples": self.samples,
            **counts,
            **(failed if self.failures else {}),
            "mean": self.total / valued if valued else None,
            **({"parts": {name: total / count for name, (total, count) in self.parts.items()}} if self.parts else {}),
            "cached": self.cached,
        }
