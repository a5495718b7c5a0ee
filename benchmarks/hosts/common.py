"""What the hosts of `benchmarks/every_trainer.py` share: how a module reports, and how that is compared with Assay."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.integrations.environments import HostRow, ListedTask, Prepared, close_environments, prepared, tasks_of
from support.hosts import PLAYS, Play, bytes_tokenizer, prepared_play

FAILING = Path(__file__).with_name("failing_env.py")
FAILING_PLAY = Play((), {"": ("0", "!", "3")}, 3, 1)
"""Played on `failing_env.py`: the second answer cannot be scored."""


@dataclass(frozen=True)
class Row:
    """A training row as a host has it."""

    prompt: str
    """SHA-256 of the token ids as JSON."""
    response: Sequence[int]
    mask: Sequence[int]
    advantages: Sequence[float] | None = None
    """Token by token; None where the host has one advantage per completion."""

    @classmethod
    def of(cls, prompt: Sequence[int], response: Sequence[int], mask: Sequence[int], advantages: Any = None) -> Row:
        ids = hashlib.sha256(json.dumps(list(prompt)).encode()).hexdigest()
        return cls(ids, list(response), list(mask), advantages)

    @classmethod
    def of_host(cls, row: HostRow) -> Row:
        return cls.of(row.prompt_ids, row.response_ids, row.mask, list(row.advantages))


@dataclass(frozen=True)
class Rollout:
    """A rollout as a host has it."""

    reward: float | None
    rows: Sequence[Row]
    last_only: bool = False
    """Whether the host has room for the last row alone."""


Plays = Callable[[str, Play, Prepared], Sequence[Sequence[Rollout]]]
Failing = Callable[[Prepared], Sequence[bool]]


def first_tasks(play: Play, one: Prepared) -> list[ListedTask]:
    return sorted(tasks_of(one.environment, "train"), key=lambda row: row[0].key)[: play.tasks]


def report(play: Plays, failing: Failing) -> None:
    """Play what the command line names, and print it as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", choices=list(PLAYS))
    parser.add_argument("--cache", type=Path, required=True)
    args = parser.parse_args()
    played = {
        name: [[asdict(rollout) for rollout in group] for group in play(name, PLAYS[name], one)]
        for name in args.names
        for one in [prepared_play(PLAYS[name], *own_cache(name, args.cache))]
    }
    settings = [f"dataset_builder={FAILING}:Fails", "max_tokens=8", "dataset_builder.group_size=3"]
    kept_apart = [bool(out) for out in failing(prepared(None, settings, bytes_tokenizer()))]
    close_environments()
    print(json.dumps({"plays": played, "kept_apart": kept_apart}))


def own_cache(name: str, folder: Path) -> tuple[str, ...]:
    own = (f"cache_dir={folder}",)
    return (*own, f"dataset_builder.grader.cache_path={folder}/verdicts.sqlite") if name == "kernels" else own
