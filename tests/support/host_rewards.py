"""Rewards for tests of hosts: one that needs no judge, and one whose judge is told what to answer by the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.errors import UnreadableReplyError
from assay.rewards import Reply, Request, Sample
from assay.types import Message, Score


@dataclass(frozen=True)
class ShareOfWords:
    """How many of the ground truth's words occur in the response, times `scale`; an empty response is invalid.

    A response that contains `BROKEN` makes the reward's own code raise, so that the sample is errored.
    """

    scale: float = 1.0
    name: str = "words"
    parts: tuple[str, ...] = ("found", "length")
    asks_judge: bool = False

    @property
    def fingerprint(self) -> str:
        return f"words:{self.scale}"

    def requests(self, sample: Sample) -> Sequence[Request]:
        return ()

    def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
        if "BROKEN" in sample.response:
            raise RuntimeError("this response breaks the reward")
        words = str(sample.ground_truth).split()
        found = sum(word in sample.response.split() for word in words) / max(1, len(words))
        if not sample.response:
            return Score("invalid", 0.0, {"found": 0.0})  # no length: rows must have it all the same
        parts = {"found": found, "length": float(len(sample.response.split()))}
        return Score("scored", self.scale * found, parts)


@dataclass(frozen=True)
class EchoedScore:
    """Asks a judge about the response, and takes the number in its reply for the score."""

    model: str = "judge"
    name: str = "echo"
    fingerprint: str = "echo:1"
    parts: tuple[str, ...] = ("echo",)

    def requests(self, sample: Sample) -> Sequence[Request]:
        return (Request(self.model, (Message("user", sample.response),), {"temperature": 0.0}),)

    def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
        try:
            value = float(replies[0].text)
        except ValueError:
            raise UnreadableReplyError(f"no number: {replies[0].text!r}") from None
        return Score("scored", value, {"echo": value})
