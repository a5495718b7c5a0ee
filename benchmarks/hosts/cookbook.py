"""The Tinker cookbook's own group rollouts with a scripted sampler, and its own advantages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.hosts.common import FAILING_PLAY, Rollout, Row, first_tasks, report
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import compute_advantages, trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout

from assay.integrations.cookbook_environment import TaskGroup
from assay.integrations.environments import Prepared
from support.hosts import Play, Script, bytes_tokenizer, logprobs_of


class Policy:
    def __init__(self, play: Play) -> None:
        self._script = Script(play)

    async def __call__(self, model_input: Any, stop: Any, **_: Any) -> TokensWithLogprobs:
        tokens = self._script.tokens(model_input.to_ints(), 1 << 20)
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=logprobs_of(tokens))


def rollout_groups(play: Play, one: Prepared) -> list[Any]:
    policy = Policy(play)
    tasks = [TaskGroup(reference, one, bytes_tokenizer()) for reference, _ in first_tasks(play, one)]
    return [asyncio.run(do_group_rollout(task, policy)) for task in tasks]


def row_of(datum: Any) -> Row:
    """A datum of the cookbook, whose streams are shifted by one, as a row."""
    targets = [int(token) for token in datum.loss_fn_inputs["target_tokens"].data]
    mask = [int(one) for one in datum.loss_fn_inputs["mask"].data]
    begin, end = mask.index(1), len(mask) - mask[::-1].index(1)
    first = datum.model_input.to_ints()[0]
    tokens = [first, *targets]
    return Row.of(tokens[: begin + 1], tokens[begin + 1 : end + 1], mask[begin:end])


def play(name: str, play: Play, one: Prepared) -> Sequence[Sequence[Rollout]]:
    found = []
    for group in rollout_groups(play, one):
        rollouts = zip(group.get_total_rewards(), group.trajectories_G, strict=True)
        found.append([Rollout(r, [row_of(datum) for datum in trajectory_to_data(t, 1.0)]) for r, t in rollouts])
    return found


def failing(one: Prepared) -> Sequence[bool]:
    groups = rollout_groups(FAILING_PLAY, one)
    (advantages,), (group,) = compute_advantages(groups), groups
    flags = [metrics["assay_errored"] == 1 for metrics in group.metrics_G]
    return [flag and abs(float(advantage)) < 1e-6 for flag, advantage in zip(flags, advantages, strict=True)]


if __name__ == "__main__":
    report(play, failing)
