"""Health of a training run: what the rules find in the metrics of its last steps, and what to do about it.

    monitor = HealthMonitor(HealthConfig())
    findings = monitor.observe(metrics)          after every training step; new findings only
    action = monitor.decide(findings)            "ignore", "warn", "pause", "rollback" or "stop"

The rules (`assay.grpo.health.rules`) are pure. The monitor keeps the state that they need: the last steps, the active
rules, the number of rollbacks. It only decides. Imports no torch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from assay.grpo.health.config import ACTIONS, DEFAULT_ACTIONS, OF_POLICY, STANDING, Action, HealthConfig
from assay.grpo.health.finding import Finding
from assay.grpo.health.records import RewardRecords
from assay.grpo.health.recovery import Recovery
from assay.grpo.health.report import health_report
from assay.grpo.health.reward_rules import cured, not_recovered, surpassed
from assay.grpo.health.rules import check
from assay.grpo.health.trend import History, Observation
from assay.types import Json

_WARN = ACTIONS.index("warn")


def decide(findings: Iterable[Finding], rollbacks: int, max_rollbacks: int) -> Action:
    """The most severe action of the findings, `ignore` without any; a rollback beyond `max_rollbacks` is a stop.

    It is a pause where the reward alone fell: tasks that become harder look the same, and only a person can tell.
    """
    none: Action = "ignore"
    found = list(findings)
    action = max((finding.action for finding in found), key=ACTIONS.index, default=none)
    if action != "rollback" or rollbacks < max_rollbacks:
        return action
    fell_alone = all(finding.rule == "reward_drop" for finding in found if finding.action == "rollback")
    return "pause" if fell_alone else "stop"


class HealthMonitor:
    """The rules' memory. A rule reports when it becomes active, and again only after `quiet_steps` without a
    finding."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        longest = max(config.window, config.sustained_steps, config.no_gradient_steps)
        self._history: deque[Observation] = deque(maxlen=longest)
        self._records = RewardRecords(config.sustained_steps)
        self._quiet: dict[str, int] = {}
        """Active rule -> steps since it last found something."""
        self._began: dict[str, int] = {}
        """Active rule -> step at which it became active."""
        self._acknowledged: set[str] = set()
        self._recovery = Recovery(config)
        self._steps = 0
        self._rolled_back_at = 0
        self._refuge = 0

    def observe(self, observation: Observation) -> list[Finding]:
        """Take in the metrics of one step; returns the findings of rules that were not active before."""
        self._steps += 1
        values = {name: float(value) for name, value in observation.items()}
        self._history.append(values | self._records.add(values) | self._recovery.add())
        if surpassed(self._config, self.history):
            self._recovery.surpassed()
        if cured(self._config, self.history):
            self._recovery.cured()
        found = check(self._config, self.history)
        new = [finding for finding in found if finding.rule not in self._quiet]
        quiet = {rule: steps + 1 for rule, steps in self._quiet.items()} | {finding.rule: 0 for finding in found}
        self._quiet = {rule: steps for rule, steps in quiet.items() if steps < self._config.quiet_steps}
        self._began = {rule: self._began.get(rule, self._steps) for rule in self._quiet}
        self._acknowledged &= self._quiet.keys()
        self._recovery.judge(calm=not OF_POLICY & self._quiet.keys())
        return new

    def decide(self, findings: Iterable[Finding]) -> Action:
        """What to do about findings of `observe`, given how often the run was rolled back."""
        return decide(findings, self.rollbacks_in_a_row, self._config.max_rollbacks)

    @property
    def history(self) -> History:
        """The last steps, oldest first, as many as the rules look back."""
        return tuple(self._history)

    @property
    def active(self) -> tuple[str, ...]:
        """Rules that found something and have not cleared since, acknowledged ones included."""
        return tuple(sorted(self._quiet))

    @property
    def healthy(self) -> bool:
        """Whether a checkpoint of now is good to go back to: no active rule has an action above `warn`, or warns of the
        policy itself (`OF_POLICY`).

        An acknowledged rule does not count: a person has accepted the state that it reports. Nor does a warning that
        has been active for `STANDING` steps, during which the run went on.
        """
        return not any(self._speaks_against(rule) for rule in self._quiet.keys() - self._acknowledged)

    def _speaks_against(self, rule: str) -> bool:
        if ACTIONS.index(self._config.action(rule)) > _WARN:
            return True
        return rule in OF_POLICY and self._steps - self._began[rule] < STANDING

    def last_good(self, findings: Iterable[Finding]) -> int:
        """The most steps that a policy may have behind it to be from before the trouble of these findings began."""
        suspect = [finding.suspect for finding in findings if finding.action == "rollback"]
        return self._steps - 1 - max(suspect, default=0)

    @property
    def rolled_back_at(self) -> int:
        """Steps done when the run was last rolled back, 0 before. What came before is not tried again, but `refuge`."""
        return self._rolled_back_at

    @property
    def refuge(self) -> int:
        """Steps behind the policy that the run last went back to; 0 before."""
        return self._refuge

    @property
    def rollbacks(self) -> int:
        """How often the run was rolled back."""
        return self._recovery.rollbacks

    @property
    def rollbacks_in_a_row(self) -> int:
        """Rollbacks since the run began or last earned more than ever: what `max_rollbacks` bounds."""
        return self._recovery.attempts

    @property
    def learning_rate_factor(self) -> float:
        """Factor on the learning rate after the rollbacks so far (`assay.grpo.health.recovery`)."""
        return self._recovery.factor

    @property
    def unrecovered(self) -> Finding | None:
        """That the policy has not learned on since the last rollback, however long ago; None also while too few steps
        were measured, where the rule is off, and where a person has read its alarm and gone on."""
        if self._config.action("not_recovered") == "ignore" or "not_recovered" in self._acknowledged:
            return None
        return not_recovered(self._config, self.history, steps=0)

    @property
    def report_due(self) -> bool:
        """Whether the step observed last is one after which a report is written."""
        every = self._config.report_every
        return every > 0 and self._steps > 0 and self._steps % every == 0

    def report(self, histograms: Mapping[str, Sequence[float]]) -> str:
        """`health_report` of the steps since the last report, as far back as the monitor remembers."""
        steps = self._config.report_every or len(self._history)
        return health_report(self.history[-steps:], histograms, self.active)

    def rolled_back(self, refuge: int = 0) -> None:
        """Say that the run went back to a checkpoint: forget the steps and alarms that were undone, count it.

        Call it on the monitor that decided, not on one restored from the checkpoint, which does not know the count.

        Args:
            refuge: the steps behind the policy of that checkpoint.
        """
        self._recovery.rolled_back(self._records.best_level)
        self._rolled_back_at, self._refuge = self._steps, refuge
        self._history.clear()
        self._records.rolled_back(self._steps - refuge)
        self._quiet.clear()
        self._began.clear()
        self._acknowledged.clear()

    def acknowledge(self) -> None:
        """Note that a paused run goes on unchanged: its active rules stay silent until they have cleared."""
        self._acknowledged = set(self._quiet)

    def state(self) -> dict[str, Json]:
        """Everything remembered, as JSON data; numbers that JSON lacks are text (`nan`, `inf`)."""
        return {
            "steps": self._steps,
            "rolled_back_at": self._rolled_back_at,
            "refuge": self._refuge,
            "records": self._records.state(),
            "recovery": self._recovery.state(),
            "began": dict(self._began),
            "quiet": dict(self._quiet),
            "acknowledged": sorted(self._acknowledged),
            "history": [{name: _writable(value) for name, value in step.items()} for step in self._history],
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Take over what `state` returned; the config may have changed since, and rules that are gone are forgotten.

        Raises:
            KeyError, ValueError: not a state of a monitor.
        """
        self._steps = int(state["steps"])
        self._quiet = {str(rule): int(steps) for rule, steps in state["quiet"].items() if rule in DEFAULT_ACTIONS}
        # Checkpoints of older versions lack some keys.
        began = state.get("began", {})
        self._began = {rule: int(began.get(rule, self._steps)) for rule in self._quiet}
        self._rolled_back_at, self._refuge = int(state.get("rolled_back_at", 0)), int(state.get("refuge", 0))
        if "recovery" in state:
            self._recovery.load(state["recovery"])
        else:  # they held the number of rollbacks, from which the learning rate follows
            self._recovery = Recovery(self._config)
            for _ in range(int(state.get("rollbacks", 0))):
                self._recovery.rolled_back(None)
        self._acknowledged = self._quiet.keys() & set(state["acknowledged"])
        self._history.clear()
        self._history.extend({str(n): float(v) for n, v in step.items()} for step in state["history"])
        if "records" in state:
            self._records.load(state["records"], self._steps)
        else:
            self._records.begin(self.history, self._steps)


def _writable(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
