"""`TrainingConfig`: everything a run depends on, as one typed tree. Imports no torch.

The top level has the settings of RL itself (`model_name` ... `resume_from_batch`); the nodes below it have those of the
backend, the optimizer, the SFT stage and evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import chz

from assay.backends import named
from assay.backends.config import LocalBackend, ScratchModel, TinkerService
from assay.config import (
    MAY_CHANGE,
    NOT_NULL,
    Above,
    AtLeast,
    AtMost,
    Below,
    Code,
    Like,
    Not,
    Settings,
    SettingsError,
    UsedWhen,
    fact,
    load,
    refuse,
)
from assay.config.idle import qualified
from assay.config.schema import settings
from assay.envs.base import BY_TEMPLATE, RENDERER, BuildContext, BuildProgress, DatasetBuilder
from assay.envs.named import ENVIRONMENT
from assay.grpo.config import AlgorithmConfig, GRPOConfig
from assay.grpo.recipes import LOSS, canonical, recipe_of
from assay.plugins import find

MANY_TURNS = 1000
"""More turns than an environment has by its own setting."""


def _first() -> DatasetBuilder:
    """The default environment, imported where no other is chosen."""
    return find("kernelbench", ENVIRONMENT, "dataset_builder")()  # type: ignore[no-any-return]


@chz.chz
class OptimizerConfig(Settings):
    """AdamW, shared by the SFT stage and by RL."""

    beta1: Annotated[float, AtLeast(0), Below(1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, AtLeast(0), Below(1)] = 0.95
    """Decay of the second moment."""
    eps: Annotated[float, Above(0)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    """Decoupled weight decay of all matrices, embeddings among them; norms and biases do not decay."""
    grad_clip_norm: Annotated[float, AtLeast(0)] = 1.0
    """Global gradient norm above which the gradient is scaled down; 0 turns clipping off."""
    lr_warmup_steps: Annotated[int, AtLeast(0)] = 0
    """RL steps over which the learning rate rises linearly to `learning_rate`."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate changes after its warm-up, over the RL steps of the run; `linear` and `cosine` end at 0."""


@chz.chz
class SFTConfig(Settings):
    """Supervised steps before RL, on examples from the dataset builder; off when `num_steps` is 0."""

    num_steps: Annotated[int, AtLeast(0)] = 0
    """Supervised optimizer steps before the first RL step."""
    batch_size: Annotated[int, AtLeast(1), UsedWhen("num_steps", Above(0))] = 32
    """Examples per supervised step."""
    learning_rate: Annotated[float, AtLeast(0), UsedWhen("num_steps", Above(0))] = 2e-3
    """Peak learning rate of the stage."""
    lr_warmup_steps: Annotated[int, AtLeast(0), UsedWhen("num_steps", Above(0))] = 30
    """Steps of linear warm-up to `learning_rate`, combined with a linear decay to 0 over the whole stage."""
    save_every: Annotated[int, AtLeast(1), UsedWhen("num_steps", Above(0))] = 100
    """Checkpoint cadence in supervised steps."""


@chz.chz
class EvalConfig(Settings):
    """Held-out evaluation."""

    samples_per_task: Annotated[int, AtLeast(1)] = 4
    """Completions sampled for each held-out task, at the run's temperature."""
    max_tasks: Annotated[int | None, AtLeast(1)] = None
    """Evaluate on only this many of the held-out tasks, the first ones; null means all."""


def _of_one_turn(config: TrainingConfig) -> str:
    if config.allows_turns:
        return "max_turns" if config.mode == "multi_turn" else "mode"
    return "dataset_builder" if config.active_builder is config.dataset_builder else "multiturn_dataset_builder"


@chz.chz
class TrainingConfig(Settings):
    """One run."""

    model_name: str = "Qwen/Qwen2.5-Coder-7B-Instruct"
    """Hugging Face hub id or local folder of a causal LM, or `scratch` for a model built from `scratch.*`; with
    `backend=tinker`, a name of the server's."""
    lora_rank: Annotated[int, AtLeast(0)] = 32
    """LoRA rank; 0 trains all weights (local backend only)."""
    learning_rate: Annotated[float, AtLeast(0)] = 1e-4
    """Adam learning rate of RL."""
    max_tokens: Annotated[int, AtLeast(1)] = 4096
    """Generation limit of each turn of a rollout, in tokens."""
    temperature: Annotated[float, Above(0)] = 1.0
    """Sampling temperature of rollouts; log-probabilities are taken under the same temperature."""
    mode: Annotated[Literal["single_turn", "multi_turn"], UsedWhen("allows_turns")] = "single_turn"
    """`single_turn`, or `multi_turn` for refinement: the env answers and the policy tries again."""
    max_turns: Annotated[int, AtLeast(1), UsedWhen("mode", "multi_turn"), UsedWhen("leaves_turns")] = 4
    """Most turns of a `multi_turn` rollout."""
    gamma: Annotated[float, AtLeast(0), AtMost(1), UsedWhen("plays_turns")] = 0.4
    """Discount of multi-turn returns: a turn earns its reward plus gamma times the next turn's return."""
    num_substeps: Annotated[int, AtLeast(1)] = 1
    """Optimizer steps per pass over a batch; the batch's groups are split evenly among them."""
    rollout_epochs: Annotated[int, AtLeast(1)] = 1
    """Passes over the rollouts of a batch, each with optimizer steps of its own, through the rollout buffer."""
    loss_fn: Annotated[str, Code(LOSS)] = chz.field(
        default="importance_sampling", munger=lambda _, value: canonical(value)
    )
    """Policy-gradient algorithm: a name in the table of `docs/grpo.md`, or a recipe of your own as
    `path/to/file.py:NAME` or `package.module:NAME`."""
    loss_fn_config: Mapping[str, float] = chz.field(default_factory=dict)
    """Settings of the loss, such as `loss_fn_config.clip_high_threshold=1.28` (absolute ratios)."""
    kl_penalty_coef: Annotated[float, AtLeast(0)] = 0.0
    """Weight of a KL penalty against the policy at the start of RL; 0 turns it off. `grpo.kl_*` set its kind."""
    kl_discount_factor: Annotated[
        float, AtLeast(0), AtMost(1), UsedWhen("has_kl_penalty"), UsedWhen("grpo.kl_placement", "reward")
    ] = 0.0
    """With `grpo.kl_placement=reward`, discount with which a token's KL penalty is also charged to earlier tokens."""
    normalize_advantages_by_std: bool | None = None
    """Divide a group's centred rewards by their standard deviation; null takes the choice of `loss_fn`."""
    remove_constant_reward_groups: bool = True
    """Drop groups in which all rewards are equal: they carry no gradient."""
    dynamic_sampling_rounds: Annotated[int, AtLeast(0)] = 0
    """Times that further problems are sampled to replace a batch's groups of equal rewards; 0 trains on the remaining
    groups."""
    max_steps_off_policy: Annotated[int, AtLeast(0)] = 0
    """Steps that a batch may be sampled ahead of its training step, from the policy of that earlier step, so that its
    verdicts can arrive while other batches are sampled and trained on. The ratio in the loss corrects for the
    difference. 0 samples every batch from the policy that it trains."""
    max_batches: Annotated[int | None, AtLeast(0)] = None
    """Stop after this many RL batches; null means the whole data set, 0 means SFT alone. With
    `optimizer.lr_schedule=constant` a run, even a finished one, goes on when this is raised."""
    max_errored_fraction: Annotated[float, AtLeast(0), AtMost(1), MAY_CHANGE] = 0.1
    """Stop the run when more than this share of a batch's rollouts could not be scored."""
    log_path: Annotated[Path, MAY_CHANGE] = Path("./runs/kernel_rl")
    """Run directory: config, ledger, checkpoints, metrics, traces, tokens, TensorBoard, report."""
    save_every: Annotated[int, AtLeast(1)] = 10
    """Checkpoint cadence in RL batches. Checkpoints are also saved at the start, after SFT and at the end."""
    keep_last: Annotated[int | None, AtLeast(1), MAY_CHANGE] = None
    """Keep this many of the newest checkpoints and remove older ones once a newer one is on disk. Checkpoints that a
    resume or a health rollback needs are always kept. null here and in `keep_best` keeps all."""
    keep_best: Annotated[int | None, AtLeast(1), MAY_CHANGE] = None
    """Keep this many of the checkpoints with the largest `best_metric`; null keeps none by metric."""
    best_metric: Annotated[str, MAY_CHANGE] = "eval/reward/mean"
    """Metric by which checkpoints are compared (`keep_best`, `assay export --best`); larger is better. A checkpoint has
    a value only if it was measured at its own step (let `eval_every` divide `save_every`)."""
    eval_every: Annotated[int, AtLeast(0), MAY_CHANGE] = 10
    """Held-out evaluation cadence in RL batches; 0 evaluates only at the start and the end of RL."""
    wandb_project: Annotated[str | None, MAY_CHANGE] = None
    """Weights & Biases project; disabled when null."""
    wandb_name: Annotated[str | None, UsedWhen("wandb_project", NOT_NULL), MAY_CHANGE] = None
    """Weights & Biases run name."""
    trace_token_groups: Annotated[int, AtLeast(0), MAY_CHANGE] = 2
    """Number of groups of each training batch, starting at the first, whose turns are recorded token by token in
    `tokens.jsonl`."""
    tensorboard_enabled: Annotated[bool | None, MAY_CHANGE] = None
    """Write TensorBoard event files; null writes them where tensorboardX is installed (the extra `tensorboard`)."""
    completion_table_every: Annotated[int, AtLeast(0), UsedWhen("has_board"), MAY_CHANGE] = 10
    """Cadence, in RL batches, of tables of answers in TensorBoard and Weights & Biases; 0 turns them off."""
    tensorboard_log_histograms_every: Annotated[
        int, AtLeast(0), UsedWhen("tensorboard_enabled", Not(False)), MAY_CHANGE
    ] = 5
    """Cadence, in RL batches, of reward and length histograms; 0 turns them off."""
    tensorboard_log_per_level: Annotated[bool, UsedWhen("tensorboard_enabled", Not(False)), MAY_CHANGE] = True
    """Also log metrics per tag (task type, level, side to move) to TensorBoard."""
    base_url: Annotated[str | None, UsedWhen("backend", Not("local"))] = None
    """Base URL of the service that a hosted backend calls; null: TINKER_BASE_URL, or else the official Tinker API."""
    load_checkpoint_path: Path | None = None
    """Start from the weights of this checkpoint folder, with a fresh optimizer and step count."""
    resume_from_batch: Annotated[int | None, AtLeast(0), MAY_CHANGE] = None
    """Resume from the checkpoint of this RL batch instead of the last one; later steps are discarded."""
    seed: Annotated[int, AtLeast(0), AtMost(2**63 - 1)] = 0
    """Seed of everything random: initial weights, data order, sampling."""
    backend: Annotated[str, Code(named.BACKEND)] = chz.field(
        default="local", munger=lambda _, value: named.canonical(value)
    )
    """Where the model lives: `local` (this machine), `tinker` (a service with the Tinker API, `docs/tinker.md`), or one
    of your own as `path/to/file.py:open` or `package.module:open` (`assay.backends.named`)."""
    cache_dir: Annotated[Path, MAY_CHANGE] = Path("~/.cache/assay")
    """Where verdicts of verifier programs are kept between runs."""
    local: LocalBackend = chz.field(default_factory=LocalBackend)
    """Settings of the local backend."""
    tinker: Annotated[TinkerService, UsedWhen("backend", "tinker")] = chz.field(default_factory=TinkerService)
    """Settings of the Tinker backend."""
    scratch: Annotated[ScratchModel, UsedWhen("model_name", "scratch")] = chz.field(default_factory=ScratchModel)
    """The model to build when `model_name=scratch`."""
    optimizer: OptimizerConfig = chz.field(default_factory=OptimizerConfig)
    """AdamW settings."""
    grpo: AlgorithmConfig = chz.field(default_factory=AlgorithmConfig)
    """The rest of the algorithm: KL penalty, aggregation, rollout reuse, health."""
    sft: SFTConfig = chz.field(default_factory=SFTConfig)
    """Supervised stage before RL."""
    eval: EvalConfig = chz.field(default_factory=EvalConfig)
    """Held-out evaluation."""
    dataset_builder: Annotated[DatasetBuilder, Code(ENVIRONMENT, "kernelbench")] = chz.field(default_factory=_first)
    """Environment and data."""
    multiturn_dataset_builder: Annotated[
        DatasetBuilder | None, Code(ENVIRONMENT), Like("dataset_builder", "in_turns"), UsedWhen("mode", "multi_turn")
    ] = None
    """Environment and data of `multi_turn` mode; null means `dataset_builder`."""

    @chz.validate
    def _consistent(self) -> None:
        refuse(_impossible(self))
        named.check(self.backend, self.base_url)
        self.trainer()

    def trainer(self) -> GRPOConfig:
        """The settings of the run's `GRPOTrainer`.

        Raises:
            ConfigError: they cannot go together.
        """
        o, algorithm = self.optimizer, {name: getattr(self.grpo, name) for name in settings(AlgorithmConfig)}
        if (self.grpo.aggregation or recipe_of(self.loss_fn).aggregation) == "constant":
            algorithm["constant_length"] = self.grpo.constant_length or self.max_tokens
        try:
            return GRPOConfig(
                **algorithm,
                loss_fn=self.loss_fn,
                loss_fn_config=self.loss_fn_config,
                learning_rate=self.learning_rate,
                beta1=o.beta1,
                beta2=o.beta2,
                eps=o.eps,
                weight_decay=o.weight_decay,
                grad_clip_norm=o.grad_clip_norm,
                temperature=self.temperature,
                gamma=self.gamma,
                normalize_advantages_by_std=self.normalize_advantages_by_std,
                remove_constant_reward_groups=self.remove_constant_reward_groups,
                num_substeps=self.num_substeps,
                rollout_epochs=self.rollout_epochs,
                kl_coef=self.kl_penalty_coef,
                kl_discount_factor=self.kl_discount_factor,
            )
        except SettingsError as error:
            raise SettingsError([in_a_runs_words(problem) for problem in error.problems]) from None

    @fact("there is a KL penalty", "kl_penalty_coef", cure="Raise kl_penalty_coef")
    def has_kl_penalty(self) -> bool:
        """Whether the KL against the reference is penalised, and so measured."""
        return self.kl_penalty_coef > 0

    @fact("rollouts are kept for further passes", "rollout_epochs", cure="Raise rollout_epochs")
    def keeps_rollouts(self) -> bool:
        """Whether there is a rollout buffer."""
        return self.rollout_epochs > 1

    @fact(
        "answers are shown in TensorBoard or Weights & Biases",
        "tensorboard_enabled",
        "wandb_project",
        cure="Set tensorboard_enabled=true",
    )
    def has_board(self) -> bool:
        """Whether something shows tables."""
        return self.tensorboard_enabled is not False or self.wandb_project is not None

    @fact(
        "the environment can play several turns",
        "dataset_builder",
        "multiturn_dataset_builder",
        cure="Choose an environment that does",
    )
    def allows_turns(self) -> bool:
        """Whether rollouts of the run's environment may have more than one turn."""
        return self.active_builder.turns(MANY_TURNS) > 1

    @fact(
        "the environment leaves the number of turns to the run",
        "dataset_builder",
        "multiturn_dataset_builder",
        cure="Set dataset_builder.max_turns",
    )
    def leaves_turns(self) -> bool:
        """Whether the environment has no number of turns of its own."""
        return self.active_builder.turns(MANY_TURNS) == MANY_TURNS

    @fact(
        "rollouts have several turns",
        "mode",
        "max_turns",
        "dataset_builder",
        "multiturn_dataset_builder",
        cure="Set mode=multi_turn, with an environment that plays several turns",
        why=_of_one_turn,
    )
    def plays_turns(self) -> bool:
        """Whether a rollout may have more than one turn."""
        return self.most_turns > 1

    @property
    def most_turns(self) -> int:
        """Most turns of a rollout."""
        return self.active_builder.turns(self.max_turns if self.mode == "multi_turn" else 1)

    @property
    def active_builder(self) -> DatasetBuilder:
        """The builder that the run's mode uses."""
        if self.mode == "multi_turn" and self.multiturn_dataset_builder is not None:
            return self.multiturn_dataset_builder
        return self.dataset_builder

    def build_context(self, progress: BuildProgress | None = None) -> BuildContext:
        """What the run gives its dataset builder; the builder reports its progress to `progress`."""
        chat, cache_dir = self.active_builder.renderer_name in BY_TEMPLATE, self.cache_dir.expanduser()
        context = BuildContext(seed=self.seed, max_turns=self.most_turns, cache_dir=cache_dir, chat=chat)
        return context if progress is None else replace(context, progress=progress)


def in_a_runs_words(problem: object) -> str:
    """What is said of a `GRPOConfig`, under the run's keys."""
    return qualified(re.sub(r"\bkl_coef\b", "kl_penalty_coef", str(problem)), "grpo", settings(AlgorithmConfig))


def _impossible(config: TrainingConfig) -> Iterator[str]:
    """Every combination of settings that cannot work, as messages that say what to change."""
    if config.model_name == "scratch" and config.lora_rank:
        yield (
            f"model_name=scratch with lora_rank={config.lora_rank}: a random base cannot be adapted by LoRA. "
            "Set lora_rank=0 to train all weights."
        )
    if config.lora_rank and config.grpo.ref_refresh_mix != 1:
        yield (
            f"grpo.ref_refresh_mix={config.grpo.ref_refresh_mix} with lora_rank={config.lora_rank}: adapters cannot be "
            "mixed: the mean of two factors is not that of their products. Set grpo.ref_refresh_mix=1 or lora_rank=0."
        )
    yield from _impossible_ahead(config)
    builder = config.active_builder
    if builder.group_size == 1 and config.max_batches != 0:
        yield (
            "group_size=1 of the dataset builder gives a reward nothing to be compared with, so no batch would train "
            "anything. Set it to 2 or more (or max_batches=0 for SFT alone)."
        )
    if config.num_substeps > builder.batch_size:
        yield (
            f"num_substeps={config.num_substeps} but a batch has only {builder.batch_size} groups to "
            "split among optimizer steps. Lower num_substeps or raise the builder's batch_size."
        )
    if config.keeps_rollouts and config.grpo.buffer_capacity < builder.batch_size:
        yield (
            f"grpo.buffer_capacity={config.grpo.buffer_capacity} but a batch has {builder.batch_size} groups, so the "
            "others would be sampled and never trained on. Raise it, or lower the builder's batch_size."
        )
    yield from builder.refusals(config.gamma, config.most_turns)
    find(builder.renderer_name, RENDERER, "renderer_name")


def _impossible_ahead(config: TrainingConfig) -> Iterator[str]:
    """Settings that conflict with sampling ahead of training."""
    if not (ahead := config.max_steps_off_policy):
        return
    if config.dynamic_sampling_rounds:
        yield (
            f"dynamic_sampling_rounds={config.dynamic_sampling_rounds} with max_steps_off_policy={ahead}: which "
            "problems to replace is known only when all verdicts are in, and by then the policy that sampled the "
            "batch is gone. Set one of them to 0."
        )
    substeps, stale = config.num_substeps, config.grpo.max_staleness
    age = ahead * substeps * config.rollout_epochs + substeps - 1
    if stale is not None and stale < age:
        yield (
            f"grpo.max_staleness={stale} with max_steps_off_policy={ahead}: the last groups of a batch are {age} steps "
            f"old when their turn comes ({ahead} x num_substeps x rollout_epochs + num_substeps - 1), so they would be "
            f"dropped. Raise grpo.max_staleness to at least {age}, or lower max_steps_off_policy."
        )


def load_config(sources: str | Sequence[str] | None, overrides: str | Sequence[str] = ()) -> TrainingConfig:
    """The config of a run, from presets or YAML paths (later wins) and `key=value` overrides (which win over both).

    Raises:
        ConfigError: an unknown key, a wrong type, an unreadable or malformed file, or settings that cannot go together.
    """
    return load(TrainingConfig, sources, overrides)
