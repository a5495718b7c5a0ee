"""Several rewards as one: their weighted sum, with each one's own value among the parts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from assay.errors import ConfigError
from assay.rewards.base import DirectReward, Reward
from assay.types import MAX_REWARD, Json, Score, ScoreStatus, is_usable_reward


class CombinedReward:
    """The weighted sum of rewards. The engine scores each of them, and `combine` makes one score of theirs.

    Args:
        members: the rewards, each with its weight.
        name: names the sum in metrics.

    Raises:
        ConfigError: two of them have one name, so that their parts could not be told apart.
    """

    def __init__(self, members: Sequence[tuple[Reward | DirectReward, float]], name: str = "reward") -> None:
        self.name, self.members = name, tuple(members)
        self.parts = tuple(member.name for member, _ in members)
        if twice := [name for name, count in Counter(self.parts).items() if count > 1]:
            raise ConfigError(f"Two of the rewards are named {twice[0]!r}. Rename one: @assay.reward(name=...).")
        self.asks_judge = any(asks_judge(member) for member, _ in members)
        content = [[member.fingerprint, weight] for member, weight in members]
        self.fingerprint = f"{name}:{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}"

    def combine(self, scores: Sequence[Score]) -> Score:
        """One score of the members', in their order.

        Errored where one of them is (a sum without it would be another reward), or where the sum is not finite. Invalid
        where one of them is. `parts` holds each member's value under its name, and its own parts as `name/part`.
        """
        named = list(zip(self.parts, scores, strict=True))
        failed = next(((name, score) for name, score in named if score.value is None), None)
        evidence: dict[str, Json] = {name: dict(score.evidence) for name, score in named if score.evidence}
        usage = _summed([score.usage for score in scores])
        if failed is not None:
            name, score = failed
            message = f"{name}: {score.evidence.get('message', 'no message')}"
            why = {"failure": score.evidence.get("failure", "unknown"), "message": message, "attempts": 0}
            return Score("errored", None, evidence={**evidence, **why}, usage=usage)
        parts: dict[str, float] = {}
        value = 0.0
        for (member, weight), score in zip(self.members, scores, strict=True):
            assert score.value is not None
            value += weight * score.value
            parts[member.name] = score.value
            parts.update({f"{member.name}/{part}": v for part, v in score.parts.items() if part != member.name})
        if not is_usable_reward(value):
            message = (
                f"the weighted sum of {', '.join(f'{name}={score.value:g}' for name, score in named)} is {value:g}; a "
                f"reward is finite and at most {MAX_REWARD:g} in size"
            )
            why = {"failure": "reward", "message": message, "attempts": 0}
            return Score("errored", None, evidence={**evidence, **why}, usage=usage)
        status: ScoreStatus = "invalid" if any(score.status == "invalid" for score in scores) else "scored"
        replied = [score for score in scores if score.usage.get("calls") or score.cached]
        cached = bool(replied) and all(score.cached for score in replied)
        return Score(status, value, parts, evidence, usage, cached)


AnyReward = Reward | DirectReward | CombinedReward
"""Anything an engine can score with."""


def is_direct(reward: object) -> TypeGuard[DirectReward]:
    """Whether a reward scores by itself."""
    return hasattr(reward, "evaluate")


def is_reward(found: Any) -> TypeGuard[AnyReward]:
    """Whether an object is a reward as it stands."""
    if isinstance(found, type) or not all(hasattr(found, attribute) for attribute in ("name", "fingerprint")):
        return False
    judged = hasattr(found, "requests") and hasattr(found, "score")
    return judged or is_direct(found) or isinstance(found, CombinedReward)


def asks_judge(reward: object) -> bool:
    """Whether a reward needs a judge, with its key and connections; true unless it says otherwise."""
    return bool(getattr(reward, "asks_judge", True)) and not is_direct(reward)


def _summed(usages: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for usage in usages for name in usage)
    return {name: sum(usage.get(name, 0) for usage in usages) for name in names}
