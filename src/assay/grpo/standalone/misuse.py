"""What a trainer by itself is called with and cannot use, or uses otherwise than its settings suggest. No torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from assay.config import SettingsError
from assay.errors import DataError, ModelError
from assay.grpo.config import GRPOConfig, doubtful
from assay.grpo.standalone.step_data import RolloutGroup, StepData

logger = logging.getLogger(__name__)

_CALL = "GRPOTrainer(model, ref_model, config)"


def checked_config(model: object, ref_model: object, config: object) -> GRPOConfig:
    """The config of a trainer of the caller's own model, once the arguments can be what they are said to be.

    Raises:
        ModelError: an argument is something else.
        SettingsError: a setting has no effect on step data.
    """
    for name, given in (("model", model), ("ref_model", ref_model)):
        if given is None and name == "ref_model":
            continue
        if isinstance(given, GRPOConfig):
            raise ModelError(
                f"{name} is a GRPOConfig. Call {_CALL}; without a reference GRPOTrainer(model, None, config)."
            )
        if not callable(getattr(given, "parameters", None)):
            raise ModelError(
                f"{name}={_brief(given)} is not a model. Load it, with "
                f"transformers.AutoModelForCausalLM.from_pretrained(...), and call {_CALL}."
            )
    found = GRPOConfig() if config is None else config
    if not isinstance(found, GRPOConfig):
        raise ModelError(f"config={_brief(config)} is not a GRPOConfig. Call {_CALL} with config=GRPOConfig(...).")
    if found.gamma != 1:
        raise SettingsError(
            [f"gamma={found.gamma:g} would have no effect: a rollout of step data has one turn. Leave gamma at 1."]
        )
    for said in doubtful(found):
        logger.warning("%s", said)
    return found


def checked_data(given: Any) -> StepData:
    """Step data of what a step was called with.

    Raises:
        DataError: it is neither that nor a list of groups.
    """
    if isinstance(given, StepData):
        return given
    if isinstance(given, RolloutGroup) or not hasattr(given, "__iter__") or isinstance(given, str):
        raise DataError(
            f"A step was called with a {type(given).__name__}, and takes StepData or a list of RolloutGroup. Put a "
            "single group into a list."
        )
    data = StepData(list(given))
    if other := next((type(g).__name__ for g in data.groups if not isinstance(g, RolloutGroup)), None):
        raise DataError(
            f"A step was called with a list that has a {other}; it takes StepData or a list of RolloutGroup."
        )
    return data


class Warned:
    """Says once for each trainer which of its settings have no effect in how it is called."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def of_step(self, config: GRPOConfig, groups: int, *, reuse: bool) -> None:
        """Look at a call of a step with so many groups."""
        for message in _idle(config, groups, reuse):
            if message not in self._said:
                self._said.add(message)
                logger.warning("%s", message)


def _idle(config: GRPOConfig, groups: int, reuse: bool) -> Iterator[str]:
    if config.max_staleness is not None and not reuse:
        yield (
            f"max_staleness={config.max_staleness} has no effect in training_step, which trains on all that it is "
            "given: it is read in training_step_with_rollout_epochs."
        )
    if 0 < groups < config.num_substeps:
        yield (
            f"num_substeps={config.num_substeps}, but a step has only {groups} groups to split among optimizer steps, "
            "and each gives at most one. Lower num_substeps, or give more groups to a step."
        )


def _brief(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."
