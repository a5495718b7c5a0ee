"""Problems from data sets that were published for training: their own columns, read as retrieval reads them.

    dataset_src=corpus problems_path=drkernel-rl:data.parquet
    dataset_src=corpus problems_path=cuda-agent-ops             from the hub

Such rows have no level and no number: all are level 1, numbered by their place among those that are taken. A row that
is no module in the KernelBench format, or whose module was there before, is passed over, counted, and said.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assay.errors import DataError
from assay.retrieval.corpora import Reading, corpus_of

logger = logging.getLogger(__name__)

MOST_REASONS = 5
"""Reasons for passing over that are listed."""


@dataclass(frozen=True, slots=True)
class Module:
    """The module of a problem."""

    name: str
    code: str
    source: str


def read_modules(path: Path, find_fault: Callable[[str], str | None]) -> list[Module]:
    """The problems of a data set.

    Args:
        path: `NAME`, `NAME:FILE` or `FILE`, as `assay index build --corpus` takes it.
        find_fault: What keeps a text from being a problem's module, as the end of a sentence; None when nothing does.

    Raises:
        ConfigError: it is none of these.
        DataError: it cannot be read, a row lacks a column, or none is a problem.
        MissingDependencyError: a package that reads it is not installed.
    """
    reading = Reading(corpus_of(str(path)), incorrect=True)
    found: dict[str, Module] = {}
    passed_over: Counter[str] = Counter()
    for pair in reading:
        code = pair.problem.replace("\r\n", "\n")
        digest = hashlib.sha256(code.encode()).hexdigest()
        if fault := find_fault(code):
            passed_over[fault.partition(" (")[0]] += 1
        elif digest in found:
            passed_over["is there already"] += 1
        else:
            found[digest] = Module(pair.name, code, pair.source)
    said = "; ".join(f"{count:,} {reason}" for reason, count in passed_over.most_common(MOST_REASONS))
    if not found:
        raise DataError(
            f"{reading.summary()}. No row holds a problem: a Python module with a class Model and functions get_inputs "
            f"and get_init_inputs. {f'Passed over: {said}.' if said else 'Check the file.'}"
        )
    if said:
        logger.warning("%s: %d problems; passed over: %s.", reading.corpus.source, len(found), said)
    return list(found.values())
