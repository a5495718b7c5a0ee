"""How steps are called in what people read."""

from __future__ import annotations

import pytest

from assay.training.run.ledger import place_in_words


@pytest.mark.parametrize(
    ("step", "phase", "index", "said"),
    [(-1, "start", 0, "before training"), (12, "rl", 6, "step 12 (rl 7)"), (0, "sft", 0, "step 0 (sft 1)")],
)
def test_a_step_is_called_by_its_place_in_the_run(step: int, phase: str, index: int, said: str) -> None:
    assert place_in_words(step, phase, index) == said
