"""Whole runs with a loss of the user's own: equal to ppo where it is ppo, and resumed like any other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.backends.base import Capabilities
from assay.backends.config import ScratchModel
from assay.cli.main import main as assay
from assay.cli.runs.eval import measure
from assay.config import from_resolved
from assay.errors import ConfigError
from assay.training.config import SFTConfig, TrainingConfig
from assay.training.session import beyond
from support.losses import PPO, SQUARE, own_loss
from support.tiny_run import assert_same_run, final_weights, kill, outcome, run, tiny

SHORT: dict[str, Any] = {"sft": SFTConfig(num_steps=0), "num_substeps": 2, "rollout_epochs": 2}
CAN = Capabilities(
    losses=frozenset({"ppo", "importance_sampling"}),
    terms=frozenset(),
    lora=True,
    full_weights=True,
    exact_resume=True,
    batch_invariant=True,
)


def test_a_loss_that_equals_ppo_gives_the_run_of_ppo(tmp_path: Path) -> None:
    run(tiny(tmp_path / "own", loss_fn=own_loss(tmp_path, PPO), **SHORT))
    run(tiny(tmp_path / "ppo", loss_fn="ppo", **SHORT))
    own, ppo = outcome(tmp_path / "own"), outcome(tmp_path / "ppo")
    traces = [re.sub(rb'"run":"\w+"', b"", found.pop("traces")) for found in (own, ppo)]  # the id names the settings
    assert traces[0] == traces[1] and own == ppo


def test_another_loss_is_kept_by_the_run_which_resumes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = own_loss(tmp_path / "losses", SQUARE)
    monkeypatch.chdir(tmp_path / "losses")
    config = tiny(tmp_path / "run", loss_fn="own_loss.py:RECIPE", loss_fn_config={"pull": 0.3}, **SHORT)
    kill(config, "assay.grpo.trainer", "GRPOTrainer.update", 4)
    kept = json.loads((tmp_path / "run/config.json").read_text())
    assert kept["loss_fn"] == reference and Path(reference.rpartition(":")[0]).is_absolute()
    monkeypatch.chdir(tmp_path)
    config = tiny(tmp_path / "run", loss_fn=reference, loss_fn_config={"pull": 0.3}, **SHORT)
    run(config)
    run(tiny(tmp_path / "whole", loss_fn=reference, loss_fn_config={"pull": 0.3}, **SHORT))
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    run(tiny(tmp_path / "ppo", loss_fn="ppo", **SHORT))
    assert final_weights(tmp_path / "run") != final_weights(tmp_path / "ppo")
    assert measure(tmp_path / "run", config, None)["checkpoint"] == "rl_000006"


def test_the_config_of_such_a_run_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = own_loss(tmp_path)
    assert assay(["config", f"loss_fn={reference}"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["loss_fn"] == reference
    assert from_resolved(TrainingConfig, record).trainer().loss.name == "my_ppo"


def test_the_plan_names_the_loss_and_what_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = own_loss(tmp_path, SQUARE)
    assert assay(["train", "--config", "chess", "--dry-run", f"loss_fn={reference}", "loss_fn_config.pull=3"]) == 0
    said = capsys.readouterr().out
    assert f"Loss: {reference} (square, pull=3, scale=2, aggregation=sequence), advantages divided" in said


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("loss_fn={own}E", "looked for the loss 'RECIPEE' in {file}. It has RECIPE."),
        ("loss_fn={file}", "which loss of that file? Put its name after a colon: {file}:Name."),
        ("loss_fn=no/such.py:RECIPE", "which is not a file that can be read"),
        ("loss_fn=dro", "looked for a loss of this name among importance_sampling, ppo, cispo, grpo, dr_grpo, dapo"),
        ("loss_fn_config.lwo=1", "loss_fn_config sets lwo, which square does not read"),
    ],
)
def test_what_is_no_loss_is_refused_when_the_config_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, message: str
) -> None:
    own = own_loss(tmp_path, SQUARE)
    places = {"own": own, "file": own.rpartition(":")[0]}
    assert assay(["train", "--config", "chess", "--dry-run", f"loss_fn={own}", setting.format(**places)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message.format(**places) in error


def test_a_run_cannot_hold_what_its_config_file_could_not(tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", loss_fn=own_loss(tmp_path)).trainer().recipe
    with pytest.raises(ConfigError, match=r"loss_fn=Recipe\(.*: expected text"):
        tiny(tmp_path / "run", loss_fn=recipe)


def test_a_backend_is_asked_for_nothing_that_it_cannot_do(tmp_path: Path) -> None:
    def said(can: Capabilities, **changes: Any) -> str:
        return " ".join(beyond(can, tiny(tmp_path / "run", **changes)))

    assert said(CAN, loss_fn="dapo") == ""
    own = said(CAN, loss_fn=own_loss(tmp_path))
    assert "is a function of your own (my_ppo), and backend=local computes only losses that it knows by name" in own
    assert own.endswith("Set backend=local, or loss_fn to one of importance_sampling, ppo, grpo, dr_grpo, dapo, rloo.")
    assert "loss_fn=cispo needs the surrogate cispo, which backend=local does not" in said(CAN, loss_fn="cispo")
    assert "cannot compute kl terms in the loss. Set grpo.kl_placement=reward" in said(CAN, kl_penalty_coef=0.1)
    adapters = replace(CAN, full_weights=False)
    assert "lora_rank=0 trains all weights, but backend=local can train only adapters" in said(adapters)
    full = replace(CAN, lora=False)
    assert "cannot train adapters. Set lora_rank=0." in said(full, model_name="m", lora_rank=2, scratch=ScratchModel())
