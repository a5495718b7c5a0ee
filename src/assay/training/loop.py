"""The one training loop: SFT steps, then RL batches, each committed to the run directory before the next begins.

An RL batch is: sample groups from the current policy (or some steps ahead: see `pipeline`) -> envs score them -> update
-> evaluate and checkpoint when due -> one ledger line. Every step is a pure function of the policy and of seeds derived
from its place in the run, so a killed run that is started again computes exactly the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.backends.base import LossSpec
from assay.envs.base import EnvGroupBuilder
from assay.errors import ConfigError
from assay.grpo.advantages import has_constant_rewards
from assay.grpo.datum import example_datum
from assay.grpo.normalise import normalise
from assay.grpo.trainer import StepReport
from assay.training.config import TrainingConfig
from assay.training.evaluate import Evaluation, cached_scores, check_errored, evaluate
from assay.training.logs import spoken
from assay.training.metrics.advantages import advantage_metrics, turn_advantages
from assay.training.metrics.logger import RATE_RAISED
from assay.training.metrics.tables import completion_table
from assay.training.metrics.token_traces import token_records
from assay.training.metrics.traces import Turns, trace_records
from assay.training.pipeline import Rollouts
from assay.training.plan import describe, describe_prompts
from assay.training.recovery import act_on_alarms, ended_unrecovered
from assay.training.report.report import write_report
from assay.training.run.checkpoints import HEALTHY, REFUGE, REGULAR, ROLLED_BACK_AT, opens_space
from assay.training.run.ledger import Phase
from assay.training.schedule import rl_learning_rate, sft_learning_rate
from assay.training.session import Session, accepted, adam, open_session, plan_run
from assay.training.settle import RENDERER_STATE, settle
from assay.types import Datum, Json, TrajectoryGroup, Transition

logger = logging.getLogger(__name__)


def train(config: TrainingConfig, *, quiet: bool = False) -> None:
    """Run training to its end, from the start or from where an earlier call was interrupted.

    Logs to standard error, unless the program configured logging (which then decides) or `quiet`.

    Raises:
        AssayError: the run cannot start or go on; everything committed is intact.
    """
    with contextlib.nullcontext() if quiet else spoken():
        asyncio.run(_train(config, quiet))


async def _train(config: TrainingConfig, quiet: bool) -> None:
    config = settle(config)
    plan = accepted(plan_run(config))
    if plan.is_complete:
        done = sum(commit.phase == "rl" for commit in plan.commits)
        said = "The run in %s is complete after %d RL batches; nothing was done. %s"
        logger.info(said, config.log_path, done, _more(config, done))
        return
    async with open_session(config, plan, quiet=quiet) as session:
        logger.info("%s", describe(config, session.num_batches, len(session.heldout)))
        logger.info("%s", describe_prompts(config, session.data, session.renderer, session.backend.context_length))
        if session.run.resumed is not None:
            logger.info("Resuming after step %d (%s).", session.run.resumed.step, session.run.resumed.name)
        with _fixed_objects():
            if session.run.next_step == -1:
                await _start(session)
            await _sft(session)
            await _rl(session)
        # Before the run is marked complete: a kill in between leaves a run that resumes here, not one without a report.
        remarks = await write_report(session.run, config, session.data)
        session.run.finish()
        logger.log(
            logging.WARNING if remarks else logging.INFO, "%s", " ".join([f"Done: {session.run.path}.", *remarks])
        )
        if (error := ended_unrecovered(session)) is not None:
            raise error


@contextlib.contextmanager
def _fixed_objects() -> Iterator[None]:
    """Keep what is there already (modules, data sets) out of garbage collection, which would walk it in every step.

    A program that has frozen its objects is left as it is: thawing is for all or none.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _more(config: TrainingConfig, done: int) -> str:
    """How a complete run could go on, in words."""
    if config.max_batches is None or config.max_batches > done:
        return "Its data set has no more tasks."
    if config.optimizer.lr_schedule != "constant":
        return f"With optimizer.lr_schedule={config.optimizer.lr_schedule} it cannot have more."
    return "Raise max_batches to go on."


@dataclass
class _Step:
    """One step being done: what it measured so far, and when it began."""

    phase: Phase
    index: int
    metrics: dict[str, float]
    wall_s: float
    cpu_s: float
    histograms: dict[str, Sequence[float]]

    @classmethod
    def begin(cls, phase: Phase, index: int) -> _Step:
        """Start the clocks; `cpu_s` counts all threads of this process, and none of the verifier processes."""
        return cls(phase, index, {}, time.monotonic(), time.process_time(), {})


async def _finish_step(
    session: Session,
    step: _Step,
    *,
    checkpoint: bool,
    regular: bool = True,
    durable: bool = True,
    rollouts: Rollouts | None = None,
) -> None:
    """Log the step's metrics and commit it.

    A checkpoint holds the `rollouts` that are ahead; it is `regular` where a longer run would write it too.
    """
    step.metrics |= session.counters.take()
    step.metrics["perf/wall_s"] = time.monotonic() - step.wall_s
    step.metrics["perf/cpu_s"] = time.process_time() - step.cpu_s
    if session.run.checkpoint_s is not None:
        step.metrics["perf/checkpoint_s"] = session.run.checkpoint_s
    names = session.data.records.names
    step.metrics |= {names[name]: value for name, value in step.metrics.items() if name in names}
    session.log.log(session.run.next_step, step.phase, step.index, step.metrics, step.histograms)
    health = session.trainer.health
    save = (session.trainer if rollouts is None else rollouts).save_state if checkpoint else None
    state: Mapping[str, Json] | None = None
    if checkpoint:
        state = {
            "policy_version": session.backend.policy_version,
            HEALTHY: health.healthy,
            REGULAR: regular and (step.phase != "rl" or opens_space(step.index + 1, session.config.save_every)),
            ROLLED_BACK_AT: health.rolled_back_at,
            REFUGE: health.refuge,
            RENDERER_STATE: session.renderer.record(),
        }
    await session.run.commit(
        step.phase, step.index, step.metrics, save=save, state=state, durable=durable or checkpoint
    )


async def _start(session: Session) -> None:
    """Commit the state before the first step; without SFT, RL starts from here, so it is evaluated."""
    step = _Step.begin("start", 0)
    if not session.config.sft.num_steps:
        await _before_rl(session, step)
    await _finish_step(session, step, checkpoint=True)


async def _before_rl(session: Session, step: _Step) -> None:
    """Done once, on the policy that RL starts from."""
    if session.config.kl_penalty_coef:
        await session.backend.freeze_reference()
    await _evaluate(session, step)
    if session.config.best_metric.startswith("eval/"):
        _check_best_metric(session.config, step)


def _check_best_metric(config: TrainingConfig, step: _Step) -> None:
    """Raise, at the first steps that could measure `best_metric`, if it decides which checkpoints are kept and no step
    measures it.

    Raises:
        ConfigError: as said; the step is not committed.
    """
    name, measured = config.best_metric, step.metrics
    if config.keep_best is None or name in measured or (name.startswith("eval/") and step.phase == "rl"):
        return
    near = difflib.get_close_matches(name, measured, n=1)
    hint = f" Did you mean {near[0]}?" if near else f" Measured are {', '.join(sorted(measured))}."
    raise ConfigError(
        f"best_metric={name} is not measured, so keep_best={config.keep_best} could not compare checkpoints.{hint}"
    )


async def _sft(session: Session) -> None:
    config = session.config
    done = sum(1 for commit in session.run.commits if commit.phase == "sft")
    if done >= config.sft.num_steps:
        return
    assert session.data.sft is not None, "open_session refuses SFT without examples"
    with session.progress.phase("sft", config.sft.num_steps, done) as progress:
        for index in range(done, config.sft.num_steps):
            step = _Step.begin("sft", index)
            examples = session.data.sft.batch(index, config.sft.batch_size)
            renderer = session.renderer
            data = [example_datum(renderer.start(e.prompt), renderer.completion(e.completion)) for e in examples]
            rate = sft_learning_rate(config, index)
            found = await session.backend.train_step(normalise(data), LossSpec("cross_entropy"), adam(config, rate))
            if found.refused is not None:
                raise found.refused
            loss = found.output.metrics["loss:sum"]
            step.metrics |= {"sft/loss": loss, "sft/learning_rate": rate}
            step.metrics |= {f"sft/{name}": value for name, value in found.metrics.items()}
            last = index + 1 == config.sft.num_steps
            if last:
                await _before_rl(session, step)
            due = last or (index + 1) % config.sft.save_every == 0
            await _finish_step(session, step, checkpoint=due, durable=False)
            progress.advance(note=f"loss {loss:.3f}")


async def _rl(session: Session) -> None:
    config, batches = session.config, session.num_batches
    done = sum(1 for commit in session.run.commits if commit.phase == "rl")
    with session.progress.phase("rl", batches, done) as progress:
        async with Rollouts(session, done, batches) as rollouts:
            for index in range(done, batches):
                step = _Step.begin("rl", index)
                groups = await _rollouts(session, step, rollouts)
                rate = rl_learning_rate(config, index, batches)
                report = await _update(session, step, groups, rate, rollouts.sampled_ahead())
                last = index + 1 == batches
                # Before the evaluation, which is to measure the policy that the step's checkpoint holds.
                alarm = await act_on_alarms(session, report)
                if last or (config.eval_every and (index + 1) % config.eval_every == 0):
                    await _evaluate(session, step)
                regular = (index + 1) % config.save_every == 0 or session.trainer.paused
                due = last or regular
                if index == 0:
                    _check_best_metric(config, step)
                if alarm is not None and not session.trainer.paused:
                    due = False  # with a checkpoint of a stopped step, the same command would go on
                await _finish_step(session, step, checkpoint=due, regular=regular, rollouts=rollouts)
                if alarm is not None:
                    raise alarm
                progress.advance(note=f"reward {step.metrics.get('reward/mean', float('nan')):.3f}")


async def _update(
    session: Session, step: _Step, groups: Sequence[TrajectoryGroup], learning_rate: float, ahead: Sequence[Datum]
) -> StepReport:
    """Train on one batch, and record its rollouts and metrics.

    Raises:
        TrainingError: too many rollouts could not be scored, or sampler and trainer disagree.
    """
    config, started, trainer = session.config, time.monotonic(), session.trainer
    # Rollbacks lower the rate; calm steps give a part back.
    factor = trainer.health.learning_rate_factor
    rate = learning_rate * factor
    turns: Turns | None = None
    try:
        check_errored(groups, config.max_errored_fraction, f"RL batch {step.index + 1}")
        report = await trainer.update(groups, learning_rate=rate, reuse=config.rollout_epochs > 1, ahead=ahead)
        turns = report.turns
    finally:  # rollouts of a failed step are recorded too, since they show why it failed
        _record(session, step, groups, "train", turns)
    step.metrics |= report.rollouts | report.parity | advantage_metrics(report.turns)
    step.metrics |= session.data.records.metrics(groups)
    step.metrics |= {"progress/batch": float(step.index), "progress/done_frac": (step.index + 1) / session.num_batches}
    step.metrics |= {f"train/{name}": value for name, value in report.metrics.items()}
    step.metrics |= {"perf/update_s": time.monotonic() - started, **report.seconds} | cached_scores(groups)
    every = config.tensorboard_log_histograms_every
    if every and (step.index + 1) % every == 0:
        step.histograms |= _histograms(groups, report.rewards, turn_advantages(report.turns))
        step.histograms |= {k: v for k, v in session.data.records.histograms(groups).items() if len(v)}
    number, every = session.run.next_step, config.completion_table_every
    if every and (step.index + 1) % every == 0:
        session.log.table(number, "completions", completion_table(groups, report.turns))
    for finding in report.findings:
        session.log.event(number, finding.rule, "warning", finding.message)
    if (now := trainer.health.learning_rate_factor) > factor:
        said = f"Calm steps since the rollback: the learning rate is {now:g} times the configured one from here on."
        session.log.event(number, RATE_RAISED, "info", said)
    if report.report is not None:
        session.log.event(number, "health_report", "info", report.report)
    return report


async def _rollouts(session: Session, step: _Step, rollouts: Rollouts) -> list[TrajectoryGroup]:
    """The scored rollouts of one batch."""
    config = session.config
    batch = await rollouts.take(step.index)
    started, problems = time.monotonic(), len(batch.groups)
    groups = list(batch.groups)
    for attempt in range(config.dynamic_sampling_rounds):
        missing = sum(has_constant_rewards(group) for group in groups) - (len(groups) - problems)
        if not missing:
            break
        further = _further_problems(session, step.index, attempt, missing)
        groups += await rollouts.play(further, "rl", step.index, "further", attempt)
    step.metrics |= batch.metrics
    if (played := batch.metrics.get("perf/rollout_s")) is not None:
        elapsed = played + time.monotonic() - started
        tokens = sum(len(turn.completion.tokens) for turn in _turns(groups))
        step.metrics |= {"perf/rollout_s": elapsed, "perf/sampled_tokens_per_s": tokens / elapsed}
    return groups


def _further_problems(session: Session, index: int, attempt: int, count: int) -> Sequence[EnvGroupBuilder]:
    """Problems that replace those with equal rewards: from a batch far from this one, another at each attempt.

    A function of the step alone, so that a resumed run draws the same ones.
    """
    data, attempts = session.data.train, session.config.dynamic_sampling_rounds
    stride = max(1, len(data) // (attempts + 1))
    return data.batch((index + (attempt + 1) * stride) % len(data))[:count]


def _record(
    session: Session,
    step: _Step,
    groups: Sequence[TrajectoryGroup],
    split: Literal["train", "eval"],
    turns: Turns | None = None,
) -> None:
    session.log.traces(
        trace_records(
            groups,
            run_id=session.run.run_id,
            step=session.run.next_step,
            phase=step.phase,
            index=step.index,
            split=split,
            decode=session.renderer.text,
            turns=turns,
            further=session.data.records.trace,
        )
    )
    if split == "train":
        some, text = groups[: session.config.trace_token_groups], session.renderer.text
        session.log.tokens(token_records(some, step=session.run.next_step, turns=turns, text=text))


def _turns(groups: Sequence[TrajectoryGroup]) -> list[Transition]:
    return [turn for group in groups for rollout in group.trajectories for turn in rollout.transitions]


def _histograms(
    groups: Sequence[TrajectoryGroup], by_task: Mapping[str, Sequence[float]], advantages: Sequence[float]
) -> dict[str, Sequence[float]]:
    found = {
        "advantage": advantages,
        "reward": [reward for rewards in by_task.values() for reward in rewards],
        "completion_tokens": [float(len(turn.completion.tokens)) for turn in _turns(groups)],
        **{f"reward/{task}": rewards for task, rewards in by_task.items()},
    }
    return {name: values for name, values in found.items() if len(values)}


async def _evaluate(session: Session, step: _Step) -> Evaluation | None:
    """Measure the policy on the held-out tasks and record it; None without held-out tasks.

    Raises:
        TrainingError: too many rollouts could not be scored, or the sampler is not the policy that is trained.
    """
    tasks = session.heldout
    if not tasks:
        return None
    started, cpu = time.monotonic(), time.process_time()
    with session.progress.phase("eval", len(tasks)) as progress:
        evaluation = await evaluate(
            session.backend,
            session.renderer,
            tasks,
            session.sampling,
            samples=session.config.eval.samples_per_task,
            max_turns=session.max_turns,
            seed=session.config.seed,
            parity=session.config.grpo.parity,
            advance=progress.advance,
        )
        step.metrics |= evaluation.metrics()
        step.metrics |= session.data.records.of_evaluation(evaluation.groups)
        step.metrics |= {"perf/eval_s": time.monotonic() - started, "perf/eval_cpu_s": time.process_time() - cpu}
    _record(session, step, evaluation.groups, "eval")
    check_errored(evaluation.groups, session.config.max_errored_fraction, "the evaluation")
    return evaluation
