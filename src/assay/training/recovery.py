"""What a run does about the alarms of its health monitor: go on, pause at a checkpoint, go back to one, or stop."""

from __future__ import annotations

import logging

from assay.errors import HealthError
from assay.grpo.trainer import StepReport
from assay.training.run.checkpoints import is_refuge
from assay.training.run.ledger import Commit
from assay.training.session import Session

logger = logging.getLogger(__name__)


async def act_on_alarms(session: Session, report: StepReport) -> HealthError | None:
    """Act on the alarms of the step that is about to be committed.

    A rollback loads the last checkpoint that was healthy; the run goes on with the next batch and a lower learning
    rate. A pause marks the trainer's state, which the step's checkpoint then holds.

    Returns:
        The error with which the run ends once the step is committed, or None where it goes on.
    """
    trainer, number = session.trainer, session.run.next_step
    action = trainer.health.decide(report.findings)
    if action in ("ignore", "warn"):
        return None
    causes = " ".join(finding.message for finding in report.findings)
    if action == "rollback":
        good = last_healthy(session)
        await trainer.roll_back_state(session.run.load_checkpoint(good).policy)
        factor = trainer.health.learning_rate_factor
        session.log.event(
            number,
            "rollback",
            "warning",
            f"Went back to the policy of checkpoint {good.checkpoint}; the learning rate is now {factor:g} times the "
            f"configured one (rollback {trainer.health.rollbacks} of at most "
            f"{session.config.grpo.health.max_rollbacks}).",
        )
        return None
    findings = tuple(report.findings)
    if action == "pause":
        trainer.paused = True
        session.log.event(number, "pause", "warning", "The run pauses with a checkpoint after this step.")
        return HealthError(
            f"The run is paused after step {number}, which has a checkpoint. {causes} Run the same command again to go "
            "on regardless, resume_from_batch=N to go back, or start another run with other settings "
            "(load_checkpoint_path takes the weights along).",
            findings,
        )
    session.log.event(number, "stop", "error", "The run stops after this step.")
    return HealthError(
        f"The run is stopped after step {number}. {causes} Its checkpoints are intact: start another run with other "
        "settings from one of them (load_checkpoint_path).",
        findings,
    )


def last_healthy(session: Session) -> Commit:
    """The last commit whose checkpoint was written while no grave alarm was active; the first one at the least.

    A checkpoint written only because the run was to end there does not count (see `is_refuge`).
    """
    checkpoints = session.run.checkpoints
    for commit in reversed(checkpoints):
        if is_refuge(session.run.load_checkpoint(commit).state):
            return commit
    return checkpoints[0]
