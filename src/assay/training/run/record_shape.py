"""The fields that a record of rollouts has, and their types: a damaged file is refused before it is read. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import get_args

from assay.types import Json, ScoreStatus

_NUMBER = (int, float)
_NUMBER_OR_NONE = (int, float, NoneType)
_Types = type | tuple[type, ...]
_TRACE: Mapping[str, _Types] = {
    **dict.fromkeys(("step", "index", "group", "sample", "seed", "turn"), int),
    **dict.fromkeys(("phase", "split", "end"), str),
    **dict.fromkeys(("task", "score"), dict),
    **dict.fromkeys(("text", "thought", "observation", "removed", "stop_reason"), (str, NoneType)),
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "policy_version"), (int, NoneType)),
    **dict.fromkeys(("reward", "advantage"), _NUMBER_OR_NONE),
    "messages": (list, NoneType),
    "metrics": (dict, NoneType),
    "trained": (bool, NoneType),
}
_TASK: Mapping[str, _Types] = {**dict.fromkeys(("env", "id", "key"), str), "tags": list}
_SCORE: Mapping[str, _Types] = {
    "status": str,
    "value": _NUMBER_OR_NONE,
    "parts": (dict, NoneType),
    "evidence": (dict, NoneType),
    "verifier": (str, NoneType),
}
_MESSAGE: Mapping[str, _Types] = {"role": str, "content": str}
_TOKENS: Mapping[str, _Types] = {
    **dict.fromkeys(("sample", "turn"), int),
    **dict.fromkeys(("tokens", "logprobs"), list),
    **dict.fromkeys(("advantages", "log_ratios"), (list, NoneType)),
}


def check_trace(record: Mapping[str, Json]) -> None:
    """Check a line of `traces.jsonl`; fields that may be missing may also be null.

    Raises:
        TypeError, ValueError: a field is not what it must be; the message names it.
    """
    _check(record, _TRACE, "")
    task, score = record["task"], record["score"]
    _check(task, _TASK, "task.")
    _check(score, _SCORE, "score.")
    _all_are((str,), task["tags"], "task.tags")
    if score["status"] not in get_args(ScoreStatus):
        raise ValueError(f"score.status is {score['status']!r:.40}")
    for message in record.get("messages") or ():
        _check(message, _MESSAGE, "messages.")
    numbers = {"reward": record.get("reward"), "advantage": record.get("advantage"), "value": score.get("value")}
    for column in (numbers, score.get("parts") or {}, record.get("metrics") or {}):
        _all_are(_NUMBER_OR_NONE, column.values(), "parts or metrics")
        if not all(value is None or math.isfinite(value) for value in column.values()):
            raise ValueError(f"a number of {column!r:.80} is not finite")


def check_tokens(record: Mapping[str, Json]) -> None:
    """Check a line of `tokens.jsonl`, as `check_trace`.

    Raises:
        TypeError: as said there.
    """
    _check(record, _TOKENS, "")
    _all_are((str,), record["tokens"], "tokens")
    for name in ("logprobs", "advantages", "log_ratios"):
        _all_are(_NUMBER_OR_NONE, record[name] or (), name)


def _check(record: Json, fields: Mapping[str, _Types], where: str) -> None:
    if not isinstance(record, Mapping):
        raise TypeError(f"{where.rstrip('.')} is {record!r:.40}")
    for name, types in fields.items():
        if not isinstance(record.get(name), types):
            raise TypeError(f"{where}{name} is {record.get(name)!r:.40}")


def _all_are(types: tuple[type, ...], values: Json, where: str) -> None:
    if not {*map(type, values)} <= {*types}:
        raise TypeError(f"{where} holds something else than {' or '.join(t.__name__ for t in types)}")
