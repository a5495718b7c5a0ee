"""What follows a rollback: the lower learning rate, which grows back in part, and the reward that is to be regained.

Pure state; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from assay.grpo.health.config import HealthConfig
from assay.types import Json

SOUGHT_LEVEL, SOUGHT_MORE, SOUGHT_FOR = "run/sought_level", "run/sought_more", "run/sought_for"
"""The largest mean reward before the rollback, known until the policy earns more; whether it was that of a policy
collapsed to one answer (1) or not (0); and the steps since, known until the policy has regained it."""
_STEP_UP = 2.0
"""Factor on the learning rate after so many calm steps."""


class Recovery:
    """Of one run.

    A rollback says that the rate of the moment is too high: no later rate is above `rollback_lr_factor` times it. The
    first rollback goes there at once. One that follows before the reward was surpassed starts lower by the same factor
    once more, because it is not known how far down the right rate is, and doubles the rate after every
    `lr_recovery_steps` calm steps.
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
        self._sought: tuple[float, bool] | None = None
        """The largest mean reward before, and whether it was that of a collapsed policy."""
        self._shown = False
        """Whether that was regained."""
        self._since = 0

    def rolled_back(self, level: float | None, collapsed: bool) -> None:
        """Lower the rate.

        Args:
            level: the largest mean reward before; None where there is none.
            collapsed: whether that was the reward of a policy collapsed to one answer.
        """
        factor = self._config.rollback_lr_factor
        self._ceiling = self.factor * factor
        self.factor = self._ceiling * (factor if self.attempts else 1.0)
        self.rollbacks += 1
        self.attempts += 1
        self._calm, self._since, self._shown = 0, 0, False
        before = self._sought
        if level is not None:
            self._sought = (level, collapsed) if before is None else (max(level, before[0]), collapsed or before[1])

    def add(self) -> dict[str, float]:
        """Count a step; returns what is sought, by name."""
        self._since += 1
        if self._sought is None:
            return {}
        level, more = self._sought
        waiting = {} if self._shown else {SOUGHT_FOR: float(self._since)}
        return {SOUGHT_LEVEL: level, SOUGHT_MORE: float(more), **waiting}

    def regained(self) -> None:
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
            "sought": None if self._sought is None else list(self._sought),
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
        self._sought = None if sought is None else (float(sought[0]), bool(sought[1]))
