from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.backends.seeds import SEEDS, spread
from assay.rollouts.seeds import derive, turn_seed

NAMES = st.integers(-(2**63), 2**63) | st.text("abc0123456789", max_size=5)
PATHS = st.lists(NAMES, min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(PATHS, PATHS)
def test_equal_paths_and_only_they_give_equal_seeds(a: list[int | str], b: list[int | str]) -> None:
    assert (derive(*a) == derive(*b)) == (a == b)
    assert 0 <= derive(*a) < 2**64


def test_a_number_is_not_its_text_and_borders_count() -> None:
    seeds = [derive(1), derive("1"), derive(1, 23), derive(12, 3), derive(123), derive(3, 12), derive("1", 23)]
    assert len(set(seeds)) == len(seeds)


def test_seeds_are_pinned_so_that_a_run_resumed_by_a_later_version_draws_the_same() -> None:
    assert derive(0, "rl", 3) == 8142745550960247057
    assert derive(7, "evaluation") == 9191690882923973574
    assert [turn_seed((5, 0, sample), 0) for sample in range(3)] == [386827942, 629324470, 872363773]


def test_the_seeds_of_a_group_are_those_of_one_request_with_the_first_ones_seed() -> None:
    groups = [[turn_seed((7, group, sample), turn) for sample in range(16)] for group in range(8) for turn in range(2)]
    assert groups == [[spread(group[0], number) for number in range(16)] for group in groups]
    assert len({seed for group in groups for seed in group}) == 16 * 16
    assert all(0 <= seed < SEEDS for group in groups for seed in group)
