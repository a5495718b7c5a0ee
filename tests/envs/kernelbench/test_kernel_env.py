"""The kernel environment over the real grader: one turn, several turns with what was told between, and its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.config import build
from assay.config.sources import Layer
from assay.envs.base import BuildContext, EnvData, iter_builders
from assay.envs.kernelbench.dataset import KernelBenchDatasetBuilder
from assay.envs.kernelbench.env import Course, KernelEnv, KernelShop
from assay.grpo.advantages import turn_returns
from assay.grpo.datum import turn_spans
from assay.kernels.config import GraderConfig
from assay.kernels.problems.sources import Problem
from assay.kernels.verdicts import Verdict
from assay.rollouts.runner import prepare, run_groups
from assay.types import SamplingParams, Trajectory
from support.kernel_policies import BROKEN, CHEAT, CRASH, RIGHT, WRONG, KernelPolicy, Script, plain, reply
from support.sandboxes import needs_walls

SMALL = {
    "dataset_src": "shipped",
    "use_modal": False,
    "end_problem": 1,
    "test_fraction": 0,
    "num_correct_trials": 2,
    "grader.compile_check": "off",
    "grader.draws": 1,
    "grader.workers": 1,
}


def builder(**changes: Any) -> KernelBenchDatasetBuilder:
    """A builder of the one problem 1/1, graded here."""
    return build(KernelBenchDatasetBuilder, [Layer("test", {**SMALL, **changes})])


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Verdicts of earlier tests: each kernel is graded once."""
    return tmp_path_factory.mktemp("cache")


def data(tmp_path: Path, max_turns: int = 1, **changes: Any) -> EnvData:
    return builder(**changes).build(BuildContext(seed=0, max_turns=max_turns, cache_dir=tmp_path))


def play(data: EnvData, script: Script, max_turns: int, n: int = 1) -> tuple[Sequence[Trajectory], KernelPolicy]:
    """`n` rollouts of the first problem."""
    policy = KernelPolicy(script)

    async def main() -> Sequence[Trajectory]:
        groups = await prepare(list(iter_builders(data.train))[:1], n)
        try:
            (group,) = await run_groups(groups, policy, plain(), SamplingParams(9), max_turns=max_turns, seed=1)
        finally:
            await data.close()
        return group.trajectories

    return asyncio.run(asyncio.wait_for(main(), 120)), policy


@needs_walls
def test_what_replies_to_a_problem_earn(cache_dir: Path) -> None:
    replies = [RIGHT, WRONG, BROKEN, CHEAT, CRASH]
    texts = [*(reply(kernel) for kernel in replies), "I cannot.", f"<think>{reply(RIGHT)[:200]}"]
    order = iter(texts)
    found, policy = play(data(cache_dir), lambda prompt, seed: next(order), 1, len(texts))
    assert len(set(policy.prompts)) == 1 and "Snake activation with" in policy.prompts[0]
    by_text = {r.transitions[0].text: r.transitions[0] for r in found}
    kinds, values = [], []
    for text in texts:
        turn = by_text[text]
        kinds.append(turn.score.evidence["eval_result"]["metadata"]["kind"])
        values.append(turn.score.value)
    assert kinds == ["ok", "wrong", "compile_error", "cheat", "crash", "format_error", "format_error"]
    length = found[0].transitions[0].score.parts["length"]
    right = 0.1 + 0.2 + 1.0 + 0.05 * length + 0.1
    assert values[0] == pytest.approx(right, abs=0.01)
    assert values[2] == pytest.approx(values[4], abs=0.01), "host code that raises is paid like what does not compile"
    assert values[0] > values[1] > values[2] > 0 and values[3] == values[5] == values[6] == 0
    right_turn, cheat = by_text[texts[0]], by_text[texts[3]]
    assert right_turn.metrics["correct"] == right_turn.metrics["success"] == 1
    assert cheat.metrics["cheat"] == 1 and cheat.score.status == "scored" and cheat.metrics["correct"] == 0
    assert by_text["I cannot."].score.status == "invalid"
    assert right_turn.score.evidence["kernel"].strip() == RIGHT.strip()


def improving(prompt: str, seed: int) -> str:
    """A broken kernel, then a wrong one, then a right one; each after what the last prompt says of the one before."""
    if "correctness error" in prompt:
        return reply(RIGHT, "the square was missing")
    if "compilation error" in prompt:
        return reply(WRONG, "tl.sin instead")
    return reply(BROKEN, "an idea")


@needs_walls
def test_a_policy_that_reads_what_it_is_told_solves_the_problem_in_three_turns(cache_dir: Path) -> None:
    found, policy = play(data(cache_dir, 4), improving, 4, n=2)
    for rollout in found:
        turns = rollout.transitions
        categories = [turn.score.evidence["category"] for turn in turns]
        assert categories == ["compilation_error", "correctness_error", "success"]
        assert (rollout.stop_reason, turns[-1].metrics["success"]) == ("done", 1)
        state = turns[-1].score.evidence["state"]
        assert state["turn_idx"] == 2 and state["done"] and state["success"] and state["max_turns"] == 4
        assert state["step_scores"] == [turn.score.value for turn in turns]
        assert [span.datum for span in turn_spans(rollout)] == [0, 1, 2], "each turn is its own training sequence"
        rewards = [turn.score.value or 0.0 for turn in turns]
        assert turn_returns(rollout, 0.4)[0] == pytest.approx(rewards[0] + 0.4 * (rewards[1] + 0.4 * rewards[2]))
    third = max(policy.prompts, key=len)
    assert "tl.silu" in third and "x + s * a" in third and "an idea" not in third
    assert third.index("Attempt 1 of 4") < third.index("Attempt 2 of 4") and third.count("Snake activation with") == 1


@needs_walls
@pytest.mark.parametrize(
    ("changes", "turns", "end"),
    [({}, 1, "done"), ({"early_stop_on_correct": False}, 3, "done")],
)
def test_a_right_kernel_ends_a_rollout_where_that_is_asked_for(
    cache_dir: Path, changes: dict[str, Any], turns: int, end: str
) -> None:
    (found,), _ = play(data(cache_dir, 3, **changes), lambda prompt, seed: reply(RIGHT), 3)
    assert (len(found.transitions), found.stop_reason) == (turns, end)


@needs_walls
def test_equal_kernels_are_graded_once_and_counted(tmp_path: Path) -> None:
    made = data(tmp_path)
    play(made, lambda prompt, seed: reply(RIGHT, f"thought {seed}"), 1, n=4)
    assert made.counters is not None
    totals = made.counters().totals
    assert totals["grader/graded"] == 1 and totals["grader/ok"] == 4


class Failing:
    """A pool at Modal whose every grade fails."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.config = GraderConfig(run_on="modal", device="cuda")

    async def grade(self, problem: Problem, code: str) -> Verdict:
        return self.verdict

    def counters(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("kind", ["infra_error", "unsupported", "compiled_not_run"])
def test_a_grade_that_fails_makes_a_rollout_errored_and_ends_it(kind: Any) -> None:
    problem = builder().problems()[0]
    task = builder()._task(problem, ())
    pool: Any = Failing(Verdict(kind, "numerics", "no inputs could be drawn"))
    shop = KernelShop(pool, builder().rules, Course(max_turns=4))

    async def main() -> None:
        result = await KernelEnv(task, problem, shop).step(reply(RIGHT))
        assert (result.score.status, result.score.value, result.done) == ("errored", None, True)
        assert "no inputs could be drawn" in result.score.evidence["message"]

    asyncio.run(main())
    took = shop.counters().levels
    assert 0 <= took["grader/grade_mean_s"] == took["grader/grade_max_s"] <= took["grader/turn_max_s"]
    assert took["grader/modal_max_s"] == took["grader/grade_max_s"]
    assert shop.counters().levels == {}, "each step has its own"


@pytest.mark.parametrize(
    ("threshold", "speedup", "ends"),
    [(None, None, True), (1.0, None, False), (1.0, 0.9, False), (1.0, 1.2, True), (1.5, 1.2, False)],
)
def test_a_threshold_asks_for_a_speedup(threshold: float | None, speedup: float | None, ends: bool) -> None:
    verdict = Verdict("ok", "timing", timing=None if speedup is None else {"rewardable": speedup})
    assert Course(4, True, threshold).ends(verdict, 1) == ends
    assert Course(4, False, threshold).ends(verdict, 1) is False
    assert Course(4, True, threshold).ends(Verdict("wrong", "numerics"), 4)
