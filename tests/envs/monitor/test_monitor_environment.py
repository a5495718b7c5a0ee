import logging

import pytest

from assay.config import from_resolved, resolved
from assay.config.schema import settings
from assay.envs.monitor import variables
from assay.envs.monitor.variables import DEFAULT_K, VARIABLES, announce, monitor_settings
from assay.errors import ConfigError
from assay.training.config import TrainingConfig, load_config

SETTINGS = {
    "TRAIN_WITH_MONITOR": ("true", "reward.train_with_monitor", True),
    "MONITOR_CORRECT_REWARD": ("-1.5", "reward.monitor_correct_reward", -1.5),
    "MONITOR_WRONG_REWARD": ("2", "reward.monitor_wrong_reward", 2.0),
    "REBALANCE_MONITOR_REWARD": ("True", "reward.rebalance_monitor_reward", True),
    "VERBOSE_REWARDS": ("-0.002", "reward.verbose_rewards", -0.002),
    "MONITOR_MODEL_NAME": ("gpt-x", "judge.model", "gpt-x"),
    "MONITOR_CACHE": ("false", "engine.cache", False),
}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in (*VARIABLES, "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    announce.cache_clear()
    variables._warn_of_unknown.cache_clear()


def node(config, key):
    for name in key.split("."):
        config = getattr(config, name)
    return config


@pytest.mark.parametrize(("name", "text", "key", "value"), [(n, *row) for n, row in SETTINGS.items()])
def test_each_variable_sets_its_setting_and_an_explicit_one_wins(monkeypatch, name, text, key, value):
    default = node(load_config("monitor").dataset_builder, key)
    assert default != value
    monkeypatch.setenv("TRAIN_WITH_MONITOR", "true")
    monkeypatch.setenv(name, text)
    assert node(load_config("monitor").dataset_builder, key) == value
    explicit = load_config("monitor", [f"dataset_builder.{key}={default}"])
    assert node(explicit.dataset_builder, key) == default


def test_every_variable_is_tried_here():
    assert set(SETTINGS) == set(VARIABLES)


def test_a_yaml_file_wins_over_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MONITOR_MODEL_NAME", "from-env")
    monkeypatch.setenv("TRAIN_WITH_MONITOR", "true")
    file = tmp_path / "mine.yaml"
    file.write_text("dataset_builder: {type: monitor, judge: {model: from-file}}")
    assert load_config(str(file)).dataset_builder.judge.model == "from-file"
    # A preset that chooses the builder says nothing of the model; the class may also be chosen last.
    assert load_config("chess", ["dataset_builder=monitor"]).dataset_builder.judge.model == "from-env"


def test_other_environments_do_not_read_them(monkeypatch, caplog):
    monkeypatch.setenv("MONITOR_CORRECT_REWARD", "not a number")
    load_config("chess")
    assert not caplog.records


def test_what_was_taken_is_logged_and_recorded_and_no_longer_read(monkeypatch, caplog):
    monkeypatch.setenv("TRAIN_WITH_MONITOR", "true")
    monkeypatch.setenv("MONITOR_WRONG_REWARD", "0.25")
    monkeypatch.setenv("MONITOR_MODEL_NAME", "m-env")
    with caplog.at_level(logging.INFO):
        config = load_config("monitor", ["dataset_builder.judge.model=m-cli"])
    (line,) = [r.getMessage() for r in caplog.records if "environment" in r.getMessage()]
    assert "dataset_builder.reward.monitor_wrong_reward=0.25" in line and "m-env" not in line
    # A run that is resumed elsewhere is the run that was recorded.
    monkeypatch.setenv("MONITOR_WRONG_REWARD", "9")
    assert from_resolved(TrainingConfig, resolved(config)).dataset_builder.reward.monitor_wrong_reward == 0.25


def test_a_key_is_never_a_setting_and_never_said(monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-123")
    monkeypatch.setenv("TRAIN_WITH_MONITOR", "true")
    with caplog.at_level(logging.DEBUG):
        config = load_config("monitor")
    assert "sk-secret" not in str(resolved(config)) and "sk-secret" not in repr(config)
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("TRAIN_WITH_MONITOR", "maybe", "true or false"),
        ("MONITOR_CORRECT_REWARD", "high", "a number"),
        ("MONITOR_WRONG_REWARD", "nan", "a number"),
        ("MONITOR_CACHE", "sometimes", "true or false"),
        ("VERBOSE_REWARDS", "loud", "or K itself"),
        ("VERBOSE_REWARDS", "1", "1 could be the switch or a K"),
    ],
)
def test_malformed_values_are_refused_with_the_cure(monkeypatch, name, text, expected):
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError) as caught:
        load_config("monitor")
    message = str(caught.value)
    assert f"{name}='{text}'" in message and expected in message
    assert f"dataset_builder.{VARIABLES[name].setting}" in message


@pytest.mark.parametrize(
    ("text", "k"), [("true", DEFAULT_K), ("on", DEFAULT_K), ("false", 0.0), ("0", 0.0), ("1.0", 1.0), ("-1e-3", -1e-3)]
)
def test_verbose_rewards_is_a_switch_or_k(text, k):
    assert monitor_settings({"VERBOSE_REWARDS": text}) == {"reward.verbose_rewards": k}


def test_an_empty_variable_is_not_set():
    assert monitor_settings({"MONITOR_MODEL_NAME": " ", "MONITOR_CACHE": ""}) == {}


def test_unknown_monitor_variables_are_warned_about_once(caplog):
    environ = {"MONITOR_MODEL": "m", "MONITOR_COLOUR_OF_THE_SKY": "blue", "OTHER": "x"}
    for _ in range(2):
        assert monitor_settings(environ) == {}
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "MONITOR_MODEL is set" in messages[1] and "Did you mean MONITOR_MODEL_NAME?" in messages[1]
    assert "Known: TRAIN_WITH_MONITOR" in messages[0]


def test_a_host_announces_the_same_things_once(caplog):
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            announce(("reward.train_with_monitor=True",))
            announce(())
    assert [r.getMessage() for r in caplog.records] == ["Taken from the environment: reward.train_with_monitor=True."]


def test_every_setting_that_a_variable_names_exists():
    builder = load_config("monitor").dataset_builder
    for variable in VARIABLES.values():
        parent, _, name = variable.setting.partition(".")
        assert name in settings(type(getattr(builder, parent)))
