"""What a run does about the alarms of its health monitor: go on, pause at a checkpoint, go back to one, or stop."""

from __future__ import annotations

import logging

from assay.errors import CheckpointError, HealthError
from assay.grpo.trainer import StepReport
from assay.training.run.checkpoints import Checkpoint
from assay.training.session import Session

logger = logging.getLogger(__name__)

_ELSEWHERE = (
    "Its checkpoints are intact: start another run with other settings from one of them (load_checkpoint_path)."
)
_NOWHERE = (
    "There is no whole checkpoint to go back to, not even that of the start. Start another run with other settings in "
    "a new log_path."
)


async def act_on_alarms(session: Session, report: StepReport) -> HealthError | None:
    """Act on the alarms of the step that is about to be committed.

    A rollback loads a checkpoint from before the trouble began; the run goes on with the next batch and a lower
    learning rate. A pause marks the trainer's state, which the step's checkpoint then holds.

    Returns:
        The error with which the run ends once the step is committed, or None where it goes on.
    """
    trainer, number = session.trainer, session.run.next_step
    action = trainer.health.decide(report.findings)
    if action in ("ignore", "warn"):
        return None
    if action == "rollback":
        return await _roll_back(session, report)
    if action == "pause":
        trainer.paused = True
        session.log.event(number, "pause", "warning", "The run pauses with a checkpoint after this step.")
        return HealthError(
            f"The run is paused after step {number}, which has a checkpoint. {_causes(session, report)} "
            "Run the same command again to go on regardless, resume_from_batch=N to go back, or start another run "
            "with other settings (load_checkpoint_path takes the weights along).",
            tuple(report.findings),
        )
    return _stop(session, report)


def ended_unrecovered(session: Session) -> HealthError | None:
    """The error with which a run ends that has done all its batches, and has not regained its reward since it went
    back to a checkpoint."""
    finding = session.trainer.health.unrecovered
    if finding is None:
        return None
    if finding.action == "warn":
        logger.warning("%s", finding.message)
        return None
    return HealthError(
        f"The run has done all its batches and is whole, but its policy has not recovered. {finding.message} An "
        "earlier checkpoint may be better (assay export --best).",
        (finding,),
    )


async def _roll_back(session: Session, report: StepReport) -> HealthError | None:
    """Go back; the error with which the run ends where no checkpoint to go back to is whole."""
    health, number = session.trainer.health, session.run.next_step
    limit = health.last_good(report.findings)
    good = find_refuge(session, report, limit)
    if good is None:
        return _stop(session, report, _NOWHERE)
    await session.trainer.roll_back_state(good.policy)
    batches = f"after {good.batch} RL batches" if good.batch else "from before the first RL batch"
    session.log.event(
        number,
        "rollback",
        "warning",
        f"Went back to the policy of checkpoint {good.name} ({batches}; {may_have_begun(limit)}). "
        f"The learning rate is now {health.learning_rate_factor:g} times the configured one "
        f"(rollback {health.rollbacks_in_a_row} of at most {session.config.grpo.health.max_rollbacks} in a row).",
    )
    return None


def may_have_begun(limit: int) -> str:
    """With which batch the trouble began, where policies of up to `limit` batches (below 0: none) are from before."""
    return f"the trouble may have begun with batch {max(1, limit + 1)}"


def find_refuge(session: Session, report: StepReport, limit: int) -> Checkpoint | None:
    """The first whole checkpoint of those that a rollback may go back to; each damaged one is an event."""
    health, run = session.trainer.health, session.run
    own_step = all(finding.suspect == 0 for finding in report.findings if finding.action == "rollback")
    for commit in run.refuges(limit, health.rolled_back_at, health.refuge, own_step=own_step):
        try:
            return run.load_checkpoint(commit)
        except CheckpointError as error:
            session.log.event(run.next_step, "damaged_checkpoint", "error", f"Not gone back to: {error}")
    return None


def _stop(session: Session, report: StepReport, cure: str = _ELSEWHERE) -> HealthError:
    """Note that the run ends; returns the error, which says what to do."""
    number = session.run.next_step
    session.log.event(number, "stop", "error", "The run stops after this step.")
    return HealthError(
        f"The run is stopped after step {number}. {_causes(session, report)} {cure}",
        tuple(report.findings),
    )


def _causes(session: Session, report: StepReport) -> str:
    """Why the run ends here, in words."""
    tried = session.trainer.health.rollbacks_in_a_row
    wanted = any(finding.action == "rollback" for finding in report.findings)
    again = [f"It went back {tried} times, and the trouble came again."] if tried and wanted else []
    return " ".join([*again, *(finding.message for finding in report.findings)])
