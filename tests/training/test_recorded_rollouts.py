"""What a run records of its rollouts: advantages after the update, tokens of some groups, tables of answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import AssayError
from assay.training.config import SFTConfig
from assay.training.run.rollouts import Group, GroupKey, open_rollouts
from support.tensorboard import read_events
from support.tiny_run import assert_same_run, kill, run, tiny
from support.toy_env import ToyBuilder

NO_SFT = SFTConfig(num_steps=0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run. Do not change it."""
    path = tmp_path_factory.mktemp("recorded") / "run"
    run(tiny(path, sft=NO_SFT, max_batches=4, completion_table_every=2, trace_token_groups=1))
    return path


def batches(path: Path) -> list[Group]:
    return [group for group in open_rollouts(path) if group.key.split == "train"]


def test_advantages_are_those_that_were_trained_with(finished: Path) -> None:
    trained = [group for group in batches(finished) if group.rollouts[0].turns[0].trained]
    assert trained
    for group in batches(finished):
        rewards = [rollout.reward for rollout in group.rollouts]
        mean = sum(reward for reward in rewards if reward is not None) / len(rewards)
        (turns,) = zip(*(rollout.turns for rollout in group.rollouts), strict=True)
        if len(set(rewards)) == 1:
            assert {turn.removed for turn in turns} == {"constant"}
            assert {turn.advantage for turn in turns} == {None}
        else:
            assert [turn.advantage for turn in turns] == pytest.approx([r - mean for r in rewards], abs=1e-6)
            assert {turn.trained for turn in turns} == {True}


def test_tokens_are_of_the_first_groups_and_join_to_what_was_said(finished: Path) -> None:
    rollouts = open_rollouts(finished)
    steps = {group.key.step for group in batches(finished)}
    assert {key for key in rollouts.keys if rollouts.tokens(key)} == {GroupKey(step, "train", 0) for step in steps}
    for step in steps:
        key = GroupKey(step, "train", 0)
        group = rollouts.group(key)
        for turn in rollouts.tokens(key):
            said = group.rollouts[turn.sample].turns[turn.turn]
            assert "".join(turn.text) == said.text and len(turn.logprobs) == said.completion_tokens
            if said.advantage is not None:
                assert turn.advantages == pytest.approx([said.advantage] * said.completion_tokens)
                assert turn.log_ratios == pytest.approx([0.0] * said.completion_tokens, abs=1e-4)


def test_tables_of_answers_come_at_their_cadence(finished: Path) -> None:
    (file,) = (finished / "tensorboard").iterdir()
    texts = [(e.step, v) for e in read_events(file) for v in e.summary.value if v.tag == "completions/text_summary"]
    assert [step for step, _ in texts] == [1, 3]
    assert all(value.tensor.string_val[0].count(b"\n") == 2 + 4 * 4 - 1 for _, value in texts)


@pytest.mark.parametrize("at", [2, 3])
def test_a_kill_between_the_update_and_the_commit_neither_loses_nor_repeats_rollouts(
    tmp_path: Path, finished: Path, at: int
) -> None:
    config = tiny(tmp_path / "run", sft=NO_SFT, max_batches=4, completion_table_every=2, trace_token_groups=1)
    kill(config, "assay.training.metrics.logger", "MetricsLogger.tokens", at)
    run(config)
    assert_same_run(tmp_path / "run", finished)


def test_rollouts_of_a_step_that_failed_are_recorded_and_done_again_after_it(tmp_path: Path, finished: Path) -> None:
    outage = tmp_path / "outage"
    config = tiny(tmp_path / "run", sft=NO_SFT, max_batches=1, eval_every=0, dataset_builder=ToyBuilder(outage=outage))
    kill(config, "assay.grpo.trainer", "GRPOTrainer.update", 1)
    outage.write_text("the verifier is away")
    with pytest.raises(AssayError, match="the verifier is away"):
        run(config)
    assert {turn.removed for g in batches(tmp_path / "run") for r in g.rollouts for turn in r.turns} == {"errored"}
    outage.unlink()
    run(config)
    removed = {turn.removed for g in batches(tmp_path / "run") for r in g.rollouts for turn in r.turns}
    assert "errored" not in removed and None in removed
