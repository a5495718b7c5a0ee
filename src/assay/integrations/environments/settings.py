"""What a host needs of a run's settings: which tasks, how rollouts are played, how they are credited.

    prepared("chess", ["dataset_builder.num_train=64"], tokenizer)

reads what `assay train` reads, so that a task is posed, cut and credited as in Assay's own loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chz

from assay.config import resolved
from assay.envs.base import BY_TEMPLATE, DatasetBuilder
from assay.envs.chat import AUTO, ChatConfig
from assay.errors import ConfigError
from assay.grpo.advantages import group_advantages
from assay.grpo.recipes import Baseline
from assay.integrations.environments.reference import EnvironmentConfig, EnvironmentReference
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.renderers.named import chosen, make_renderer
from assay.training.config import TrainingConfig, load_config
from assay.types import Json, SamplingParams, TrajectoryGroup


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
    """An environment as a host trains on it. `record` holds all of it as JSON, for a host's own files."""

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

    @property
    def record(self) -> dict[str, Json]:
        """Everything but the environment itself, as JSON."""
        playing, credit = self.playing, self.playing.credit
        return {
            "max_tokens": playing.params.max_tokens,
            "temperature": playing.params.temperature,
            "max_turns": playing.max_turns,
            "seed": playing.seed,
            "gamma": credit.gamma,
            "normalize_by_std": credit.by_std,
            "baseline": credit.baseline,
            "group_size": self.group_size,
            "renderer_name": self.renderer_name,
            "chat": resolved(self.chat),
        }


def prepared(
    sources: str | Sequence[str] | None = None,
    overrides: str | Sequence[str] = (),
    tokenizer: Any = None,
    *,
    messages: bool = False,
) -> Prepared:
    """An environment for a host, from presets or YAML files and `key=value` overrides, as `assay train` takes them.

    Args:
        tokenizer: the host's; it decides what `renderer_name=auto` means.
        messages: the host writes messages as tokens itself, by a chat template; there is no tokenizer here.

    Raises:
        ConfigError: settings that cannot be read or go together, or no tokenizer where one decides.
    """
    return prepared_of(load_config(sources, overrides), tokenizer, messages=messages)


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
            "the host's tokenizer, or set dataset_builder.renderer_name to chat or plain."
        )
    name = "chat" if messages else chosen(tokenizer)
    settled: DatasetBuilder = chz.replace(builder, renderer_name=name)
    return settled
