"""What a host gets for a failure, and when there are too many failures to go on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence

from assay.errors import RewardError
from assay.rewards.config import EngineConfig
from assay.types import Score

SMALL_BATCH = 16
"""Batches smaller than this are too small for a rate: their failures count in a window over batches."""
WINDOW = 64


def rewards_of(
    scores: Sequence[Score], config: EngineConfig, groups: Sequence[Hashable] | None = None
) -> list[float | None]:
    """One reward per score, with `config.on_failure` applied to missing ones; None means: leave this sample out.

    Args:
        groups: for `group_mean`, what group each score belongs to (a prompt's id, say). A group without any score stays
            None, since it has no mean.

    Raises:
        RewardError: `on_failure=raise` and a score is missing, or `group_mean` without `groups`.
    """
    failed = [score for score in scores if score.value is None]
    if not failed:
        return [score.value for score in scores]
    if config.on_failure == "raise":
        raise RewardError(f"{_summary(failed, len(scores))} on_failure=raise ends the batch.")
    if config.on_failure == "constant":
        return [config.failure_value if score.value is None else score.value for score in scores]
    if config.on_failure == "group_mean":
        return _group_means(scores, groups)
    return [score.value for score in scores]


def _group_means(scores: Sequence[Score], groups: Sequence[Hashable] | None) -> list[float | None]:
    if groups is None:
        raise RewardError(
            "on_failure=group_mean needs to know which samples form a group, but this host does not say. Set "
            "on_failure to drop, raise or constant."
        )
    known: dict[Hashable, list[float]] = {}
    for score, group in zip(scores, groups, strict=True):
        if score.value is not None:
            known.setdefault(group, []).append(score.value)
    means = {group: sum(values) / len(values) for group, values in known.items()}
    return [means.get(g) if s.value is None else s.value for s, g in zip(scores, groups, strict=True)]


class FailureWatch:
    """Raises when more than `max_rate` of the samples fail: of a batch, or of the last `WINDOW` scored one by one."""

    def __init__(self, max_rate: float) -> None:
        self._max_rate = max_rate
        self._window: deque[Score] = deque(maxlen=WINDOW)

    def check_batch(self, failed: Sequence[Score], total: int) -> None:
        """`failed` of `total` samples of one batch have no score.

        Raises:
            RewardError: they are too many.
        """
        if total >= SMALL_BATCH and len(failed) > self._max_rate * total:
            raise RewardError(f"{_summary(failed, total)} {self._why(total)}")

    def check_one(self, score: Score) -> None:
        """One sample of a small batch was scored or not.

        Raises:
            RewardError: too many of the last ones were not.
        """
        self._window.append(score)
        if score.value is not None:
            return
        window = list(self._window)  # hosts in other threads may be adding to it
        failed = [s for s in window if s.value is None]
        total = len(window)
        if total >= WINDOW // 2 and len(failed) > self._max_rate * total:
            self._window.clear()
            raise RewardError(f"{_summary(failed, total)} {self._why(total)}")

    def _why(self, total: int) -> str:
        return (
            f"More than max_failure_rate={self._max_rate:g} of {total}: after an outage, training would use only the "
            "rest. What was answered is cached; repair the judge and score again, or raise max_failure_rate."
        )


def _summary(failed: Sequence[Score], total: int) -> str:
    kinds = Counter(str(score.evidence.get("failure", "unknown")) for score in failed)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    first = str(failed[0].evidence.get("message", "")).rstrip(".")
    return f"{len(failed)} of {total} samples could not be scored ({listed}): {first}."
