"""How training data are laid out in micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from assay.backends.local.forward import pack, plan
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
    batches = plan(data, budget, share=share)
    assert sorted(i for groups in batches for g in groups for i in g.members) == list(range(len(data)))
    for groups in batches:
        packed = pack(data, groups)
        assert len(groups) == 1 or packed.prompts.size + packed.continuations.size <= budget
    if budget == 100_000:
        assert len(batches) <= 2, "one batch of shared prompts and one of single sequences are enough"


def test_packed_rows_lead_to_the_token_before_each_target() -> None:
    data = make_data(1)
    for groups in plan(data, 300):
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
    packed = [pack(data, groups) for groups in plan(data, 100_000)]
    assert len(packed) == 2
    positions = sum(p.prompts.size + p.continuations.size for p in packed)
    assert positions <= 1.05 * sum(20 * (len(p.lengths)) + p.continuations.size for p in packed)
    assert {p.continuations.shape[2] for p in packed} == {5, 59}
