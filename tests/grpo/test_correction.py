"""Truncated importance weights multiply everything that acts through the advantage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.grpo.correction import importance_weights
from assay.grpo.kl import add_penalty
from assay.grpo.normalise import normalise
from assay.types import Datum, FloatArray


def array(*values: float) -> FloatArray:
    return np.array(values, np.float32)


SAMPLER, TRAINER = array(0, -1, -2, -1), array(0, -2, -1, -1)
IDS = np.arange(4)
DATA = [Datum(IDS, IDS + 1, SAMPLER, array(0, 1, 1, 0.5), array(0, 1, 1, 1))]
WEIGHTS = np.array([0, np.exp(-1), 2.0, 1.0])


def test_each_advantage_is_weighted_and_the_trainer_takes_the_place_of_the_sampler() -> None:
    (corrected,), mean = importance_weights(DATA, [TRAINER], 2.0)
    assert mean == np.float32(WEIGHTS.sum() / 3)
    np.testing.assert_array_equal(corrected.logprobs, TRAINER)
    (final,) = normalise([corrected])
    np.testing.assert_allclose(final.advantages, WEIGHTS * DATA[0].advantages / 3, rtol=1e-6)
    np.testing.assert_allclose(final.weights, DATA[0].mask / 3, rtol=1e-6)


def test_a_penalty_in_the_reward_is_weighted_too() -> None:
    (corrected,), _ = importance_weights(DATA, [TRAINER], 2.0)
    reference = array(0, -2.5, -0.5, -1.5)
    (penalised,) = add_penalty([replace(corrected, ref_logprobs=reference)], 0.1, "k1", 0.0)
    own = TRAINER - reference
    advantages = DATA[0].advantages + 0.1 * (own[1:].mean() - own) * DATA[0].mask
    (final,) = normalise([penalised])
    np.testing.assert_allclose(final.advantages, WEIGHTS * advantages / 3, rtol=1e-5)
