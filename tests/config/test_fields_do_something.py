"""Every setting of a run is read by code that does something with it, while runs that use it are really done.

A setting does something where code outside checks and descriptions reads it on the run's own config; or where a change
of it changes what the run's trainer is given, of which `tests/grpo/test_grpo_config.py` shows that each part matters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import chz
import pytest
import torch

from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.hardware import ALLOCATOR_VARIABLES, prepare_process
from assay.backends.local.models import add_lora
from assay.cli.runs.eval import measure
from assay.config import AtLeast, Settings, UsedWhen, refuse, resolved
from assay.config.idle import unread
from assay.config.schema import Setting, settings
from assay.config.values import choices
from assay.envs.base import DatasetBuilder
from assay.errors import AssayError, MissingDependencyError
from assay.grpo.config import AlgorithmConfig
from assay.training.config import EvalConfig, OptimizerConfig, SFTConfig, TrainingConfig
from support.recorded_reads import Reads, is_read, recorded_reads
from support.tiny_models import tiny_model
from support.tiny_run import run, tiny

CLASSES = (
    *(TrainingConfig, OptimizerConfig, SFTConfig, EvalConfig),
    *(AlgorithmConfig, LocalBackend, ScratchModel, DatasetBuilder),
)
FIELDS = [(cls, name) for cls in CLASSES for name in settings(cls)]
NODES: Mapping[type, str] = {TrainingConfig: "", OptimizerConfig: "optimizer", AlgorithmConfig: "grpo"}
"""Where the classes stand that a trainer is given the settings of."""
PENALTY = AlgorithmConfig(
    **{"kl_estimator": "k1", "kl_placement": "reward", "kl_target": 0.1, "kl_controller": "ziegler"},
    **{"ref_refresh_every": 1},
)
FULL: dict[str, Any] = {
    "kl_penalty_coef": 0.1,
    "kl_discount_factor": 0.5,
    "rollout_epochs": 2,
    "loss_fn": "ppo",
    "max_batches": 2,
    "grpo": PENALTY,
}
"""A run in which nothing that a trainer is given is idle but turns."""
TURNS: dict[str, Any] = {
    "mode": "multi_turn",
    "max_turns": 2,
    "dynamic_sampling_rounds": 1,
    "max_batches": 1,
    "keep_best": 1,
    "sft": SFTConfig(num_steps=0),
}


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reads]:
    """What two runs with their reports, an evaluation, and the making of parts that this machine lacks read."""
    place = tmp_path_factory.mktemp("runs")
    precision, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    with pytest.MonkeyPatch.context() as patch, recorded_reads() as found:
        run(tiny(place / "full", **FULL))
        config = tiny(place / "turns", **TURNS)
        run(config)
        measure(config.log_path, config, None)
        add_lora(tiny_model("qwen2"), 2, LocalBackend(), 0)
        for name in ALLOCATOR_VARIABLES:
            patch.setenv(name, "")
        prepare_process(LocalBackend(device="cuda"))
        patch.setitem(sys.modules, "wandb", None)
        with pytest.raises(MissingDependencyError, match="wandb_project"):
            run(tiny(place / "wandb", wandb_project="p", wandb_name="n"))
    yield found
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = benchmark


def others(setting: Setting, value: Any) -> Iterator[Any]:
    """Further values of a setting, some of which are possible."""
    yield from (choice for choice in choices(setting.annotation) if choice != value)
    if isinstance(value, bool) or value is None:
        yield from (v for v in (True, False) if v is not value)
    if isinstance(value, Mapping):
        yield {"clip_high_threshold": 1.5}
    if isinstance(value, str):
        yield "cispo"
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield from (0.25, 1, 2, 3, 0.5)


def changes_the_trainer(cls: type, name: str) -> bool:
    """Whether some other value gives the run's trainer other settings, in a run that uses it."""
    if cls not in NODES:
        return False
    for scenario in (FULL, TURNS, {"kl_penalty_coef": 0.1}, {"grpo": AlgorithmConfig(aggregation="constant")}):
        config = tiny(Path("unused"), **scenario)
        node = getattr(config, NODES[cls]) if NODES[cls] else config
        if name in unread(config) or chz.is_chz(value := getattr(node, name)):
            continue
        for other in others(settings(cls)[name], value):
            try:
                changed = chz.replace(node, **{name: other})
                whole = chz.replace(config, **{NODES[cls]: changed}) if NODES[cls] else changed
            except AssayError:
                continue
            if resolved(whole.trainer()) != resolved(config.trainer()):
                return True
    return False


def does_something(reads: Reads, cls: type, name: str) -> bool:
    """See the module."""
    return is_read(reads, cls, name) or changes_the_trainer(cls, name)


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=[f"{cls.__name__}.{name}" for cls, name in FIELDS])
def test_a_setting_does_something(reads: Reads, cls: type, name: str) -> None:
    assert does_something(reads, cls, name), (
        f"nothing read {cls.__name__}.{name} in runs that use it, and no other value of it changes the trainer: "
        "setting it would do nothing. Read it, remove it, or let a run of this module use it."
    )


@chz.chz
class Made(Settings):
    """What code reads of this is known."""

    used: int = 1
    """Read."""
    checked: Annotated[int, AtLeast(0)] = 1
    """Read by checks alone."""
    printed: Literal[1, 2] = 1
    """Read by what prints the config alone."""
    dead: int = 1
    """Read by nothing."""
    gate: Annotated[int, UsedWhen("used", 1)] = 1
    """Read by nothing."""

    @chz.validate
    def _possible(self) -> None:
        refuse([f"checked={self.checked} is odd"] if self.checked > 9 else [])


class Elsewhere:
    """Has an attribute of the same name as a setting."""

    dead = 1


def test_reads_by_checks_copies_and_dumps_do_not_count() -> None:
    with recorded_reads() as found:
        made = chz.replace(Made(used=1), checked=3)
        assert resolved(made)["printed"] == 1 and repr(made) and made == chz.replace(made)
        assert Elsewhere().dead == made.used == 1
    assert found == {(Made, "used")}
    with recorded_reads() as found:
        assert made.dead == 1
    assert not does_something(set(), TrainingConfig, "save_every"), "nothing but a read would show it"
    assert found == {(Made, "dead")} and is_read(found, Settings, "dead") and not is_read(found, TrainingConfig, "dead")
