"""The reward `kernelbench`: the same figures from `assay score`, verl and TRL as from the environment."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main as assay
from assay.envs.kernelbench.env import Course, KernelEnv, KernelShop
from assay.envs.kernelbench.named_reward import KernelReward, KernelRewardOptions
from assay.envs.kernelbench.rewards import PARTS
from assay.errors import ConfigError, DataError, GradingServiceError
from assay.integrations.trl import reward_func
from assay.integrations.verl.score import compute_score
from assay.kernels.pool import GradingPool
from assay.kernels.problems.sources import find_problem, load_problems
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine, Sample
from assay.rewards.named import find_reward
from assay.types import Task
from support.kernel_policies import BROKEN, RIGHT, WRONG, reply
from support.sandboxes import needs_walls

OPTIONS = {"num_correct_trials": 1, "reward_format_weight": 0.25}
TEXTS = [reply(RIGHT), reply(WRONG), reply(BROKEN), "I cannot."]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options with a cache of their own: each text is graded by the first that asks."""
    cache = tmp_path_factory.mktemp("cache") / "kernels.sqlite"
    grader = {"compile_check": "off", "cache_path": str(cache), "draws": 1, "workers": 1}
    return {**OPTIONS, "grader": grader}


async def in_training(options: dict[str, Any]) -> list[float | None]:
    """What the environment gives for the texts."""
    problem = find_problem(load_problems("shipped", (1,)), 1, 1)
    rules = KernelRewardOptions(reward_format_weight=0.25).rules
    config = KernelReward(**options).options.grading()
    async with GradingPool(config) as pool:
        shop = KernelShop(pool, rules, Course())
        task = Task("kernelbench", "1/1", ())
        results = [await KernelEnv(task, problem, shop).step(text) for text in TEXTS]
    return [result.score.value for result in results]


@needs_walls
def test_one_reward_everywhere(tmp_path: Path, options: dict[str, Any]) -> None:
    wanted = asyncio.run(in_training(options))
    assert wanted[0] is not None and wanted[0] > 1 > wanted[1] > wanted[2] > wanted[3] == 0  # type: ignore[operator]

    file, output = tmp_path / "samples.jsonl", tmp_path / "scores.jsonl"
    file.write_text("".join(json.dumps({"response": text, "problem": "1/1"}) + "\n" for text in TEXTS))
    flat = [f"options.{k}={v}" for k, v in OPTIONS.items()]
    flat += [f"options.grader.{k}={v}" for k, v in options["grader"].items()]
    assert assay(["score", "--input", str(file), "--output", str(output), "--reward", "kernelbench", *flat]) == 0
    scored = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["score"] for row in scored] == pytest.approx(wanted)

    by_trl: Any = reward_func("kernelbench", ground_truth=None, options=options)
    found = asyncio.run(by_trl([""] * 4, TEXTS, problem=["1/1"] * 4))
    assert found == pytest.approx(wanted)

    by_verl = [
        compute_score(
            data_source="kernels",
            solution_str=text,
            ground_truth="",
            extra_info={"problem": "1/1"},
            reward="kernelbench",
            options=options,
        )
        for text in TEXTS
    ]
    assert by_verl == pytest.approx(wanted)


@needs_walls
def test_parts_and_evidence_come_with_a_score(options: dict[str, Any]) -> None:
    reward = find_reward("kernelbench", options, JudgeConfig())
    with RewardEngine(reward, config=EngineConfig(max_failure_rate=1.0)) as engine:
        right, none = engine.score_many_sync([Sample(t, extra={"problem": "1/1"}) for t in (TEXTS[0], TEXTS[3])])
    assert right.status == "scored" and set(right.parts) == set(PARTS) == set(reward.parts)
    assert right.evidence["eval_result"]["correctness"] and right.evidence["problem"] == "1/1"
    assert (none.status, none.value) == ("invalid", 0.0)
    assert "no KERNEL block" in none.evidence["eval_result"]["error_message"]
    assert reward.fingerprint != KernelReward().fingerprint


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "columns are none"),
        ({"problem": "softmax"}, "'softmax'"),
        ({"problem": "1/9999"}, "problem 1/9999 does not exist"),
        ({"problem": "1/" + "9" * 5000}, "needs a column `problem`"),
        ({"problem": "9/1"}, "has no problem of level 9"),
    ],
)
def test_a_sample_names_a_problem_that_there_is(columns: dict[str, str], message: str) -> None:
    with RewardEngine(KernelReward()) as engine, pytest.raises(DataError, match=message):
        engine.score_many_sync([Sample("x", extra=columns)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grader": {"num_trials": 3}}, "num_trials"),
        ({"correct": 1.0}, "correct"),
        ({"reward_speed_weight": 1.0}, "pays for speed, which is not measured"),
        ({"use_modal": True}, "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET are not set"),
        ({"grader": {"url": "http://127.0.0.1:1"}}, "cannot be used"),
    ],
)
def test_options_are_checked_at_once(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MODAL_TOKEN_ID", raising=False)
    monkeypatch.delenv("MODAL_TOKEN_SECRET", raising=False)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none.toml"))
    with pytest.raises((ConfigError, GradingServiceError), match=message):
        KernelReward(**options)
