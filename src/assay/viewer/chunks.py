"""A run for the page: its index, and the groups of one chunk, as compressed JSON.

Numbers are cut to what a reader sees, text is bounded, and what the rollouts of a group share is said once.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping, Sequence

from assay.storage.files import encode_json
from assay.training.run.rollouts import Group, Rollout, TokenTurn, Turn
from assay.types import Json, Message
from assay.viewer.catalogue import Catalogue

MAX_TEXT = 100_000
"""Characters of one text that a page holds; the reader is told how many more there are."""
MAX_ITEMS = 200
"""Entries of one list or mapping of evidence that a page holds."""
MAX_DEPTH = 8
"""Levels of evidence that a page holds."""
STATUSES = ("scored", "invalid", "errored")
CURVES = ("reward/mean", "reward_25pct", "reward_75pct", "eval/reward/mean")
"""Metrics that the page draws."""
DECIMALS = {"logprobs": 4, "advantages": 6, "log_ratios": 5}
"""Decimals of the values per token."""
MAX_EVENTS = 1000


def chunk_of(catalogue: Catalogue, number: int, level: int = 6) -> bytes:
    """The groups of one chunk, gzipped JSON: `[{messages, rollouts: [{..., turns: [{text, score, ...}]}]}]`.

    `level` is how hard to compress: 1 is fast, 9 small.

    Raises:
        IndexError: there is no such chunk.
        RunDirectoryError: the file was damaged or cut since it was indexed.
    """
    source = catalogue.source
    return compressed([_body(source.group(key), source.tokens(key)) for key in catalogue.chunks[number]], level)


def index_of(
    name: str, catalogue: Catalogue, metrics: Sequence[Mapping[str, Json]], events: Sequence[Mapping[str, Json]]
) -> Json:
    """What the page knows of a run before it reads any text: groups and rollouts as columns, curves, alarms."""
    groups = catalogue.groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    tags = sorted({tag for group in groups for tag in group.tags})
    number = {tag: place for place, tag in enumerate(tags)}
    return {
        "name": name,
        "committed": catalogue.source.committed,
        "tags": tags,
        "groups": {
            "step": [group.key.step for group in groups],
            "split": [group.key.split for group in groups],
            "group": [group.key.group for group in groups],
            "key": [group.task_key for group in groups],
            "tags": [[number[tag] for tag in group.tags] for group in groups],
            "tokens": [int(group.tokens) for group in groups],
            "count": [len(group.rollouts) for group in groups],
            **{column: [getattr(group, column) for group in groups] for column in _COLUMNS},
        },
        "rollouts": {
            "reward": [rounded(r.reward) for r in rollouts],
            "advantage": [rounded(r.advantage) for r in rollouts],
            "status": [STATUSES.index(r.status) for r in rollouts],
            "truncated": [int(r.truncated) for r in rollouts],
            "turns": [r.turns for r in rollouts],
            "length": [r.length for r in rollouts],
        },
        "curve": _curve(metrics),
        "events": [
            {"step": event.get("step"), **{k: bounded(str(event.get(k, ""))) for k in ("kind", "level", "message")}}
            for event in events[:MAX_EVENTS]
        ],
        "more_events": max(0, len(events) - MAX_EVENTS),
    }


_COLUMNS = ("phase", "index", "env", "task", "snippet", "chunk", "place")


def _curve(metrics: Sequence[Mapping[str, Json]]) -> dict[str, list[Json]]:
    rows = [row for row in metrics if any(row.get(name) is not None for name in CURVES)]
    return {"step": [row["step"] for row in rows], **{n: [rounded(row.get(n)) for row in rows] for n in CURVES}}


def compressed(value: Json, level: int = 6) -> bytes:
    """JSON, gzipped; equal values have equal bytes."""
    return gzip.compress(encode_json(value), compresslevel=level, mtime=0)


def rounded(value: Json, digits: int = 6) -> Json:
    """A number with so many significant digits; None for what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


def bounded(value: Json, depth: int = 0) -> Json:
    """Data without what would make a page unreadable: long texts and lists are cut, and say how much is missing."""
    if isinstance(value, str):
        more = len(value) - MAX_TEXT
        return value if more <= 0 else f"{value[:MAX_TEXT]}\n[{more:,} more characters are in the run's files]"
    if not isinstance(value, (Mapping, list)):
        return value
    if depth == MAX_DEPTH:
        return "[deeper levels are in the run's files]"
    more = len(value) - MAX_ITEMS
    note = f"{more:,} more entries are in the run's files"
    if isinstance(value, Mapping):
        kept = {bounded(str(k)): bounded(v, depth + 1) for k, v in list(value.items())[:MAX_ITEMS]}
        return kept | ({"more": note} if more > 0 else {})
    return [bounded(item, depth + 1) for item in value[:MAX_ITEMS]] + ([note] if more > 0 else [])


def _body(group: Group, tokens: Sequence[TokenTurn]) -> Json:
    streams = {(turn.sample, turn.turn): _streams(turn) for turn in tokens}
    prompt = group.rollouts[0].turns[0].messages
    return {"messages": _messages(prompt), "rollouts": [_rollout(r, prompt, streams) for r in group.rollouts]}


def _messages(messages: Sequence[Message]) -> Json:
    return [{"role": message.role, "content": bounded(message.content)} for message in messages]


def _rollout(rollout: Rollout, prompt: Sequence[Message], streams: Mapping[tuple[int, int], Json]) -> Json:
    return {
        "sample": rollout.sample,
        "seed": str(rollout.seed),  # larger than the integers that a browser's numbers hold
        "end": rollout.end,
        "parts": bounded({name: rounded(value) for name, value in rollout.parts.items()}),
        "turns": [_turn(turn, prompt, streams.get((rollout.sample, turn.turn))) for turn in rollout.turns],
    }


def _turn(turn: Turn, prompt: Sequence[Message], streams: Json | None) -> Json:
    verdict = turn.verdict
    found: dict[str, Json] = {
        "text": bounded(turn.text),
        "thought": bounded(turn.thought),
        "observation": bounded(turn.observation),
        "messages": None if turn.turn == 0 and turn.messages == tuple(prompt) else _messages(turn.messages),
        "advantage": rounded(turn.advantage),
        "removed": turn.removed,
        "stop_reason": turn.stop_reason,
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "policy_version": turn.policy_version,
        "metrics": bounded(dict(turn.metrics)),
        "score": {
            "status": verdict.status,
            "value": rounded(verdict.value),
            "parts": bounded(dict(verdict.parts)),
            "evidence": bounded(dict(verdict.evidence)),
            "verifier": bounded(verdict.verifier),
        },
        "tokens": streams,
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def _streams(turn: TokenTurn) -> Json:
    columns = {"logprobs": turn.logprobs, "advantages": turn.advantages, "log_ratios": turn.log_ratios}
    known = {name: column for name, column in columns.items() if column is not None}
    cut = {name: [None if v is None else round(v, DECIMALS[name]) for v in column] for name, column in known.items()}
    return {"pieces": list(turn.text), **cut}
