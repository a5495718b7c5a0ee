"""Samples for a judge in benchmarks: prompts of 4 KB, the reward that asks about them, and the verdict to expect."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Sequence

from assay.errors import UnreadableReplyError
from assay.rewards import Reply, Request, Sample
from assay.types import Message, Score

from .judge_behaviour import Behaviour

PROMPT_BYTES = 4096
MODEL = "judge"
INSTRUCTION = "Read the solution. Say <answer>True</answer> if it is sound, <answer>False</answer> if it is not."
VERDICT = re.compile(r"<answer>(True|False)</answer>")
WORDS = ("measure", "value", "step", "because", "sum", "return", "check", "bound", "case", "proof", "index", "result")


def response(index: int) -> str:
    """The text of sample `index`: 4 KB, distinct, plain ASCII without quotes, so that JSON leaves it as it is."""
    rng = random.Random(index)
    words = " ".join(rng.choices(WORDS, k=PROMPT_BYTES // 5))
    return f"Solution {index}. {words}"[:PROMPT_BYTES]


def indices(count: int, duplicates: float, seed: int = 0) -> list[int]:
    """Which texts the samples have, shuffled: a share `duplicates` of them repeats another one."""
    distinct = count - round(count * duplicates)
    rng = random.Random(seed)
    found = [*range(distinct), *rng.choices(range(distinct), k=count - distinct)]
    rng.shuffle(found)
    return found


def samples(which: Sequence[int]) -> list[Sample]:
    return [Sample(response(index)) for index in which]


def endless_samples(count: int) -> Iterator[Sample]:
    """`count` short distinct samples, made as they are asked for."""
    return (Sample(f"Solution {index}.") for index in range(count))


def messages(sample: Sample) -> tuple[Message, ...]:
    return Message("system", INSTRUCTION), Message("user", sample.response)


def verdict(text: str) -> float | None:
    found = VERDICT.search(text)
    return None if found is None else float(found.group(1) == "True")


def expected(sample: Sample) -> float | None:
    """What the loopback judge says of a sample."""
    replies = Behaviour().replies
    return verdict(replies[zlib.crc32(sample.response.encode()) % len(replies)])


class VerdictReward:
    """One call per sample; 1 where the judge says True."""

    name = "verdict"
    fingerprint = "verdict-1"

    def requests(self, sample: Sample) -> Sequence[Request]:
        return [Request(MODEL, messages(sample), {"temperature": 0.0, "max_tokens": 256})]

    def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
        value = verdict(replies[0].text)
        if value is None:
            raise UnreadableReplyError(f"no verdict in {replies[0].text!r}")
        return Score("scored", value, cached=replies[0].cached, fingerprint=self.fingerprint)
