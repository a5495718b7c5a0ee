"""The table of metrics against real runs: whatever is logged is explained, and whatever is explained is logged."""

from __future__ import annotations

import re

import pytest
import torch

from assay import GRPOConfig, GRPOTrainer
from assay.backends.config import ScratchModel
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.envs.chess.engine.stockfish import StockfishConfig
from assay.envs.kernelbench.records import batch_metrics
from assay.grpo.config import AlgorithmConfig
from assay.training.config import SFTConfig, TrainingConfig, load_config
from assay.training.metrics.names import METRICS, ROLLOUTS
from assay.types import TrajectoryGroup
from support.kernel_run import kernels
from support.kernel_turns import TASK, fast, rollout
from support.own_rollouts import made_up
from support.sandboxes import needs_walls
from support.scripted_judge import scripted_judge
from support.tiny_models import tiny_model
from support.tiny_run import read_lines, run, tiny

pytestmark = needs_walls

HEADER = {"version", "step", "phase", "index"}
EVALUATED = "eval/<rollout metric>"
NO_SFT = SFTConfig(num_steps=0)
MONITOR = [
    "sft.num_steps=1",
    "max_batches=1",
    "local.device=cpu",
    "scratch.hidden_size=32",
    "scratch.num_layers=1",
    "tensorboard_enabled=false",
    "dataset_builder.num_train=8",
    "dataset_builder.num_heldout=2",
    "dataset_builder.batch_size=2",
    "dataset_builder.group_size=2",
    "dataset_builder.reward.train_with_monitor=true",
    "dataset_builder.reward.invalid_reward=-2",
    "dataset_builder.judge.api_key_env=",
]


def entry(name: str) -> str | None:
    """The entry of the table that explains a metric: the name itself, or the pattern that spells out most of it."""
    if name in METRICS:
        return name
    if name.startswith("eval/") and entry(name.removeprefix("eval/")) in ROLLOUTS:
        return EVALUATED
    patterns = [key for key in METRICS if re.fullmatch(re.sub("<[^>]*>", ".+", key), name) and key != EVALUATED]
    return max(patterns, key=lambda key: len(re.sub("<[^>]*>", "", key)), default=None)


def logged(config: TrainingConfig) -> set[str]:
    """The names of all metrics of a run."""
    run(config)
    return {name for record in read_lines(config.log_path / "metrics.jsonl") for name in record} - HEADER


def by_itself() -> set[str]:
    """The names of a trainer's metrics in both of its modes, as a run would log them."""
    model = tiny_model("llama")
    trainer = GRPOTrainer(model, None, GRPOConfig(kl_coef=0.01))
    found = trainer.training_step(made_up(model)).keys()
    found |= trainer.training_step_with_rollout_epochs(made_up(model, seed=1)).keys()
    return {name if entry(name) in ROLLOUTS or name.startswith("parity/") else f"train/{name}" for name in found}


def timed_kernels() -> set[str]:
    """Names of what is measured on a GPU alone, here or at Modal."""
    groups = [TrajectoryGroup(TASK, (rollout(fast(1.5)),))]
    measured = {"env/speedup", "eval/kernel/mean_speedup", "eval/kernel/speedup_mean"}
    waits = {"reward_engine/grader/modal_mean_s", "time/modal_eval_mean"}
    return set(batch_metrics(groups, several_turns=True)) | measured | waits


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What each kind of run logs."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("runs")
    several = {"mode": "multi_turn", "max_turns": 2, "rollout_epochs": 2, "loss_fn": "grpo", "kl_penalty_coef": 0.2}
    corrected = AlgorithmConfig(tis_cap=2.0)
    positions = ChessDatasetBuilder(
        num_train=2, num_heldout=2, batch_size=2, group_size=2, stockfish=StockfishConfig(nodes=50)
    )
    letters = ScratchModel(hidden_size=32, num_layers=1, context_length=64, vocab_size=128)
    with scripted_judge(lambda text: "<answer>True</answer>") as judge:
        judged = f"dataset_builder.judge.base_url={judge.base_url}"
        monitored = logged(load_config("monitor", [*MONITOR, judged, f"log_path={path / 'run'}", f"cache_dir={path}"]))
    return {
        "single turn": logged(tiny(path / "single", sft=SFTConfig(num_steps=1, lr_warmup_steps=0), max_batches=1)),
        "several turns": logged(tiny(path / "several", sft=NO_SFT, max_batches=1, grpo=corrected, **several)),
        "chess": logged(
            tiny(path / "chess", sft=NO_SFT, max_batches=1, max_tokens=10, dataset_builder=positions, scratch=letters)
        ),
        "monitor": monitored,
        "kernels": logged(kernels(path / "kernels", mode="multi_turn", max_turns=3)) | timed_kernels(),
        "by itself": by_itself(),
    }


@pytest.mark.parametrize("kind", ["single turn", "several turns", "chess", "monitor", "kernels", "by itself"])
def test_whatever_is_logged_is_in_the_table(names: dict[str, set[str]], kind: str) -> None:
    assert [name for name in sorted(names[kind]) if entry(name) is None] == []


def test_whatever_is_in_the_table_is_logged(names: dict[str, set[str]]) -> None:
    assert METRICS.keys() - {entry(name) for found in names.values() for name in found} == set()


def test_a_trainer_by_itself_has_the_names_of_a_run(names: dict[str, set[str]]) -> None:
    ours = {name for name in names["several turns"] if name.startswith(("train/", "reward", "rollout/", "part/"))}
    # Its rollouts have one turn each.
    assert ours - names["by itself"] == {"train/tis_weight", "rollout/lone_turn_fraction"}


def test_the_narrowest_entry_explains_a_name() -> None:
    assert entry("tag/P/white/reward") == "tag/<tag>/reward"
    assert entry("tag/P/white/legal") == "tag/<tag>/<metric>"
    assert entry("eval/tag/P/legal") == entry("eval/rollout/turns") == EVALUATED
    assert entry("eval/ci95/legal") == "eval/ci95/<metric>"
    assert [entry(name) for name in ("reward/median", "eval/loss", "train/part/value", "perf/x")] == [None] * 4
