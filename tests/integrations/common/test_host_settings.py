"""What hosts pass as settings: where they come from, which wins, and how wrong ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.config.sources import COMMAND_LINE
from assay.envs.monitor.rewards import ClassBalance, MonitorReward
from assay.errors import ConfigError
from assay.integrations.common.settings import CONFIG_ENV, HostConfig, plain, read_settings
from assay.rewards import JudgeConfig
from assay.rewards.named import find_reward, find_rewards
from support.host_rewards import ShareOfWords


def test_the_file_ranks_below_keywords_and_above_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rewards.yaml"
    file.write_text("reward: m:r\njudge:\n  model: from-file\nengine.max_in_flight: 128\n")
    monkeypatch.setenv(CONFIG_ENV, str(file))
    config = read_settings({"judge": {"model": "said"}}, {"engine.on_failure": "group_mean", "reward": "default"})
    assert (config.reward, config.judge.model) == (("m:r",), "said")
    assert (config.engine.max_in_flight, config.engine.on_failure) == (128, "group_mean")


def test_nested_and_dotted_keys_are_the_same() -> None:
    nested = read_settings({"reward": "m:r", "judge": {"model": "x"}, "options": {"scale": 2, "deep": {"k": [1]}}})
    dotted = read_settings({"reward": "m:r", "judge.model": "x", "options.scale": 2, "options.deep.k": [1]})
    assert nested == dotted
    assert nested.options == {"scale": 2, "deep": {"k": [1]}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"modle": "x"}, r"modle .*does not exist.*Did you mean judge\.model"),
        ({"max_concurrent": 60}, r"max_concurrent .*go under options: options\.NAME="),
        ({"engine": {"max_in_flight": "many"}}, r"engine\.max_in_flight=many .*a whole number"),
        (
            {"engine": {"on_failure": "constant"}},
            "engine.on_failure=constant gives failed samples engine.failure_value",
        ),
        ({"share": "rya"}, "one of auto, ray, hub, process"),
        ({"judge": "gpt"}, "judge"),
    ],
)
def test_wrong_settings_are_refused_with_a_cure(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings({"reward": "m:r"} | given)


def test_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_ENV, "/nowhere.yaml")
    with pytest.raises(ConfigError, match=r"Cannot read /nowhere\.yaml, which ASSAY_REWARDS_CONFIG names"):
        read_settings({})


def test_the_monitors_variables_rank_below_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_WITH_MONITOR", "true")
    monkeypatch.setenv("MONITOR_MODEL_NAME", "from-environment")
    monkeypatch.setenv("MONITOR_CACHE", "false")
    monkeypatch.setenv("MONITOR_CORRECT_REWARD", "2.5")
    config = read_settings({"judge.model": "said"})
    assert (config.judge.model, config.engine.cache) == ("said", False)
    reward = find_rewards(config.reward, config.options, config.judge)
    assert isinstance(reward, MonitorReward)
    assert (reward.config.train_with_monitor, reward.config.monitor_correct_reward) == (True, 2.5)
    assert read_settings({"reward": "m:r"}).judge.model == HostConfig().judge.model  # no business of other rewards


def test_the_monitors_classes_are_counted_in_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REBALANCE_MONITOR_REWARD", "true")
    assert "rebalance_monitor_reward" not in read_settings({}).options, "nothing asks the monitor"
    monkeypatch.setenv("TRAIN_WITH_MONITOR", "true")
    config = read_settings({})
    with pytest.raises(ConfigError, match=r"options\.train_data"):
        find_rewards(config.reward, config.options, config.judge)
    rows = [{"text": f"problem {i}", "measurements": [True], "is_correct": i < 10} for i in range(40)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "validation.jsonl").write_text(json.dumps({**rows[0], "text": "held out"}) + "\n")
    config = read_settings({"options.train_data": str(tmp_path)})
    reward = find_rewards(config.reward, config.options, config.judge)
    assert isinstance(reward, MonitorReward) and reward.balance == ClassBalance(0.25)


def test_values_of_hosts_become_plain_copies() -> None:
    inner = {"a": np.int64(3), "b": np.array([1.5, 2.5]), "c": (1, {"d": np.bool_(True)}), "e": None}
    array = np.empty(2, dtype=object)
    array[:] = [inner, [np.str_("x")]]
    found = plain(array)
    assert found == [{"a": 3, "b": [1.5, 2.5], "c": [1, {"d": True}], "e": None}, ["x"]]
    assert [type(v) for v in (found[0]["a"], found[0]["c"][1]["d"], found[1][0])] == [int, bool, str]
    found[0]["b"].append(1)
    assert inner["b"].tolist() == [1.5, 2.5]


def test_rewards_are_found_in_modules_and_files(tmp_path: Path) -> None:
    assert find_reward("support.host_rewards:ShareOfWords", {"scale": 2.0}, JudgeConfig()) == ShareOfWords(2.0)
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom support.host_rewards import ShareOfWords\nready = ShareOfWords(3.0)\n"
        "def made(judge, scale=1.0):\n    return ShareOfWords(scale, name=judge.model)\n"
    )
    assert find_reward(f"{file}:ready", {}, JudgeConfig()) == ShareOfWords(3.0)
    assert find_reward(f"{file}:made", {"scale": 4.0}, JudgeConfig(model="m")) == ShareOfWords(4.0, name="m")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("jugde", {}, "of this name among math, judge, chess, kernelbench, monitor. Did you mean judge?"),
        ("no_such_module:x", {}, "in the module no_such_module, which is not installed"),
        ("missing.py:x", {}, "missing.py, which is not a file"),
        ("support.host_rewards:Nothing", {}, "'Nothing' in support.host_rewards. It has .*ShareOfWords"),
        ("support.host_rewards:ShareOfWords", {"scael": 1}, "unexpected keyword argument 'scael'"),
        ("support.host_rewards:dataclass", {}, "made a .*, which is not a reward|is not a reward"),
        ("monitor", {"bonus": 1}, "no options bonus.*verbose_rewards"),
        ("monitor", {"format_reward": "much"}, "a number"),
    ],
)
def test_rewards_that_cannot_be_had(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_reward(name, options, JudgeConfig())


def test_options_of_the_command_line_are_json_where_they_are_json() -> None:
    given = {"reward": "m:r", "options.within": "2", "options.deep.flags": "[true, null]", "options.text": "2 cm"}
    options = {"within": 2, "deep": {"flags": [True, None]}, "text": "2 cm"}
    assert read_settings(given, said=COMMAND_LINE).options == options
    assert read_settings(given).options["within"] == "2"  # in Python, text is text
