"""The reward engine: scores thousands of completions as fast as the judge allows. Imports no torch.

engine = RewardEngine(reward, JudgeConfig(model="gpt-4o-mini"), EngineConfig(max_in_flight=256))
scores = await engine.score_many(samples)        # or engine.score_many_sync(samples)
"""

from assay.errors import JudgeError, RewardError, UnreadableReplyError
from assay.rewards.base import Caller, CallFailure, DirectReward, Reply, Request, Reward, Sample, Usage
from assay.rewards.client.client import Client
from assay.rewards.combined import AnyReward, CombinedReward
from assay.rewards.config import EngineConfig, JudgeConfig
from assay.rewards.engine import RewardEngine
from assay.rewards.failures import rewards_of
from assay.rewards.functions.reward import FunctionReward
from assay.rewards.judge.reward import JudgeReward
from assay.rewards.shared.hub import SharedCaller
from assay.types import Message, Score

__all__ = [
    "AnyReward",
    "CallFailure",
    "Caller",
    "Client",
    "CombinedReward",
    "DirectReward",
    "EngineConfig",
    "FunctionReward",
    "JudgeConfig",
    "JudgeError",
    "JudgeReward",
    "Message",
    "Reply",
    "Request",
    "Reward",
    "RewardEngine",
    "RewardError",
    "Sample",
    "Score",
    "SharedCaller",
    "UnreadableReplyError",
    "Usage",
    "rewards_of",
]
