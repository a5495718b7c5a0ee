"""What later turns are told: the last attempt whole, others within a budget, the lines that matter, what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.envs.kernelbench.feedback import (
    CHARACTERS_PER_TOKEN,
    SHORT_THOUGHT,
    Attempt,
    FeedbackConfig,
    category_of,
    essential,
    guidance,
    later_prompt,
    verdict_in_words,
)
from assay.kernels.verdicts import Verdict, VerdictKind
from assay.types import Message

FIRST = (Message("system", "an expert"), Message("user", "the task"))
NONE = Attempt("", "", None, "the reply has no KERNEL block")


def attempt(kernel: str, kind: VerdictKind = "wrong", message: str = "output 0 differs", **fields: Any) -> Attempt:
    return Attempt(kernel, f"plan of {kernel[:9]}", Verdict(kind, "numerics", message, **fields))


def told(attempts: list[Attempt], thinks: bool = True, **settings: Any) -> str:
    most = settings.pop("most", 4)
    wanted = settings.pop("wanted_speedup", None)
    config = FeedbackConfig(**settings)
    system, user = later_prompt(FIRST, attempts, most=most, thinks=thinks, config=config, wanted_speedup=wanted)
    assert (system, user.role) == (FIRST[0], "user") and user.content.startswith("the task\n\n")
    return user.content


def fast(speedup: float | None) -> Verdict:
    return Verdict("ok", "timing", timing=None if speedup is None else {"rewardable": speedup})


@pytest.mark.parametrize(
    ("verdict", "wanted", "category"),
    [
        (None, None, "format_error"),
        (Verdict("compile_error", "compile"), None, "compilation_error"),
        (Verdict("cheat", "rules"), None, "rule_violation"),
        (Verdict("crash", "numerics"), None, "runtime_error"),
        (Verdict("timeout", "numerics"), None, "timeout"),
        (Verdict("wrong", "numerics"), None, "correctness_error"),
        (fast(None), None, "success"),
        (fast(None), 1.5, "performance_warning"),
        (fast(0.9), None, "performance_warning"),
        (fast(1.2), None, "success"),
        (fast(1.2), 1.5, "performance_warning"),
        (fast(1.6), 1.5, "success"),
    ],
)
def test_what_was_wrong_has_a_category_and_guidance(
    verdict: Verdict | None, wanted: float | None, category: str
) -> None:
    one = Attempt("kernel" if verdict else "", "", verdict, "no block")
    assert category_of(one, wanted) == category
    text = told([one], wanted_speedup=wanted)
    assert category.replace("_", " ") in text and guidance()[category] in text
    assert sum(said in text for said in guidance().values()) == 1


def test_the_last_attempt_is_whole_and_older_ones_go_when_there_is_no_room() -> None:
    attempts = [attempt(f"kernel_{n} = '{'x' * 900}'", message=f"message {n}") for n in range(3)]
    everything = told(attempts, history_tokens=4000)
    assert all(one.kernel in everything for one in attempts)
    assert everything.index("kernel_0") < everything.index("kernel_1") < everything.index("kernel_2")
    two = told(attempts, history_tokens=2300 // CHARACTERS_PER_TOKEN)
    assert "kernel_0 =" not in two and attempts[1].kernel in two and attempts[2].kernel in two
    assert "1 earlier attempt left out: correctness error." in two
    one = told(attempts, history_tokens=0)
    assert attempts[2].kernel in one and "kernel_1 =" not in one
    assert "2 earlier attempts left out: correctness error, correctness error." in one


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.integers(0, 3000))
def test_the_history_keeps_to_its_budget_but_for_the_last_attempt(sizes: list[int], tokens: int) -> None:
    attempts = [attempt(f"{n:02}" + "k" * size) for n, size in enumerate(sizes)]
    text = told(attempts, history_tokens=tokens)
    shown = [one for one in attempts if one.kernel in text]
    assert shown and shown == attempts[-len(shown) :], "the newest ones, without a gap"
    size = sum(len(one.kernel) for one in shown[:-1])
    assert not size or size + len(attempts[-1].kernel) <= tokens * CHARACTERS_PER_TOKEN


def test_thoughts_are_dropped_or_kept_in_short() -> None:
    one = Attempt("kernel", "first\n" + "idea " * 200, Verdict("wrong", "numerics"))
    assert "idea" not in told([one])
    short = told([one], thoughts="short")
    assert "first idea idea" in short and "..." in short and short.count("idea") < SHORT_THOUGHT / 5 + 1


def test_a_thought_is_asked_for_only_where_it_is_paid() -> None:
    assert "<think>" in told([NONE]) and "<think>" not in told([NONE], thinks=False)
    assert "the reply has no KERNEL block" in told([NONE]) and "```python\nthe complete" in told([NONE])


def test_the_calls_that_were_right_and_the_speedup_are_said() -> None:
    words = verdict_in_words(attempt("k", tests_passed=2, tests_total=5), FeedbackConfig())
    assert words == "correctness error (2 of 5 calls right):\noutput 0 differs"
    assert "at least 1.25 times as fast" in verdict_in_words(Attempt("k", "", fast(1.25)), FeedbackConfig())


def test_of_a_long_message_the_lines_that_matter_are_kept_in_their_order() -> None:
    noise = [f"  frame {n} of something" for n in range(60)]
    message = "\n".join([*noise[:30], "line 12: error: 'tl.silu' is not defined", *noise[30:], "expected (8, 48)"])
    kept = essential(message, 200)
    assert len(kept) <= 200
    assert kept.index("line 12: error") < kept.index("expected (8, 48)")
    assert essential("short", 200) == "short"
    assert essential("error " + "x" * 500, 100) == ("error " + "x" * 500)[:100]
    assert "line 12: error" in told([attempt("k", message=message)], max_message_characters=200)


@given(st.text(max_size=4000), st.integers(80, 900))
def test_no_message_is_longer_than_its_bound(message: str, most: int) -> None:
    assert len(essential(message, most)) <= most
