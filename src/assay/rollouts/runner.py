"""Rollouts: groups played to the end, with sampling and scoring side by side.

Each rollout is a coroutine of its own (`play`); what they share is the backend, which answers them in calls that suit
its capabilities (`sampling`). A group is scored as a whole as soon as its last rollout ends. Results are ordered by
(group, sample), and do not depend on how long any verdict takes. A failure inside an environment is data: the affected
rollouts become `errored`, and the others go on. A failure of the backend, or a cancellation, ends all.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from assay.backends.base import Backend
from assay.envs.base import Env, EnvGroupBuilder, GroupScorer
from assay.envs.results import require_score
from assay.errors import ConfigError
from assay.plugins import in_words
from assay.rollouts.play import failure, play
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.renderers.thinking import Reply
from assay.rollouts.sampling import Sampling, Witness
from assay.rollouts.together import reraise_if_cancelled, together
from assay.types import Message, SamplingParams, Score, Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedGroup:
    """A builder with its envs made: the shared work of the group (an engine analysis, say) is done."""

    builder: EnvGroupBuilder
    envs: Sequence[Env | str]
    """A text instead of an env says why it could not be made."""


async def prepare(builders: Sequence[EnvGroupBuilder], group_size: int) -> list[PreparedGroup]:
    """Make the envs of every group, concurrently, in order. Where a builder fails, its rollouts will be errored.

    Raises:
        ConfigError: a builder makes a different number of envs than asked for.
    """
    return await together(_prepare(builder, group_size) for builder in builders)


async def _prepare(builder: EnvGroupBuilder, group_size: int) -> PreparedGroup:
    try:
        envs = await builder.make(group_size)
    except (Exception, asyncio.CancelledError) as error:
        reraise_if_cancelled(error)
        logger.debug("The envs of a group could not be made; its rollouts are errored.", exc_info=True)
        return PreparedGroup(builder, [in_words(error)] * group_size)
    found = len(envs) if isinstance(envs, Sequence) else type(envs).__name__
    if found != group_size:
        raise ConfigError(
            f"{type(builder).__name__}.make({group_size}) gave {found} and not {group_size} envs, so a group would "
            "have another size than group_size. Return one env for each rollout."
        )
    return PreparedGroup(builder, envs)


async def run_groups(
    groups: Sequence[PreparedGroup],
    backend: Backend,
    renderer: Renderer,
    params: SamplingParams,
    *,
    max_turns: int,
    seed: int,
    sampled: Callable[[], None] | None = None,
    witness: Witness | None = None,
) -> list[TrajectoryGroup]:
    """Play every rollout of every group.

    Args:
        params: sampling parameters; the renderer's stop tokens are added.
        max_turns: rollouts still going after so many turns end with `max_turns`; those whose next prompt fills the
            backend's context before that end with `length`.
        seed: seed of the batch; each turn of each sample derives its own.
        sampled: called as soon as nothing more will be sampled; the last verdicts may still be out.
        witness: told of each prompt and its completion, in the order of their ends.

    Raises:
        AssayError: the backend cannot sample.
    """
    shared = _SharedStarts(renderer)
    boards = [GroupBoard(group.builder, len(group.envs)) for group in groups]
    rollouts = [(g, s, env) for g, group in enumerate(groups) for s, env in enumerate(group.envs)]
    async with Sampling(backend, len(rollouts), params.max_tokens, sampled, witness) as sampling:

        async def rollout(place: int, group: int, sample: int, env: Env | str) -> None:
            task = groups[group].builder.task
            with sampling.seat(place) as policy:
                trajectory = await play(
                    env, policy, shared, params, task=task, max_turns=max_turns, seed=(seed, group, sample)
                )
            await boards[group].take(sample, trajectory)

        await together(rollout(place, *one) for place, one in enumerate(rollouts))
    played = [board.result() for board in boards]
    if said := errors_in_words(played):
        logger.warning("%s", said)
    return played


def errors_in_words(groups: Sequence[TrajectoryGroup]) -> str:
    """How many rollouts are errored, and why; empty where none is."""
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    reasons = Counter(t.failure or "nothing said why" for t in rollouts if t.errored)
    if not reasons:
        return ""
    listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
    more = f"; {len(reasons) - 3} more reasons" if len(reasons) > 3 else ""
    return f"{reasons.total()} of {len(rollouts)} rollouts could not be scored: {f'{listed}{more}'.rstrip('.')}."


class _SharedStarts(Renderer):
    """A renderer that makes equal conversations, such as the prompts of a group, into tokens once."""

    def __init__(self, renderer: Renderer) -> None:
        self.stop, self.rewrites = renderer.stop, renderer.rewrites
        self._renderer = renderer
        self._start = functools.lru_cache(maxsize=1024)(renderer.start)

    def start(self, messages: Sequence[Message]) -> list[int]:
        """See `Renderer`; the list is shared."""
        return self._start(tuple(messages))

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """See `Renderer`."""
        return self._renderer.extend(messages, stopped=stopped)

    def completion(self, text: str) -> list[int]:
        """See `Renderer`."""
        return self._renderer.completion(text)

    def text(self, tokens: Sequence[int]) -> str:
        """See `Renderer`."""
        return self._renderer.text(tokens)

    def read(self, text: str) -> Reply:
        """See `Renderer`."""
        return self._renderer.read(text)

    def said(self, text: str) -> Message:
        """See `Renderer`."""
        return self._renderer.said(text)


class GroupBoard:
    """The rollouts of one group that have ended; the last one to end has the group scored as a whole."""

    def __init__(self, builder: EnvGroupBuilder, size: int) -> None:
        self._task = builder.task
        # Asking a protocol is slow, and few builders are one.
        self._scorer = builder if hasattr(builder, "score_group") and isinstance(builder, GroupScorer) else None
        self._ended: list[Trajectory | None] = [None] * size

    async def take(self, sample: int, trajectory: Trajectory) -> None:
        """A rollout has ended."""
        self._ended[sample] = trajectory
        if self._scorer is not None and None not in self._ended:
            self._ended = list(await _rescored(self._scorer, self.result().trajectories))

    def result(self) -> TrajectoryGroup:
        """The group, once all of its rollouts have ended."""
        return TrajectoryGroup(self._task, tuple(t for t in self._ended if t is not None))


async def _rescored(scorer: GroupScorer, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories with the scores that the group's scorer gives their last turns; errored ones are left alone."""
    places = [place for place, trajectory in enumerate(trajectories) if not trajectory.errored]
    try:
        given = await scorer.score_group([trajectories[i] for i in places])
        said = f"a score of {type(scorer).__name__}.score_group()"
        scores = {i: require_score(score, said) for i, score in zip(places, given, strict=True)}
    except (Exception, asyncio.CancelledError) as error:
        reraise_if_cancelled(error)
        logger.debug("A group could not be scored; its rollouts are errored.", exc_info=True)
        scores = dict.fromkeys(places, failure(error))
    return [_with_last_score(t, scores[i]) if i in scores else t for i, t in enumerate(trajectories)]


def _with_last_score(trajectory: Trajectory, score: Score) -> Trajectory:
    *earlier, last = trajectory.transitions
    end = "errored" if score.status == "errored" else trajectory.stop_reason
    return replace(trajectory, transitions=(*earlier, replace(last, score=score)), stop_reason=end)
