"""Which settings an evaluation reads."""

from __future__ import annotations

from collections.abc import Sequence

from assay.config.sources import read_overrides
from assay.errors import ConfigError

CHANGED_MOST = (
    "eval.samples_per_task",
    "eval.max_tasks",
    "temperature",
    "max_tokens",
    "max_errored_fraction",
    "local.device",
    "local.dtype",
    "local.sample_batch_tokens",
    "cache_dir",
)
"""Settings that `--help` shows."""
OF_ENDPOINT = ("endpoint.api_key_env", "endpoint.budget_usd", "endpoint.budget_tokens", "endpoint.max_in_flight")
"""Those that it shows for endpoints besides."""


NOT_READ: tuple[str, ...] = (
    *("learning_rate", "lora_rank", "gamma", "num_substeps", "rollout_epochs", "loss_fn", "loss_fn_config"),
    *("kl_penalty_coef", "kl_discount_factor", "normalize_advantages_by_std", "remove_constant_reward_groups"),
    *("dynamic_sampling_rounds", "max_steps_off_policy", "max_batches", "log_path", "save_every", "keep_last"),
    *("keep_best", "best_metric", "eval_every", "wandb_project", "wandb_name", "trace_token_groups"),
    *("tensorboard_enabled", "completion_table_every", "tensorboard_log_histograms_every"),
    *("tensorboard_log_per_level", "load_checkpoint_path", "resume_from_batch", "optimizer", "grpo", "sft"),
    *("local.micro_batch_tokens", "local.use_gradient_checkpointing", "local.adamw", "dataset_builder.batch_size"),
    "dataset_builder.group_size",
)
"""Settings of training, below which an evaluation reads nothing."""


def refuse_idle(overrides: Sequence[str], not_read: Sequence[str]) -> None:
    """Refuse settings of training, which would do nothing.

    Raises:
        ConfigError: there are some.
    """
    given = read_overrides(overrides).values
    if idle := [key for key in given if _is_below(key, not_read)]:
        read = ", ".join(key for key in CHANGED_MOST if not _is_below(key, not_read))
        raise ConfigError(
            f"{' and '.join(idle)} would have no effect on this evaluation. Remove it. What it reads is {read} and "
            "other settings of the environment, and, where something is sampled, of sampling and of the device."
        )


def _is_below(key: str, names: Sequence[str]) -> bool:
    return any(f"{key}.".startswith(f"{name}.") for name in names)
