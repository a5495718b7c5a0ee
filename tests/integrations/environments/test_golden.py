"""One scripted policy plays the same tasks in Assay's own loop and through the hosts' core: equal, to the byte.

The golden files are what Assay's own loop plays. REGOLD=1 writes them anew, where an environment was to change.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.grpo.datum import trajectory_data
from assay.integrations.environments import TaskReference, close_environments, hosted_task, play_tasks, tasks_of
from assay.types import Json
from support.hosts import (
    BUDGET,
    GOLDEN,
    PLAYS,
    Script,
    bytes_tokenizer,
    in_assays_loop,
    prepared_play,
    record_of,
    rows_of,
    written,
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of these tests' own, in which a kernel is graded once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
        close_environments()


def here(name: str, folder: Path) -> tuple[str, ...]:
    own = (f"cache_dir={folder}",)
    return (*own, f"dataset_builder.grader.cache_path={folder}/verdicts.sqlite") if name == "kernels" else own


def through_the_core(name: str, folder: Path) -> Json:
    play = PLAYS[name]
    one = prepared_play(play, *here(name, folder))
    listed = sorted(tasks_of(one.environment, "train"), key=lambda row: row[0].key)[: play.tasks]

    async def run() -> Json:
        tasks = [await hosted_task(TaskReference.from_json(reference.to_json())) for reference, _ in listed]
        renderer = one.renderer(bytes_tokenizer())
        played = await play_tasks(tasks, play.group_size, one.playing, renderer, Script(play), BUDGET)
        return record_of([group.group for group in played], [group.advantages for group in played])

    return asyncio.run(run())


@pytest.mark.parametrize("name", PLAYS)
def test_a_host_plays_as_assay_does(name: str, cache: Path) -> None:
    groups, credits = in_assays_loop(PLAYS[name], *here(name, cache))
    own = written(record_of(groups, credits))
    if os.environ.get("REGOLD"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / f"{name}.json").write_text(own)
    assert own == (GOLDEN / f"{name}.json").read_text()
    assert written(through_the_core(name, cache)) == own
    assert any(credit is not None for credit in credits), "a play without signal shows nothing"
    for group, credit in zip(groups, credits, strict=True):
        for rollout, turns in zip(group.trajectories, credit or [], strict=bool(credit)):
            data = [datum for datum in trajectory_data(rollout, turns) if datum.mask.any()]
            for row, datum in zip(rows_of(rollout, turns), data, strict=True):
                begin, size = len(row.prompt_ids) - 1, len(row.response_ids)
                assert datum.targets[begin : begin + size].tolist() == list(row.response_ids)
                assert datum.mask[begin : begin + size].tolist() == list(row.mask)
                assert datum.advantages[begin : begin + size].tolist() == pytest.approx(row.advantages, abs=1e-6)
                assert not datum.mask[:begin].any() and not datum.mask[begin + size :].any()
