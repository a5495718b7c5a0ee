"""Settings that resumes changed: what held until which step. Only decides.

A run's record (`config.json`) has the settings that hold now, and under `changes` one entry for each resume that began
with others: the last step that was done before, and by key what held until then (`was`) and from then on (`now`). A
setting that only one of two versions of Assay has lacks one of the two. A resume from an earlier step undoes later
entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from assay.config.loader import CHANGES_KEY, FILES_KEY
from assay.storage.files import encode_json
from assay.types import Json

_OF_THE_COMMAND = ("log_path", "resume_from_batch")
"""Where the run is, and from where it goes on: no settings of what is computed."""
_KEPT = (FILES_KEY, *_OF_THE_COMMAND)


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that has another value after some step; values as JSON text, None where a version lacks the setting."""

    key: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        """`eval_every: 10 -> 2`."""
        was, now = ("absent" if value is None else value for value in (self.was, self.now))
        return f"{self.key}: {was} -> {now}"


def plain_settings(config: Mapping[str, Json], beside: Mapping[str, Json] | None = None) -> dict[str, str]:
    """The settings of a resolved config by dotted key, as JSON text; without what the record keeps beside them.

    Args:
        beside: another one. A mapping that is empty here and has entries there is left out: its entries differ.
    """
    found = dict(_flatten({key: value for key, value in config.items() if key not in (FILES_KEY, CHANGES_KEY)}))
    if beside is None:
        return found
    parents = {key[:i] for key in plain_settings(beside) for i, letter in enumerate(key) if letter == "."}
    return {key: value for key, value in found.items() if value != "{}" or key not in parents}


def _flatten(value: Json, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of a nested mapping as (dotted key, JSON text); empty mappings are leaves."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, encode_json(value, sort_keys=True).decode()


def recorded_changes(record: Mapping[str, Json]) -> list[tuple[int, list[Change]]]:
    """What resumes of a run changed, oldest first: the last step before each, and the settings."""
    return [
        (
            int(entry["after_step"]),
            [Change(key, _text(v, "was"), _text(v, "now")) for key, v in entry["settings"].items()],
        )
        for entry in record.get(CHANGES_KEY) or ()
    ]


def changes_after(
    record: Mapping[str, Json], now: Mapping[str, Json], step: int, may_change: Callable[[str], bool]
) -> list[Change]:
    """The settings that a resume after `step` changes, among those that it may: from what held at that step."""
    held, wanted = plain_settings(record), plain_settings(now)
    for _, changes in reversed([entry for entry in recorded_changes(record) if entry[0] >= step]):
        for change in changes:
            held.pop(change.key, None)
            held |= {} if change.was is None else {change.key: change.was}
    return [
        Change(key, held.get(key), wanted.get(key))
        for key in sorted(held | wanted)
        if held.get(key) != wanted.get(key) and key not in _OF_THE_COMMAND and may_change(key)
    ]


def changed_record(
    record: Mapping[str, Json], now: Mapping[str, Json], step: int, changes: Sequence[Change]
) -> dict[str, Json]:
    """The record of a run that goes on after `step` with the settings `now`, which differ by `changes`."""
    entries = [entry for entry in record.get(CHANGES_KEY) or () if entry["after_step"] < step]
    if changes:
        entries.append({"after_step": step, "settings": {change.key: _values(change) for change in changes}})
    kept = {key: record[key] for key in _KEPT if key in record}
    return {**now, **kept, **({CHANGES_KEY: entries} if entries else {})}


def in_words(record: Mapping[str, Json]) -> list[str]:
    """A line for each resume that changed settings: from which step on which values held."""
    return [
        f"From step {step + 1} on: {', '.join(map(str, changes))}."
        for step, changes in recorded_changes(record)
        if changes
    ]


def _values(change: Change) -> dict[str, Json]:
    texts = {"was": change.was, "now": change.now}
    return {name: json.loads(text) for name, text in texts.items() if text is not None}


def _text(values: Mapping[str, Json], name: str) -> str | None:
    return encode_json(values[name], sort_keys=True).decode() if name in values else None
