"""Generated problems as a run has them: all variants of what is hidden, a clean split, examples that grade as said."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from assay.envs.base import BuildContext, EnvData, iter_builders
from assay.envs.kernelbench.env import KernelEnv
from assay.envs.kernelbench.family.compositions import VARIANTS
from assay.envs.kernelbench.family.examples import PERFECT, Skill, attempt
from assay.envs.kernelbench.family.modules import solution_text
from assay.envs.kernelbench.family.posed import HINT, posed
from assay.envs.kernelbench.family.supervised import FamilySupervisedDataset, failure, following, second
from assay.envs.kernelbench.feedback import Attempt, category_of, compact
from assay.envs.kernelbench.generated import heldout_posed
from assay.envs.kernelbench.rewards import RewardShapes, is_unjudged
from assay.errors import ConfigError
from assay.kernels import GraderConfig, grade_many, make_problem
from assay.kernels.verdicts import Verdict
from assay.training.config import load_config
from support.sandboxes import needs_walls

SMALL = ["dataset_builder.num_train=6", "dataset_builder.num_heldout=6"]


def built(tmp_path: Path, preset: str, *more: str) -> EnvData:
    config = load_config(preset, [*SMALL, f"cache_dir={tmp_path}", *more])
    turns = config.build_context().max_turns
    return config.active_builder.build(BuildContext(0, turns, tmp_path))


def test_every_hidden_prompt_is_there_with_all_its_variants() -> None:
    by_prompt: dict[str, list[str]] = defaultdict(list)
    for one in posed(0, "train", 60, hidden=True):
        by_prompt[one.prompt].append(one.tag)
        assert HINT in one.prompt and HINT not in one.module
    assert len(by_prompt) == 20 and all(sorted(found) == sorted(VARIANTS) for found in by_prompt.values())


@pytest.mark.parametrize("hidden", [False, True])
def test_what_is_held_out_is_neither_trained_nor_imitated_nor_tuned_on(hidden: bool) -> None:
    sets = [FamilySupervisedDataset(5, hidden, PERFECT, compact).pool]  # those of RL are the first of them
    sets += [heldout_posed(name, 102, hidden) for name in ("validation", "final")]
    train, validation, final = ({one.composition.signature for one in found} for found in sets)
    assert not (train & validation or train & final or validation & final)
    assert len(sets[1]) == len(sets[2]) == 102


def test_more_hidden_problems_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"100000 heldout problems .* there are \d+\. Lower"):
        posed(0, "heldout", 100_000, hidden=True)
    with pytest.raises(ConfigError, match=r"num_heldout=600 with heldout=final: only \d+ of 1200"):
        heldout_posed("final", 600, hidden=True)


def test_second_examples_show_the_first_kernel_with_its_failure_and_hold_copies_and_changes() -> None:
    data = FamilySupervisedDataset(0, True, Skill.of(0.9), compact)
    later = [one for one in data.batch(0, 400) if "\n# " in one.prompt[0].content]
    assert 120 < len(later) < 280
    assert {one.prompt[0].content.split("\n# ")[1].split("\n")[0] for one in later} == {
        *("correctness error", "runtime error", "compilation error")
    }
    copies = sum(one.prompt[0].content.endswith(one.completion) for one in later)
    assert 0.2 < copies / len(later) < 0.6
    assert data.batch(0, 400) == data.batch(0, 400) != data.batch(1, 400)


@needs_walls
def test_a_verdict_tells_the_variants_apart_and_examples_fail_as_they_say() -> None:
    rng = np.random.default_rng(3)
    one = posed(3, "train", 1, hidden=True)[0]
    problem = make_problem(1, 1, "family", one.module, "generated")
    others = [one.with_variant(name) for name in VARIANTS]
    drafts = [attempt(one.composition, Skill.of(0.5), rng) for _ in range(8)]
    drafts = [draft for draft in drafts if draft.text() != solution_text(one.composition)]
    texts = [*(solution_text(other.composition) for other in others), *(draft.text() for draft in drafts)]
    config = GraderConfig(workers=1, cache=False, compile_check="off", scale="none", num_correct_trials=2)
    verdicts = list(grade_many([(problem, text) for text in texts], config))
    assert [verdict.ok for verdict in verdicts[:3]] == [name == one.tag for name in VARIANTS]
    said = [category_of(Attempt("", "", verdict)) for verdict in verdicts[3:]]
    agree = sum(found == failure(draft) for found, draft in zip(said, drafts, strict=True))
    assert agree >= 0.7 * len(drafts) > 0, (said, drafts)


def test_a_second_kernel_keeps_the_hidden_operation_or_tries_the_next_one() -> None:
    rng = np.random.default_rng(0)
    one = posed(1, "train", 1, hidden=True)[0]
    first = attempt(one.composition, PERFECT, rng)
    assert one.hidden is not None
    drawn = Counter(second(first, one.hidden, rng).composition.names[one.hidden] for _ in range(400))
    assert set(drawn) == {one.tag, following(one.tag)} and 150 < drawn[one.tag] < 250


@needs_walls
def test_a_hidden_problem_is_solved_in_the_second_turn(tmp_path: Path) -> None:
    data = built(tmp_path, "kernels_cpu_turns")
    one = posed(0, "train", 1, hidden=True)[0]
    builder = next(b for b in iter_builders(data.train) if b.task.prompt[0].content == one.prompt)
    wanted = builder.task.tags[0]
    wrong, right = (
        solution_text(one.with_variant(name).composition)
        for name in (next(name for name in VARIANTS if name != wanted), wanted)
    )

    async def play() -> None:
        (env,) = await builder.make(1)
        assert isinstance(env, KernelEnv)
        (asked,) = await env.reset()
        first = await env.step(wrong)
        assert not first.done and first.replace and first.score.value == 0
        assert first.messages[0].content == f"{asked.content}# correctness error\n{wrong}"
        last = await env.step(right)
        assert last.done and last.score.value == pytest.approx(1.0)
        await data.close()

    asyncio.run(play())


@needs_walls
def test_the_presets_pose_whole_modules_and_what_comes_with_assay(tmp_path: Path) -> None:
    data = built(tmp_path, "kernels_cpu")
    tasks = [one.task for one in iter_builders(data.heldout)]
    assert len(tasks) == 6 and all("class Model(" in task.text and HINT not in task.text for task in tasks)
    asyncio.run(data.close())
    shipped = load_config("kernels_cpu", ["dataset_builder.heldout=shipped"]).dataset_builder
    assert {problem.source for problem, _ in shipped.heldout_problems()} == {"shipped"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["dataset_builder.num_heldout=100"], r"num_heldout=100 with .*multiple of 3"),
        (["dataset_builder.num_train=100", "dataset_builder.heldout=shipped"], r"num_train=100 with .*multiple of 3"),
        (["dataset_builder.backend=cuda", "dataset_builder.use_modal=true"], "have solutions in Triton alone"),
        (["dataset_builder.reward.mode=additive", "gamma=1"], "gamma=1 with these rewards"),
    ],
)
def test_what_cannot_work_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config("kernels_cpu_turns", settings)


def test_what_the_grader_cannot_run_is_unjudged_or_invalid_and_a_bad_problem_is_always_unjudged() -> None:
    unsupported = Verdict("unsupported", "numerics", "no such function")
    assert is_unjudged(unsupported, RewardShapes()) and not is_unjudged(
        unsupported, RewardShapes(unsupported="invalid")
    )
    for verdict in (Verdict("unsupported", "problem"), Verdict("infra_error", "numerics")):
        assert is_unjudged(verdict, RewardShapes(unsupported="invalid"))
