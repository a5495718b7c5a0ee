from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from assay.syntax import parsed, parsed_class


class Example:
    """Something with a source."""

    value = 1


def test_texts_are_parsed_one_at_a_time_and_again_where_something_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([SystemError("AST constructor recursion depth mismatch (before=24, after=21)")] * 3)
    under_way = threading.RLock()
    plain = ast.parse

    def parse(code: str) -> ast.Module:
        assert under_way.acquire(blocking=False), "another thread parses"
        try:
            for failure in failures:
                raise failure
            return plain(code)
        finally:
            under_way.release()

    monkeypatch.setattr("assay.syntax.ast.parse", parse)  # `inspect` uses it too
    with ThreadPoolExecutor(8) as threads:
        assert {len(tree.body) for tree in threads.map(parsed, ["x = 1\ny = 2\n"] * 200)} == {2}
        assert {tree.name for tree in threads.map(parsed_class, [Example] * 20)} == {"Example"}


def test_what_no_parser_reads_is_told_at_once() -> None:
    with pytest.raises(SyntaxError):
        parsed("def")
    with pytest.raises(OSError, match=r"source|built-in|class definition"):
        parsed_class(type("Typed", (), {"__module__": "__main__"}))
