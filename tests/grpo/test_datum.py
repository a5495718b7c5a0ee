from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.grpo.datum import example_datum, trained_tokens, trajectory_data, turn_spans
from assay.types import Completion, Datum, Score, Trajectory, Transition
from support.scripted import task, trajectory

TOKENS = st.lists(st.integers(0, 50), min_size=1, max_size=5)


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[Trajectory, list[float], list[bool]]:
    """A trajectory of up to four turns, an advantage per turn, and which turns rewrite history."""
    transitions: list[Transition] = []
    rewrites: list[bool] = []
    seen: list[int] = []
    for turn in range(draw(st.integers(1, 4))):
        told = draw(TOKENS)
        rewrite = turn > 0 and draw(st.booleans())
        # A rewritten prompt starts with a token that the others never hold.
        prompt = [99 + turn, *seen[: draw(st.integers(0, len(seen)))], *told] if rewrite else [*seen, *told]
        drawn = draw(TOKENS)
        logprobs = tuple(-float(len(seen) + i + 1) for i in range(len(drawn)))
        transitions.append(
            Transition(tuple(prompt), Completion(tuple(drawn), logprobs, "stop", 0), "", Score("scored", 1.0))
        )
        rewrites.append(rewrite)
        seen = [*prompt, *drawn]
    advantages = [float(i + 1) for i in range(len(transitions))]
    return Trajectory(task("a"), tuple(transitions), "done", 0), advantages, rewrites


def trained(data: list[Datum], stream: str) -> list[float]:
    """The values of a stream where the mask is 1."""
    return [float(v) for d in data for v in getattr(d, stream)[d.mask > 0]]


@settings(max_examples=30, deadline=None)
@given(rollouts())
def test_what_was_sampled_is_trained_once_with_its_own_logprob_and_advantage(
    case: tuple[Trajectory, list[float], list[bool]],
) -> None:
    rollout, advantages, _ = case
    data = trajectory_data(rollout, advantages)
    turns = rollout.transitions
    assert trained(data, "targets") == [t for turn in turns for t in turn.completion.tokens]
    assert trained(data, "logprobs") == [p for turn in turns for p in turn.completion.logprobs]
    expected = [a for turn, a in zip(turns, advantages, strict=True) for _ in turn.completion.tokens]
    assert trained(data, "advantages") == expected
    assert trained_tokens(data) == len(expected)


@settings(max_examples=30, deadline=None)
@given(rollouts())
def test_streams_are_aligned_and_zero_where_nothing_is_trained(
    case: tuple[Trajectory, list[float], list[bool]],
) -> None:
    for datum in trajectory_data(case[0], case[1]):
        assert np.array_equal(datum.tokens[1:], datum.targets[:-1])
        hidden = datum.mask == 0
        assert not datum.logprobs[hidden].any() and not datum.advantages[hidden].any()
        assert set(datum.mask.tolist()) <= {0.0, 1.0}


@settings(max_examples=30, deadline=None)
@given(rollouts())
def test_turns_that_extend_each_other_are_one_sequence_and_rewritten_history_starts_another(
    case: tuple[Trajectory, list[float], list[bool]],
) -> None:
    rollout, advantages, rewrites = case
    data = trajectory_data(rollout, advantages)
    assert len(data) == 1 + sum(rewrites)
    last_of_run = [i for i, _ in enumerate(rewrites) if i + 1 == len(rewrites) or rewrites[i + 1]]
    for datum, index in zip(data, last_of_run, strict=True):
        turn = rollout.transitions[index]
        assert [*datum.tokens, datum.targets[-1]] == [*turn.prompt_tokens, *turn.completion.tokens]


def test_every_sampled_token_is_predicted_from_all_that_the_policy_saw() -> None:
    rollout = trajectory([0.0, 1.0])
    (datum,) = trajectory_data(rollout, [2.0, 3.0])
    assert datum.tokens.tolist() == [1, 2, 3, 4, 5, 3]
    assert datum.targets.tolist() == [2, 3, 4, 5, 3, 4]
    assert datum.mask.tolist() == [0, 1, 1, 0, 1, 1]
    assert datum.advantages.tolist() == [0, 2, 2, 0, 3, 3]
    assert datum.logprobs.tolist() == [0, -0.5, -0.25, 0, -0.5, -0.25]


def test_a_shorter_prompt_than_what_was_said_is_no_extension() -> None:
    first, second = trajectory([0.0, 1.0]).transitions
    cut = Trajectory(task("a"), (first, replace(second, prompt_tokens=first.prompt_tokens)), "done", 0)
    assert [len(d) for d in trajectory_data(cut, [1.0, 1.0])] == [3, 3]


def test_there_is_an_advantage_for_every_turn() -> None:
    with pytest.raises(ValueError):
        trajectory_data(trajectory([0.0, 1.0]), [1.0])


def test_examples_weigh_the_answer_and_not_the_question() -> None:
    datum = example_datum([7, 8], [9, 10, 11])
    assert datum.tokens.tolist() == [7, 8, 9, 10]
    assert datum.targets.tolist() == [8, 9, 10, 11]
    assert datum.advantages.tolist() == datum.mask.tolist() == [0, 1, 1, 1]
    assert trained_tokens([datum, datum]) == 6


@settings(max_examples=30, deadline=None)
@given(rollouts())
def test_every_turn_is_found_in_its_sequences(case: tuple[Trajectory, list[float], list[bool]]) -> None:
    rollout, advantages, _ = case
    data = trajectory_data(rollout, advantages)
    for turn, span in zip(rollout.transitions, turn_spans(rollout), strict=True):
        assert tuple(data[span.datum].targets[span.start : span.stop]) == turn.completion.tokens
        assert data[span.datum].mask[span.start : span.stop].all()
