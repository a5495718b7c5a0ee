"""What is sampled in one call depends on who plays how many turns, and never on the order in which verdicts come."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.rollouts.cohorts import Cohorts

Call = tuple[tuple[int, int], ...]
"""(rollout, turn) of those sampled together."""


def calls_of(turns: list[int], size: int | None, seed: int) -> list[Call]:
    """The calls of rollouts that take so many turns each, where envs and backend answer in a random order."""
    rng = random.Random(seed)
    cohorts, taken, calls = Cohorts(len(turns), size), [0] * len(turns), []
    undecided, sampling = list(range(len(turns))), []
    while undecided or sampling:
        if undecided and (not sampling or rng.random() < 0.6):
            rollout = undecided.pop(rng.randrange(len(undecided)))
            if taken[rollout] == turns[rollout]:
                cohorts.leave(rollout)
            else:
                cohorts.ask(rollout)
        else:
            undecided += sampling.pop(rng.randrange(len(sampling)))
        if rng.random() < 0.7 or not (undecided or sampling):
            for due in cohorts.due():
                calls.append(tuple((rollout, taken[rollout]) for rollout in due))
                sampling.append(due)
                for rollout in due:
                    taken[rollout] += 1
    assert taken == turns and cohorts.over and cohorts.due() == []
    return calls


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 13), st.integers(), st.integers())
def test_calls_are_the_same_in_whatever_order_verdicts_come(turns: list[int], size: int, a: int, b: int) -> None:
    assert sorted(calls_of(turns, size, a)) == sorted(calls_of(turns, size, b))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 13), st.integers())
def test_first_turns_are_one_call_and_later_ones_a_cohort_s(turns: list[int], size: int, seed: int) -> None:
    first, *later = calls_of(turns, size, seed)
    assert first == tuple((rollout, 0) for rollout in range(len(turns)))
    for call in later:
        rollouts = [rollout for rollout, _ in call]
        assert rollouts == sorted(rollouts) and len(rollouts) <= size
        assert len({turn for _, turn in call}) == 1, "a cohort keeps step"


def test_cohorts_are_cut_evenly_in_order() -> None:
    later = sorted(calls_of([2] * 10, 4, 0)[1:])
    assert [[rollout for rollout, _ in call] for call in later] == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]


def test_a_batch_invariant_backend_is_asked_at_once() -> None:
    cohorts = Cohorts(3, None)
    cohorts.ask(2)
    assert cohorts.due() == [[2]]
    cohorts.ask(1)
    cohorts.ask(0)
    assert cohorts.due() == [[0, 1]]
    cohorts.ask(2)
    assert cohorts.due() == [[2]] and not cohorts.over


@pytest.mark.parametrize("size", [None, 1, 5])
def test_without_rollouts_nothing_is_due(size: int | None) -> None:
    cohorts = Cohorts(0, size)
    assert cohorts.over and cohorts.due() == []


def test_a_cohort_waits_for_its_own_members_alone() -> None:
    cohorts = Cohorts(4, 2)
    for rollout in range(4):
        cohorts.ask(rollout)
    assert cohorts.due() == [[0, 1, 2, 3]]
    cohorts.ask(0)
    cohorts.ask(3)
    assert cohorts.due() == []
    cohorts.ask(1)
    assert cohorts.due() == [[0, 1]], "the other cohort's slow member holds nobody up"
    cohorts.leave(2)
    assert cohorts.due() == [[3]]
