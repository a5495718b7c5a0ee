from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from assay.envs.base import Env, StepResult
from assay.errors import TrainingError
from assay.grpo.parity import ParityConfig
from assay.rollouts.renderers.base import PlainRenderer
from assay.rollouts.seeds import derive
from assay.training.evaluate import Evaluation, cached_scores, check_errored, evaluate, per_task_means
from assay.training.metrics.intervals import mean_ci95
from assay.types import Message, SamplingParams, Score, TrajectoryGroup
from support import virtual_time
from support.scripted import ScriptedGroup, group, play, scored, task, tiny_backend, trajectory
from support.scripted_backend import ScriptedBackend

TASKS = ["abc", "c 12", "3"]
OFF = ParityConfig(enabled=False)


def evaluation(seed: int = 0, tasks: Sequence[str] = TASKS, samples: int = 3) -> Evaluation:
    backend = tiny_backend()
    return asyncio.run(
        evaluate(
            backend,
            PlainRenderer(backend.tokenizer),
            [ScriptedGroup(task(t)) for t in tasks],
            SamplingParams(8),
            samples=samples,
            max_turns=1,
            seed=seed,
            parity=ParityConfig(),
        )
    )


def texts(of: Evaluation) -> list[list[str]]:
    return [[t.transitions[0].text for t in g.trajectories] for g in of.groups]


def test_the_same_tasks_get_the_same_samples_every_time() -> None:
    first = evaluation()
    assert texts(first) == texts(evaluation())
    assert texts(evaluation(tasks=TASKS[:2], samples=2)) == [samples[:2] for samples in texts(first)[:2]]
    assert texts(evaluation(seed=1)) != texts(first)
    backend = tiny_backend()
    trained = play(backend, [ScriptedGroup(task(t)) for t in TASKS], seed=derive(0, "rl", 0), group_size=3)
    assert texts(Evaluation(trained, {}, {})) != texts(first), "evaluation has a random stream of its own"


class SlowVerdicts(ScriptedGroup):
    """Envs that begin at once."""

    async def make(self, n: int) -> list[Env]:
        envs = await super().make(n)

        async def at_once() -> list[Message]:
            return list(self.task.prompt)

        for env in envs:
            env.reset = at_once  # type: ignore[method-assign]
        return envs


def test_a_chunk_is_sampled_while_the_verdicts_of_the_one_before_are_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.training.evaluate.CHUNK", 2)
    done: list[int] = []
    in_flight: list[tuple[int, int]] = []

    def judge(text: str, sample: int, turn: int) -> StepResult:
        in_flight.append((len(backend.calls), sum(done)))
        return scored(1.0)

    def measured(delays_s: tuple[float, ...]) -> Evaluation:
        tasks = [SlowVerdicts(task(str(i)), judge, delays_s) for i in range(7)]
        renderer, params = PlainRenderer(backend.tokenizer), SamplingParams(8)
        return virtual_time.play(
            evaluate(backend, renderer, tasks, params, samples=3, max_turns=1, seed=0, parity=OFF, advance=done.append)
        )

    backend = ScriptedBackend()
    prompt = measured((0.0,))
    assert done == [2, 2, 2, 1] and [len(call.prompts) for call in backend.calls] == [6, 6, 6, 3]
    backend = ScriptedBackend()
    in_flight.clear()
    done.clear()
    assert measured((100.0,)).groups == prompt.groups
    assert in_flight[0] == (2, 0), "the second chunk is sampled before the first is scored"
    assert max(calls - finished / 2 for calls, finished in in_flight) <= 2, "no more than two chunks are out"
    assert sum(done) == 7


def test_samples_of_a_task_are_averaged_before_tasks_are_compared() -> None:
    found = evaluation()
    rewards = [[t.reward for t in g.trajectories] for g in found.groups]
    np.testing.assert_allclose(found.per_task["reward"], [np.mean(r) for r in rewards])
    assert len(found.per_task["length"]) == 3
    metrics = found.metrics()
    assert metrics["eval/reward/mean"] == pytest.approx(np.mean(rewards))
    assert metrics["eval/ci95/reward"] == mean_ci95(found.per_task["reward"]).half_width
    assert metrics["eval/rollout/count"] == 9


def test_what_depends_on_the_machine_is_named_so() -> None:
    metrics = evaluation().metrics()
    assert "perf/eval/score_cached_fraction" in metrics
    assert not [name for name in metrics if "perf/" in name and not name.startswith("perf/")]


def test_the_share_of_cached_verdicts_is_over_turns() -> None:
    known = trajectory([1.0, 2.0, 3.0])
    known = replace(
        known, transitions=tuple(replace(t, score=replace(t.score, cached=True)) for t in known.transitions)
    )
    groups = [TrajectoryGroup(known.task, (known, trajectory([1.0])))]
    assert cached_scores(groups) == {"perf/score_cached_fraction": 0.75}
    assert cached_scores(groups, "eval/") == {"perf/eval/score_cached_fraction": 0.75}
    assert cached_scores([]) == {}


def test_unscored_samples_leave_a_task_s_mean_and_unscored_tasks_the_list() -> None:
    assert per_task_means([group(1.0, None, 3.0), group(None, None), group(0.5)])["reward"] == [2.0, 0.5]
    assert per_task_means([group(None)]) == {}


def test_an_env_s_metrics_are_those_of_the_last_turn() -> None:
    turns = [scored(1.0, won=0.0), scored(2.0, won=1.0)]
    rollout = trajectory([1.0, 2.0])
    pairs = zip(rollout.transitions, turns, strict=True)
    rollout = replace(rollout, transitions=tuple(replace(t, metrics=r.metrics) for t, r in pairs))
    means = per_task_means([TrajectoryGroup(rollout.task, (rollout,))])
    assert means == {"won": [1.0], "reward": [3.0]}


def failing(errored: int, sound: int) -> list[TrajectoryGroup]:
    groups = [group(*([None] * errored), *([1.0] * sound))]
    broken = [
        replace(t.transitions[0], score=Score("errored", None, evidence={"error": "engine died."}))
        for t in groups[0].trajectories[:errored]
    ]
    rollouts = [replace(t, transitions=(b,)) for t, b in zip(groups[0].trajectories, broken, strict=False)]
    return [replace(groups[0], trajectories=(*groups[0].trajectories[errored:], *rollouts))]


def test_rollouts_may_be_unscored_up_to_the_share_that_was_set() -> None:
    check_errored(failing(1, 9), 0.1, "RL batch 3")
    check_errored([], 0.0, "RL batch 3")
    check_errored(failing(4, 0), 1.0, "RL batch 3")
    with pytest.raises(TrainingError) as caught:
        check_errored(failing(2, 9), 0.1, "RL batch 3")
    message = str(caught.value)
    assert "2 of 11 rollouts of RL batch 3 could not be scored (max_errored_fraction=0.1)" in message
    assert "Most frequent reason (2): engine died. Fix the cause and run the same command again" in message


def test_a_rollout_that_never_began_counts_as_unscored() -> None:
    nothing = replace(trajectory([1.0]), transitions=(), stop_reason="errored")
    with pytest.raises(TrainingError, match=r"^see the log\. None of the 1 rollouts of the eval"):
        check_errored([TrajectoryGroup(nothing.task, (nothing,))], 0.5, "the evaluation")


def test_where_all_fail_for_one_reason_it_is_said_first() -> None:
    broken = replace(trajectory([1.0]), stop_reason="errored", error="TypeError: no list (own.py, line 3)")
    with pytest.raises(TrainingError, match=r"^TypeError: no list \(own\.py, line 3\)\. None of the 2 "):
        check_errored([TrajectoryGroup(broken.task, (broken, broken))], 0.1, "RL batch 0")
