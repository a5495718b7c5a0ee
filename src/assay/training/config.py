"""`TrainingConfig`: everything a run depends on, as one typed tree. Imports no torch.

The top-level names and defaults are those of the specification of kernel RL (`model_name` ... `resume_from_batch`);
the rest says what that document leaves open: which backend, the optimizer, the SFT stage and evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import chz

from assay.backends.config import LocalBackend, ScratchModel
from assay.config.schema import settings
from assay.envs.base import BuildContext, DatasetBuilder
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.errors import ConfigError
from assay.grpo.config import AlgorithmConfig, GRPOConfig
from assay.grpo.recipes import RECIPES, Algorithm
from assay.rollouts.renderers.base import RENDERERS


@chz.chz
class OptimizerConfig:
    """AdamW, shared by the SFT stage and by RL."""

    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay, applied to matrices only."""
    grad_clip_norm: float = 1.0
    """Global gradient norm above which the gradient is scaled down; 0 turns clipping off."""
    lr_warmup_steps: int = 0
    """RL steps over which the learning rate rises linearly to `learning_rate`."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after its warm-up, over the RL steps of the run; `linear` and `cosine` end at 0."""

    @chz.validate
    def _in_range(self) -> None:
        least = {"beta1": 0, "beta2": 0, "eps": 0, "weight_decay": 0, "grad_clip_norm": 0, "lr_warmup_steps": 0}
        problems = _out_of_range(self, least, parent="optimizer.")
        if self.eps == 0:
            problems.append("optimizer.eps=0 divides 0 by 0 in every weight without a gradient. Set it above 0.")
        if max(self.beta1, self.beta2) >= 1:
            problems.append(f"optimizer.beta1={self.beta1} and optimizer.beta2={self.beta2} must be below 1.")
        if problems:
            raise ConfigError("\n".join(problems))


@chz.chz
class SFTConfig:
    """Supervised steps before RL, on examples made by the data set builder; off when `num_steps` is 0."""

    num_steps: int = 0
    """Supervised optimizer steps before the first RL step."""
    batch_size: int = 32
    """Examples per supervised step."""
    learning_rate: float = 2e-3
    """Peak learning rate of the stage."""
    lr_warmup_steps: int = 30
    """Steps of linear rise to `learning_rate`, on top of a linear fall to 0 over the whole stage."""
    save_every: int = 100
    """Checkpoint cadence in supervised steps."""

    @chz.validate
    def _in_range(self) -> None:
        least = {"num_steps": 0, "batch_size": 1, "learning_rate": 0, "lr_warmup_steps": 0, "save_every": 1}
        if problems := _out_of_range(self, least, parent="sft."):
            raise ConfigError("\n".join(problems))


@chz.chz
class EvalConfig:
    """Held-out evaluation."""

    samples_per_task: int = 4
    """Completions sampled for each held-out task, at the run's temperature."""
    max_tasks: int | None = None
    """Evaluate on the first so many held-out tasks only; null means all of them."""

    @chz.validate
    def _in_range(self) -> None:
        if problems := _out_of_range(self, {"samples_per_task": 1, "max_tasks": 1}, parent="eval."):
            raise ConfigError("\n".join(problems))


@chz.chz
class TrainingConfig:
    """One run."""

    model_name: str = "Qwen/Qwen2.5-Coder-7B-Instruct"
    """Hugging Face hub id or local folder of a causal LM, or `scratch` for a model built from `scratch.*`."""
    lora_rank: int = 32
    """LoRA rank; 0 trains all weights (local backend only)."""
    learning_rate: float = 1e-4
    """Adam learning rate of RL."""
    max_tokens: int = 4096
    """Generation limit, in tokens, of each turn of a rollout."""
    temperature: float = 1.0
    """Sampling temperature of rollouts; log-probabilities are taken under the same temperature."""
    mode: Literal["single_turn", "multi_turn"] = "single_turn"
    """`single_turn`, or `multi_turn` for refinement: the env answers and the policy tries again."""
    max_turns: int = 4
    """Most turns of a `multi_turn` rollout."""
    gamma: float = 0.4
    """Discount of multi-turn returns: a turn earns its reward plus gamma times the next turn's return."""
    num_substeps: int = 1
    """Optimizer steps per pass over a batch; the batch's groups are split evenly among them."""
    rollout_epochs: int = 1
    """Passes over the rollouts of a batch, each with optimizer steps of its own, through the rollout buffer."""
    loss_fn: Algorithm = "importance_sampling"
    """Policy-gradient algorithm: a bare loss (`importance_sampling`, `ppo`, `cispo`), or one with the advantages and
    aggregation of its paper (`grpo`, `dr_grpo`, `dapo`, `gspo`, `rloo`)."""
    loss_fn_config: Mapping[str, float] = chz.field(default_factory=dict)
    """Settings of the loss, such as `loss_fn_config.clip_high_threshold=1.28` (absolute ratios)."""
    kl_penalty_coef: float = 0.0
    """Weight of a KL penalty against the policy at the start of RL; 0 turns it off. `grpo.kl_*` say of what kind."""
    kl_discount_factor: float = 0.0
    """With `grpo.kl_placement=reward`, discount with which a token's KL penalty is also charged to earlier tokens."""
    normalize_advantages_by_std: bool | None = None
    """Divide a group's centred rewards by their standard deviation; null means as `loss_fn` has it."""
    remove_constant_reward_groups: bool = True
    """Drop groups in which all rewards are equal: they carry no gradient."""
    dynamic_sampling_rounds: int = 0
    """Times that a batch is topped up with further problems in place of its groups of equal rewards; 0 trains on what
    is left."""
    max_steps_off_policy: int = 0
    """Steps that a batch may be sampled ahead of its training step, from the policy of that earlier step: then its
    verdicts may come in while other batches are sampled and trained on. The loss's ratio corrects for the difference.
    0 samples every batch from the policy that it trains."""
    max_batches: int | None = None
    """Stop after so many RL batches; null means the whole data set, 0 means SFT alone."""
    max_errored_fraction: float = 0.1
    """Stop the run when more than this share of a batch's rollouts could not be scored."""
    log_path: Path = Path("./runs/kernel_rl")
    """Run directory: config, ledger, checkpoints, metrics, traces, TensorBoard, report."""
    save_every: int = 10
    """Checkpoint cadence in RL batches. Checkpoints are also saved at the start, after SFT and at the end."""
    eval_every: int = 10
    """Held-out evaluation cadence in RL batches; 0 evaluates only at the start and the end of RL."""
    wandb_project: str | None = None
    """Weights & Biases project; disabled when null."""
    wandb_name: str | None = None
    """Weights & Biases run name."""
    tensorboard_enabled: bool = True
    """Write TensorBoard event files."""
    tensorboard_log_histograms_every: int = 5
    """Cadence, in RL batches, of reward and length histograms; 0 turns them off."""
    tensorboard_log_per_level: bool = True
    """Also log metrics per tag (task type, level, side to move) to TensorBoard."""
    base_url: str | None = None
    """Custom base URL of the Tinker service (`backend=tinker` only)."""
    load_checkpoint_path: Path | None = None
    """Start from the weights of this checkpoint folder, with a fresh optimizer and step count."""
    resume_from_batch: int | None = None
    """Resume from the checkpoint of this RL batch instead of the last one; what came after it is discarded."""
    seed: int = 0
    """Seed of everything random: initial weights, data order, sampling."""
    backend: Literal["local", "tinker"] = "local"
    """Where the model lives: `local` (PyTorch, this machine) or `tinker` (the hosted service)."""
    cache_dir: Path = Path("~/.cache/assay")
    """Where verdicts of verifier programs are kept between runs."""
    local: LocalBackend = chz.field(default_factory=LocalBackend)
    """Settings of the local backend."""
    scratch: ScratchModel = chz.field(default_factory=ScratchModel)
    """The model to build when `model_name=scratch`."""
    optimizer: OptimizerConfig = chz.field(default_factory=OptimizerConfig)
    """AdamW settings."""
    grpo: AlgorithmConfig = chz.field(default_factory=AlgorithmConfig)
    """The rest of the algorithm: KL penalty, aggregation, rollout reuse, health."""
    sft: SFTConfig = chz.field(default_factory=SFTConfig)
    """Supervised stage before RL."""
    eval: EvalConfig = chz.field(default_factory=EvalConfig)
    """Held-out evaluation."""
    dataset_builder: DatasetBuilder = chz.field(default_factory=ChessDatasetBuilder)
    """Environment and data."""
    multiturn_dataset_builder: DatasetBuilder | None = None
    """Environment and data of `multi_turn` mode; null means `dataset_builder`."""

    @chz.validate
    def _consistent(self) -> None:
        problems = [*_out_of_range(self, _LEAST, _MOST), *_impossible(self)]
        if problems:
            raise ConfigError("\n".join(problems))
        self.trainer()

    def trainer(self) -> GRPOConfig:
        """The settings of the run's `GRPOTrainer`.

        Raises:
            ConfigError: they cannot go together.
        """
        o, algorithm = self.optimizer, {name: getattr(self.grpo, name) for name in settings(AlgorithmConfig)}
        if (self.grpo.aggregation or RECIPES[self.loss_fn].aggregation) == "constant":
            algorithm["constant_length"] = self.grpo.constant_length or self.max_tokens
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

    @property
    def active_builder(self) -> DatasetBuilder:
        """The builder that the run's mode uses."""
        if self.mode == "multi_turn" and self.multiturn_dataset_builder is not None:
            return self.multiturn_dataset_builder
        return self.dataset_builder

    def build_context(self) -> BuildContext:
        """What the run tells its data set builder."""
        max_turns = self.max_turns if self.mode == "multi_turn" else 1
        return BuildContext(seed=self.seed, max_turns=max_turns, cache_dir=self.cache_dir.expanduser())


_LEAST: Mapping[str, float] = {
    "lora_rank": 0,
    "learning_rate": 0,
    "max_tokens": 1,
    "max_turns": 1,
    "gamma": 0,
    "num_substeps": 1,
    "rollout_epochs": 1,
    "dynamic_sampling_rounds": 0,
    "max_steps_off_policy": 0,
    "kl_penalty_coef": 0,
    "kl_discount_factor": 0,
    "max_batches": 0,
    "max_errored_fraction": 0,
    "save_every": 1,
    "eval_every": 0,
    "tensorboard_log_histograms_every": 0,
    "resume_from_batch": 0,
}
_BUFFER = ("buffer_capacity", "min_fresh_fraction", "max_staleness")
"""Settings of the rollout buffer."""
_MOST: Mapping[str, float] = {"gamma": 1, "kl_discount_factor": 1, "max_errored_fraction": 1}
_NO_BOUND: Mapping[str, float] = {}


def _out_of_range(
    node: object, least: Mapping[str, float], most: Mapping[str, float] = _NO_BOUND, parent: str = ""
) -> list[str]:
    """One message for each setting of a node below its least or above its greatest value; null is in range."""
    values = {name: getattr(node, name) for name in least}
    problems = [(n, f"at least {least[n]}") for n, value in values.items() if value is not None and value < least[n]]
    problems += [(n, f"at most {bound}") for n, bound in most.items() if values[n] > bound]
    return [f"{parent}{name}={values[name]} must be {bound}." for name, bound in problems]


def _impossible(config: TrainingConfig) -> list[str]:
    """Every combination of settings that cannot work, as messages that say what to change."""
    problems = []
    if config.model_name != "scratch" and config.scratch != ScratchModel():
        problems.append(
            f"scratch.* is set but model_name is {config.model_name!r}, so it would have no effect. "
            "Set model_name=scratch or remove scratch.*."
        )
    if config.model_name == "scratch" and config.lora_rank:
        problems.append(
            f"model_name=scratch with lora_rank={config.lora_rank}: a random base cannot be adapted by LoRA. "
            "Set lora_rank=0 to train all weights."
        )
    if config.base_url is not None and config.backend != "tinker":
        problems.append(
            f"base_url is set but backend={config.backend} calls no service. Set backend=tinker or remove it."
        )
    if config.mode == "single_turn" and config.multiturn_dataset_builder is not None:
        problems.append(
            "multiturn_dataset_builder is set but mode=single_turn ignores it. Set mode=multi_turn or remove it."
        )
    if config.wandb_name is not None and config.wandb_project is None:
        problems.append(
            "wandb_name is set but wandb_project is not, so W&B is off. Set wandb_project or remove wandb_name."
        )
    if config.lora_rank and config.grpo.ref_refresh_mix != 1:
        problems.append(
            f"grpo.ref_refresh_mix={config.grpo.ref_refresh_mix} with lora_rank={config.lora_rank}: adapters cannot be "
            "mixed, since half of two factors is not half of their product. Set grpo.ref_refresh_mix=1 or lora_rank=0."
        )
    idle = [name for name in _BUFFER if getattr(config.grpo, name) != getattr(AlgorithmConfig(), name)]
    if config.rollout_epochs == 1 and idle:
        problems.append(
            f"{', '.join(f'grpo.{name}' for name in idle)} set, but rollout_epochs=1 keeps no rollouts. Raise "
            "rollout_epochs, or remove it."
        )
    problems += _impossible_ahead(config)
    if config.temperature <= 0:
        problems.append(f"temperature={config.temperature} must be above 0: RL needs samples, not the argmax.")
    if config.active_builder.group_size == 1 and config.max_batches != 0:
        problems.append(
            "group_size=1 of the dataset builder leaves a reward nothing to be compared with, so no batch would teach "
            "anything. Set it to 2 or more (or max_batches=0 for SFT alone)."
        )
    if config.num_substeps > config.active_builder.batch_size:
        problems.append(
            f"num_substeps={config.num_substeps} but a batch has only {config.active_builder.batch_size} groups to "
            "split among optimizer steps. Lower num_substeps or raise the builder's batch_size."
        )
    if (renderer := config.active_builder.renderer_name) not in RENDERERS:
        problems.append(f"renderer_name={renderer!r} of the dataset builder is not one of {', '.join(RENDERERS)}.")
    return problems


def _impossible_ahead(config: TrainingConfig) -> list[str]:
    """What cannot go together with sampling ahead of training."""
    ahead, problems = config.max_steps_off_policy, list[str]()
    if not ahead:
        return problems
    if config.dynamic_sampling_rounds:
        problems.append(
            f"dynamic_sampling_rounds={config.dynamic_sampling_rounds} with max_steps_off_policy={ahead}: which "
            "problems are replaced is known when all verdicts are in, and by then the policy that sampled the batch is "
            "gone. Set one of them to 0."
        )
    if config.grpo.max_ratio_error is not None:
        problems.append(
            f"grpo.max_ratio_error={config.grpo.max_ratio_error} with max_steps_off_policy={ahead}: it checks rollouts "
            "of the present policy, and there would be none. Set it to null, or max_steps_off_policy=0."
        )
    stale, age = config.grpo.max_staleness, ahead * config.num_substeps * config.rollout_epochs
    if stale is not None and stale < age:
        problems.append(
            f"grpo.max_staleness={stale} with max_steps_off_policy={ahead}: a batch is {age} optimizer steps old when "
            f"its turn comes ({ahead} x num_substeps x rollout_epochs), so it would be retired unused. Raise "
            f"grpo.max_staleness to at least {age}, or lower max_steps_off_policy."
        )
    return problems
