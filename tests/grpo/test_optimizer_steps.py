"""How often a group is trained on, by which optimizer steps, and what happens between them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.backends.base import AdamParams
from assay.backends.local.backend import TorchBackend
from assay.errors import CheckpointError, ConfigError
from assay.grpo.buffer import BufferedGroup, RolloutBuffer
from assay.grpo.config import GRPOConfig
from assay.grpo.group_data import advantages_of, flat, group_data, with_data
from assay.grpo.normalise import normalise
from assay.grpo.trainer import GRPOTrainer
from assay.types import Datum, TrajectoryGroup
from support.off_policy import MADE_UP, Recorder, World, a_backend, models, rollouts

SETTINGS: dict[str, Any] = {
    "learning_rate": 0.01,
    "kl_coef": 0.1,
    "loss_fn": "grpo",
    "entropy_coef": 0.01,
    "parity": MADE_UP,
}

LEFTOVER: dict[str, Any] = {"rollout_epochs": 2, "max_staleness": 2}
"""With `aged` groups, one is left with an epoch to go: after the first pass the others are too old."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def informative(count: int, seed: int = 0, version: int = 0) -> list[TrajectoryGroup]:
    """Groups with something to teach, of two or three rollouts each."""
    world = World(models()["policy"])
    world.rng = np.random.default_rng(seed)
    groups = [world.group([[1.0], [0.0], *([[0.25]] if i % 2 else [])]) for i in range(count)]
    return [sampled_by(group, version) for group in groups]


def aged(trainer: GRPOTrainer) -> list[TrajectoryGroup]:
    """Four groups that the policy sampled two optimizer steps ago, and one of now."""
    now = trainer.policy_version
    return [*informative(4, version=now - 2), *informative(1, seed=9, version=now)]


def test_a_staleness_that_would_drop_new_groups_untrained_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_staleness=2 with num_substeps=4.*Raise max_staleness to at least 3"):
        GRPOConfig(max_staleness=2, num_substeps=4)
    trainer = trainer_of(num_substeps=4, rollout_epochs=1, max_staleness=3)
    assert update(trainer, informative(4), reuse=True)["optimizer_steps"] == 4
    assert trainer.buffer.stale == 0


def sampled_by(group: TrajectoryGroup, version: int) -> TrajectoryGroup:
    """The group as if the policy had sampled it after so many optimizer steps."""
    trajectories = tuple(
        replace(
            t,
            transitions=tuple(
                replace(x, completion=replace(x.completion, policy_version=version)) for x in t.transitions
            ),
        )
        for t in group.trajectories
    )
    return replace(group, trajectories=trajectories)


def trainer_of(backend: TorchBackend | None = None, **settings: Any) -> GRPOTrainer:
    return GRPOTrainer.over(backend or a_backend(), GRPOConfig(**{**SETTINGS, **settings}))


def update(trainer: GRPOTrainer, groups: Sequence[TrajectoryGroup], **how: Any) -> dict[str, float]:
    return asyncio.run(trainer.update(groups, **how)).metrics


def weights(trainer: GRPOTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.backend._trained.values()])  # type: ignore[attr-defined]


def uses(recorder: Recorder) -> Counter[bytes]:
    """How often each sequence was in an optimizer step."""
    return Counter(d.tokens.tobytes() + d.targets.tobytes() for data in recorder.data for d in data)


def items_of(backend: TorchBackend, groups: Sequence[TrajectoryGroup], config: GRPOConfig) -> list[BufferedGroup]:
    """The groups' data with reference log-probabilities, made by hand."""
    found = [group_data(group, advantages_of(group, config), config) for group in groups]
    items = [item for item in found if item is not None]
    data = flat(items)
    reference = asyncio.run(backend.logprobs(data, temperature=config.temperature, reference=True))
    return with_data(items, [replace(d, ref_logprobs=r) for d, r in zip(data, reference, strict=True)])


def step_by_hand(backend: TorchBackend, items: Sequence[BufferedGroup], config: GRPOConfig) -> None:
    counted = [tokens for group in items for tokens in group.counted]
    data = normalise(flat(items), config.recipe.aggregation, config.constant_length, counted)
    asyncio.run(backend.forward_backward(data, config.loss))
    c = config
    adam = AdamParams(c.learning_rate, c.beta1, c.beta2, c.eps, c.weight_decay, c.grad_clip_norm)
    asyncio.run(backend.optim_step(adam))


def test_one_pass_takes_one_step_and_rollout_epochs_take_two_equal_to_steps_made_by_hand() -> None:
    groups = rollouts(1.0)
    once, twice, by_hand = trainer_of(), trainer_of(rollout_epochs=2), a_backend()
    items = items_of(by_hand, groups, once.config)
    behaviour = [d.logprobs.copy() for d in flat(items)]

    assert update(once, groups)["optimizer_steps"] == once.backend.policy_version == 1
    step_by_hand(by_hand, items, once.config)
    assert torch.equal(weights(once), weights(GRPOTrainer.over(by_hand, once.config)))

    recorder = Recorder(twice.backend)  # type: ignore[arg-type]
    metrics = update(twice, groups, reuse=True)
    assert metrics["optimizer_steps"] == twice.backend.policy_version == 2
    step_by_hand(by_hand, items, once.config)
    assert torch.equal(weights(twice), weights(GRPOTrainer.over(by_hand, once.config)))
    assert set(uses(recorder).values()) == {2}
    for data in recorder.data:
        assert all(np.array_equal(d.logprobs, b) for d, b in zip(data, behaviour, strict=True))
    first, second = (np.concatenate(output.logprobs) for output in recorder.outputs)
    assert np.abs(first - second).max() > 1e-3, "the second step must see the policy that the first has made"


def test_one_epoch_through_the_buffer_is_one_pass_without() -> None:
    direct, buffered = trainer_of(num_substeps=2), trainer_of(num_substeps=2, rollout_epochs=1)
    update(direct, rollouts(1.0))
    update(buffered, rollouts(1.0), reuse=True)
    assert direct.backend.policy_version == buffered.backend.policy_version == 2
    assert torch.equal(weights(direct), weights(buffered))


@pytest.mark.parametrize(("substeps", "epochs"), [(1, 3), (2, 2), (4, 2), (3, 1)])
def test_steps_are_substeps_times_epochs_and_every_group_is_used_once_an_epoch(substeps: int, epochs: int) -> None:
    trainer = trainer_of(num_substeps=substeps, rollout_epochs=epochs)
    recorder = Recorder(trainer.backend)  # type: ignore[arg-type]
    metrics = update(trainer, informative(4), reuse=True)
    assert metrics["optimizer_steps"] == trainer.backend.policy_version == substeps * epochs
    assert set(uses(recorder).values()) == {epochs}
    assert metrics["rollout_buffer_size"] == 0 and metrics["rollouts_reused"] == 4 * (epochs - 1)
    sizes = [len({d.tokens[:2].tobytes() for d in data}) for data in recorder.data]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("count", "substeps"), [(8, 8), (5, 5), (5, 4), (3, 5)])
def test_a_pass_that_has_begun_is_finished(count: int, substeps: int) -> None:
    # By the last substeps of the second pass less than a quarter of the groups has an epoch left.
    trainer = trainer_of(num_substeps=substeps, rollout_epochs=2)
    recorder = Recorder(trainer.backend)  # type: ignore[arg-type]
    for step in range(2):
        metrics = update(trainer, informative(count, seed=step, version=trainer.policy_version), reuse=True)
        assert metrics["optimizer_steps"] == 2 * min(count, substeps)
        assert metrics["rollout_buffer_size"] == 0 and metrics["rollouts_reused"] == count * (step + 1)
    assert set(uses(recorder).values()) == {2}


def test_what_is_left_when_new_rollouts_are_wanted_is_trained_on_in_the_next_step() -> None:
    trainer = trainer_of(**LEFTOVER)
    recorder = Recorder(trainer.backend)  # type: ignore[arg-type]
    update(trainer, informative(1, seed=8), reuse=True)
    metrics = update(trainer, aged(trainer), reuse=True)
    assert metrics["optimizer_steps"] == 1 and metrics["rollouts_stale"] == 4
    assert metrics["rollouts_fresh_fraction"] == 1 / 5 and trainer.needs_rollouts
    left = uses_left(trainer.buffer)
    assert len(trainer.buffer) == 1 and set(left.values()) == {1}
    update(trainer, informative(2, seed=1, version=trainer.policy_version), reuse=True)
    found = uses(recorder)
    assert len(trainer.buffer) == 0 and all(found[key] == 2 for key in left)
    patient = trainer_of(**LEFTOVER, min_fresh_fraction=0.1)
    update(patient, informative(1, seed=8), reuse=True)
    assert update(patient, aged(patient), reuse=True)["optimizer_steps"] == 2 and len(patient.buffer) == 0


def uses_left(buffer: RolloutBuffer) -> dict[bytes, int]:
    return {d.tokens.tobytes() + d.targets.tobytes(): buffer.epochs - g.uses for g in buffer.fresh for d in g.data}


def test_rollouts_that_became_stale_are_not_trained_on() -> None:
    trainer = trainer_of(num_substeps=2, rollout_epochs=3, max_staleness=2)
    recorder = Recorder(trainer.backend)  # type: ignore[arg-type]
    metrics = update(trainer, informative(4), reuse=True)
    # Steps at versions 0, 1 and 2 are allowed; at 3 every group is too old.
    assert metrics["optimizer_steps"] == 3 and metrics["rollouts_stale"] == 4 and len(trainer.buffer) == 0
    assert sorted(uses(recorder).values()) == sorted([2] * len(recorder.data[0]) + [1] * len(recorder.data[1]))
    late = update(trainer, informative(2, seed=1, version=0), reuse=True)
    assert late["optimizer_steps"] == 0 and late["rollouts_stale"] == 6


def item(version: int) -> BufferedGroup:
    stream = np.full(3, float(version), np.float32)
    ids = np.arange(3)
    return BufferedGroup((Datum(ids, ids + 1, stream, stream, np.ones(3, np.float32)),), version, 2)


def versions(buffer: RolloutBuffer) -> list[int]:
    return [group.policy_version for group in buffer.fresh]


def test_a_saved_buffer_keeps_what_counts_without_being_computed(tmp_path: Path) -> None:
    buffer, loaded = RolloutBuffer(), RolloutBuffer()
    buffer.add([item(1), BufferedGroup((), 2, 3, counted=(4, 1, 5))])
    buffer.save(tmp_path / "buffer.npz")
    loaded.load(tmp_path / "buffer.npz")
    assert [group.counted for group in loaded.fresh] == [(), (4, 1, 5)]
    assert loaded.fresh[1] == buffer.fresh[1]


def test_a_full_buffer_evicts_the_oldest_policies_first() -> None:
    buffer = RolloutBuffer(capacity=3, epochs=2)
    buffer.add([item(5), item(2)])
    buffer.add([item(4), item(2), item(6)])
    assert versions(buffer) == [5, 4, 6] and buffer.evicted == 2
    buffer.add([item(1)])
    assert versions(buffer) == [5, 4, 6] and buffer.evicted == 3, "a late group of an old policy goes before them"
    buffer.add([item(6), item(6)])
    assert versions(buffer) == [6, 6, 6] and [g.id for g in buffer.fresh] == [4, 6, 7]
    same = RolloutBuffer(capacity=2)
    same.add([item(0), item(0), item(0)])
    assert [g.id for g in same.fresh] == [1, 2], "of one policy, the first that came"


def test_new_rollouts_are_wanted_below_a_quarter_of_fresh_groups() -> None:
    buffer = RolloutBuffer(epochs=1)
    assert buffer.wants_rollouts() and buffer.fresh_fraction == 0
    buffer.add([item(0) for _ in range(8)])
    for left, wanted in ((7, False), (6, False), (5, False), (4, False), (3, False), (2, False), (1, True), (0, True)):
        buffer.use(buffer.fresh[:1])
        assert len(buffer) == left and buffer.fresh_fraction == left / 8 and buffer.wants_rollouts() is wanted
    buffer.add([item(1)])
    assert buffer.fresh_fraction == 1 and not buffer.wants_rollouts()
    buffer.add([item(1) for _ in range(3)])
    buffer.retire_stale(2 + 10**6)
    assert len(buffer) == 4, "no bound was set"
    bounded = RolloutBuffer(max_staleness=1)
    bounded.add([item(0), item(0), item(0), item(0), item(1)])
    bounded.retire_stale(2)
    assert versions(bounded) == [1] and bounded.stale == 4 and bounded.fresh_fraction == 1 / 5 < 0.25
    assert bounded.wants_rollouts()


def test_a_trainer_saved_between_two_passes_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    settings = {
        **LEFTOVER,
        **{"kl_target": 1e-4, "tis_cap": 2.0},
        **{"kl_placement": "reward", "kl_estimator": "k1", "ref_refresh_every": 2, "ref_refresh_mix": 0.5},
    }
    going, restored = trainer_of(**settings), trainer_of(**settings)
    update(going, informative(1, seed=8), reuse=True)
    update(going, aged(going), reuse=True)
    assert len(going.buffer) == 1 and going.buffer.fresh[0].uses == 1, "a group must be left half used"
    going.save(tmp_path / "state")
    restored.load(tmp_path / "state")
    assert torch.equal(weights(going), weights(restored))
    for old, new in zip(going.buffer.fresh, restored.buffer.fresh, strict=True):
        assert (old.id, old.uses, old.policy_version, old.rollouts) == (
            new.id,
            new.uses,
            new.policy_version,
            new.rollouts,
        )
        for a, b in zip(old.data, new.data, strict=True):
            assert a.importance is not None and a.ref_logprobs is not None and b.weights is None
            for name in ("tokens", "targets", "logprobs", "advantages", "mask", "ref_logprobs", "importance"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for seed in (1, 2, 3):
        groups = informative(4, seed=seed, version=going.backend.policy_version)
        assert update(going, groups, reuse=True) == update(restored, groups, reuse=True)
        assert torch.equal(weights(going), weights(restored)) and going.kl_coef == restored.kl_coef
    assert going.kl_coef != going.config.kl_coef


def write_version_1(buffer: RolloutBuffer, path: Path) -> None:
    """The file as it was written before groups could count without data."""
    streams = {
        f"{g}.{d}.{field.name}": getattr(datum, field.name)
        for g, group in enumerate(buffer.fresh)
        for d, datum in enumerate(group.data)
        for field in fields(Datum)
    }
    header = {
        "version": 1,
        "counters": [buffer.added, buffer.reused, buffer.stale, buffer.evicted, buffer._spent],
        "groups": [[g.policy_version, g.rollouts, g.id, g.uses, len(g.data)] for g in buffer.fresh],
    }
    present = {name: stream for name, stream in streams.items() if stream is not None}
    with open(path, "wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **present)  # type: ignore[arg-type]


def test_a_buffer_of_the_former_format_has_its_last_pass_as_it_would_have_had(tmp_path: Path) -> None:
    going, restored = trainer_of(**LEFTOVER), trainer_of(**LEFTOVER)
    update(going, informative(1, seed=8), reuse=True)
    update(going, aged(going), reuse=True)
    assert [group.uses for group in going.buffer.fresh] == [1], "a group must be left half used"
    going.save(tmp_path / "state")
    write_version_1(going.buffer, tmp_path / "state" / "rollouts.npz")
    restored.load(tmp_path / "state")
    for seed in (1, 2):
        groups = informative(2, seed=seed, version=going.policy_version)
        found = update(restored, groups, reuse=True)
        assert found == update(going, groups, reuse=True) and found["rollouts_reused"] > 1
        assert torch.equal(weights(going), weights(restored))


@pytest.mark.parametrize("damage", ["cut off", "empty", "a flipped bit", "text", "a group without its data"])
def test_a_damaged_buffer_is_refused_in_one_line_and_nothing_changes(damage: str, tmp_path: Path) -> None:
    trainer = trainer_of(**LEFTOVER)
    trainer.save(tmp_path / "state")
    file = tmp_path / "state" / "rollouts.npz"
    whole = file.read_bytes()
    if damage == "a group without its data":
        with open(file, "wb") as out:
            header = {"version": 1, "counters": [1, 0, 0, 0, 0], "groups": [[0, 2, 0, 1, 1]]}
            np.savez(out, header=np.array(json.dumps(header)))
    else:
        flipped = whole[:80] + bytes([whole[80] ^ 1]) + whole[81:]
        file.write_bytes({"cut off": whole[:-30], "empty": b"", "a flipped bit": flipped, "text": b"none"}[damage])
    before = weights(trainer)
    with pytest.raises(CheckpointError, match=r"rollouts\.npz cannot be read as a rollout buffer.*Use another"):
        trainer.load(tmp_path / "state")
    assert torch.equal(weights(trainer), before) and len(trainer.buffer) == trainer.steps == 0


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_the_kl_coefficient_adapts_on_both_paths_and_the_next_step_uses_it(reuse: bool, placement: str) -> None:
    trainer = trainer_of(kl_target=1e-4, kl_placement=placement, learning_rate=0.0)
    coefs = [update(trainer, rollouts(1.0), reuse=reuse)["kl_coef"] for _ in range(3)]
    assert coefs == pytest.approx([0.1, 0.11, 0.121]) and trainer.kl_coef == pytest.approx(0.1331)
    # The gradient is linear in the coefficient.
    gradients = []
    for coef in (0.0, 0.1, 0.121):
        trainer.kl_coef = coef
        recorder = Recorder(trainer.backend)  # type: ignore[arg-type]
        update(trainer, rollouts(1.0), reuse=reuse)
        gradients.append(recorder.gradients[0])
    penalty = gradients[1] - gradients[0]
    assert penalty.norm() > 1e-4
    assert (gradients[2] - gradients[0] - 1.21 * penalty).norm() < 1e-3 * penalty.norm()
    low = trainer_of(kl_target=100.0, kl_placement=placement)
    update(low, rollouts(1.0), reuse=reuse)
    assert low.kl_coef == pytest.approx(0.09)


@pytest.mark.parametrize("mix", [1.0, 0.25])
def test_a_refreshed_reference_is_moved_towards_the_policy_and_buffered_rollouts_see_it(mix: float) -> None:
    trainer = trainer_of(ref_refresh_every=3, ref_refresh_mix=mix, **LEFTOVER)
    backend = trainer.backend
    update(trainer, informative(1, seed=8), reuse=True)
    update(trainer, aged(trainer), reuse=True)
    kept = [d for group in trainer.buffer.fresh for d in group.data]
    old = asyncio.run(backend.logprobs(kept, reference=True))
    for datum, want in zip(kept, old, strict=True):
        np.testing.assert_allclose(datum.ref_logprobs, want, atol=1e-5, err_msg="after two steps, not yet")
    before = {n: t.clone() for n, t in backend._reference.weights().items()}  # type: ignore[attr-defined]

    trainer.buffer.epochs = 3  # so that these have a pass left, too, when the reference moves
    update(trainer, aged(trainer), reuse=True)
    reference = backend._reference.weights()  # type: ignore[attr-defined]
    for name, policy in backend._trained.items():  # type: ignore[attr-defined]
        torch.testing.assert_close(reference[name], (1 - mix) * before[name] + mix * policy.detach(), atol=1e-6, rtol=0)
    kept = [d for group in trainer.buffer.fresh for d in group.data]
    assert kept, "some rollouts must be left in the buffer"
    for new in (True, False) if mix == 1 else (True,):
        for datum, want in zip(kept, asyncio.run(backend.logprobs(kept, reference=new)), strict=True):
            np.testing.assert_allclose(datum.ref_logprobs, want, atol=1e-5)
