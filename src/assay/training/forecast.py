"""Estimates of a run's time and memory, which say what they are based on. Pure, except `shapes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.backends.probe import Speed
from assay.storage.files import human_bytes
from assay.training.config import TrainingConfig
from assay.training.metrics.progress import format_seconds

if TYPE_CHECKING:
    from assay.backends.local.footprint import Footprint

REFERENCE_SHARE = 1 / 3
"""Time of a forward pass of the reference policy, as a share of a forward and backward pass."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run consists of, in tokens and counts."""

    batches: int
    """RL batches still to do."""
    prompt: float
    """Mean tokens of a first prompt."""
    supervised: float
    """Mean tokens of a supervised example; 0 without them."""
    heldout: int
    """Held-out tasks that are evaluated."""
    room: int | None = None
    """Most tokens that the context leaves for an answer; None where it is not known."""


def time_words(config: TrainingConfig, work: Work, speed: Speed) -> str:
    """Estimate of how long the run takes, and its basis."""
    builder, turns = config.active_builder, config.build_context().max_turns
    answer = speed.tokens if speed.whole else float(min(config.max_tokens, work.room or config.max_tokens))
    rollouts = builder.batch_size * builder.group_size * turns
    passes = config.rollout_epochs + (REFERENCE_SHARE if config.kl_penalty_coef else 0)
    trained = rollouts * (work.prompt + answer) * passes / speed.trained_per_s
    step = rollouts * answer / speed.sampled_per_s + trained
    supervised = config.sft.num_steps * config.sft.batch_size * work.supervised / speed.trained_per_s
    evaluation = work.heldout * config.eval.samples_per_task * turns * answer / speed.sampled_per_s
    count = evaluations(work.batches, config.eval_every) if work.heldout else 0
    parts = [f"{work.batches:,} RL batches of {_brief(step)}"]
    if supervised:
        parts.insert(0, f"SFT {format_seconds(supervised)}")
    if count:
        parts.append(f"{count} evaluations of {_brief(evaluation)}")
    total = supervised + work.batches * step + count * evaluation
    most = "" if speed.whole else " (the most there may be)"
    return (
        f"Time: about {format_seconds(total)} ({', '.join(parts)}). An estimate from {speed.rollouts} rollouts sampled "
        f"and trained on just now ({speed.sampled_per_s:,.0f} tokens/s sampled, {speed.trained_per_s:,.0f} trained), "
        f"for answers of {answer:,.0f} tokens{most}; it does not include verdicts (engine, judge, sandbox) and "
        "checkpoints."
    )


def evaluations(batches: int, every: int) -> int:
    """How often the held-out tasks are sampled: before RL, every so many batches, and at the end."""
    during = batches // every if every else 0
    last = 1 if batches and (not every or batches % every) else 0
    return 1 + during + last


def memory_words(shape: Footprint, free: int) -> str:
    """Estimate of how much memory the run takes, and its basis."""
    parts = ", ".join(f"{name} {human_bytes(size)}" for name, size in shape.parts().items())
    trained = "" if shape.trained == shape.parameters else f", {shape.trained:,} trained"
    return (
        f"Memory: about {human_bytes(shape.total)} ({parts}) for {shape.parameters:,} parameters{trained}; "
        f"{human_bytes(free)} are free. This estimate is from shapes; libraries and the CUDA context need more."
    )


def too_large(shape: Footprint, free: int) -> str:
    """What to do if the estimate exceeds the free memory; else empty."""
    if shape.total <= free:
        return ""
    return (
        f"This is {human_bytes(shape.total - free)} more than is free, so the run would fail. Lower "
        "local.micro_batch_tokens or local.sample_batch_tokens, set local.use_gradient_checkpointing=true, "
        "local.dtype=bfloat16 or lora_rank, or take a smaller model."
    )


def mean_length(sequences: Sequence[Sequence[int]]) -> float:
    """Mean number of tokens; 0 of nothing."""
    return sum(map(len, sequences)) / len(sequences) if sequences else 0.0


def _brief(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else format_seconds(seconds)
