"""The plan of a run in words, printed before it starts, so that a wrong setting is seen before it costs anything."""

from __future__ import annotations

import math
from collections.abc import Iterator

from assay.envs.base import EnvData, iter_builders
from assay.errors import pip_install
from assay.grpo.config import doubtful
from assay.grpo.recipes import RECIPES
from assay.rollouts.renderers.base import Renderer
from assay.terminal import inert
from assay.training.config import TrainingConfig, in_a_runs_words
from assay.training.metrics.sinks import has_tensorboard, writes_tensorboard
from assay.training.schedule import rl_learning_rate

NO_GATE = (
    "Parity gate: OFF (grpo.parity.enabled=false). Tokens that the policy did not sample are trained on, and scored, "
    "without notice."
)
_SHOWN = (1000, 500)
"""Characters of a long prompt's beginning and end that are shown."""


def describe(config: TrainingConfig, num_batches: int, heldout_tasks: int) -> str:
    """What the run will do, a line per stage.

    Args:
        num_batches: RL batches of the data set over all epochs.
        heldout_tasks: held-out tasks of the data set, before `eval.max_tasks`.
    """
    lines = [_model(config), f"Data: {config.active_builder.describe()}"]
    if config.sft.num_steps:
        lines.append(
            f"SFT: {counted(config.sft.num_steps, 'supervised step')} of {counted(config.sft.batch_size, 'example')}, "
            f"learning rate up to {config.sft.learning_rate:g}."
        )
    lines += [_rl(config, num_batches), _evaluation(config, num_batches, heldout_tasks), _checkpoints(config)]
    lines.append(_records(config))
    lines += [f"Note: {note}" for note in _notes(config, num_batches)]
    if not config.grpo.parity.enabled:
        lines.append(NO_GATE)
    return "\n".join(lines)


def describe_prompts(config: TrainingConfig, data: EnvData, renderer: Renderer, context: int | None = None) -> str:
    """How conversations are written, and the first prompt as the model sees it: decoded, special tokens included, inert
    in a terminal.

    Args:
        context: most tokens of the model, where they are known: a limit of answers that lies beyond them is said.

    Raises:
        ConfigError: the prompt cannot be written.
    """
    lines = [f"Renderer: {renderer.describe(config.build_context().max_turns)}"]
    first = next((builder.task for builder in iter_builders(data.train)), None)
    if first is not None:
        tokens = renderer.start(first.prompt)
        lines.append(f"First prompt ({counted(len(tokens), 'token')}):")
        lines += [f"  | {line}" for line in inert(_clipped(renderer.text(tokens))).split("\n")]
        room = config.max_tokens if context is None else context - len(tokens)
        if 0 < room < config.max_tokens:
            lines.append(
                f"Answers: at most {counted(room, 'token')} after this prompt, not max_tokens={config.max_tokens}: the "
                f"model's context is {counted(context or 0, 'token')}, prompt included."
            )
    return "\n".join(lines)


def _clipped(text: str) -> str:
    """Beginning and end of a long text."""
    left_out = len(text) - sum(_SHOWN)
    if left_out <= 0:
        return text
    return f"{text[: _SHOWN[0]]}\n[... {left_out:,} more characters ...]\n{text[-_SHOWN[1] :]}"


def _model(config: TrainingConfig) -> str:
    trained = f"LoRA adapters of rank {config.lora_rank}" if config.lora_rank else "all weights"
    if config.model_name == "scratch":
        built = f"{config.scratch.num_layers} layers of width {config.scratch.hidden_size}"
        name = f"a {config.scratch.architecture} transformer from scratch ({built})"
    else:
        name = config.model_name
    own = f", {config.local.device} device, {config.local.dtype}" if config.backend == "local" else ""
    return f"Model: {name}, training {trained}; {config.backend} backend{own}."


def _rl(config: TrainingConfig, num_batches: int) -> str:
    builder = config.active_builder
    samples = builder.batch_size * builder.group_size
    most = config.build_context().max_turns
    turns = f" of up to {counted(most, 'turn')}" if config.mode == "multi_turn" or most > 1 else ""
    loss = ", ".join([_loss(config), *_extras(config)])
    passes = f" in each of {config.rollout_epochs} passes" if config.rollout_epochs > 1 else " each"
    return (
        f"RL: {counted(num_batches, 'batch')} of {counted(builder.batch_size, 'problem')} x "
        f"{counted(builder.group_size, 'rollout')}{turns} = {counted(samples, 'sample')}, "
        f"{counted(config.num_substeps, 'optimizer step')}{passes} at {_rate(config, num_batches)} "
        f"({counted(num_batches * samples, 'sample')} in all). Loss: {loss}."
    )


def _rate(config: TrainingConfig, num_batches: int) -> str:
    """The learning rate: what it is, or how it changes and the largest that the run reaches."""
    warmup, shape = config.optimizer.lr_warmup_steps, config.optimizer.lr_schedule
    if not warmup and shape == "constant":
        return f"{config.learning_rate:g}"
    parts = [f"rising over {counted(warmup, 'batch')}"] if warmup else []
    parts += [f"falling to 0 ({shape})"] if shape != "constant" else []
    most = max((rl_learning_rate(config, batch, num_batches) for batch in range(num_batches)), default=0.0)
    short = f" of learning_rate={config.learning_rate:g}" if most < 0.99 * config.learning_rate else ""
    return f"up to {most:.3g}{short}, {' and '.join(parts)},"


def _loss(config: TrainingConfig) -> str:
    """The loss with the settings it was given; one of the user's own with all that is in it."""
    recipe = config.trainer().recipe
    if config.loss_fn in RECIPES:
        given = [f"{name}={value:g}" for name, value in sorted(config.loss_fn_config.items())]
        return ", ".join([config.loss_fn, *given])
    parts = [*(f"{name}={value:g}" for name, value in recipe.thresholds.items()), f"aggregation={recipe.aggregation}"]
    return f"{config.loss_fn} ({recipe.name}, {', '.join(parts)})"


def _extras(config: TrainingConfig) -> Iterator[str]:
    """What changes the objective beside the loss itself."""
    trainer = config.trainer()
    if trainer.recipe.by_std:
        yield "advantages divided by their group's standard deviation"
    if trainer.kl_coef:
        target = f", adapted to {trainer.kl_target:g}" if trainer.kl_target is not None else ""
        yield f"KL penalty {trainer.kl_coef:g} ({trainer.estimator} in the {trainer.kl_placement}{target})"
    if trainer.entropy_coef:
        yield f"entropy bonus {trainer.entropy_coef:g}"
    if config.dynamic_sampling_rounds:
        yield f"groups of equal rewards replaced up to {counted(config.dynamic_sampling_rounds, 'time')}"
    if config.max_steps_off_policy:
        yield f"batches sampled {counted(config.max_steps_off_policy, 'step')} ahead"
    if config.temperature != 1:
        yield f"temperature {config.temperature:g}"


def _evaluation(config: TrainingConfig, num_batches: int, heldout_tasks: int) -> str:
    tasks = min(heldout_tasks, config.eval.max_tasks or heldout_tasks)
    if not tasks:
        return "Held-out: no tasks, so no evaluation."
    during = f", every {counted(config.eval_every, 'batch')}" if 0 < config.eval_every < num_batches else ""
    samples = counted(config.eval.samples_per_task, "sample")
    return f"Held-out: {counted(tasks, 'task')} x {samples} before RL{during} and at the end."


def _checkpoints(config: TrainingConfig) -> str:
    sft = f"every {counted(config.sft.save_every, 'supervised step')}, after SFT, " if config.sft.num_steps else ""
    rl = f"every {counted(config.save_every, 'batch')} and at the end"
    return f"Checkpoints: at the start, {sft}{rl}, in {config.log_path}."


def _records(config: TrainingConfig) -> str:
    """Where the run can be followed, beside its own files."""
    wandb = f", Weights & Biases project {config.wandb_project}" if config.wandb_project is not None else ""
    board = "TensorBoard files" if writes_tensorboard(config.tensorboard_enabled) else "no TensorBoard files"
    missing = (
        ""
        if config.tensorboard_enabled is not None or has_tensorboard()
        else (f" (tensorboardX is not installed: {pip_install('tensorboard')})")
    )
    return f"Records: metrics and rollouts as JSON lines, {board}{missing}{wandb}."


def _notes(config: TrainingConfig, num_batches: int) -> Iterator[str]:
    """What of the settings hardly does what is wanted of it."""
    for said in doubtful(config.trainer()):
        yield in_a_runs_words(said)
    if not num_batches and not config.sft.num_steps:
        yield "nothing is trained: there are no RL batches (max_batches) and no supervised steps (sft.num_steps)."
    if config.keep_best is None or not config.best_metric.startswith("eval/") or not num_batches:
        return
    both = math.lcm(config.eval_every, config.save_every)  # 0 where evaluations are at the start and the end alone
    if not 0 < both < num_batches:
        yield (
            f"keep_best={config.keep_best} compares only the checkpoints at the start and the end by "
            f"{config.best_metric}: no other is evaluated (save_every={config.save_every}, "
            f"eval_every={config.eval_every}). Let eval_every divide save_every."
        )


def counted(number: int, noun: str) -> str:
    """`1 batch`, `51,200 samples`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
