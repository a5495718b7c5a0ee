from __future__ import annotations

import numpy as np
import pytest

from assay.training.config import OptimizerConfig, SFTConfig, TrainingConfig
from assay.training.schedule import rl_learning_rate, sft_learning_rate


def rl(batches: int, **optimizer: object) -> list[float]:
    config = TrainingConfig(learning_rate=2.0, optimizer=OptimizerConfig(**optimizer))  # type: ignore[arg-type]
    return [rl_learning_rate(config, batch, batches) for batch in range(batches)]


def test_the_supervised_rate_rises_and_then_falls_to_zero() -> None:
    config = TrainingConfig(sft=SFTConfig(num_steps=10, learning_rate=1.0, lr_warmup_steps=4))
    rates = [sft_learning_rate(config, step) for step in range(11)]
    np.testing.assert_allclose(rates[:4], [0.25 * 1.0, 0.5 * 0.9, 0.75 * 0.8, 0.7])
    np.testing.assert_allclose(rates[4:], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0], atol=1e-12)


def test_without_a_warm_up_the_first_supervised_step_has_the_full_rate() -> None:
    config = TrainingConfig(sft=SFTConfig(num_steps=10, learning_rate=1.0, lr_warmup_steps=0))
    assert sft_learning_rate(config, 0) == 1.0


def test_the_rate_of_rl_is_constant_after_its_warm_up() -> None:
    assert rl(4) == [2.0] * 4
    assert rl(5, lr_warmup_steps=4) == [0.5, 1.0, 1.5, 2.0, 2.0]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("linear", [2.0, 1.5, 1.0, 0.5]), ("cosine", [2.0, 1 + np.sqrt(0.5), 1.0, 1 - np.sqrt(0.5)])],
)
def test_the_rate_of_rl_falls_over_the_run(schedule: str, rates: list[float]) -> None:
    np.testing.assert_allclose(rl(4, lr_schedule=schedule), rates)
    assert rl(4, lr_schedule=schedule, lr_warmup_steps=2)[0] == rates[0] / 2
