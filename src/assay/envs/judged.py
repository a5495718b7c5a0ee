"""Answers scored by a reward engine: one for all envs of a run, so that its limits, cache and bill are the run's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from assay.envs.base import Counters
from assay.errors import RewardError
from assay.rewards import RewardEngine, Sample
from assay.rewards.base import LEVELS
from assay.types import Score


@dataclass(frozen=True)
class EngineScorer:
    """What the envs of a run share."""

    engine: RewardEngine

    async def score(self, sample: Sample) -> Score:
        """The score of one answer; errored if there is none, also if the judge refuses every call."""
        try:
            return await self.engine.score(sample)
        except RewardError as error:
            return Score("errored", None, evidence={"error": str(error)}, fingerprint=self.engine.reward.fingerprint)

    def counters(self) -> Counters:
        """What the engine has done, by name, with tokens and money by source."""
        found = self.engine.counters()
        totals = {name: value for name, value in found.items() if name not in LEVELS}
        # A copy: the engine adds sources to it in its own thread.
        for source, usage in self.engine.usage_by_source.copy().items():
            totals[f"{source}/calls"] = float(usage.calls)
            totals[f"{source}/tokens"] = float(usage.prompt_tokens + usage.completion_tokens)
            totals[f"{source}/usd"] = usage.usd
        return Counters(totals, {name: value for name, value in found.items() if name in LEVELS})

    async def close(self) -> None:
        """Stop the engine; safe to call twice."""
        await asyncio.to_thread(self.engine.close)
