"""What a model is told of its earlier attempts: the prompt of a later turn, written anew. Pure.

The prompt holds the task, then the attempts: as many as fit into a budget, the last one always whole. Each has its
kernel, what the grader says of it (a category, and the lines of the message that matter), and the last one what to do
about it. Thoughts of earlier turns are dropped, or kept in short.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Annotated, Literal

import chz

from assay.config import AtLeast, Settings, UsedWhen
from assay.envs.kernelbench.prompts import answer_form, filled, text
from assay.envs.kernelbench.rewards import rewardable_speedup
from assay.kernels.verdicts import Verdict
from assay.types import Message

Category = Literal[
    "format_error",
    "compilation_error",
    "rule_violation",
    "runtime_error",
    "timeout",
    "correctness_error",
    "performance_warning",
    "success",
]
CHARACTERS_PER_TOKEN = 3
"""Of source code, on the safe side: the environment sees no tokens."""
SHORT_THOUGHT = 300
"""Characters of a thought that is kept in short."""
_TELLING = re.compile(
    r"error|exception|expected|instead|mismatch|differ|wrong|refused|undefined|not defined|invalid|illegal|assert"
    r"|out of|shape|dtype|stride|nan|inf\b|line \d+|\bat \d|~~|\^",
    re.IGNORECASE,
)


@chz.chz
class FeedbackConfig(Settings):
    """What a later turn is told of the earlier ones."""

    form: Annotated[Literal["full", "compact"], UsedWhen("plays_turns")] = "full"
    """`full` tells what the grader says and what to do about it; `compact` has each attempt's kernel under the category
    of its verdict and nothing else, for models with a small context that read no English."""
    history_tokens: Annotated[int, AtLeast(0), UsedWhen("plays_turns")] = 8192
    """Tokens, at three characters each, that earlier attempts may take in a prompt. The last one is always shown whole;
    of those before it as many as fit, newer ones first."""
    thoughts: Annotated[Literal["drop", "short"], UsedWhen("plays_turns"), UsedWhen("form", "full")] = "drop"
    """What is shown of the thoughts of earlier turns: nothing, or their beginnings."""
    max_message_characters: Annotated[int, AtLeast(80), UsedWhen("plays_turns"), UsedWhen("form", "full")] = 800
    """Of what the grader says of an attempt, characters that are shown; the lines that matter first."""


@chz.chz
class CompactFeedbackConfig(FeedbackConfig):
    """The same, compact unless another form is asked for."""

    form: Annotated[Literal["full", "compact"], UsedWhen("plays_turns")] = "compact"
    """`compact` has each attempt's kernel under the category of its verdict and nothing else; `full` tells what the
    grader says and what to do about it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One earlier turn."""

    kernel: str
    thought: str
    verdict: Verdict | None
    """None where there was no kernel to grade."""
    said: str = ""
    """Why there was none."""


def category_of(attempt: Attempt, wanted_speedup: float | None = None) -> Category:
    """What was wrong with an attempt.

    Args:
        wanted_speedup: a right kernel that is slower needs work, as does one that was measured and is slower than the
            reference.
    """
    verdict = attempt.verdict
    if verdict is None:
        return "format_error"
    if verdict.ok:
        speedup = rewardable_speedup(verdict)
        slow = wanted_speedup is not None if speedup is None else speedup < max(1.0, wanted_speedup or 0.0)
        return "performance_warning" if slow else "success"
    known: dict[str, Category] = {
        "cheat": "rule_violation",
        "crash": "runtime_error",
        "timeout": "timeout",
        "wrong": "correctness_error",
    }
    return known.get(verdict.kind, "compilation_error")


def essential(message: str, most: int) -> str:
    """The lines of a message that matter, in their order, in at most `most` characters.

    Lines that name an error, a place or a comparison come before others; a message that fits is kept whole.
    """
    if len(message) <= most:
        return message
    lines = [line.rstrip()[:most] for line in message.split("\n") if line.strip()]
    ranked = sorted(range(len(lines)), key=lambda n: (not _TELLING.search(lines[n]), n))
    kept: list[int] = []
    room = most
    for number in ranked:
        if len(lines[number]) + 1 <= room:
            kept.append(number)
            room -= len(lines[number]) + 1
    return "\n".join(lines[number] for number in sorted(kept)) or message[:most]


@cache
def guidance() -> dict[str, str]:
    """Category -> what to do about it."""
    parts = re.split(r"^## (\w+)\n", text("guidance"), flags=re.MULTILINE)[1:]
    return {name: said.strip() for name, said in zip(parts[::2], parts[1::2], strict=True)}


def verdict_in_words(attempt: Attempt, config: FeedbackConfig, wanted_speedup: float | None = None) -> str:
    """What came of an attempt: its category, the calls that were right, the speedup, and the lines that matter."""
    verdict, category = attempt.verdict, category_of(attempt, wanted_speedup)
    words = category.replace("_", " ")
    if verdict is None:
        return f"{words}: {essential(attempt.said, config.max_message_characters)}"
    facts = []
    if verdict.tests_total:
        facts.append(f"{verdict.tests_passed} of {verdict.tests_total} calls right")
    if (speedup := rewardable_speedup(verdict)) is not None:
        facts.append(f"at least {speedup:.2f} times as fast as the reference")
    told = essential(verdict.message, config.max_message_characters)
    head = f"{words} ({', '.join(facts)})" if facts else words
    return f"{head}:\n{told}" if told else f"{head}."


def later_prompt(
    first: Sequence[Message],
    attempts: Sequence[Attempt],
    *,
    most: int,
    thinks: bool,
    config: FeedbackConfig,
    wanted_speedup: float | None = None,
) -> tuple[Message, ...]:
    """The prompt of the turn after `attempts`: the first one, and after its task what came of them.

    Args:
        first: the messages of the first turn; the last of them is the task.
        most: turns of the rollout.
        thinks: whether a thought is asked for.
        wanted_speedup: see `category_of`.
    """
    *before, task = first
    if config.form == "compact":
        briefly = [compact(one.kernel, category_of(one, wanted_speedup)) for one in attempts]
        shown = "".join(_within(briefly, attempts, config, wanted_speedup))
        return *before, Message(task.role, f"{task.content}{shown}")
    written = [_written(number, one, most, config, wanted_speedup) for number, one in enumerate(attempts, start=1)]
    refinement = filled(
        "refinement",
        attempts="\n\n".join(_within(written, attempts, config, wanted_speedup)),
        guidance=guidance()[category_of(attempts[-1], wanted_speedup)],
        format=answer_form(thinks),
    )
    return *before, Message(task.role, f"{task.content}\n\n{refinement}")


def compact(kernel: str, category: Category) -> str:
    """An attempt in `feedback.form=compact`: a comment with what was wrong, and the kernel."""
    return f"# {category.replace('_', ' ')}\n{kernel}"


def _written(number: int, attempt: Attempt, most: int, config: FeedbackConfig, wanted: float | None) -> str:
    thought = ""
    if config.thoughts == "short" and attempt.thought:
        cut = attempt.thought[:SHORT_THOUGHT]
        thought = f" {' '.join(cut.split())}{'...' if len(attempt.thought) > SHORT_THOUGHT else ''}"
    verdict = verdict_in_words(attempt, config, wanted)
    if not attempt.kernel:
        return f"Attempt {number} of {most}:{thought}\n\nResult: {verdict}"
    kernel = attempt.kernel.strip("\n")
    return Template(text("attempt")).substitute(
        number=number, most=most, thought=thought, kernel=kernel, verdict=verdict
    )


def _within(
    written: Sequence[str], attempts: Sequence[Attempt], config: FeedbackConfig, wanted: float | None
) -> list[str]:
    """The attempts that fit, in order; of those that do not, one line says how many there were and how they ended."""
    room = config.history_tokens * CHARACTERS_PER_TOKEN - len(written[-1])
    shown = [written[-1]]
    left_out = len(written) - 1
    for one in reversed(written[:-1]):
        if len(one) > room:
            break
        shown.insert(0, one)
        room -= len(one)
        left_out -= 1
    if left_out:
        ends = ", ".join(category_of(one, wanted).replace("_", " ") for one in attempts[:left_out])
        shown.insert(0, f"({left_out} earlier attempt{'s' if left_out > 1 else ''} left out: {ends}.)")
    return shown
