"""`assay train --dry-run`: the checks of a start, by the same functions, and estimates of time and memory.

Nothing is written, but for what data sets keep in `cache_dir`. The policy is opened as a start opens it, where its
weights are on this machine and fit into its memory; otherwise its files and its shapes are looked at, and the plan says
so. It is tried out only where that costs nothing but time, in the local backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from assay.backends import named
from assay.backends.base import Backend, LossSpec
from assay.backends.probe import check_agreement, measure_speed
from assay.envs.base import EnvData, build_data, iter_builders
from assay.errors import ConfigError
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.renderers.named import make_renderer
from assay.training import forecast
from assay.training.config import TrainingConfig
from assay.training.metrics.progress import RunProgress
from assay.training.plan import describe, describe_prompts
from assay.training.run.checkpoints import Checkpoint
from assay.training.run.resume import ResumePlan
from assay.training.session import accepted, check_data, num_batches, open_policy, plan_run, policy_of
from assay.training.settle import settle
from assay.types import Check, SamplingParams

EXAMPLES = 16
"""Number of supervised examples whose lengths are measured."""
CHARACTERS_PER_TOKEN = 3
"""In prompts, about."""


async def dry_run(config: TrainingConfig) -> str:
    """What the run would do, in words, after every check of a start.

    Raises:
        AssayError: the run could not start; the message is the start's own.
    """
    config = settle(config)
    plan = accepted(plan_run(config))
    if plan.is_complete:
        return f"The run in {config.log_path} is complete; a start would do nothing."
    named.check_access(config.backend, config.base_url)
    with RunProgress() as progress, progress.building() as show:
        data = build_data(config.active_builder, config.build_context(show))
    try:
        check_data(config, data)
        refuse_failing(await config.active_builder.checks(config.build_context()))
        heldout = sum(1 for _ in iter_builders(data.heldout))
        lines = [describe(config, num_batches(config, data), heldout), *_goes_on(plan)]
        look = await _look(config, data, plan)
        lines.append(describe_prompts(config, data, look.renderer, look.context))
        return "\n".join([*lines, *look.words])
    finally:
        await data.close()


def refuse_failing(checks: list[Check]) -> None:
    """Raise for what a run needs and the machine lacks.

    Raises:
        ConfigError: one line for each.
    """
    if failing := [check for check in checks if not check.ok]:
        raise ConfigError("\n".join(f"{c.name}: {c.found}. To cure it, {c.cure}." for c in failing))


@dataclass(frozen=True)
class _Look:
    """What was learned of the policy."""

    renderer: Renderer
    words: list[str]
    context: int | None = None
    """The model's context in tokens, where it was opened."""


def _goes_on(plan: ResumePlan) -> list[str]:
    if plan.checkpoint is None:
        return []
    dropped = sum(not commit.done for commit in plan.content.commits[plan.kept :])
    cut = f"; {dropped} later step{'s' if dropped > 1 else ''} would be removed" if dropped else ""
    lines = [f"Resumes after step {plan.checkpoint.step} ({plan.checkpoint.name}){cut}."]
    if plan.changes:
        lines.append(f"Goes on with other settings: {', '.join(map(str, plan.changes))}.")
    return lines


async def _look(config: TrainingConfig, data: EnvData, plan: ResumePlan) -> _Look:
    words, obstacle = foresee(config, data, plan.checkpoint)
    tokenizer = named.tokenizer_of(config.backend, config.model_name) if obstacle else None
    if tokenizer is not None:
        builder = config.active_builder
        renderer = make_renderer(builder.renderer_name, tokenizer, builder.chat)
        return _Look(renderer, [*words, f"{obstacle} The model was not loaded, so time is not estimated."])
    backend, renderer = await open_policy(config, data, plan.checkpoint)
    try:
        words.append(await _time(config, data, plan, backend, renderer))
        return _Look(renderer, words, backend.context_length)
    finally:
        await backend.close()


def foresee(config: TrainingConfig, data: EnvData, resumed: Checkpoint | None) -> tuple[list[str], str]:
    """What is known of a policy before it is opened: memory in words, and the reason if it should not be opened for a
    dry run.

    Raises:
        ModelError: there is no such model or device.
        CheckpointError: there is no whole checkpoint to start from.
    """
    policy = policy_of(config, resumed.policy if resumed else None)
    if config.backend != "local":
        return [], ""
    from assay.backends.local.backend import device_of
    from assay.backends.local.footprint import footprint, free_memory, weights_are_here

    device_of(config.local.device)
    builder = config.active_builder
    length = config.max_tokens + _prompt_tokens(data)
    if config.model_name == "scratch":
        length = min(length, config.scratch.context_length)
    positions = builder.batch_size * builder.group_size * length
    shape = footprint(policy, reference=bool(config.kl_penalty_coef), positions=positions)
    free = free_memory(config.local.device)
    obstacle = forecast.too_large(shape, free)
    if not obstacle and not weights_are_here(config.model_name):
        obstacle = f"The weights of {config.model_name} are not on this machine; a start downloads them."
    return [forecast.memory_words(shape, free)], obstacle


def _prompt_tokens(data: EnvData) -> int:
    """About how many tokens a prompt has, before there is a tokenizer."""
    first = next((builder.task.prompt for builder in iter_builders(data.train)), ())
    return sum(len(message.content) for message in first) // CHARACTERS_PER_TOKEN


async def _time(config: TrainingConfig, data: EnvData, plan: ResumePlan, backend: Backend, renderer: Renderer) -> str:
    batches = num_batches(config, data)
    if not len(data.train):
        return "Time: not estimated, since there are no training tasks."
    if config.backend != "local":
        return f"Time: not estimated, since whoever is behind backend={config.backend} may charge for what is sampled."
    prompts = [renderer.start(builder.task.prompt) for builder in data.train.batch(0)]
    examples = data.sft.batch(0, EXAMPLES) if data.sft is not None and config.sft.num_steps else []
    supervised = [[*renderer.start(e.prompt), *renderer.completion(e.completion)] for e in examples]
    surrogate = "cross_entropy" if "cross_entropy" in backend.capabilities.losses else config.trainer().loss.surrogate
    params = SamplingParams(config.max_tokens, config.temperature, stop=renderer.stop)
    refuse_failing([await check_agreement(backend, prompts, params)])
    speed = await measure_speed(backend, prompts, config.active_builder.group_size, params, LossSpec(surrogate))
    done = sum(commit.phase == "rl" for commit in plan.commits)
    work = forecast.Work(
        batches=max(0, batches - done),
        prompt=forecast.mean_length(prompts),
        supervised=forecast.mean_length(supervised) if not done else 0.0,
        heldout=sum(1 for _ in islice(iter_builders(data.heldout), config.eval.max_tasks)),
        room=max(1, backend.context_length - min(map(len, prompts))),
    )
    return forecast.time_words(config, work, speed)
