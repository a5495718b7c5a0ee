"""No text of a verdict steers a terminal, shows a place on this machine, or is longer than a verdict's texts may be."""

from __future__ import annotations

from typing import Any

import pytest

from assay.kernels.job_reports import explain
from assay.kernels.operators import MOST_KEPT, kind_of
from assay.kernels.verdicts import MOST_CHARACTERS, MOST_NESTED, Verdict
from assay.sandbox.base import JobResult

EVIL = "\x1b[2J\x1b]0;owned\x07\r\u202e\u2066\ud800 ok"
PLAIN = "\ufffd[2J\ufffd]0;owned\ufffd\ufffd\ufffd\ufffd\ufffd ok"


def test_every_text_of_a_verdict_is_plain() -> None:
    nested: Any = {EVIL: [EVIL, {"a": (EVIL, 1.5, None, True)}]}
    made = Verdict("cheat", "rules", EVIL, EVIL, nested, problem=EVIL, timing={"note": EVIL})
    assert (made.message, made.cheat, made.problem) == (PLAIN, PLAIN, PLAIN)
    assert made.evidence == {PLAIN: [PLAIN, {"a": [PLAIN, 1.5, None, True]}]} and made.timing == {"note": PLAIN}
    assert Verdict.from_json(made.to_json()) == made
    assert len(Verdict("wrong", "rules", "x" * 10**6).message) == MOST_CHARACTERS
    kept = Verdict("wrong", "rules", "first\n\tsecond: é, 1e-5").message
    assert kept == "first\n\tsecond: é, 1e-5"


def test_what_is_nested_too_deep_is_left_out() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    found: Any = Verdict("wrong", "rules", evidence={"deep": deep}).evidence["deep"]
    levels = 0
    while found:
        (found,), levels = found, levels + 1
    assert levels == MOST_NESTED - 1


FATAL = """the kernel's own words
Fatal Python error: Segmentation fault

Current thread 0x00007f12 (most recent call first):
  File "/srv/host/src/assay/sandbox/inside/worker.py", line 156 in serve

Extension modules: numpy._core._multiarray_umath (total: 40)
"""
TRACEBACK = """Traceback (most recent call last):
  File "/srv/host/src/assay/inside/child.py", line 3, in run
  File "submission.py", line 12, in forward
ValueError: mine
"""


@pytest.mark.parametrize(
    ("stderr", "signal", "said"),
    [
        (FATAL, 11, "the kernel's own words"),
        (FATAL.partition("Fatal")[2], 11, None),
        (TRACEBACK, None, 'File "submission.py", line 12, in forward\nValueError: mine'),
        (" #0 0x00007f (/srv/host/lib.so+0x1)\nAssertion failed\n", None, "Assertion failed"),
        (EVIL, None, PLAIN),
    ],
)
def test_how_a_job_ended_shows_nothing_of_this_machine(stderr: str, signal: int | None, said: str | None) -> None:
    told = explain(JobResult("crash", "died", signal=signal, stderr=stderr))
    assert "/srv/host" not in told and "Extension modules" not in told
    assert told == "died" if said is None else said in told


def test_names_that_are_made_up_are_not_kept() -> None:
    for number in range(MOST_KEPT + 100):
        assert kind_of(f"made_up_{number}") == "pointwise"
    assert kind_of.cache_info().currsize <= MOST_KEPT
