"""`assay score --run`: judges the rollouts of a run again, optionally with other rewards, without sampling.

Each rollout's texts are played to a fresh env of its task, in order. What a judge was asked before is answered from the
cache; with `offline=true` of the environment's engine nothing else is. The run is only read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TextIO

from assay.cli.runs.sign_changes import SignChanges, advantage_changes
from assay.envs.base import Env, EnvData, EnvGroupBuilder, build_data, iter_builders
from assay.errors import RunDirectoryError
from assay.training.config import TrainingConfig
from assay.training.run.rollouts import Group, Rollout, open_rollouts
from assay.types import Json, Score

OUTPUT = "rescored.jsonl"
"""Where scores go in a run directory, if nowhere else."""
AT_ONCE = 512
"""Rollouts that are judged side by side."""


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
        JSON data: `rollouts`, `changed`, `errored`, `cached_turns`, `mean_reward` (`before`, `after`), and `advantages`
        of the training groups under the new rewards: how many `changed_sign`, and the `largest` with their places.

    Raises:
        RunDirectoryError: no traces, tasks that the config's data sets do not have, or an output that is a file of the
            run's.
    """
    return asyncio.run(_rescore(run, config, output))


async def _rescore(run: Path, config: TrainingConfig, output: Path) -> Mapping[str, Json]:
    saved = open_rollouts(run)
    if output.resolve() in {path.resolve() for path in run.iterdir()} and output.name != OUTPUT:
        raise RunDirectoryError(
            f"The scores would overwrite {output}, which belongs to the run. Choose another output."
        )
    tally, changes, trainer = Tally(), SignChanges(), config.trainer()
    data = build_data(config.active_builder, config.build_context())
    try:
        builders = _builders(data)
        with output.open("w", encoding="utf-8") as file:
            for groups in _batches(saved, AT_ONCE):
                found = await _judge(
                    [rollout for group in groups for rollout in group.rollouts if _spoke(rollout)], builders
                )
                for group in groups:
                    scores = {r.sample: found[r.step, r.split, r.group, r.sample] for r in group.rollouts if _spoke(r)}
                    for rollout in filter(_spoke, group.rollouts):
                        _record(file, rollout, scores[rollout.sample], tally)
                    if group.key.split == "train":
                        changes.add(advantage_changes(group, scores, trainer))
    finally:
        await data.close()
    return {"run": str(run), "output": str(output), **tally.summary(), "advantages": changes.to_json()}


def _batches(groups: Iterable[Group], rollouts: int) -> Iterator[list[Group]]:
    """The groups in batches of about so many rollouts; no group is split."""
    batch: list[Group] = []
    for group in groups:
        batch.append(group)
        if sum(len(g.rollouts) for g in batch) >= rollouts:
            yield batch
            batch = []
    if batch:
        yield batch


def _spoke(rollout: Rollout) -> bool:
    """Whether anything was said in it."""
    return rollout.turns[0].text is not None


def _builders(data: EnvData) -> dict[str, EnvGroupBuilder]:
    return {builder.task.key: builder for part in (data.train, data.heldout) for builder in iter_builders(part)}


async def _judge(
    rollouts: Sequence[Rollout], builders: Mapping[str, EnvGroupBuilder]
) -> dict[tuple[int, str, int, int], list[Score]]:
    """The scores of each rollout's turns, by (step, split, group, sample).

    Rollouts of one task share what its builder prepares.
    """
    by_task: dict[str, list[int]] = {}
    for place, rollout in enumerate(rollouts):
        by_task.setdefault(rollout.key, []).append(place)
    if unknown := by_task.keys() - builders.keys():
        task = rollouts[by_task[min(unknown)][0]].task
        raise RunDirectoryError(
            f"Task {task} of the run is not among the tasks that this config makes, so its rollouts cannot be "
            "judged. Keep the settings that decide the tasks (data source, seed, prompts) as they were."
        )
    prepared = await asyncio.gather(*(builders[key].make(len(places)) for key, places in by_task.items()))
    envs = {place: env for (_, places), made in zip(by_task.items(), prepared, strict=True)
            for place, env in zip(places, made, strict=True)}  # fmt: skip
    scores = await asyncio.gather(*(_replay(rollout, envs[place]) for place, rollout in enumerate(rollouts)))
    return {(r.step, r.split, r.group, r.sample): found for r, found in zip(rollouts, scores, strict=True)}


async def _replay(rollout: Rollout, env: Env) -> list[Score]:
    """Play a rollout's texts to a fresh env, until it is done; settings may end it earlier than before."""
    await env.reset()
    scores = []
    for turn in rollout.turns:
        result = await env.step(turn.text or "")
        scores.append(result.score)
        if result.done:
            break
    return scores


def _record(file: TextIO, rollout: Rollout, scores: Sequence[Score], tally: Tally) -> None:
    values = [score.value for score in scores]
    reward = None if None in values else sum(value for value in values if value is not None)
    before = rollout.reward
    tally.rollouts += 1
    tally.errored += reward is None
    tally.changed += reward != before
    tally.cached += sum(score.cached for score in scores)
    if reward is not None and before is not None:
        tally.before.append(before)
        tally.after.append(reward)
    place = {name: getattr(rollout, name) for name in ("step", "phase", "index", "split", "group", "sample")}
    for turn, score in zip(rollout.turns, scores, strict=False):
        new = {"status": score.status, "value": score.value, "parts": dict(score.parts), "verifier": score.fingerprint}
        was = {name: getattr(turn.verdict, name) for name in new}
        file.write(json.dumps({**place, "turn": turn.turn, "task": rollout.key, "before": was, "after": new}) + "\n")
