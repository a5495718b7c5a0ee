"""One sample scored with one reward: its calls made and read, or the reward's own code awaited, or a sum of rewards.

An exception in a reward's code becomes an errored score here, with the line that raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import cast

from assay.errors import ConfigError, DataError, RewardError, UnreadableReplyError
from assay.plugins import in_words
from assay.rewards.base import FATAL, Caller, CallFailure, DirectReward, Outcome, Reply, Request, Reward, Sample, Usage
from assay.rewards.combined import AnyReward, CombinedReward, is_direct
from assay.rewards.config import EngineConfig
from assay.types import Score

logger = logging.getLogger(__name__)


class Scoring:
    """Scores samples in the engine's loop.

    Args:
        counts: `reread` is counted here.
        usage_by_source: what calls cost is added here.
    """

    def __init__(
        self, caller: Caller, config: EngineConfig, counts: Counter[str], usage_by_source: dict[str, Usage]
    ) -> None:
        self._caller, self._config = caller, config
        self._counts, self._usage_by_source = counts, usage_by_source
        self._places = asyncio.Semaphore(config.max_in_flight)

    async def score(self, reward: AnyReward, sample: Sample, deadline: float | None) -> Score | CallFailure:
        """The score of one sample, or the failure that every further call would share.

        Args:
            deadline: on the loop's clock.

        Raises:
            ConfigError, DataError, RewardError: a direct reward cannot score anything this way.
        """
        if isinstance(reward, CombinedReward):
            results = await asyncio.gather(*(self.score(member, sample, deadline) for member, _ in reward.members))
            scores = [result for result in results if isinstance(result, Score)]
            if len(scores) < len(results):
                return next(result for result in results if isinstance(result, CallFailure))
            return _with_fingerprint(reward.combine(scores), reward.fingerprint)
        if is_direct(reward):
            return await self._direct(reward, sample, deadline)
        return await self._judged(cast(Reward, reward), sample, deadline)

    async def _direct(self, reward: DirectReward, sample: Sample, deadline: float | None) -> Score:
        """The score of a reward that scores by itself."""
        async with self._places:
            now = asyncio.get_running_loop().time()
            latest = now + self._config.call_deadline_s
            try:
                async with asyncio.timeout_at(latest if deadline is None else min(deadline, latest)) as limit:
                    score: object = await reward.evaluate(sample)
            except (ConfigError, DataError, RewardError):
                raise
            except TimeoutError as error:
                if limit.expired():
                    failure = CallFailure("deadline", f"{reward.name} gave no score before the deadline")
                    return _errored(reward, failure, Usage())
                return _errored(reward, _own_fault(error), Usage())
            except Exception as error:
                logger.debug("A reward's evaluate() raised.", exc_info=True)
                return _errored(reward, _own_fault(error), Usage())
        if not isinstance(score, Score):
            return _errored(
                reward, CallFailure("reward", f"{reward.name} returned {score!r}, which is not a Score"), Usage()
            )
        return _with_fingerprint(score, reward.fingerprint)

    async def _judged(self, reward: Reward, sample: Sample, deadline: float | None) -> Score | CallFailure:
        """A reward's score from a judge's replies; unreadable replies are requested again."""
        usage = Usage()
        replies: dict[int, Reply] = {}
        try:
            requests = list(reward.requests(sample))
            if not all(isinstance(request, Request) for request in requests):
                raise TypeError(f"requests() returned {requests!r}, which are not all Requests")
        except Exception as error:
            logger.debug("A reward's requests() raised.", exc_info=True)
            return _errored(reward, _own_fault(error), usage)
        for _ in range(self._config.reread_limit + 1):
            missing = [place for place in range(len(requests)) if place not in replies]
            outcomes = await self._call([requests[place] for place in missing], deadline)
            usage = sum((outcome.usage for outcome in outcomes), usage)
            self._bill(sample.data_source or reward.name, outcomes)
            for place, outcome in zip(missing, outcomes, strict=True):
                if isinstance(outcome, CallFailure):
                    return outcome if outcome.kind in FATAL else _errored(reward, outcome, usage)
                replies[place] = outcome
            try:
                return _scored(reward, sample, [replies[place] for place in range(len(requests))], usage)
            except UnreadableReplyError as error:
                unreadable = CallFailure("unreadable", str(error))
                unread = (set(error.places) & replies.keys()) or set(replies)
                for place in unread:
                    self._counts["reread"] += 1
                    del replies[place]
                if (failure := await self._forget([requests[place] for place in unread])) is not None:
                    return _errored(reward, failure, usage)
            except Exception as error:
                logger.debug("A reward's score() raised.", exc_info=True)
                return _errored(reward, _own_fault(error), usage)
        return _errored(reward, unreadable, usage)

    async def _call(self, requests: Sequence[Request], deadline: float | None) -> list[Outcome]:
        if len(requests) == 1:
            return [await self._caller.call(requests[0], deadline)]
        return list(await asyncio.gather(*(self._caller.call(request, deadline) for request in requests)))

    async def _forget(self, requests: Sequence[Request]) -> CallFailure | None:
        """Drop stored replies before they are asked for again; a failure if the process that has them cannot be
        reached."""
        try:
            for request in requests:
                await self._caller.forget(request)
        except RewardError as error:
            return CallFailure("connection", str(error))
        return None

    def _bill(self, source: str, outcomes: Sequence[Outcome]) -> None:
        before = self._usage_by_source.get(source, Usage())
        self._usage_by_source[source] = sum((outcome.usage for outcome in outcomes), before)


def _scored(reward: Reward, sample: Sample, replies: Sequence[Reply], usage: Usage) -> Score:
    """The reward's score, with its cost."""
    score = reward.score(sample, replies)
    if not isinstance(score, Score):
        raise TypeError(f"score() returned {score!r}, which is not a Score")
    cached = bool(replies) and all(reply.cached for reply in replies)
    return Score(score.status, score.value, score.parts, score.evidence, _plain(usage), cached, reward.fingerprint)


def _with_fingerprint(score: Score, fingerprint: str) -> Score:
    usage = score.usage or _plain(Usage())
    return Score(score.status, score.value, score.parts, score.evidence, usage, score.cached, fingerprint)


def _errored(reward: Reward | DirectReward, failure: CallFailure, usage: Usage) -> Score:
    evidence = {"failure": failure.kind, "message": failure.message, "attempts": failure.attempts}
    return Score("errored", None, evidence=evidence, usage=_plain(usage), fingerprint=reward.fingerprint)


def _plain(usage: Usage) -> dict[str, float]:
    return {
        "calls": usage.calls,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "usd": usage.usd,
    }


def _own_fault(error: Exception) -> CallFailure:
    """The failure of a reward's own code."""
    return CallFailure("reward", in_words(error))
