"""`assay score --run`: the rollouts of a run judged again, with other rewards perhaps, and nothing sampled.

Each rollout's texts are played to a fresh env of its task, in order. What a judge was asked before is answered from the
cache; with `offline=true` of the environment's engine nothing else is. The run is only read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean
from typing import TextIO

from assay.envs.base import Env, EnvData, EnvGroupBuilder, build_data, iter_builders
from assay.errors import RunDirectoryError
from assay.training.config import TrainingConfig
from assay.training.run.reader import read_lines
from assay.types import Json, Score

OUTPUT = "rescored.jsonl"
"""Where scores go in a run directory, if nowhere else."""
AT_ONCE = 512
"""Rollouts that are judged side by side."""


@dataclass(frozen=True)
class _Rollout:
    """The turns of one saved rollout that have a text."""

    turns: Sequence[Mapping[str, Json]]

    @property
    def task_key(self) -> str:
        """Key of its task."""
        return str(self.turns[0]["task"]["key"])


@dataclass
class Tally:
    """What judging again came to."""

    rollouts: int = 0
    changed: int = 0
    """Rollouts whose reward is another one than before."""
    errored: int = 0
    cached: int = 0
    """Turns whose verdict cost nothing."""

    def __post_init__(self) -> None:
        self.before: list[float] = []
        self.after: list[float] = []

    def summary(self) -> dict[str, Json]:
        """As JSON data; the means are over rollouts that have a reward both times."""
        means = {"before": fmean(self.before), "after": fmean(self.after)} if self.before else {}
        return {
            "rollouts": self.rollouts,
            "changed": self.changed,
            "errored": self.errored,
            "cached_turns": self.cached,
            "mean_reward": means,
        }


def rescore(run: Path, config: TrainingConfig, output: Path) -> Mapping[str, Json]:
    """Judge every saved rollout of a run again, and write one line per turn to `output`.

    Args:
        config: the run's config, possibly with other rewards.

    Returns:
        JSON data: `rollouts`, `changed`, `errored`, `cached_turns`, `mean_reward` (`before`, `after`).

    Raises:
        RunDirectoryError: no traces, tasks that the config's data sets do not have, or an output that is a file of the
            run's.
    """
    return asyncio.run(_rescore(run, config, output))


async def _rescore(run: Path, config: TrainingConfig, output: Path) -> Mapping[str, Json]:
    traces = run / "traces.jsonl"
    if not traces.is_file():
        raise RunDirectoryError(f"{run} holds no rollouts: there is no traces.jsonl in it. Give the log_path of a run.")
    if output.resolve() in {path.resolve() for path in run.iterdir()} and output.name != OUTPUT:
        raise RunDirectoryError(
            f"The scores would overwrite {output}, which belongs to the run. Choose another output."
        )
    tally = Tally()
    data = build_data(config.active_builder, config.build_context())
    try:
        builders = _builders(data)
        with output.open("w", encoding="utf-8") as file:
            rollouts = saved_rollouts(traces)
            while some := list(islice(rollouts, AT_ONCE)):
                async for rollout, scores in _judge(some, builders):
                    _record(file, rollout, scores, tally)
    finally:
        await data.close()
    return {"run": str(run), "output": str(output), **tally.summary()}


def saved_rollouts(traces: Path) -> Iterator[_Rollout]:
    """The rollouts of `traces.jsonl` in which anything was said."""
    records = (record for record in read_lines(traces) if record["text"] is not None)
    for _, turns in groupby(records, key=lambda r: (r["step"], r["split"], r["group"], r["sample"])):
        yield _Rollout(tuple(turns))


def _builders(data: EnvData) -> dict[str, EnvGroupBuilder]:
    return {builder.task.key: builder for part in (data.train, data.heldout) for builder in iter_builders(part)}


async def _judge(
    rollouts: Sequence[_Rollout], builders: Mapping[str, EnvGroupBuilder]
) -> AsyncIterator[tuple[_Rollout, list[Score]]]:
    """The scores of each rollout's turns, in order; rollouts of one task share what its builder prepares."""
    by_task: dict[str, list[int]] = {}
    for place, rollout in enumerate(rollouts):
        by_task.setdefault(rollout.task_key, []).append(place)
    if unknown := by_task.keys() - builders.keys():
        task = rollouts[by_task[min(unknown)][0]].turns[0]["task"]
        raise RunDirectoryError(
            f"Task {task['id']} of the run is not among the tasks that this config makes, so its rollouts cannot be "
            "judged. Keep the settings that decide the tasks (data source, seed, prompts) as they were."
        )
    prepared = await asyncio.gather(*(builders[key].make(len(places)) for key, places in by_task.items()))
    envs = {place: env for (_, places), made in zip(by_task.items(), prepared, strict=True)
            for place, env in zip(places, made, strict=True)}  # fmt: skip
    scores = await asyncio.gather(*(_replay(rollout, envs[place]) for place, rollout in enumerate(rollouts)))
    for rollout, found in zip(rollouts, scores, strict=True):
        yield rollout, found


async def _replay(rollout: _Rollout, env: Env) -> list[Score]:
    """Play a rollout's texts to a fresh env, until it is done; settings may end it earlier than before."""
    await env.reset()
    scores = []
    for turn in rollout.turns:
        result = await env.step(turn["text"])
        scores.append(result.score)
        if result.done:
            break
    return scores


def _record(file: TextIO, rollout: _Rollout, scores: Sequence[Score], tally: Tally) -> None:
    values = [score.value for score in scores]
    reward = None if None in values else sum(value for value in values if value is not None)
    before = rollout.turns[0]["reward"]
    tally.rollouts += 1
    tally.errored += reward is None
    tally.changed += reward != before
    tally.cached += sum(score.cached for score in scores)
    if reward is not None and before is not None:
        tally.before.append(before)
        tally.after.append(reward)
    for turn, score in zip(rollout.turns, scores, strict=False):
        place = {name: turn[name] for name in ("step", "phase", "index", "split", "group", "sample", "turn")}
        new = {"status": score.status, "value": score.value, "parts": dict(score.parts), "verifier": score.fingerprint}
        was = {name: turn["score"].get(name) for name in new}
        file.write(json.dumps({**place, "task": turn["task"]["key"], "before": was, "after": new}) + "\n")
