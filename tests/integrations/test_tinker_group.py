"""Groups of the Tinker cookbook scored by our rewards: the real package where it is installed."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook", reason="the Tinker cookbook needs an environment of its own")

from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollouts import do_group_rollout
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from assay.errors import RewardError
from assay.integrations.common.scoring import close_all
from assay.integrations.tinker_cookbook import ScoredGroup
from assay.types import Message


@pytest.fixture(autouse=True)
def engines_end() -> Iterator[None]:
    yield
    close_all()


class Script:
    """A policy that says given texts, one after the other."""

    def __init__(self, tokenizer: Any, texts: list[str]) -> None:
        self.replies = [tokenizer.encode(f" {text}\n\nUser:", add_special_tokens=False) for text in texts]

    async def __call__(self, model_input: Any, stop: Any, **_: Any) -> TokensWithLogprobs:
        tokens = self.replies.pop(0)
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=byte_level)


def group(tokenizer: Any, size: int) -> ScoredGroup:
    return ScoredGroup(
        renderer=get_renderer("role_colon", tokenizer),
        prompt=(Message("user", "Which letters?"),),
        group_size=size,
        ground_truth="a b",
        data_source="letters",
        settings={"reward": "support.host_rewards:ShareOfWords"},
    )


def test_a_group_rollout_of_the_cookbook_gets_our_rewards(tokenizer: Any) -> None:
    result = asyncio.run(do_group_rollout(group(tokenizer, 3), Script(tokenizer, ["a b", "a", "c"])))
    assert result.get_total_rewards() == [1.0, 0.5, 0.0]
    assert [metrics["reward/found"] for metrics in result.metrics_G] == [1.0, 0.5, 0.0]


def test_a_failed_rollout_takes_the_mean_and_so_no_advantage(tokenizer: Any) -> None:
    result = asyncio.run(do_group_rollout(group(tokenizer, 3), Script(tokenizer, ["a b", "BROKEN", "c"])))
    rewards = result.get_total_rewards()
    assert rewards == [1.0, 0.5, 0.0]
    assert rewards[1] - sum(rewards) / 3 == 0.0
    assert [metrics["assay_errored"] for metrics in result.metrics_G] == [0.0, 1.0, 0.0]


def test_a_group_without_any_score_raises(tokenizer: Any) -> None:
    with pytest.raises(RewardError, match="this response breaks the reward"):
        asyncio.run(do_group_rollout(group(tokenizer, 2), Script(tokenizer, ["BROKEN", "BROKEN"])))


def test_builders_pickle(tokenizer: Any) -> None:
    builder = group(tokenizer, 2)
    asyncio.run(do_group_rollout(builder, Script(tokenizer, ["a", "b"])))  # an engine exists by now
    bare = pickle.loads(pickle.dumps(ScoredGroup(None, builder.prompt, 2, "a b", settings=builder.settings)))
    assert (bare.settings, bare.prompt) == (builder.settings, builder.prompt)
