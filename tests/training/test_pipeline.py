"""Batches sampled ahead of their step: by which policy, what overlaps, and that a killed run ends as one left alone."""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.backends.local.backend import TorchBackend
from assay.envs.base import StepResult
from assay.errors import CheckpointError, ConfigError, HealthError, TrainingError
from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import HealthConfig
from assay.grpo.trainer import GRPOTrainer
from assay.training import pipeline
from assay.training.config import SFTConfig, TrainingConfig
from assay.training.pipeline import FILE
from assay.training.trajectory_file import decode, encode
from assay.types import Completion, Score, Task, TrajectoryGroup
from support.scripted import ScriptedEnv, group
from support.tiny_run import RL_BATCHES, assert_same_run, kill, metric, outcome, read_lines, run, steps, tiny
from support.toy_env import ToyBuilder

SFT = SFTConfig(num_steps=2, batch_size=4, lr_warmup_steps=0)
AHEAD, LOOP, TRAINER = "assay.training.pipeline", "assay.training.loop", "assay.grpo.trainer"
VARIANTS: dict[str, dict[str, Any]] = {
    "one": {"max_steps_off_policy": 1},
    "more than there are": {"max_steps_off_policy": 9, "loss_fn": "ppo"},
    "several turns": {
        "max_steps_off_policy": 2,
        "mode": "multi_turn",
        "max_turns": 3,
        "num_substeps": 2,
        "rollout_epochs": 2,
        "kl_penalty_coef": 0.1,
        "grpo": AlgorithmConfig(tis_cap=2.0, max_staleness=9),
    },
}


def ahead(path: Path, variant: str = "one", **changes: Any) -> TrainingConfig:
    return tiny(path, **({"sft": SFT} | VARIANTS[variant] | changes))


@pytest.fixture(scope="module", params=VARIANTS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A variant, and the directory of its run that was left alone. Do not change it."""
    path = tmp_path_factory.mktemp("reference") / "run"
    run(ahead(path, request.param))
    return request.param, path


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run one step off policy. Do not change it."""
    path = tmp_path_factory.mktemp("one") / "run"
    run(ahead(path))
    return path


def versions(path: Path) -> list[set[int]]:
    """The policies that sampled each batch."""
    traces = [t for t in read_lines(path / "traces.jsonl") if t["split"] == "train"]
    return [{t["policy_version"] for t in traces if t["index"] == index} for index in range(RL_BATCHES)]


def sampled_ahead(path: Path, checkpoint: str) -> dict[int, list[TrajectoryGroup]]:
    file = path / "checkpoints" / checkpoint / "policy" / FILE
    return decode(file.read_bytes(), file)


# Which policy samples what


@pytest.mark.parametrize("steps_ahead", [0, 1, 2, 9])
def test_a_batch_is_sampled_by_the_policy_of_so_many_steps_before(steps_ahead: int, tmp_path: Path) -> None:
    run(ahead(tmp_path / "run", max_steps_off_policy=steps_ahead))
    assert metric(tmp_path / "run", "train/optimizer_steps") == [1.0] * RL_BATCHES
    assert versions(tmp_path / "run") == [{2 + max(0, index - steps_ahead)} for index in range(RL_BATCHES)]


def test_the_loss_is_corrected_for_the_policy_that_sampled(one: Path) -> None:
    assert "train/ratio_error" in read_lines(one / "metrics.jsonl")[3]
    assert len(metric(one, "train/ratio_error")) == 1, "the first batch alone is on policy"
    assert len(metric(one, "parity/kl")) == RL_BATCHES - 1, "each step checks what its weights sampled ahead"
    off = metric(one, "train/kl_behaviour")
    assert abs(off[0]) < 1e-6 and min(off[1:]) > 1e-5
    assert max(metric(one, "train/logprob_ratio_max")[1:]) > 1.01


def test_verdicts_come_in_while_the_policy_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updated = asyncio.Event()
    judged: list[bool] = []
    step, update = ScriptedEnv.step, GRPOTrainer.update

    async def waiting(env: ScriptedEnv, text: str) -> StepResult:
        if env.task.id in second and not judged:
            await asyncio.wait_for(updated.wait(), 30)
            judged.append(True)
        return await step(env, text)

    async def updating(trainer: GRPOTrainer, *args: Any, **options: Any) -> Any:
        report = await update(trainer, *args, **options)
        updated.set()
        return report

    monkeypatch.setattr(ScriptedEnv, "step", waiting)
    monkeypatch.setattr(GRPOTrainer, "update", updating)
    config = ahead(tmp_path / "run", max_batches=2)
    data = config.dataset_builder.build(config.build_context())
    second = {builder.task.id for builder in data.train.batch(1)} - {b.task.id for b in data.train.batch(0)}
    run(config)
    assert judged, "the verdicts of the second batch waited for the update on the first"


def test_nothing_is_sampled_while_the_policy_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    stream, update = TorchBackend.sample_stream, GRPOTrainer.update

    async def streaming(backend: TorchBackend, *args: Any) -> Any:
        events.append("sample")
        async for found in stream(backend, *args):
            yield found
        events.append("sampled")

    async def updating(trainer: GRPOTrainer, *args: Any, **options: Any) -> Any:
        events.append("update")
        report = await update(trainer, *args, **options)
        events.append("updated")
        return report

    monkeypatch.setattr(TorchBackend, "sample_stream", streaming)
    monkeypatch.setattr(GRPOTrainer, "update", updating)
    jitter(monkeypatch, 0)
    run(ahead(tmp_path / "run", "several turns", eval_every=0))
    assert events.count("update") == RL_BATCHES
    for place, event in enumerate(events):
        if event == "update":
            assert events[place + 1] == "updated"
            assert events[:place].count("sample") == events[:place].count("sampled")


def jitter(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Verdicts take random times."""
    step, rng = ScriptedEnv.step, random.Random(seed)

    async def late(env: ScriptedEnv, text: str) -> StepResult:
        await asyncio.sleep(rng.uniform(0, 0.02))
        return await step(env, text)

    monkeypatch.setattr(ScriptedEnv, "step", late)


def test_when_verdicts_come_changes_nothing(
    reference: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, path = reference
    for seed in range(2):
        with monkeypatch.context() as patch:
            jitter(patch, seed)
            run(ahead(tmp_path / str(seed), variant))
        assert_same_run(tmp_path / str(seed), path)


def test_a_batch_of_several_policies_is_refused() -> None:
    found = group(1.0, 2.0)
    turn = found.trajectories[1].transitions[0]
    other = replace(turn, completion=replace(turn.completion, policy_version=3))
    mixed = (found.trajectories[0], replace(found.trajectories[1], transitions=(other,)))
    with pytest.raises(TrainingError, match=r"RL batch 5 were sampled by the policies after \[0, 3\] optimizer steps"):
        pipeline._check_one_policy(4, [replace(found, trajectories=mixed)])


# Killed and resumed


def test_a_checkpoint_holds_the_rollouts_that_are_ahead(reference: tuple[str, Path]) -> None:
    variant, path = reference
    most = VARIANTS[variant]["max_steps_off_policy"]
    for done in (2, 4, 6):
        held = sampled_ahead(path, f"rl_{done:06d}")
        assert sorted(held) == list(range(done, min(done + most, RL_BATCHES)))
        assert all(len(groups) == 4 for groups in held.values())
    assert not (path / "checkpoints" / "sft_000002" / "policy" / FILE).exists()


BOMBS = {
    "sampling": [(AHEAD, "run_groups", 2), (AHEAD, "run_groups", 4)],
    "updates": [(TRAINER, "GRPOTrainer.update", 4), (TRAINER, "GRPOTrainer.update", 2)],
    "checkpoint": [(AHEAD, "encode", 1), ("torch", "save", 3), (AHEAD, "encode", 1)],
    "between": [(LOOP, "_finish_step", 5), (LOOP, "act_on_alarms", 2)],
}


@pytest.mark.parametrize("bombs", BOMBS.values(), ids=BOMBS)
def test_a_killed_run_ends_as_one_left_alone(
    bombs: list[tuple[str, str, int]], reference: tuple[str, Path], tmp_path: Path
) -> None:
    variant, path = reference
    config = ahead(tmp_path / "run", variant)
    for bomb in bombs:
        kill(config, *bomb)
    run(config)
    assert_same_run(config.log_path, path)


def test_a_run_goes_back_to_a_batch_and_ends_the_same(one: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(one, path)
    kill(ahead(path, resume_from_batch=2), TRAINER, "GRPOTrainer.update", 1)
    run(ahead(path))
    assert_same_run(path, one)


def test_rollouts_that_cannot_be_read_are_refused(one: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"x\.jsonl cannot be read as rollouts .*Resume from another checkpoint"):
        decode(b'{"version": 1, "batches": [2]}\n{"batch": 3}\n', tmp_path / "x.jsonl")
    with pytest.raises(CheckpointError, match="format version 9; this Assay reads up to 1"):
        decode(b'{"version": 9}\n', tmp_path / "x.jsonl")


def test_rollouts_come_back_from_a_file_as_they_were(one: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tricky = group([1.0, None], [0.1 + 0.2])
    turn = tricky.trajectories[1].transitions[0]
    logprobs = tuple(float(x) for x in rng.normal(size=3).astype(np.float32))
    changed = replace(
        turn,
        text="♞ \ud800\n\u2028",
        completion=Completion((1, 2, 3), logprobs, "length", 7, logprobs),
        score=Score("invalid", -0.0, {"a": 1 / 3}, {"why": ["x", None]}, {"usd": 1e-9}, True, "v1"),
        metrics={"length": 5e-324},
    )
    rollout = replace(tricky.trajectories[1], transitions=(changed,), seed=2**64 - 1)
    task = Task("env", "id", tricky.task.prompt, {"n": [1, {"m": 2.5}]}, ("P", "hard"))
    groups = [replace(tricky, task=task, trajectories=(tricky.trajectories[0], rollout)), group(1.0)]
    back = decode(encode({3: groups, 5: []}), tmp_path / "x")
    assert back == {3: groups, 5: []} and repr(back[3]) == repr(groups), "also the sign of 0"
    held = sampled_ahead(one, "rl_000002")
    assert decode(encode(held), tmp_path / "x") == held


# What else happens to a run


def test_an_outage_stops_the_run_and_the_same_command_goes_on(tmp_path: Path) -> None:
    outage = tmp_path / "outage"
    builder = ToyBuilder(outage=outage)
    run(ahead(tmp_path / "reference", dataset_builder=builder, eval_every=0))
    config = ahead(tmp_path / "run", dataset_builder=builder, eval_every=0)
    kill(config, TRAINER, "GRPOTrainer.update", 4)
    outage.write_text("the engine is out")
    with pytest.raises(TrainingError, match=r"the engine is out.* None of the 16 rollouts of RL batch 4"):
        run(config)
    assert steps(config.log_path)[-1] == 4, "the batch that the checkpoint holds is trained on"
    outage.unlink()
    run(config)
    assert_same_run(config.log_path, tmp_path / "reference")


def alarmed(path: Path, action: str, **health: Any) -> TrainingConfig:
    """A run whose policy is never unsure enough."""
    settings = HealthConfig(entropy_floor=50.0, actions={"entropy_floor": action}, **health)
    return ahead(path, grpo=AlgorithmConfig(health=settings))


def test_after_a_rollback_what_was_ahead_is_sampled_anew(tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = alarmed(path, "rollback", max_rollbacks=3)
    with pytest.raises(HealthError, match="stopped after step 5"):
        run(config)
    assert versions(path)[:4] == [{2}] * 4, "every batch is sampled by the policy that was gone back to"
    assert metric(path, "train/ratio_error") and len(metric(path, "train/ratio_error")) == 4, "and fresh"
    assert sampled_ahead(path, "rl_000002") == {}
    again = alarmed(tmp_path / "again", "rollback", max_rollbacks=3)
    for moment in (2, 1):
        kill(again, TRAINER, "GRPOTrainer.update", moment)
    with pytest.raises(HealthError, match="stopped after step 5"):
        run(again)
    assert outcome(again.log_path) == outcome(path)


def test_a_pause_keeps_what_is_ahead(tmp_path: Path) -> None:
    path, config = tmp_path / "run", alarmed(tmp_path / "run", "pause")
    with pytest.raises(HealthError, match="paused after step 2"):
        run(config)
    assert sorted(sampled_ahead(path, "rl_000001")) == [1]
    run(config)
    assert versions(path) == [{2 + max(0, index - 1)} for index in range(RL_BATCHES)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dynamic_sampling_rounds": 1}, r"dynamic_sampling_rounds=1 with max_steps_off_policy=2: .*Set one of them"),
        (
            {"grpo": AlgorithmConfig(max_staleness=13), "rollout_epochs": 2, "num_substeps": 3},
            r"max_staleness=13 with max_steps_off_policy=2: .* are 14 steps old .*at least 14",
        ),
        ({"max_steps_off_policy": -1}, r"max_steps_off_policy=-1 must be at least 0"),
    ],
)
def test_what_cannot_go_with_sampling_ahead_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**({"max_steps_off_policy": 2} | changes))
    if "max_steps_off_policy" not in changes:
        TrainingConfig(**changes)
