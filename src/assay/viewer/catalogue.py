"""What a run's traces hold: one pass over them makes an index of their groups.

The index has a few numbers per rollout, whatever the length of its text, so that a page can list, filter and sort a run
before it has read any text. Texts stay in the file; whole groups are put into chunks, each of which is read when it is
asked for (`assay.viewer.chunks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.errors import RunDirectoryError
from assay.training.run.rollouts import Group, GroupKey, Rollout, Rollouts, open_rollouts

CHUNK_CHARACTERS = 256 * 1024
"""Characters of text from which a chunk is full; a larger group is a chunk of its own."""
MAX_SNIPPET = 120
"""Characters of a prompt that stand for it in the list of groups."""


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """One rollout in the index. `reward` is None where it is errored, `advantage` where it trained nothing."""

    reward: float | None
    advantage: float | None
    status: str
    truncated: bool
    turns: int
    length: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The rollouts of one prompt at one step, in the index: who they are, and in which chunk their text is."""

    key: GroupKey
    phase: str
    index: int
    env: str
    task: str
    task_key: str
    tags: tuple[str, ...]
    snippet: str
    chunk: int
    place: int
    """Position among the groups of its chunk."""
    tokens: bool
    """Whether it was recorded token by token."""
    rollouts: tuple[RolloutSummary, ...]


@dataclass(frozen=True)
class Catalogue:
    """The index of one run's rollouts, and the way to their text."""

    source: Rollouts
    groups: Sequence[GroupSummary]
    chunks: Sequence[Sequence[GroupKey]]

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.source.run

    @property
    def rollouts(self) -> int:
        """Number of rollouts."""
        return sum(len(group.rollouts) for group in self.groups)


def read_catalogue(path: Path) -> Catalogue:
    """The index of the run in the folder `path`, which may be in progress.

    Raises:
        RunDirectoryError: there is no run, it has no rollouts yet, or one of its files is damaged.
    """
    source = open_rollouts(path)
    groups: list[GroupSummary] = []
    chunks: list[list[GroupKey]] = []
    filled = CHUNK_CHARACTERS
    for group in source:
        if filled >= CHUNK_CHARACTERS:
            chunks.append([])
            filled = 0
        groups.append(_summary(group, len(chunks) - 1, len(chunks[-1]), source.has_tokens(group.key)))
        chunks[-1].append(group.key)
        filled += characters(group)
    if not groups:
        raise RunDirectoryError(
            f"{path} has no rollouts yet, so there is nothing to view. Wait for the run's first RL batch or evaluation."
        )
    return Catalogue(source, groups, chunks)


def characters(group: Group) -> int:
    """Length of a group's texts: prompt, answers and what was said between them."""
    turns = [turn for rollout in group.rollouts for turn in rollout.turns]
    said = sum(len(turn.text or "") + len(turn.thought or "") + len(turn.observation or "") for turn in turns)
    return said + sum(len(message.content) for message in group.rollouts[0].turns[0].messages)


def _summary(group: Group, chunk: int, place: int, tokens: bool) -> GroupSummary:
    first = group.rollouts[0]
    messages = first.turns[0].messages
    return GroupSummary(
        key=group.key,
        phase=first.phase,
        index=first.index,
        env=first.env,
        task=first.task[:MAX_SNIPPET],
        task_key=first.key,
        tags=first.tags,
        snippet=snippet(messages[-1].content) if messages else "",
        chunk=chunk,
        place=place,
        tokens=tokens,
        rollouts=tuple(map(_rollout, group.rollouts)),
    )


def snippet(text: str) -> str:
    """The start of a prompt's last message, on one line: what differs between tasks, most often."""
    return " ".join(text[: 4 * MAX_SNIPPET].split())[:MAX_SNIPPET]


def _rollout(rollout: Rollout) -> RolloutSummary:
    return RolloutSummary(
        reward=rollout.reward,
        advantage=rollout.advantage,
        status="errored" if rollout.errored else rollout.turns[-1].verdict.status,
        truncated=rollout.end == "length" or any(turn.stop_reason == "length" for turn in rollout.turns),
        turns=len(rollout.turns),
        length=rollout.length,
    )
