from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Literal

import chz
import pytest

from assay.backends import named
from assay.config import diff, from_resolved, resolved
from assay.config.sources import parse_yaml, read_overrides
from assay.config.values import parse, type_name
from assay.envs.base import DatasetBuilder
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.envs.named import ENVIRONMENT
from assay.errors import ConfigError
from assay.presets import preset_path, presets
from assay.training.config import TrainingConfig, load_config


@chz.chz
class Stride:
    """How to count."""

    size: int = 1
    """Count in steps of this."""


@chz.chz
class CountingBuilder(DatasetBuilder):
    """A second builder, so that there is something to choose."""

    batch_size: int = 2
    """Prompts per batch."""
    highest: int = 10
    """Count up to this."""
    stride: Stride | None = None
    """How to count; null means one by one."""


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT.known, "counting", f"{__name__}:CountingBuilder")  # type: ignore[arg-type]


def refusal(*overrides: str, sources: list[str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(sources, overrides)
    return str(caught.value)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


# Layers


def test_no_source_gives_the_defaults() -> None:
    assert load_config(None) == TrainingConfig()


def test_later_sources_win(tmp_path: Path) -> None:
    first = write(tmp_path / "first.yaml", "learning_rate: 0.1\nsave_every: 3\nlocal:\n  torch_threads: 2\n")
    second = write(tmp_path / "second.yaml", "save_every: 4\nlocal.device: cpu\n")
    config = load_config([first, second], ["--save_every=5", "save_every=6"])
    assert (config.learning_rate, config.save_every) == (0.1, 6)
    assert (config.local.torch_threads, config.local.device) == (2, "cpu")
    assert config.eval_every == TrainingConfig().eval_every


def test_yaml_values_have_their_types(tmp_path: Path) -> None:
    text = """
learning_rate: 1e-4
wandb_project: null
remove_constant_reward_groups: false
log_path: runs/x
loss_fn: ppo
loss_fn_config: {clip_high_threshold: 2}
dataset_builder:
  type: chess
  batch_size: 8
  policy_weights: {best: 1}
"""
    config = load_config(write(tmp_path / "run.yaml", text))
    assert config.learning_rate == 1e-4
    assert config.remove_constant_reward_groups is False
    assert config.log_path == Path("runs/x")
    assert dict(config.loss_fn_config) == {"clip_high_threshold": 2.0}
    assert isinstance(config.loss_fn_config["clip_high_threshold"], float)
    assert isinstance(config.dataset_builder, ChessDatasetBuilder)
    assert config.dataset_builder.batch_size == 8
    assert config.dataset_builder.policy_weights.best == 1.0


@pytest.mark.parametrize("null", ["null", "none", "None"])
def test_null_clears_an_optional_setting(tmp_path: Path, null: str) -> None:
    source = write(tmp_path / "run.yaml", "wandb_project: mine\neval: {max_tasks: 3}\n")
    config = load_config(source, [f"wandb_project={null}", f"eval.max_tasks={null}"])
    assert config.wandb_project is None
    assert config.eval.max_tasks is None


def test_empty_braces_drop_the_entries_of_earlier_layers(tmp_path: Path) -> None:
    source = write(tmp_path / "run.yaml", "loss_fn: ppo\nloss_fn_config.clip_high_threshold: 1.3\n")
    assert dict(load_config(source, ["loss_fn_config={}"]).loss_fn_config) == {}
    both = load_config(source, ["loss_fn_config.clip_low_threshold=0.9"])
    assert dict(both.loss_fn_config) == {"clip_high_threshold": 1.3, "clip_low_threshold": 0.9}


@pytest.mark.parametrize("name", presets())
def test_preset_loads_and_holds_only_what_differs(name: str) -> None:
    assert presets()[name], "the first line of a preset is a comment that describes it"
    layer = parse_yaml(preset_path(name).read_text(encoding="utf-8"), name)
    whole = diff(load_config(name), TrainingConfig())
    for key in layer.values:
        if key.endswith(".type"):
            continue
        assert any(line.startswith(f"{key}: ") for line in whole), f"{key} only repeats the default"


# Choosing a builder


@pytest.mark.parametrize("name", ["chess", "ChessDatasetBuilder"])
def test_builder_is_chosen_by_short_name_or_class_name(counting: None, name: str) -> None:
    config = load_config(None, ["dataset_builder.num_train=5", f"dataset_builder={name}"])
    assert isinstance(config.dataset_builder, ChessDatasetBuilder)
    assert config.dataset_builder.num_train == 5
    assert isinstance(load_config(None, ["dataset_builder.type=counting"]).dataset_builder, CountingBuilder)


def test_choosing_another_builder_drops_settings_it_lacks_and_says_so(
    counting: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write(tmp_path / "run.yaml", "dataset_builder: {type: chess, num_train: 5, group_size: 7}\n")
    config = load_config(source, ["dataset_builder=counting", "dataset_builder.highest=3"])
    assert config.dataset_builder == CountingBuilder(highest=3, group_size=7)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "dataset_builder.num_train=5" in record.message
    assert "run.yaml" in record.message


def test_a_layer_may_not_set_what_its_own_builder_lacks(counting: None) -> None:
    assert "dataset_builder.num_train (command line)" in refusal(
        "dataset_builder=counting", "dataset_builder.num_train=3"
    )


def test_an_optional_group_is_made_by_its_name_or_by_its_settings(counting: None) -> None:
    def stride(*overrides: str) -> Stride | None:
        builder = load_config(None, overrides).dataset_builder
        assert isinstance(builder, CountingBuilder)
        return builder.stride

    assert stride("dataset_builder=counting") is None
    assert stride("dataset_builder.stride=Stride", "dataset_builder=counting") == Stride()
    assert stride("dataset_builder.stride.size=3", "dataset_builder=counting") == Stride(size=3)
    assert stride("dataset_builder=counting", "dataset_builder.stride=null") is None


def test_multi_turn_builder_follows_the_single_turn_class(counting: None) -> None:
    args = ["mode=multi_turn", "dataset_builder=counting", "multiturn_dataset_builder.highest=3"]
    config = load_config(None, args)
    assert config.active_builder == CountingBuilder(highest=3)
    assert load_config(None, [*args[:2], "multiturn_dataset_builder=chess"]).active_builder == ChessDatasetBuilder()
    assert load_config(None, args[:2]).active_builder == CountingBuilder()


def test_null_drops_the_multi_turn_builder_of_an_earlier_layer(tmp_path: Path) -> None:
    source = write(tmp_path / "run.yaml", "mode: multi_turn\nmultiturn_dataset_builder: {type: chess, group_size: 7}\n")
    assert load_config(source).active_builder.group_size == 7
    assert load_config(source, ["multiturn_dataset_builder=null"]).multiturn_dataset_builder is None


# Refusals


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("lerning_rate=3", "learning_rate"),
        ("lr=3", "learning_rate"),
        ("group_size=8", "dataset_builder.group_size"),
        ("local.torch_treads=2", "local.torch_threads"),
        ("dataset_builder.grader.wall=9", "dataset_builder.grader.wall_s"),
        ("locl.device=cpu", "local.device"),
        ("seed.value=3", "seed"),
    ],
)
def test_unknown_key_names_its_layer_and_the_nearest_spelling(override: str, hint: str) -> None:
    message = refusal(override)
    assert f"{override.partition('=')[0]} (command line): this setting does not exist" in message
    assert hint in message.partition("Did you mean")[2]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learning_rate=fast", "a number"),
        ("learning_rate=nan", "a number"),
        ("seed=1.5", "a whole number"),
        ("seed=null", "a whole number"),
        ("eval.max_tasks=all", "a whole number or null"),
        ("tensorboard_enabled=maybe", "true or false"),
        ("mode=multi-turn", "one of single_turn, multi_turn"),
        ("log_path=", "a path"),
        ("loss_fn_config.clip_high_threshold=x", "a number"),
    ],
)
def test_wrong_value_names_key_value_layer_and_type(override: str, expected: str) -> None:
    message = refusal(override)
    assert message.startswith(f"{override} (command line): expected {expected}")


def test_a_builder_that_is_not_there_is_looked_for_among_ours() -> None:
    message = refusal("dataset_builder=ches")
    assert message.startswith("dataset_builder=ches: looked for a dataset builder of this name among chess, ")
    assert "Did you mean chess?" in message and "path/to/file.py:Name" in message


def test_wrong_type_in_yaml_names_the_file(tmp_path: Path) -> None:
    source = write(tmp_path / "run.yaml", "model_name: 7\n")
    assert refusal(sources=[source]).startswith(f"model_name=7 ({source}): expected text")


@pytest.mark.parametrize(
    ("override", "cure"), [("local=cpu", "local.device"), ("loss_fn_config=3", "loss_fn_config.NAME")]
)
def test_a_group_takes_no_value(override: str, cure: str) -> None:
    assert cure in refusal(override)


@pytest.mark.parametrize("text", ["learning_rate", "=3", "--x", "learning_rate 3"])
def test_an_argument_must_be_an_assignment(text: str) -> None:
    assert repr(text) in refusal(text)


def test_a_value_may_hold_equals_signs_and_spaces() -> None:
    assert read_overrides(["wandb_name= a = b "]).values == {"wandb_name": "a = b"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1\nb: 2\n", "run.yaml, line 2: malformed YAML"),
        ("seed: 1\nseed: 2\n", "run.yaml, line 2: malformed YAML: seed is given twice"),
        ("local: {device: cpu}\nlocal.device: cuda\n", "local.device is given twice"),
        ("- seed\n", "holds a list"),
        ("seed: 1\n---\nseed: 2\n", "malformed YAML"),
        ("? [seed]\n: 1\n", "malformed YAML"),
        ("seed: !!python/object:os.system 1\n", "malformed YAML"),
        ("\x00", "malformed YAML"),
    ],
)
def test_malformed_yaml_names_file_and_line(tmp_path: Path, text: str, part: str) -> None:
    assert part in refusal(sources=[write(tmp_path / "run.yaml", text)])


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load_config(write(tmp_path / "run.yaml", "# nothing yet\n")) == TrainingConfig()


def test_missing_and_unreadable_sources(tmp_path: Path) -> None:
    assert "neither a preset nor a file. Did you mean chess? Presets: chess" in refusal(sources=["ches"])
    assert "Is a directory" in refusal(sources=[str(tmp_path)])
    (tmp_path / "latin.yaml").write_bytes(b"wandb_name: \xe9\n")
    assert "is not UTF-8 text" in refusal(sources=[str(tmp_path / "latin.yaml")])


@pytest.mark.parametrize(
    ("overrides", "cure"),
    [
        (["scratch.num_layers=2"], "Set model_name=scratch"),
        (["model_name=scratch"], "Set lora_rank=0"),
        (["scratch.hidden_size=10", "model_name=scratch", "lora_rank=0"], "Choose a divisor of 10"),
        (["base_url=http://localhost"], "read only when backend is not local"),
        (["loss_fn=cross_entropy"], "a loss of this name among importance_sampling, ppo, cispo"),
        (["loss_fn=pppo"], "Did you mean ppo? One of your own is written package.module:Name"),
        (["backend=remote"], "a backend of this name among local"),
        (["tinker.probe=false"], "Set backend=tinker"),
        (["multiturn_dataset_builder=chess"], "Set mode=multi_turn"),
        (["wandb_name=x"], "Set wandb_project"),
        (["kl_discount_factor=0.9"], "read only when there is a KL penalty, and kl_penalty_coef=0.0"),
        (
            ["grpo.kl_target=0.1"],
            "grpo.kl_target=0.1 is set, but it is read only when there is a KL penalty",
        ),
        (["max_turns=9"], "read only when mode is multi_turn, and mode=single_turn"),
        (["temperature=0"], "must be above 0"),
        (["num_substeps=17"], "Lower num_substeps"),
        (
            ["rollout_epochs=2", "grpo.buffer_capacity=3"],
            "4 groups, so the others would be sampled and never trained on",
        ),
        (["num_substeps=0"], "num_substeps=0 must be at least 1"),
        (["max_errored_fraction=1.5"], "max_errored_fraction=1.5 must be at most 1"),
        (["gamma=1.5"], "gamma=1.5 must be at most 1"),
        (["dataset_builder.group_size=0"], "dataset_builder.group_size=0 must be at least 1"),
        (["sft.batch_size=0"], "sft.batch_size=0 must be at least 1"),
        (["eval.samples_per_task=0"], "eval.samples_per_task=0 must be at least 1"),
        (["optimizer.beta2=1"], "optimizer.beta2=1.0 must be below 1"),
        (["loss_fn_config.clip_high_threshold=1.2"], "importance_sampling does not read"),
        (["loss_fn=ppo", "loss_fn_config.clip_hgih=1"], "ppo reads: clip_low_threshold"),
        (["dataset_builder.renderer_name=qwen9"], "a renderer of this name among auto, plain, role_colon, chat"),
    ],
)
def test_impossible_combinations_say_what_to_change(overrides: list[str], cure: str) -> None:
    assert cure in refusal(*overrides)


def test_all_impossible_combinations_are_told_at_once() -> None:
    message = refusal("wandb_name=x", "temperature=0", "save_every=0")
    assert all(part in message for part in ("wandb_name", "temperature", "save_every"))


# Resolved configs


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["mode=multi_turn", "multiturn_dataset_builder=chess", "multiturn_dataset_builder.group_size=3"],
        ["loss_fn=ppo", "loss_fn_config.clip_high_threshold=1.3", "log_path=/x/y", "dataset_builder.batch_size=9"],
    ],
)
def test_resolved_config_round_trips_through_json(overrides: list[str], caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, overrides)
    assert from_resolved(TrainingConfig, json.loads(json.dumps(resolved(config)))) == config
    assert not caplog.records


def test_resolved_config_has_nulls_and_class_names() -> None:
    data = resolved(TrainingConfig())
    assert data["wandb_project"] is None
    assert data["dataset_builder"]["type"] == "kernelbench"
    assert data["log_path"] == "runs/kernel_rl"


def test_an_older_config_file_takes_defaults_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    data = resolved(TrainingConfig())
    del data["gamma"]
    del data["local"]["dtype"]
    assert from_resolved(TrainingConfig, data) == TrainingConfig()
    assert "gamma, local.dtype" in caplog.text


def test_an_unknown_key_in_a_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="gama"):
        from_resolved(TrainingConfig, {**resolved(TrainingConfig()), "gama": 1})


def test_a_setting_that_is_gone_does_no_harm_to_a_run_that_did_not_use_it(caplog: pytest.LogCaptureFixture) -> None:
    data = resolved(TrainingConfig())
    data["grpo"]["max_ratio_error"] = None  # as runs have it that began before `grpo.parity`
    assert from_resolved(TrainingConfig, data) == TrainingConfig()
    assert "grpo.max_ratio_error=null" in caplog.text
    data["grpo"]["max_ratio_error"] = 0.5
    with pytest.raises(ConfigError, match=r"Did you mean grpo\.parity\.max_ratio_error"):
        from_resolved(TrainingConfig, data)


def test_diff_tells_each_changed_setting(counting: None) -> None:
    a = load_config(None, ["loss_fn=ppo", "loss_fn_config.clip_high_threshold=1.3"])
    b = load_config(None, ["loss_fn=ppo", "seed=2", "dataset_builder.reward.length_max=900", "eval.max_tasks=5"])
    assert diff(a, a) == []
    assert diff(a, b) == [
        "loss_fn_config.clip_high_threshold: 1.3 -> unset",
        "seed: 0 -> 2",
        "eval.max_tasks: null -> 5",
        "dataset_builder.reward.length_max: 8000 -> 900",
    ]


# Reading values


@pytest.mark.parametrize(
    ("value", "annotation", "result"),
    [
        ("1e-4", float, 1e-4),
        (3, float, 3.0),
        ("1_000", int, 1000),
        ("True", bool, True),
        ("off", bool, False),
        ("null", str, "null"),
        ("NULL", str | None, None),
        ("2", Literal[1, 2], 2),
        ("b", Literal["a", "b"] | None, "b"),
        ("a, b", tuple[str, ...], ("a", "b")),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("", tuple[int, ...], ()),
        ("x/y", Path | None, Path("x/y")),
    ],
)
def test_values_are_read_as_their_type(value: object, annotation: object, result: object) -> None:
    read = parse(value, annotation)
    assert read == result
    assert type(read) is type(result)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (True, int),
        (1.0, int),
        ("1.0", int),
        (True, float),
        ("inf", float),
        (float("nan"), float),
        (1, str),
        (None, str),
        (2, bool),
        (True, Literal[1, 2]),
        ("1,x", tuple[int, ...]),
        (3, tuple[int, ...]),
        (None, Path),
        ([1], float),
    ],
)
def test_other_values_are_refused(value: object, annotation: object) -> None:
    with pytest.raises(ValueError, match=type_name(annotation).split("(")[0]):
        parse(value, annotation)


def test_which_value_holds_of_a_key_that_is_given_twice_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert load_config(None, ["seed=1", "seed=1"]).seed == 1 and not caplog.text
    assert load_config(None, ["seed=1", "--seed=2"]).seed == 2
    assert caplog.text.count("seed=2 holds, the last of its values; seed=1 is ignored.") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["gamma=0.9"], "mode=single_turn"),
        (["gamma=0.9", "mode=multi_turn", "max_turns=1"], "max_turns=1"),
        (["gamma=0.9", "dataset_builder=monitor"], "dataset_builder=MonitorDatasetBuilder"),
        (["mode=multi_turn", "dataset_builder=monitor"], "dataset_builder=MonitorDatasetBuilder"),
    ],
)
def test_only_the_reason_is_said_why_nothing_reads_a_setting(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(None, arguments)
    assert str(error.value).count(", and ") == 1 and f", and {reason}" in str(error.value)


def test_a_value_in_quotes_is_not_taken_for_a_setting_of_the_same_name() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config("chess", ["grpo.health.actions.foo=warn"])
    assert "'entropy_floor'" in str(refusal.value) and "grpo.health.actions.foo=warn: this" in str(refusal.value)


@pytest.mark.parametrize("url", ["https://h.test/?api-key=SECRET", "https://me:SECRET@h.test", "https://h.test#SECRET"])
def test_a_key_in_the_url_of_a_hosted_backend_is_neither_kept_nor_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        TrainingConfig(base_url=url)
    assert "SECRET" not in str(caught.value)
    with pytest.raises(ConfigError, match="base_url") as refused:
        named.check("local", url)
    assert "SECRET" not in str(refused.value)
