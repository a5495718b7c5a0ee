"""How training data are laid out in micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from assay.backends.local.forward import CPU_PASS_COST, DEVICE_PASS_COST, pack, plan
from assay.types import Datum


def make_data(seed: int) -> list[Datum]:
    """Groups of 1 to 6 data that share a prompt, of many lengths, in random order."""
    rng = np.random.default_rng(seed)
    data = []
    for _ in range(12):
        prompt = rng.integers(1, 50, int(rng.integers(1, 20)))
        for _ in range(int(rng.integers(1, 7))):
            ids = np.concatenate([prompt, rng.integers(1, 50, int(rng.integers(1, 15)))])
            mask = (np.arange(1, len(ids)) >= len(prompt)).astype(np.float32)
            data.append(Datum(ids[:-1], ids[1:], mask, mask, mask))
    return [data[i] for i in rng.permutation(len(data))]


@pytest.mark.parametrize("budget", [10, 60, 300, 100_000])
@pytest.mark.parametrize("share", [True, False])
def test_micro_batches_hold_every_datum_once_and_keep_to_the_budget(budget: int, share: bool) -> None:
    data = make_data(0)
    batches = plan(data, budget, share=share, pass_cost=512)
    assert sorted(i for groups in batches for g in groups for i in g.members) == list(range(len(data)))
    for groups in batches:
        packed = pack(data, groups)
        assert len(groups) == 1 or packed.prompts.size + packed.continuations.size <= budget
    if budget == 100_000:
        assert len(batches) <= 2, "one batch of shared prompts and one of single sequences are enough"


def test_packed_rows_lead_to_the_token_before_each_target() -> None:
    data = make_data(1)
    for groups in plan(data, 300, pass_cost=CPU_PASS_COST):
        packed = pack(data, groups)
        assert len(np.unique(packed.inside)) == len(packed.inside), "a state that several targets need is kept once"
        tokens = np.concatenate([packed.prompts.ravel()[packed.inside], packed.continuations.ravel()])
        wanted = [data[index].tokens[positions] for index, positions in packed.targets]
        np.testing.assert_array_equal(tokens[packed.rows], np.concatenate(wanted))


def test_answers_of_different_lengths_are_not_padded_to_each_other() -> None:
    rng = np.random.default_rng(2)
    data = []
    for length in (6, 60) * 4:
        prompt = rng.integers(1, 90, 20)
        for _ in range(16):
            ids = np.concatenate([prompt, rng.integers(1, 90, length)])
            mask = (np.arange(1, len(ids)) >= len(prompt)).astype(np.float32)
            data.append(Datum(ids[:-1], ids[1:], mask, mask, mask))
    packed = [pack(data, groups) for groups in plan(data, 100_000, pass_cost=DEVICE_PASS_COST)]
    assert len(packed) == 2
    positions = sum(p.prompts.size + p.continuations.size for p in packed)
    assert positions <= 1.05 * sum(20 * (len(p.lengths)) + p.continuations.size for p in packed)
    assert {p.continuations.shape[2] for p in packed} == {5, 59}


def with_lengths(lengths: list[list[int]], prompt: int, *, same_prompt: bool = False) -> list[Datum]:
    """A group of data for each list of completion lengths."""
    rng = np.random.default_rng(3)
    data, shared = [], rng.integers(1, 90, prompt)
    for group in lengths:
        own = shared if same_prompt else rng.integers(1, 90, prompt)
        for length in group:
            ids = np.concatenate([own, rng.integers(1, 90, length)])
            mask = (np.arange(1, len(ids)) >= prompt).astype(np.float32)
            data.append(Datum(ids[:-1], ids[1:], mask, mask, mask))
    return data


def cost(data: list[Datum], pass_cost: int) -> int:
    """What the plan costs in token positions, padding included."""
    packed = [pack(data, groups) for groups in plan(data, 100_000, pass_cost=pass_cost)]
    return sum(p.prompts.size + p.continuations.size + pass_cost for p in packed)


TAILS = [np.random.default_rng(seed).geometric(0.1, 4).tolist() for seed in range(16)]


@pytest.mark.parametrize("same_prompt", [False, True], ids=["distinct", "equal"])
@pytest.mark.parametrize("pass_cost", [CPU_PASS_COST, DEVICE_PASS_COST])
def test_groups_cost_no_more_together_than_apart(pass_cost: int, same_prompt: bool) -> None:
    """Also where their prompts are equal, so that they become one group with the longest completion of all."""
    for lengths in (TAILS, [[8] * 7 + [100]] * 8, [[1, 2, 3, 60]] * 8, [[2, 2]] * 4 + [[90, 90]] * 4):
        data = with_lengths(lengths, 20, same_prompt=same_prompt)
        apart = sum(cost(with_lengths([group], 20), pass_cost) for group in lengths)
        assert cost(data, pass_cost) <= apart


def test_one_long_answer_does_not_pad_its_group() -> None:
    data = with_lengths([[8] * 15 + [200]] * 4, 20)
    tokens = sum(len(d) for d in data)
    assert cost(data, CPU_PASS_COST) < tokens
    # A length that differs by a little is not worth a further pass.
    near = with_lengths([[8] * 15 + [9]] * 4, 20)
    assert len(plan(near, 100_000, pass_cost=CPU_PASS_COST)) == 1
