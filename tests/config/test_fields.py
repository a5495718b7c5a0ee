"""What fields say of themselves: bounds, when they are read, what a resumed run may change; outside classes too."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import chz
import pytest

from assay.cli.tasks.grade import GradeConfig
from assay.config import (
    MAY_CHANGE,
    NOT_NULL,
    Above,
    AtLeast,
    AtMost,
    Code,
    Layer,
    Settings,
    SettingsError,
    UsedWhen,
    build,
    from_resolved,
    load,
    resolved,
)
from assay.config.help import nodes
from assay.config.idle import names_of, unresolved
from assay.config.record import changed_files, may_change
from assay.config.schema import settings
from assay.errors import ConfigError
from assay.integrations.common.settings import HostConfig
from assay.plugins import Kind
from assay.training.config import TrainingConfig

OWN = """
from typing import Annotated
import chz
from assay.config import MAY_CHANGE, AtLeast, UsedWhen
from tests_own_base import Shape

@chz.chz
class Square(Shape):
    '''A square.'''

    side: Annotated[int, AtLeast(1)] = 2
    '''Length of a side.'''
    label: Annotated[str, MAY_CHANGE] = "square"
    '''What it is called.'''
    color: Annotated[str, UsedWhen("mode", "paint")] = "grey"
    '''What it is painted with.'''

class Bare(Shape):
    area = 7.0
    side: int = 3

@chz.chz
class Strange(Shape):
    '''A field that no text can be read as.'''

    when: complex = 1j
    '''When.'''

@chz.chz
class Needs(Shape):
    '''A field without a default.'''

    radius: float
    '''Its radius.'''
"""


@chz.chz
class Shape(Settings):
    """What there is a choice of."""

    area: Annotated[float, Above(0)] = 1.0
    """Its area."""


@chz.chz
class Circle(Shape):
    """A round one, which says nothing of its own about its area."""

    area: float = 3.0
    """Its area."""


SHAPE = Kind("shape", {"circle": f"{__name__}:Circle"}, lambda f: isinstance(f, type) and issubclass(f, Shape))


@chz.chz
class Pen(Settings):
    """How to draw."""

    width: Annotated[int, AtLeast(1), AtMost(9), UsedWhen("mode", "draw")] = 1
    """Width of a line."""
    tip: Annotated[str, UsedWhen("width", Above(3))] = "fine"
    """Its tip."""


@chz.chz
class Root(Settings):
    """A root class that is no run's."""

    mode: Literal["draw", "paint"] = "draw"
    """What to do."""
    project: Annotated[str | None, MAY_CHANGE] = None
    """Where it is shown."""
    name: Annotated[str | None, UsedWhen("project", NOT_NULL)] = None
    """Its name there."""
    pen: Pen = chz.field(default_factory=Pen)
    """The pen."""
    shape: Annotated[Shape, Code(SHAPE, "circle")] = chz.field(default_factory=Circle)
    """What is drawn."""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(__import__("sys").modules, "tests_own_base", __import__("sys").modules[__name__])
    path = tmp_path / "own_shapes.py"
    path.write_text(OWN)
    return path


def made(*layers: dict[str, Any]) -> Root:
    return build(Root, [Layer(f"layer {number}", values) for number, values in enumerate(layers, 1)])


def refusal(*layers: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        made(*layers)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pen.width": 0}, "pen.width=0 must be at least 1."),
        ({"pen.width": 10}, "pen.width=10 must be at most 9."),
        ({"shape.area": 0}, "shape.area=0.0 must be above 0."),
        ({"name": "x"}, "name=x is set, but it is read only when project is set, and project=null"),
        ({"pen.tip": "wide"}, "pen.tip=wide is set, but it is read only when pen.width is above 3, and pen.width=1"),
        ({"mode": "paint", "pen.width": 5}, "pen.width=5 is set, but it is read only when mode is draw"),
    ],
)
def test_a_value_out_of_bounds_or_unread_is_refused_with_its_whole_key(values: dict[str, Any], message: str) -> None:
    assert message in refusal(values)


def test_nodes_made_in_python_are_held_to_the_same() -> None:
    with pytest.raises(SettingsError, match=r"^width=0 must be at least 1\.$"):
        Pen(width=0)
    with pytest.raises(SettingsError, match="width='thick': expected a whole number"):
        Pen(width="thick")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"pen\.width=5 is set, but it is read only when mode is draw"):
        Root(mode="paint", pen=Pen(width=5))
    assert Pen(width=5).width == 5, "what only an enclosing node can decide is left to it"


def test_a_subclass_that_says_nothing_keeps_the_bounds_of_its_base() -> None:
    with pytest.raises(SettingsError, match=r"area=-1\.0 must be above 0"):
        Circle(area=-1.0)


def test_a_later_layer_that_makes_a_setting_idle_drops_it_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = made({"pen.width": 5, "pen.tip": "wide"}, {"mode": "paint"})
    assert config == Root(mode="paint")
    first, second = (record.message for record in caplog.records)
    assert first == "pen.width=5 (layer 1) is dropped: under mode=paint (layer 2) nothing reads it."
    assert second == "pen.tip=wide (layer 1) is dropped: under pen.width=1 (layer 2) nothing reads it."


def test_an_outside_class_takes_part_in_everything(own: Path) -> None:
    square = {"shape": f"{own}:Square", "shape.side": 4}
    config = made(square)
    assert type(config.shape).__name__ == "Square" and config.shape.side == 4  # type: ignore[attr-defined]
    assert "shape.side=0 must be at least 1" in refusal({**square, "shape.side": 0})
    assert "shape.sdie (layer 1): this setting does not exist" in refusal({**square, "shape.sdie": 1})
    assert "shape.color=red is set, but it is read only when mode is paint" in refusal({**square, "shape.color": "red"})
    assert settings(type(config.shape))["label"].doc == "What it is called."
    allowed = may_change(config)
    assert allowed("shape.label") and allowed("project")
    assert not allowed("shape.side") and not allowed("shape.type") and not allowed("mode")


def test_the_record_keeps_the_reference_and_the_hash_of_its_file(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    config = made({"shape": "own_shapes.py:Square", "shape.side": 4})
    record = json.loads(json.dumps(resolved(config)))
    assert record["shape"]["type"] == f"{own}:Square" and list(record["files"]) == [str(own)]
    monkeypatch.chdir("/")
    assert from_resolved(Root, record) == config
    assert changed_files(record) == []
    own.write_text(OWN.replace('label: Annotated[str, MAY_CHANGE] = "square"', 'label: str = "four corners"'))
    assert changed_files(record) == [str(own)]
    own.unlink()
    assert changed_files(record) == [str(own)]
    assert "files" not in resolved(Root())


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("Strange", {}, "The field Strange.when ({own}) is of type complex, which cannot be read from text"),
        ("Needs", {}, "shape.radius is not set, and Needs has no default for it. Set shape.radius=..."),
        ("Nothing", {}, "looked for the shape 'Nothing' in {own}. It has Bare, Needs, Square, Strange."),
        ("AtLeast", {}, "looked for a shape in {own}, and AtLeast is a class (AtLeast)"),
    ],
)
def test_an_outside_class_that_cannot_be_used(own: Path, name: str, values: dict[str, Any], message: str) -> None:
    said = refusal({"shape": f"{own}:{name}", **values})
    if name == "Nothing":
        assert "It has Square, Bare, Strange, Needs." in said
    else:
        assert message.format(own=own) in said
    assert "\n" not in said


def test_a_class_needs_no_decorator_and_a_new_default_no_type(own: Path) -> None:
    config = made({"shape": f"{own}:Bare", "shape.side": 4})
    assert (config.shape.side, config.shape.area) == (4, 7.0)  # type: ignore[attr-defined]
    assert "shape.side=four (layer 1): expected a whole number" in refusal(
        {"shape": f"{own}:Bare", "shape.side": "four"}
    )
    assert "area=-1.0 must be above 0" in refusal({"shape": f"{own}:Bare", "shape.area": -1})
    assert from_resolved(Root, json.loads(json.dumps(resolved(config)))) == config


def test_classes_with_and_without_the_decorator_may_stand_above_each_other_where_nothing_is_lost() -> None:
    class Plain(Settings):
        side: int = 1

    @chz.chz
    class Decorated(Plain):
        extra: int = 1

    class Wide(Plain):
        side = 3
        colors = "red"  # a constant of the class

    with pytest.raises(ConfigError, match="Plain above it has not, so the settings side would be lost"):
        Decorated()
    assert Wide() == Wide(side=3) and list(settings(Wide)) == ["side"]


def test_a_default_that_could_be_changed_for_everybody_is_refused() -> None:
    class Listed(Settings):
        words: tuple[str, ...] = ["a"]  # type: ignore[assignment]

    with pytest.raises(ConfigError, match=r"The setting words of .* has a list as its default"):
        settings(Listed)


class Suggesting(Shape):
    """What suits it is said of the whole config."""

    run_settings = {"name": "own", "pen": {"width": 5}}  # noqa: RUF012


class Mistaken(Shape):
    """It sets what it is itself."""

    run_settings = {"shape.area": 3}  # noqa: RUF012


def test_a_class_suggests_settings_of_the_whole_config(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    own = f"{__name__}:Suggesting"
    config = load(Root, None, [f"shape={own}", "pen.width=2", "project=p"])
    assert (config.name, config.pen.width) == ("own", 2), "what is given outranks it"
    assert "Taken from Suggesting.run_settings: name=own." in caplog.messages
    assert load(Root, None, ["project=p"]).name != "own"
    with pytest.raises(ConfigError, match=r"Mistaken\.run_settings sets shape\.area, which is a setting of the class"):
        load(Root, None, [f"shape={__name__}:Mistaken"])


def test_a_setting_without_a_default_is_taken_where_it_is_given(own: Path) -> None:
    assert made({"shape": f"{own}:Needs", "shape.radius": 2}).shape.radius == 2.0  # type: ignore[attr-defined]


@chz.chz
class Weighed(Settings):
    """A mapping that is not empty by default."""

    weights: Mapping[str, float] = chz.field(default_factory=lambda: {"a": 1.0})
    """By name."""
    options: Mapping[str, Any] = chz.field(default_factory=dict)
    """Anything."""


def test_entries_add_to_the_default_ones_and_braces_drop_them() -> None:
    def weights(*layers: dict[str, Any]) -> Mapping[str, float]:
        return build(Weighed, [Layer(str(number), values) for number, values in enumerate(layers)]).weights

    assert weights({"weights.b": 2}) == {"a": 1.0, "b": 2.0}
    assert weights({"weights": "{}"}) == {}
    assert weights({"weights": {}}, {"weights.b": 2}) == {"b": 2.0}


@chz.chz
class Holder(Settings):
    """Holds a node with a mapping."""

    inner: Weighed = chz.field(default_factory=Weighed)
    """The node."""


def test_braces_reach_a_mapping_of_a_node_that_is_not_set_otherwise() -> None:
    assert build(Holder, [Layer("one", {"inner.weights": "{}"})]).inner.weights == {}


@pytest.mark.parametrize("weights", [{}, {"b": 2.0}, {"a": 3.0}])
def test_a_record_has_all_entries_there_are(weights: dict[str, float], tmp_path: Path) -> None:
    config = Weighed(weights=weights, options={"rate": 1e-05, "deep": {"x": [1]}})
    record = json.loads(json.dumps(resolved(config)))
    assert from_resolved(Weighed, record) == config
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert load(Weighed, str(tmp_path / "config.json")) == config, "a number stays one: JSON is not read as YAML"


def test_a_value_and_entries_below_it_are_not_both_taken() -> None:
    with pytest.raises(ConfigError, match=r"options\.a\.b is given, and so is a above it"):
        build(Weighed, [Layer("one", {"options.a": 1, "options.a.b": 2})])


def test_bounds_are_for_numbers_and_a_remarked_field_keeps_those_of_its_base() -> None:
    @chz.chz
    class Worded(Settings):
        """Bounds on text."""

        word: Annotated[str, AtLeast(2)] = "ab"
        """A word."""

    with pytest.raises(
        ConfigError,
        match=r"The field .*Worded\.word \(.*test_fields\.py\) has bounds, which are for numbers, and is text",
    ):
        Worded()

    @chz.chz
    class Marked(Shape):
        """Says something else of its area."""

        area: Annotated[float, MAY_CHANGE] = 1.0
        """Its area."""

    with pytest.raises(SettingsError, match="area=0 must be above 0"):
        Marked(area=0)


def test_a_field_called_type_would_hide_the_class(own: Path) -> None:
    own.write_text(OWN.replace("side: Annotated[int, AtLeast(1)] = 2", "type: str = 'big'"))
    assert "Square has a field type, which is the key that names the class itself" in refusal(
        {"shape": f"{own}:Square"}
    )


def test_what_a_file_has_from_elsewhere_is_found_through_it_again(own: Path) -> None:
    front = own.with_name("front.py")
    front.write_text("from own_shapes import Square as Quad\n")
    record = resolved(made({"shape": f"{front}:Quad"}))
    assert record["shape"]["type"] == f"{front}:Quad" and list(record["files"]) == [str(front), str(own)]
    assert type(from_resolved(Root, record).shape).__name__ == "Square"


def test_a_chosen_class_that_a_later_layer_makes_idle_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    chosen = {"mode": "multi_turn", "multiturn_dataset_builder": "chess"}
    config = build(TrainingConfig, [Layer("a file", chosen), Layer("command line", {"mode": "single_turn"})])
    assert config.multiturn_dataset_builder is None
    assert "multiturn_dataset_builder=chess (a file) is dropped" in caplog.text


@chz.chz
class Weathered(Shape):
    """A shape that the environment makes wet."""

    wet: bool = False
    """Whether it is."""
    coat: Annotated[str, UsedWhen("wet", False)] = "none"
    """Its paint, while it is dry."""

    @classmethod
    def environment(cls, environ: Mapping[str, str]) -> Mapping[str, Any]:
        return {"wet": True}


def test_what_is_said_is_never_dropped_for_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPE.known, "weathered", f"{__name__}:Weathered")  # type: ignore[arg-type]
    assert load(Root, None, ["shape=weathered"]).shape == Weathered(wet=True)
    with pytest.raises(ConfigError, match=r"read only when shape\.wet is false, and shape\.wet=true"):
        load(Root, None, ["shape=weathered", "shape.coat=red"])
    assert load(Root, None, ["shape=weathered", "shape.coat=red", "shape.wet=false"]).shape == Weathered(coat="red")


ROOTS = (TrainingConfig, HostConfig, GradeConfig)
"""The classes that commands read settings into."""


def every_key(root: type) -> dict[str, Any]:
    """Every key below a root with its field, under each choice of classes, as `assay settings` lists them."""
    return {
        (f"{node.key}.{name}" if node.key else name): setting
        for node in nodes(root)
        if node.cls is not None
        for name, setting in settings(node.cls).items()
    }


@pytest.mark.parametrize("root", ROOTS)
def test_what_a_field_names_exists(root: type) -> None:
    for node in nodes(root):
        assert node.cls is not None
        around = [names_of(other.cls) for other in nodes(root) if other.cls and is_around(other.key, node.key)]
        assert not list(unresolved(node.cls, around)), node.key


def is_around(outer: str, inner: str) -> bool:
    return outer == "" or f"{inner}.".startswith(f"{outer}.")


def test_a_name_that_leads_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @chz.chz
    class Wrong(Settings):
        """Its field names nothing."""

        depth: Annotated[int, UsedWhen("wdith", 1)] = 1
        """Never."""

    with pytest.raises(ConfigError, match=r"Wrong.depth is marked as used when 'wdith' has some value, and neither"):
        load(Wrong, None)


NAMED = re.compile(r"(?:^|[\s(])([a-z_]+(?:\.[a-z_]+)*)=|\b(?:Set|Raise|Lower|Change|remove) ([a-z_]+(?:\.[a-z_]+)*)")


def idle_examples() -> list[list[str]]:
    """One setting of each kind that would do nothing, as overrides."""
    return [
        *(["monitor", s] for s in ("gamma=0.9", "max_turns=9", "local.lora_alpha=7", "local.lora_targets=q")),
        *(["monitor", "kl_penalty_coef=0", f"grpo.{s}"] for s in ("kl_estimator=k2", "kl_unbiased=true")),
        *(["monitor", "kl_penalty_coef=0", s] for s in ("kl_discount_factor=0.5", "grpo.kl_placement=reward")),
        *(["monitor", "grpo.kl_placement=loss", s] for s in ("kl_discount_factor=0.5",)),
        *(["monitor", "kl_penalty_coef=0", f"grpo.{s}"] for s in ("health.kl_tail_limit=3", "ref_refresh_every=1")),
        *(["monitor", f"grpo.{s}"] for s in ("buffer_capacity=9", "max_staleness=1", "kl_horizon=5")),
        *(["monitor", "sft.num_steps=0", f"sft.{s}"] for s in ("learning_rate=1", "batch_size=3", "save_every=1")),
        *(["monitor", "tensorboard_enabled=false", s] for s in ("tensorboard_log_histograms_every=3",)),
        ["monitor", "tensorboard_enabled=false", "tensorboard_log_per_level=false"],
        ["monitor", "tensorboard_enabled=false", "completion_table_every=3"],
        *(["monitor", "model_name=m", s] for s in ("scratch.hidden_size=64", "scratch.vocab_size=99")),
        *(["monitor", s] for s in ("wandb_name=x", "base_url=http://x", "mode=multi_turn", "local.cohort_tokens=5")),
        *(["monitor", "local.device=cpu", f"local.{s}"] for s in ("cuda_graphs=false", "matmul_precision=highest")),
        *(["monitor", f"dataset_builder.{s}"] for s in ("judge.model=m", "engine.offline=true")),
        *(["monitor", f"dataset_builder.reward.{s}"] for s in ("monitor_wrong_reward=2",)),
        *(["chess", f"dataset_builder.{s}"] for s in ("arbiter_fraction=0.5", "policy_weights.evals=1")),
        ["chess", "dataset_builder.task=arbiter", "dataset_builder.stockfish.nodes=9"],
        ["chess", "dataset_builder.chat.history=append"],
    ]


@pytest.mark.parametrize("words", idle_examples(), ids=" ".join)
def test_a_setting_that_would_do_nothing_is_refused_in_keys_that_exist(words: list[str]) -> None:
    preset, *overrides = words
    with pytest.raises(ConfigError, match="is set, but it is read only when") as caught:
        load(TrainingConfig, preset, overrides)
    known = every_key(TrainingConfig)
    named = [one or other for line in str(caught.value).splitlines() for one, other in NAMED.findall(line)]
    assert named and set(named) <= known.keys(), sorted(set(named) - known.keys())
    assert overrides[-1].partition("=")[0].startswith(tuple(named))


def test_literals_of_numbers_take_no_truth_value() -> None:
    @chz.chz
    class Numbered(Settings):
        """A choice of numbers."""

        level: Literal[1, 2] = 1
        """Which."""

    for value in (True, 1.0, "1"):
        with pytest.raises(SettingsError, match="expected one of 1, 2"):
            Numbered(level=value)  # type: ignore[arg-type]
    assert Numbered(level=2).level == 2
