"""The rollouts of RL batches, in flight up to `max_steps_off_policy` steps ahead of their training step.

Step i trains on batch i. Every batch is sampled from one policy: batch j from the policy at the start of step j - k (k
= `max_steps_off_policy`; the first k + 1 batches from the policy that RL starts from), and the update of a step waits
until every batch in flight is fully sampled. So which policy samples which batch is a function of the step alone. What
overlaps with the update, and with sampling, are the verdicts that are still out; and with k = 0 the making of the next
batch's envs (engine analyses, say).

A checkpoint waits for the verdicts of the batches in flight and holds their rollouts, since the policy that sampled
them is gone when a run resumes. After a rollback, batches in flight are dropped, and sampled again from the policy that
the run went back to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from assay.backends.parity import sampled_datum
from assay.envs.base import EnvGroupBuilder
from assay.errors import TrainingError
from assay.rollouts.in_flight import InFlight
from assay.rollouts.runner import PreparedGroup, prepare, run_groups
from assay.rollouts.sampling import Witness
from assay.rollouts.seeds import derive
from assay.rollouts.together import stop
from assay.training.session import Session
from assay.training.trajectory_file import decode, encode
from assay.types import Completion, Datum, TrajectoryGroup

FILE = "rollouts_ahead.jsonl"
"""The finished rollouts of batches in flight, in the policy folder of a checkpoint."""


@dataclass(frozen=True)
class Batch:
    """The rollouts of an RL batch, all scored."""

    groups: Sequence[TrajectoryGroup]
    metrics: dict[str, float] = field(default_factory=dict)
    """`perf/` metrics of their sampling; none if they come from a checkpoint."""


class Rollouts:
    """The batches from `first` on; `batches` is where they end. An async context manager, which ends what is out."""

    def __init__(self, session: Session, first: int, batches: int) -> None:
        """`first` is the next step; what the checkpoint that the run resumes from holds is taken over.

        Raises:
            CheckpointError: the rollouts of that checkpoint cannot be read.
        """
        self._session = session
        self._batches = batches
        self._ahead = session.config.max_steps_off_policy
        self._envs: dict[int, asyncio.Task[list[PreparedGroup]]] = {}
        self._flying: dict[int, InFlight[Batch]] = {}
        self._held: dict[int, Batch] = {}
        self._ahead_now: list[Datum] = []
        """What was sampled since the last step for later ones, which the step checks before the policy changes."""
        self._rollbacks = session.trainer.health.rollbacks
        resumed = session.run.resumed
        if resumed is not None and (path := resumed.policy / FILE).exists():
            held = decode(path.read_bytes(), path)
            # A run that now ends earlier has too many batches in flight.
            self._held = {index: Batch(groups) for index, groups in held.items() if index < batches}
        self._make_envs(first)

    async def take(self, index: int) -> Batch:
        """The batch of step `index`, at the step's beginning; after it, the policy may change.

        Raises:
            AssayError: the backend cannot sample.
        """
        await self._drop_if_rolled_back()
        for due in range(index, min(index + self._ahead + 1, self._batches)):
            if due not in self._held and due not in self._flying:
                self._make_envs(due)
                self._flying[due] = InFlight(partial(self._play, due))
        self._make_envs(index + self._ahead + 1)
        batch = await self._flying[index].result() if index in self._flying else self._held[index]
        for flight in self._flying.values():
            await flight.sampled()
        self._flying.pop(index, None)
        self._held.pop(index, None)
        _check_one_policy(index, batch.groups)
        return batch

    def sampled_ahead(self) -> list[Datum]:
        """What the present policy has just sampled for later steps, in an order that only its content decides."""
        found, self._ahead_now = self._ahead_now, []
        return sorted(found, key=lambda d: (d.tokens.tobytes(), d.targets.tobytes(), d.logprobs.tobytes()))

    async def play(self, builders: Sequence[EnvGroupBuilder], *names: int | str) -> list[TrajectoryGroup]:
        """Play further groups now, with a seed derived from `names`."""
        prepared = await prepare(builders, self._session.config.active_builder.group_size)
        return await self._run(prepared, names)

    async def save_state(self, path: Path) -> None:
        """Write trainer and policy into the new directory `path`, with the batches in flight once they are scored."""
        await self._drop_if_rolled_back()
        for index, flight in self._flying.items():
            self._held[index] = await flight.result()
        self._flying.clear()
        await self._session.trainer.save_state(path)
        if self._ahead:
            content = encode({index: batch.groups for index, batch in self._held.items()})
            (path / FILE).write_bytes(content)
            # This run goes on with what a resumed one would read.
            again = decode(content, path / FILE)
            self._held = {index: Batch(again[index], batch.metrics) for index, batch in self._held.items()}

    def _make_envs(self, index: int) -> None:
        """Begin to make the envs of a batch, unless that has begun or there is no need."""
        if index < self._batches and index not in self._envs and index not in self._held:
            builders = self._session.data.train.batch(index)
            group_size = self._session.config.active_builder.group_size
            self._envs[index] = asyncio.create_task(prepare(builders, group_size))

    async def _play(self, index: int, sampled: Callable[[], None]) -> Batch:
        began = time.monotonic()
        prepared = await self._envs.pop(index)
        ready = time.monotonic()
        witness = self._see if self._ahead and self._session.config.grpo.parity.enabled else None
        groups = await self._run(prepared, ("rl", index), sampled, witness)
        return Batch(groups, {"perf/env_wait_s": ready - began, "perf/rollout_s": time.monotonic() - ready})

    async def _run(
        self,
        prepared: Sequence[PreparedGroup],
        names: Sequence[int | str],
        sampled: Callable[[], None] | None = None,
        witness: Witness | None = None,
    ) -> list[TrajectoryGroup]:
        session = self._session
        return await run_groups(
            prepared,
            session.backend,
            session.renderer,
            session.sampling,
            max_turns=session.max_turns,
            seed=derive(session.config.seed, *names),
            sampled=sampled,
            witness=witness,
        )

    def _see(self, prompt: Sequence[int], completion: Completion) -> None:
        self._ahead_now.append(sampled_datum(prompt, completion))

    async def _drop_if_rolled_back(self) -> None:
        if self._session.trainer.health.rollbacks != self._rollbacks:
            self._rollbacks = self._session.trainer.health.rollbacks
            await self._stop_all()
            self._held.clear()
            self._ahead_now.clear()

    async def _stop_all(self) -> None:
        flying, envs = list(self._flying.values()), list(self._envs.values())
        self._flying.clear()
        self._envs.clear()
        await asyncio.gather(*(flight.stop() for flight in flying), stop(envs))

    async def __aenter__(self) -> Rollouts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_all()


def _check_one_policy(index: int, groups: Sequence[TrajectoryGroup]) -> None:
    """Refuse a batch sampled by several policies, whose rewards cannot be compared."""
    rollouts = [rollout for group in groups for rollout in group.trajectories]
    versions = sorted({turn.completion.policy_version for rollout in rollouts for turn in rollout.transitions})
    if len(versions) > 1:
        raise TrainingError(
            f"The rollouts of RL batch {index + 1} were sampled by the policies after {versions} optimizer steps, but "
            "one policy must sample a whole batch. This is a bug of Assay or of the backend; the last checkpoint is "
            "intact."
        )
