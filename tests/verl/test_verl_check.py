"""The check, on configs that verl's own YAML files compose to: what verl 0.9 ignores is found, what it reads is not."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
from verl.trainer.ppo.reward import get_custom_reward_fn, resolve_reward_manager_cls

from assay.errors import ConfigError
from assay.integrations.verl.__main__ import main
from assay.integrations.verl.check import MANAGERS_09, check_config, compose

ROOT = Path(__file__).parents[2]
OURS = "pkg://assay.integrations.verl"
FUNCTION = [f"reward.custom_reward_function.path={OURS}", "reward.custom_reward_function.name=acompute_score"]
KWARGS = "+reward.custom_reward_function.reward_kwargs"
LOCAL = [f"{KWARGS}.reward=support.host_rewards:ShareOfWords"]
MANAGER = [
    "reward.reward_manager.source=importlib",
    f"reward.reward_manager.module.path={OURS}.manager",
    "reward.reward_manager.name=AssayRewardManager",
]


def found(*overrides: str) -> dict[str, str]:
    """Key -> level and message of every finding."""
    return {f.key: f"{f.level}: {f.message}" for f in check_config(compose(overrides))}


@pytest.mark.parametrize("good", [[*FUNCTION, *LOCAL], [*MANAGER, *LOCAL]])
def test_nothing_is_found_in_a_config_that_works(good: list[str]) -> None:
    assert found(*good) == {}


def test_the_specifications_keys_are_ignored_by_this_verl() -> None:
    """verl accepts them, and would score with rules of its own."""
    old = ["custom_reward_function.path=rewards.py", "reward_model.reward_manager=batch"]
    assert get_custom_reward_fn(compose(old)) is None
    findings = found(*old)
    assert "Set reward.custom_reward_function.path=rewards.py" in findings["custom_reward_function.path"]
    assert "verl 0.9 has no manager batch" in findings["reward_model.reward_manager"]
    assert "not with your reward" in findings["reward.custom_reward_function.path"]
    assert all(message.startswith("error") for message in findings.values())


IGNORED = {
    "reward_model.num_workers=4": ("reward_model.num_workers", "Set reward.num_workers=4."),
    "reward_model.enable=true": ("reward_model.enable", "Set reward.reward_model.enable=True."),
    "sandbox_fusion.url=http://s": ("sandbox_fusion.url", "Set reward.sandbox_fusion.url=http://s."),
    "+reward_model.max_concurrent=60": ("reward_model.max_concurrent", "reward_kwargs.engine.max_in_flight=60."),
    "+reward.max_rpm=100": ("reward.max_rpm", "only the manager rate_limited reads it"),
    "+reward.reward_kwargs.k=1": ("reward.reward_kwargs", "Set reward.custom_reward_function.reward_kwargs."),
    "reward.reward_manager.module.path=m.py": ("reward.reward_manager.module.path", "source=importlib"),
    "reward.custom_reward_function.name=compute_score": ("reward.custom_reward_function.name", "acompute_score"),
    "trainer.use_v1=false": ("trainer.use_v1", "ends the run"),
}
"""Overrides that verl accepts, where each is found, and what is said of it."""


def test_what_verl_would_ignore() -> None:
    findings = found(*FUNCTION, *LOCAL, *IGNORED)
    assert findings.keys() == {key for key, _ in IGNORED.values()}
    for key, message in IGNORED.values():
        assert message in findings[key]


@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        ("reward.reward_manager.name=prime", "reward.reward_manager.name", "no manager prime"),
        ("reward.reward_manager.name=naiv", "reward.reward_manager.name", "naiv is not a manager"),
        ("reward.reward_manager.name=rate_limited", "reward.reward_manager.name", "the reward 0.0"),
        ("reward.custom_reward_function.name=nothing", "reward.custom_reward_function.path", "has no nothing"),
        (f"{KWARGS}.modle=x", "reward.custom_reward_function.reward_kwargs", "Did you mean judge.model"),
    ],
)
def test_what_verl_would_not_find_or_turn_into_zeros(override: str, key: str, message: str) -> None:
    assert message in found(*FUNCTION, *LOCAL, override)[key]


def test_callables_that_verl_would_not_await(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Judge:\n    async def __call__(self, **kw): return 1.0\njudge = Judge()\nnumber = 3\n")
    path = f"reward.custom_reward_function.path={file}"
    findings = found(path, "reward.custom_reward_function.name=judge")
    assert "takes its coroutine for the reward" in findings["reward.custom_reward_function.name"]
    assert (
        "cannot be called"
        in found(path, "reward.custom_reward_function.name=number")["reward.custom_reward_function.name"]
    )


def test_a_missing_key_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSAY_SOME_KEY", raising=False)
    findings = found(
        *FUNCTION, f"{KWARGS}.reward=support.host_rewards:EchoedScore", f"{KWARGS}.judge.api_key_env=ASSAY_SOME_KEY"
    )
    assert findings["reward.custom_reward_function.reward_kwargs"].startswith("warning: ")


def test_the_list_of_managers_is_verls() -> None:
    assert set(MANAGERS_09) == set(REWARD_MANAGER) - {"assay"}


def test_overrides_that_hydra_refuses() -> None:
    with pytest.raises(ConfigError, match="cannot be composed"):
        compose(["reward.no_such_key=1"])


def test_the_command_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *FUNCTION, *LOCAL]) == 0
    assert "as configured" in capsys.readouterr().out
    assert main(["check", "reward_model.reward_manager=batch"]) == 2
    assert "error: reward_model.reward_manager: verl 0.9 accepts this key" in capsys.readouterr().out
    assert main(["path"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "__init__.py"


def script_overrides(**environment: str) -> list[str]:
    """What `examples/run_grpo.sh` would give to verl."""
    done = subprocess.run(
        ["bash", ROOT / "examples" / "run_grpo.sh", "--print"],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return shlex.split(done.stdout)


def test_the_example_script_is_bash_and_its_overrides_are_read_by_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    assert subprocess.run(["bash", "-n", ROOT / "examples" / "run_grpo.sh"]).returncode == 0
    overrides = script_overrides(MODEL="m", TRAIN_FILES="t.parquet", VAL_FILES="v.parquet")
    config = compose(overrides)
    assert [str(f) for f in check_config(config) if f.level == "error"] == []
    assert resolve_reward_manager_cls(config).__name__ == "AssayRewardManager"
    assert config.actor_rollout_ref.model.path == "m"
    assert config.trainer.use_v1


def test_the_example_script_for_old_versions_uses_old_keys() -> None:
    overrides = script_overrides(MODEL="m", TRAIN_FILES="t", VAL_FILES="v", VERL_GENERATION="legacy")
    assert "reward_model.reward_manager=batch" in overrides
    assert any(re.fullmatch(r"custom_reward_function\.path=.*/verl/__init__\.py", o) for o in overrides)
    assert not any(o.lstrip("+").startswith("reward.") for o in overrides)
