"""What a host needs of a run's settings: which tasks, how rollouts are played, how they are credited.

    prepared("chess", ["dataset_builder.num_train=64"], tokenizer)

reads what `assay train` reads, so that a task is posed, cut and credited as in Assay's own loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import chz

from assay.config import from_resolved, resolved
from assay.envs.base import BY_TEMPLATE, DatasetBuilder
from assay.envs.chat import AUTO, ChatConfig
from assay.errors import ConfigError, DataError
from assay.grpo.advantages import group_advantages
from assay.grpo.recipes import Baseline
from assay.integrations.environments.reference import VERSION, EnvironmentConfig, EnvironmentReference, json_object
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.renderers.named import chosen, make_renderer
from assay.storage.files import encode_json
from assay.training.config import TrainingConfig, load_config
from assay.types import Json, SamplingParams, TrajectoryGroup

MOST = 1 << 40
"""Of any number in a prepared environment."""


@dataclass(frozen=True)
class Credit:
    """How a group's rewards become advantages. See `assay.grpo.advantages.group_advantages`."""

    gamma: float
    by_std: bool
    baseline: Baseline

    @classmethod
    def of(cls, config: TrainingConfig) -> Credit:
        """As a run's trainer has it."""
        recipe = config.trainer().recipe
        return cls(config.gamma, recipe.by_std, recipe.baseline)

    def advantages(self, group: TrajectoryGroup) -> list[list[float]] | None:
        """Advantages of each turn of each rollout; empty for errored ones, None where the group says nothing."""
        return group_advantages(group, gamma=self.gamma, normalize_by_std=self.by_std, baseline=self.baseline)


@dataclass(frozen=True)
class Playing:
    """How rollouts are played and credited."""

    params: SamplingParams
    """`max_tokens` is the limit of a turn; the renderer's stop tokens are added."""
    max_turns: int
    credit: Credit
    seed: int = 0


@dataclass(frozen=True)
class Prepared:
    """An environment as a host trains on it."""

    environment: EnvironmentReference
    playing: Playing
    group_size: int
    renderer_name: str
    chat: ChatConfig

    def renderer(self, tokenizer: Any) -> Renderer:
        """The renderer, over the host's tokenizer.

        Raises:
            ConfigError: the tokenizer lacks what it needs.
        """
        return make_renderer(self.renderer_name, tokenizer, self.chat)

    def to_json(self) -> str:
        """All of it as one line of JSON text, for a host's own files."""
        playing, credit = self.playing, self.playing.credit
        record: dict[str, Json] = {
            "version": VERSION,
            "environment": json.loads(self.environment.record),
            "max_tokens": playing.params.max_tokens,
            "temperature": playing.params.temperature,
            "max_turns": playing.max_turns,
            "seed": playing.seed,
            "gamma": credit.gamma,
            "by_std": credit.by_std,
            "baseline": credit.baseline,
            "group_size": self.group_size,
            "renderer_name": self.renderer_name,
            "chat": resolved(self.chat),
        }
        return encode_json(record, sort_keys=True).decode()

    @classmethod
    def from_json(cls, text: object) -> Prepared:
        """What `to_json` wrote.

        Raises:
            DataError: it is not that.  ConfigError: a setting of `chat` cannot be read.
        """
        record = json_object(text, "a prepared environment")
        wrong = [name for name, fits in _FITS.items() if not fits(record.get(name))]
        if wrong:
            raise DataError(
                f"A prepared environment has no usable {', '.join(wrong)}. Write it anew with this version of Assay."
            )
        credit = Credit(float(record["gamma"]), record["by_std"], record["baseline"])
        params = SamplingParams(record["max_tokens"], float(record["temperature"]))
        return cls(
            EnvironmentReference(encode_json(record["environment"], sort_keys=True).decode()),
            Playing(params, record["max_turns"], credit, record["seed"]),
            record["group_size"],
            record["renderer_name"],
            from_resolved(ChatConfig, record["chat"], "chat of a prepared environment"),
        )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value <= MOST


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST  # type: ignore[operator]


_FITS: Mapping[str, Callable[[object], bool]] = {
    "version": lambda value: value == VERSION,
    "environment": lambda value: isinstance(value, dict),
    **dict.fromkeys(("max_tokens", "max_turns", "group_size"), _is_count),
    "temperature": lambda value: _is_number(value) and value != 0,
    "gamma": lambda value: _is_number(value) and value <= 1,  # type: ignore[operator]
    "seed": lambda value: type(value) is int,
    "by_std": lambda value: isinstance(value, bool),
    "baseline": lambda value: value in get_args(Baseline),
    "renderer_name": lambda value: isinstance(value, str),
    "chat": lambda value: isinstance(value, dict),
}
"""What each part of a prepared environment must be."""


def prepared(
    sources: str | Sequence[str] | None = None,
    overrides: str | Sequence[str] = (),
    tokenizer: Any = None,
    *,
    messages: bool = False,
) -> Prepared:
    """An environment for a host, from presets or YAML files and `key=value` overrides, as `assay train` takes them.

    Args:
        sources: an environment of your own (`file.py:Name`, `package.module:Name`) may stand among them.
        tokenizer: the host's; it decides what `renderer_name=auto` means.
        messages: the host writes messages as tokens itself, by a chat template; there is no tokenizer here.

    Raises:
        ConfigError: settings that cannot be read or go together, or no tokenizer where one decides.
    """
    return prepared_of(config_of(sources, overrides), tokenizer, messages=messages)


def config_of(sources: str | Sequence[str] | None, overrides: str | Sequence[str] = ()) -> TrainingConfig:
    """The settings of a run, with its environment named as in `prepared`.

    Raises:
        ConfigError: see `prepared`.
    """
    names = [sources] if isinstance(sources, str) else list(sources or ())
    own = [one for one in names if ":" in one and not Path(one).expanduser().is_file()]
    written = [overrides] if isinstance(overrides, str) else overrides
    return load_config([one for one in names if one not in own], [*(f"dataset_builder={one}" for one in own), *written])


def prepared_of(config: TrainingConfig, tokenizer: Any = None, *, messages: bool = False) -> Prepared:
    """See `prepared`; for a config that is there already."""
    builder = _settled(config.active_builder, tokenizer, messages)
    context = config.build_context()
    environment = EnvironmentConfig(
        dataset_builder=builder,
        seed=context.seed,
        max_turns=context.max_turns,
        chat=builder.renderer_name in BY_TEMPLATE,
        cache_dir=config.cache_dir,
    )
    return Prepared(
        EnvironmentReference.of(environment),
        Playing(
            SamplingParams(config.max_tokens, config.temperature), context.max_turns, Credit.of(config), config.seed
        ),
        builder.group_size,
        builder.renderer_name,
        builder.chat,
    )


def _settled(builder: DatasetBuilder, tokenizer: Any, messages: bool) -> DatasetBuilder:
    """The builder with the renderer that `auto` stands for: prompts differ with it."""
    if builder.renderer_name != AUTO:
        return builder
    if tokenizer is None and not messages:
        raise ConfigError(
            "renderer_name=auto is decided by the tokenizer, and none was given, so prompts could not be written. Pass "
            "the host's tokenizer (--tokenizer MODEL), or set dataset_builder.renderer_name to chat or plain."
        )
    name = "chat" if messages else chosen(tokenizer)
    settled: DatasetBuilder = chz.replace(builder, renderer_name=name)
    return settled
