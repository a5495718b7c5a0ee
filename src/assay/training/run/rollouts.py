"""The rollouts of a run, read back from `traces.jsonl` and `tokens.jsonl`, while the run goes on or after it.

    for group in open_rollouts(run): ...            all groups in order, one in memory at a time
    rollouts = open_rollouts(run)
    rollouts.keys                                   which groups there are: (step, split, group)
    rollouts.group(rollouts.keys[-1])               one of them, wherever it is in the file
    rollouts.tokens(key)                            its turns token by token, where they were recorded

Opening reads each file once without parsing it, and keeps where each group is: some hundred bytes for each. A last line
without its end (of a run in progress, or one that was killed) is ignored, with one log line.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeVar, get_args

from assay.errors import RunDirectoryError
from assay.training.run.ledger import read_ledger
from assay.training.run.record_shape import check_tokens, check_trace
from assay.types import EpisodeEnd, Json, Message, ScoreStatus, StopReason

logger = logging.getLogger(__name__)

TRACES = "traces.jsonl"
TOKENS = "tokens.jsonl"
VERSIONS: Mapping[str, int] = {TRACES: 2, TOKENS: 1}
"""The newest format of each file that is read; of traces, version 1 lacks what a turn trained with."""
Split = Literal["train", "eval"]
T = TypeVar("T")

_TRACE = re.compile(
    rb'{"version":(\d{1,9}),"run":"\w*","step":(-?\d{1,18}),"phase":"\w+","index":\d+,"split":"(\w+)","group":(\d{1,18}),'
)
_TOKEN = re.compile(rb'{"version":(\d{1,9}),"step":(-?\d{1,18}),()"group":(\d{1,18}),')
"""How a record begins: its place, without parsing all of it."""


class GroupKey(NamedTuple):
    """Which group: the global step, `train` or `eval`, and its place in that batch or evaluation."""

    step: int
    split: Split
    group: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier said of one turn; as `Score`."""

    status: ScoreStatus
    value: float | None
    parts: Mapping[str, float]
    evidence: Mapping[str, Json]
    verifier: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a rollout."""

    turn: int
    messages: tuple[Message, ...]
    """The conversation that the turn began with; empty where it went on with what was said before."""
    observation: str | None
    """Where it went on: what the policy was told since its last turn."""
    text: str | None
    """What the policy said; None where the rollout failed before its first turn."""
    verdict: Verdict
    metrics: Mapping[str, float]
    advantage: float | None
    """Mean over the tokens of the advantage that they trained with, before the batch's normaliser; None where none."""
    trained: bool
    removed: str | None
    """Why a turn of a training batch trained nothing: errored, constant, truncated, skipped or failed."""
    stop_reason: StopReason | None
    prompt_tokens: int
    completion_tokens: int
    policy_version: int | None
    thought: str | None = None
    """What it thought before it answered, which was not judged; None where nothing parts the two."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout: a task played to its end, in the run with the id `run`."""

    step: int
    phase: str
    index: int
    split: Split
    group: int
    sample: int
    env: str
    task: str
    """The task's id."""
    key: str
    """Hash of the task's content; equal problems have equal keys."""
    tags: tuple[str, ...]
    seed: int
    end: EpisodeEnd
    reward: float | None
    turns: tuple[Turn, ...]
    run: str = ""

    @property
    def errored(self) -> bool:
        """Whether it could not be scored, and so has no reward."""
        return self.reward is None

    @property
    def length(self) -> int:
        """Tokens sampled in all turns."""
        return sum(turn.completion_tokens for turn in self.turns)

    @property
    def advantage(self) -> float | None:
        """Mean of its tokens' advantages; None where it trained nothing."""
        known = [(t.advantage, t.completion_tokens) for t in self.turns if t.advantage is not None]
        tokens = sum(count for _, count in known)
        return sum(value * count for value, count in known) / tokens if tokens else None

    @property
    def parts(self) -> dict[str, float]:
        """The named parts of the reward, each as of the last turn that has it."""
        return {name: value for turn in self.turns for name, value in turn.verdict.parts.items()}


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task in one batch or evaluation, in the order of their samples."""

    key: GroupKey
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class TokenTurn:
    """One turn token by token: lists of one length. `text` holds a piece for each token; the stop token's is empty."""

    sample: int
    turn: int
    text: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    """Under the policy that sampled."""
    advantages: tuple[float | None, ...] | None
    """Before the batch's normaliser; None where the turn trained nothing."""
    log_ratios: tuple[float | None, ...] | None
    """The trained policy's log-probability minus `logprobs`, before the step; None where the turn trained nothing."""


class _Span(NamedTuple):
    """Where the lines of a group are in a file: bytes, and the number of the first line."""

    start: int
    stop: int
    line: int


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of a run, by group. Made by `open_rollouts`; holds their positions, not their texts."""

    run: Path
    committed: int | None
    """The last step that the run has committed; later steps will be done again. None if there is none."""
    _traces: Mapping[GroupKey, _Span] = field(repr=False)
    _tokens: Mapping[GroupKey, _Span] = field(repr=False)

    @property
    def keys(self) -> Sequence[GroupKey]:
        """The groups in the order of the file."""
        return list(self._traces)

    def group(self, key: GroupKey) -> Group:
        """One group.

        Raises:
            KeyError: there is no such group.
            RunDirectoryError: a line of it is damaged.
        """
        path = self.run / TRACES
        records = _records(path, self._traces[key])
        return _parsed(path, self._traces[key].line, lambda: _group(key, records))

    def tokens(self, key: GroupKey) -> list[TokenTurn]:
        """The turns of a group token by token, by (sample, turn); empty where they were not recorded.

        Raises:
            RunDirectoryError: a line of it is damaged.
        """
        if key not in self._tokens:
            return []
        path = self.run / TOKENS
        records = _records(path, self._tokens[key])
        return _parsed(path, self._tokens[key].line, lambda: [_token_turn(record) for record in records])

    def has_tokens(self, key: GroupKey) -> bool:
        """Whether a group was recorded token by token."""
        return key in self._tokens

    def __iter__(self) -> Iterator[Group]:
        """All groups in order, one in memory at a time."""
        return (self.group(key) for key in self._traces)

    def __len__(self) -> int:
        return len(self._traces)


def read_rollouts(run: Path, *, committed: bool = False) -> Iterator[Rollout]:
    """All rollouts of a run in order, one group in memory at a time; see `open_rollouts`."""
    for group in open_rollouts(run, committed=committed):
        yield from group.rollouts


def open_rollouts(run: Path, *, committed: bool = False) -> Rollouts:
    """The rollouts of the run at `run`, which may be in progress.

    Args:
        committed: only those of steps that the run has committed, which is a consistent state of all its files. Without
            it, also those of a step that was under way, or failed.

    Raises:
        RunDirectoryError: there is no run or it has no rollouts, or a file of it is damaged or of a newer format.
    """
    if not (run / "config.json").is_file():
        raise RunDirectoryError(f"{run} is not a run: it has no config.json. Give the log_path of a run.")
    if not (run / TRACES).is_file():
        raise RunDirectoryError(
            f"{run} has no rollouts: it has no {TRACES}. Give the log_path of a run that has begun."
        )
    commits = read_ledger(run / "ledger.jsonl").commits
    sizes = (commits[-1].sinks if commits else {}) if committed else None
    step = commits[-1].step if commits else None
    traces, tokens = (_index(run / name, None if sizes is None else sizes.get(name, 0)) for name in (TRACES, TOKENS))
    return Rollouts(run, step, traces, tokens)


def _index(path: Path, size: int | None) -> dict[GroupKey, _Span]:
    """Where each group is in a file, of which the first `size` bytes count."""
    if not path.is_file():
        return {}
    found: dict[GroupKey, _Span] = {}
    start, line = 0, 0
    with _opened(path) as file:
        while (size is None or start < size) and (text := file.readline()):
            line += 1
            if not text.endswith(b"\n"):
                logger.warning(
                    "%s ends in half a line (%d bytes), since the run is in progress or was killed; it is ignored.",
                    path,
                    len(text),
                )
                break
            key = _key(path, line, text)
            first = found.get(key)
            if first is not None and first.stop != start:
                raise _damaged(path, line, f"the records of {key} are not next to each other")
            found[key] = _Span(first.start if first else start, start + len(text), first.line if first else line)
            start += len(text)
    return found


def _key(path: Path, line: int, text: bytes) -> GroupKey:
    match = (_TRACE if path.name == TRACES else _TOKEN).match(text)
    if match is None:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _damaged(path, line, str(error)) from error
        raise _damaged(path, line, "it is not a record of this file")
    if int(match[1]) > VERSIONS[path.name]:
        raise RunDirectoryError(
            f"{path}, line {line} has format version {int(match[1])}, newer than this Assay reads "
            f"({VERSIONS[path.name]}). Read it with the Assay that wrote it (see code.json)."
        )
    split = match[3].decode() or "train"
    if split not in get_args(Split):
        raise _damaged(path, line, f"its split is {split!r}, neither train nor eval")
    return GroupKey(int(match[2]), split, int(match[4]))  # type: ignore[arg-type]


def _records(path: Path, span: _Span) -> list[dict[str, Json]]:
    with _opened(path) as file:
        file.seek(span.start)
        lines = file.read(span.stop - span.start).splitlines()
    records = []
    for number, line in enumerate(lines, start=span.line):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise _damaged(path, number, str(error)) from error
    return records


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:  # a run that was removed while it is viewed, say
        raise RunDirectoryError(f"{path} cannot be read ({error.strerror}).") from error


def _parsed(path: Path, line: int, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _damaged(path, line, f"its group cannot be read: {error!r}") from error


def _damaged(path: Path, line: int, finding: str) -> RunDirectoryError:
    return RunDirectoryError(f"{path}, line {line} is damaged ({finding}). Restore the file from a copy.")


def _group(key: GroupKey, records: Sequence[Mapping[str, Json]]) -> Group:
    for record in records:
        check_trace(record)
    turns = groupby(records, key=lambda record: record["sample"])
    return Group(key, tuple(_rollout([*some]) for _, some in turns))


def _rollout(records: Sequence[Mapping[str, Json]]) -> Rollout:
    first = records[0]
    task = first["task"]
    return Rollout(
        step=first["step"],
        phase=first["phase"],
        index=first["index"],
        split=first["split"],
        group=first["group"],
        sample=first["sample"],
        env=task["env"],
        task=task["id"],
        key=task["key"],
        tags=tuple(task["tags"]),
        seed=first["seed"],
        end=first["end"],
        reward=first["reward"],
        turns=tuple(_turn(record) for record in records),
        run=first.get("run") or "",
    )


def _turn(record: Mapping[str, Json]) -> Turn:
    score = record["score"]
    return Turn(
        turn=record["turn"],
        messages=tuple(Message(m["role"], m["content"]) for m in record.get("messages") or ()),
        observation=record.get("observation"),
        text=record["text"],
        verdict=Verdict(
            score["status"],
            score["value"],
            _known(score.get("parts")),
            score.get("evidence") or {},
            score.get("verifier") or "",
        ),
        metrics=_known(record.get("metrics")),
        advantage=record.get("advantage"),
        trained=bool(record.get("trained")),
        removed=record.get("removed"),
        stop_reason=record.get("stop_reason"),
        prompt_tokens=record.get("prompt_tokens") or 0,
        completion_tokens=record.get("completion_tokens") or 0,
        policy_version=record.get("policy_version"),
        thought=record.get("thought"),
    )


def _known(values: Mapping[str, float | None] | None) -> dict[str, float]:
    """Without what was not finite, which is recorded as null."""
    return {name: value for name, value in (values or {}).items() if value is not None}


def _token_turn(record: Mapping[str, Json]) -> TokenTurn:
    check_tokens(record)

    def numbers(name: str) -> tuple[float | None, ...] | None:
        return None if record[name] is None else tuple(record[name])

    logprobs = numbers("logprobs") or ()
    found = TokenTurn(
        record["sample"],
        record["turn"],
        tuple(record["tokens"]),
        logprobs,
        numbers("advantages"),
        numbers("log_ratios"),
    )
    lengths = {
        len(column) for column in (found.text, logprobs, found.advantages, found.log_ratios) if column is not None
    }
    if len(lengths) > 1:
        raise ValueError(f"its lists have different lengths: {sorted(lengths)}")
    return found
