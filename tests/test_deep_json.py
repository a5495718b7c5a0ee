"""JSON that is nested too deeply, or has integers that Python does not convert, is bad input and no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.cli.tasks.score_file import read_samples
from assay.config.sources import parse_json
from assay.config.values import as_json
from assay.envs.chess.engine.stockfish import decode_moves
from assay.envs.monitor.answers import true_measurements
from assay.envs.monitor.rows import _json_lines
from assay.errors import ConfigError, DataError, RunDirectoryError
from assay.kernels.compile import cuda_sources
from assay.kernels.problems.sources import read_jsonl
from assay.kernels.verdict_cache import decoded, encoded
from assay.kernels.verdicts import Verdict
from assay.storage.files import read_object
from assay.training.run.reader import read_lines
from assay.training.run.rollouts import _key
from support.cpu_limit import at_most_cpu

DEEP = "[" * 200_000
LONG = '{"a": ' + "1" * 5000 + "}"

READERS: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "problems": (read_jsonl, DataError),
    "completions": (lambda path: list(read_samples(path)), DataError),
    "monitor rows": (lambda path: list(_json_lines(path)), DataError),
    "a run's records": (lambda path: list(read_lines(path)), RunDirectoryError),
    "a config": (lambda path: parse_json(path.read_text(), "x"), ConfigError),
    "measurements": (lambda path: true_measurements(path.read_text()), DataError),
    "an analysis": (lambda path: decode_moves(path.read_text()), ValueError),
    "a trace": (lambda path: _key(Path("traces.jsonl"), 1, path.read_bytes()), RunDirectoryError),
}


@pytest.mark.parametrize("text", [DEEP, LONG], ids=["deep", "long"])
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_says_that_it_cannot_read_it(reader: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text + "\n")
    read, error = READERS[reader]
    with pytest.raises(error):
        read(path)


@pytest.mark.parametrize("text", [DEEP, LONG], ids=["deep", "long"])
def test_what_cannot_be_read_is_nothing_or_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert read_object(path) is None
    assert as_json(text) == text
    assert decoded(text.encode()) is None


def test_a_trace_whose_numbers_have_no_bound_is_damaged() -> None:
    line = b'{"version":2,"run":"x","step":%s,"phase":"rl","index":0,"split":"train","group":0,}' % (b"1" * 5000)
    with pytest.raises(RunDirectoryError):
        _key(Path("traces.jsonl"), 1, line)


@pytest.mark.parametrize(
    "changes",
    [
        {"message": None},
        {"stage": 3},
        {"evidence": []},
        {"cpu_s": 10**400},
        {"tests_passed": 10**400},
        {"tests_total": "7"},
        {"timing": "fast"},
        {"compiled": "yes"},
        {"cpu_s": float("nan")},
        {"kind": ["ok"]},
    ],
    ids=lambda changes: str(changes)[:24],
)
def test_a_stored_verdict_with_a_bad_field_is_none(changes: dict[str, Any]) -> None:
    verdict = Verdict("ok", "numerics", "right", cpu_s=0.5)
    kept = decoded(encoded(verdict))
    assert kept is not None and kept.message == "right"
    assert decoded(json.dumps({**verdict.to_json(), **changes}).encode()) is None
    assert decoded(b"[]") is None


def test_comments_that_never_end_are_read_in_linear_time() -> None:
    with at_most_cpu(10):
        assert cuda_sources._COMMENT.sub("", "/* " * 300_000) == ""
    assert cuda_sources._COMMENT.sub("", "a /* b */ c // d\ne") == "a  c \ne"
