"""What the plays of an environment, and its tasks, say is wrong: pure functions of both."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import get_args

from assay.envs.base import EnvData, GroupScorer, iter_builders
from assay.envs.checks.plays import Answer, Play, shown, tasks_of
from assay.types import Json, Task

SLOW_S = 1.0
"""A median of more seconds per score than this is slow."""
LONG_CHARACTERS = 32_000
"""A prompt of more characters is very long: some 8,000 tokens of English."""
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong, and what to do about it."""

    kind: str
    message: str
    cure: str


@dataclass(frozen=True, slots=True)
class Earned:
    """What one kind of answer earned over all tasks."""

    plays: int
    errored: int
    invalid: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class CheckReport:
    """What was played and what is wrong."""

    train: int
    heldout: int
    played: int
    """Tasks whose answers were played."""
    earned: Mapping[str, Earned]
    median_s: float | None
    """Seconds that one score took."""
    max_s: float | None
    problems: Sequence[Problem]
    notes: Sequence[str]

    def to_json(self) -> dict[str, Json]:
        """As plain data."""
        return asdict(self)


def report_of(data: EnvData, plays: Sequence[Play], max_turns: int) -> CheckReport:
    """What the tasks of an environment, and the plays of some of them, amount to.

    Args:
        max_turns: in a game of several turns, equal prompts may be different problems.
    """
    train, heldout = tasks_of(data.train), tasks_of(data.heldout)
    seconds = [second for play in plays for second in play.seconds]
    problems = [
        *(Problem("repeats", text, _REPEATS) for text in data.notes),
        *(_repeats(train, heldout) if max_turns == 1 else ()),
        *_prompts(train, heldout),
        *_failures(plays),
        *_unstable(plays),
        *_pay(plays),
        *_slow(seconds),
    ]
    return CheckReport(
        train=len(train),
        heldout=len(heldout),
        played=len({play.task.key for play in plays}),
        earned={kind: _earned([p for p in plays if p.answer == kind]) for kind in get_args(Answer)},
        median_s=median(seconds) if seconds else None,
        max_s=max(seconds, default=None),
        problems=problems,
        notes=list(_notes(data, heldout, plays)),
    )


_REPEATS = "Return each problem once; num_epochs poses the tasks again."


def _earned(plays: Sequence[Play]) -> Earned:
    rewards = [play.reward for play in plays if play.reward is not None]
    return Earned(
        plays=len(plays),
        errored=sum(play.status == "errored" for play in plays),
        invalid=sum(play.status == "invalid" for play in plays),
        mean=mean(rewards) if rewards else None,
        low=min(rewards, default=None),
        high=max(rewards, default=None),
    )


def _repeats(train: Sequence[Task], heldout: Sequence[Task]) -> Iterator[Problem]:
    for split, tasks in (("training", train), ("held-out", heldout)):
        again = Counter(task.prompt for task in tasks)
        repeated = [task for task in tasks if again[task.prompt] > 1]
        if repeated:
            yield Problem(
                "repeats",
                f"{_count(len(repeated), split + ' task')} of {len(tasks)} share a prompt with another and differ in "
                f"what is kept for the verifier, such as {shown(repeated[0])}.",
                "Pose each problem once, or put what distinguishes the problems into the prompt.",
            )
    known = {task.prompt for task in train}
    shared = [task for task in heldout if task.prompt in known]
    if shared:
        yield Problem(
            "repeats",
            f"{_count(len(shared), 'held-out prompt')} of {len(heldout)} are trained on too, such as "
            f"{shown(shared[0])}: measurements on them show memorisation.",
            "Give the splits different problems.",
        )


def _prompts(train: Sequence[Task], heldout: Sequence[Task]) -> Iterator[Problem]:
    for split, tasks in (("training", train), ("held-out", heldout)):
        empty = [task for task in tasks if not task.text.strip()]
        if empty:
            yield Problem(
                "prompts",
                f"{_count(len(empty), split + ' prompt')} of {len(tasks)} are empty.",
                "Leave such tasks out, or write what the policy is to do.",
            )
        long = [len(task.text) for task in tasks if len(task.text) > LONG_CHARACTERS]
        if long:
            yield Problem(
                "prompts",
                f"{_count(len(long), split + ' prompt')} of {len(tasks)} have more than {LONG_CHARACTERS:,} "
                f"characters, at most {max(long):,}.",
                "Shorten them, or make sure that the model's context holds them and an answer of max_tokens.",
            )


def _failures(plays: Sequence[Play]) -> Iterator[Problem]:
    failed = [play for play in plays if play.status == "errored"]
    for reason, count in Counter(play.error for play in failed).most_common(3):
        kinds = sorted({play.answer for play in failed if play.error == reason})
        yield Problem(
            "errors",
            f"{count} of {len(plays)} plays ({', '.join(kinds)}) could not be scored: {reason.rstrip('.')}.",
            "Fix it: such rollouts train nothing. Score an answer that cannot be read with a number, such as 0.",
        )


def _unstable(plays: Sequence[Play]) -> Iterator[Problem]:
    by_answer: dict[tuple[str, str], list[Play]] = {}
    for play in plays:
        by_answer.setdefault((play.task.key, play.answer), []).append(play)
    differing = [
        found
        for found in by_answer.values()
        if len(rewards := [p.reward for p in found if p.reward is not None]) > 1 and max(rewards) - min(rewards) > _TINY
    ]
    if differing:
        one = differing[0]
        earned = " and ".join(f"{play.reward:g}" for play in one if play.reward is not None)
        yield Problem(
            "unstable",
            f"{_count(len(differing), 'answer')} of {len(by_answer)} earned a different reward when played again, such "
            f"as {one[0].answer} on {shown(one[0].task)}: {earned}.",
            "Make the score depend on the task and the answer alone: no clock, no unseeded randomness, no state that "
            "envs share.",
        )


_OTHERS = {
    "shuffled": "another task's best answer",
    "listed": "a list of several tasks' best answers",
    "garbage": "garbage",
    "empty": "an empty answer",
}
"""What is played beside best answers, in words."""


def _pay(plays: Sequence[Play]) -> Iterator[Problem]:
    """Whether right answers earn more than others."""
    rewards: dict[str, dict[str, float]] = {}
    for play in plays:
        if play.reward is not None and play.round == 0:
            rewards.setdefault(play.task.key, {})[play.answer] = play.reward
    anything = [reward for found in rewards.values() for kind, reward in found.items() if kind in ("garbage", "empty")]
    if len(anything) > 1 and min(anything) > 0 and max(anything) - min(anything) <= _TINY and not _has_gold(plays):
        yield Problem(
            "constant",
            f"Garbage and an empty answer earned {anything[0]:g} on every task, and no best answer is known that earns "
            "more.",
            "Check what score looks at, and define gold(self, task), so that best answers are played too.",
        )
    with_gold = [found for found in rewards.values() if "gold" in found]
    everything = [reward for found in with_gold for reward in found.values()]
    if len(everything) > 1 and max(everything) - min(everything) <= _TINY:
        yield Problem(
            "constant",
            f"Every answer to every task earned {everything[0]:g}, best answers and garbage alike: nothing could be "
            "learned.",
            "Check how score compares: white space, types (3 against '3'), and which part of the text it looks at.",
        )
        return
    for kind, what in _OTHERS.items():
        compared = [found for found in with_gold if kind in found]
        above = [found for found in compared if found[kind] > found["gold"] + _TINY]
        equal = [found for found in compared if abs(found[kind] - found["gold"]) <= _TINY]
        if above:
            yield Problem(
                "order",
                f"On {len(above)} of {_count(len(compared), 'task')} {what} earned more than the best answer.",
                "Check score's sign, and that gold (or answer) is right.",
            )
        if equal and (kind != "shuffled" or len(equal) == len(compared)):
            yield Problem(
                "order",
                f"On {len(equal)} of {_count(len(compared), 'task')} {what} earned as much as the best answer.",
                "Make score tell them apart: a policy learns whatever is cheapest to say.",
            )


def _has_gold(plays: Sequence[Play]) -> bool:
    return any(play.answer == "gold" for play in plays)


def _slow(seconds: Sequence[float]) -> Iterator[Problem]:
    if seconds and median(seconds) > SLOW_S:
        yield Problem(
            "slow",
            f"One score takes {median(seconds):.1f} s (median; at most {max(seconds):.1f} s).",
            "Compute what a group shares only once (group), make score async, or run it in processes (a reward with "
            "processes=).",
        )


def _notes(data: EnvData, heldout: Sequence[Task], plays: Sequence[Play]) -> Iterator[str]:
    if not heldout:
        yield "There are no held-out tasks, so nothing will be measured."
    if not _has_gold(plays):
        yield (
            "No best answers are known, so it was not checked that they earn most. Give tasks an answer, or define "
            "gold(self, task)."
        )
    if any(isinstance(builder, GroupScorer) for builder in itertools.islice(iter_builders(data.train), 1)):
        yield "A group's answers are scored together (score_group) in a run, which was not played here."
    corpus = data.tokenizer_corpus
    if corpus is not None:
        known = set(corpus.alphabet) or set().union(*corpus.texts)
        if stray := sorted({c for play in plays for c in play.said} - known):
            yield (
                f"The env says characters that a model from scratch (model_name=scratch) could not read: "
                f"{''.join(stray[:20])!r}. Return what it says from texts(self)."
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
