"""What follows a rollback: the lower learning rate, which grows back in part, and the reward that is to be regained.

Pure state; imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from assay.grpo.health.config import HealthConfig
from assay.types import Json

SOUGHT_LEVEL, SOUGHT_FOR = "run/sought_level", "run/sought_for"
"""The largest mean reward before the rollback, known until the policy earns more; and the steps since, known until the
rollback has shown itself a cure."""
_STEP_UP = 2.0
"""Factor on the learning rate after so many calm steps."""


class Recovery:
    """Of one run.

    A rollback says that the rate of the moment is too high. The next one is lower by `rollback_lr_factor`, or by its
    square where the rollback before was no cure, since it is not known how far down the right rate is. After every
    `lr_recovery_steps` calm steps it doubles, but stays below the rate at which trouble came by the root of the factor.
    """

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self.rollbacks = 0
        """How often the run was rolled back."""
        self.attempts = 0
        """Rollbacks since the run began or last surpassed its reward."""
        self.factor = 1.0
        """On the configured learning rate."""
        self._ceiling = 1.0
        self._calm = 0
        self._sought: float | None = None
        """The largest mean reward before."""
        self._shown = False
        """Whether the last rollback was a cure."""
        self._since = 0

    def rolled_back(self, level: float | None) -> None:
        """Lower the rate.

        Args:
            level: the largest mean reward before; None where there is none.
        """
        factor = self._config.rollback_lr_factor
        self._ceiling = self.factor * math.sqrt(factor)
        self.factor *= factor**2 if self.attempts else factor
        self.rollbacks += 1
        self.attempts += 1
        self._calm, self._since, self._shown = 0, 0, False
        known = [one for one in (self._sought, level) if one is not None]
        self._sought = max(known, default=None)

    def add(self) -> dict[str, float]:
        """Count a step; returns what is sought, by name."""
        self._since += 1
        if self._sought is None:
            return {}
        return {SOUGHT_LEVEL: self._sought} | ({} if self._shown else {SOUGHT_FOR: float(self._since)})

    def cured(self) -> None:
        """The reward is what it has to be: nothing has to be shown any more."""
        self._shown = True

    def surpassed(self) -> None:
        """The reward is clearly above the best before: the run has learned on, and trouble from now on is new."""
        self._sought, self.attempts = None, 0

    def judge(self, *, calm: bool) -> None:
        """Raise the rate after enough steps in a row without an active alarm about the policy."""
        self._calm = self._calm + 1 if calm else 0
        if self._calm >= self._config.lr_recovery_steps and self.factor < self._ceiling:
            self.factor, self._calm = min(self._ceiling, _STEP_UP * self.factor), 0

    def state(self) -> dict[str, Json]:
        """Everything remembered, as JSON data."""
        return {
            "rollbacks": self.rollbacks,
            "attempts": self.attempts,
            "factor": self.factor,
            "ceiling": self._ceiling,
            "calm": self._calm,
            "sought": self._sought,
            "shown": self._shown,
            "since": self._since,
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Take over what `state` returned.

        Raises:
            KeyError, ValueError, TypeError: not such a state.
        """
        self.rollbacks, self.attempts = int(state["rollbacks"]), int(state["attempts"])
        self._calm, self._since = int(state["calm"]), int(state["since"])
        self.factor, self._ceiling = float(state["factor"]), float(state["ceiling"])
        self._shown, sought = bool(state["shown"]), state["sought"]
        self._sought = None if sought is None else float(sought)
