"""Decides first what `renderer_name=auto` means in a run: data sets and the run's record depend on it.

The record (`config.json`) has the renderer that was chosen, so a run goes on under the one it began with. A user's own
backend has a tokenizer only once it is open; `auto` is then decided there, and checkpoints record it.
"""

from __future__ import annotations

from collections.abc import Mapping

import chz

from assay.backends import named
from assay.backends.base import Backend
from assay.envs.base import DatasetBuilder
from assay.envs.chat import AUTO, ChatConfig
from assay.errors import ConfigError, RunDirectoryError
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.renderers.named import chosen, make_renderer
from assay.training.config import TrainingConfig
from assay.training.run.checkpoints import Checkpoint
from assay.types import Json

RENDERER_STATE = "renderer"
"""Key of the renderer's record in the state of a checkpoint."""


def settle(config: TrainingConfig) -> TrainingConfig:
    """The config with the renderer that `auto` stands for, where that can be told before the policy is open.

    Raises:
        ModelError: there is no such model.
        ConfigError: `chat.*` is set for a model without a chat template.
    """
    builder = config.active_builder
    if builder.renderer_name != AUTO:
        return config
    if config.model_name == "scratch" and config.backend == "local":
        name = "plain"  # a tokenizer made for a closed grammar has no template
    else:
        tokenizer = named.tokenizer_of(config.backend, config.model_name)
        if tokenizer is None:
            return config
        name = chosen(tokenizer)
    if name == "plain" and builder.chat != ChatConfig():
        raise ConfigError(
            f"chat.* of the dataset builder is set, but the tokenizer of {config.model_name} has no chat template, so "
            "it would have no effect. Remove it, or give a model with a chat template."
        )
    settled: DatasetBuilder = chz.replace(builder, renderer_name=name)
    field = "dataset_builder" if builder is config.dataset_builder else "multiturn_dataset_builder"
    changed: TrainingConfig = chz.replace(config, **{field: settled})
    return changed


def renderer_of(config: TrainingConfig, backend: Backend, resumed: Checkpoint | None) -> Renderer:
    """The run's renderer over the policy's tokenizer: at its start, or as at a checkpoint.

    Raises:
        ConfigError: the tokenizer cannot serve it.
        RunDirectoryError: the checkpoint is of a run with another renderer or chat template.
    """
    builder = config.active_builder
    renderer = make_renderer(builder.renderer_name, backend.tokenizer, builder.chat)
    if resumed is not None:
        _check_same(resumed.state, renderer.record(), resumed.name)
    return renderer


def _check_same(state: Mapping[str, Json], record: Mapping[str, str], checkpoint: str) -> None:
    before = state.get(RENDERER_STATE, record)
    if before == record:
        return
    changes = "; ".join(f"{key}: {before.get(key)} -> {record.get(key)}" for key in sorted({*before, *record})
                        if before.get(key) != record.get(key))  # fmt: skip
    raise RunDirectoryError(
        f"Checkpoint {checkpoint} is of a run whose prompts were written in another way ({changes}), so going on would "
        "mix two runs. Set renderer_name of the dataset builder, and give the tokenizer files, as they were; or set "
        "log_path to a new directory."
    )
