"""Batched sampling in which a sample depends on its prompt and its seed, and on nothing else.

Each distinct prompt is prefilled once. Continuations decode side by side over a static cache; when enough of them
have finished, the batch is compacted. Randomness is counter based: token t of the sample with seed s uses one uniform,
a hash of (s, t), so batch mates, order and compaction cannot change it. Log-probabilities are those of the distribution
that was sampled: after temperature, top-k and top-p, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from assay.backends.steppers import Stepper
from assay.errors import ModelError
from assay.types import Completion, SamplingParams, StopReason

COMPACT_BELOW = 0.75
"""Compact the batch when the rows still needed fall under this share of the rows held."""


@dataclass(frozen=True)
class Request:
    """One distinct prompt, the samples asked of it (indices into the caller's list) and their seeds."""

    prompt: tuple[int, ...]
    samples: tuple[int, ...]
    seeds: tuple[int, ...]


@torch.no_grad()
def sample(
    new_stepper: Callable[[], Stepper],
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    params: SamplingParams,
    *,
    context_length: int,
    batch_tokens: int,
    device: torch.device,
    policy_version: int,
) -> list[Completion]:
    """One completion per (prompt, seed), in order.

    Args:
        new_stepper: makes a fresh decoding state.
        prompts: token ids, any lengths; equal prompts are prefilled once.
        seeds: one per prompt, any integers.
        context_length: most tokens of prompt and completion together; a completion that reaches it ends by `length`.
        batch_tokens: bound on cached token positions of one batch.

    Raises:
        ModelError: a prompt is empty or leaves no room for a token, or the model gives no finite probabilities.
    """
    requests = _distinct(prompts, seeds, context_length)
    completions: list[Completion | None] = [None] * len(prompts)
    for batch in _batches(requests, params.max_tokens, batch_tokens):
        for index, completion in _sample_batch(new_stepper(), batch, params, context_length, device, policy_version):
            completions[index] = completion
    return [c for c in completions if c is not None]


def _distinct(prompts: Sequence[Sequence[int]], seeds: Sequence[int], context_length: int) -> list[Request]:
    members: dict[tuple[int, ...], list[int]] = {}
    for index, (prompt, _) in enumerate(zip(prompts, seeds, strict=True)):
        members.setdefault(tuple(prompt), []).append(index)
    for prompt in members:
        if not 0 < len(prompt) < context_length:
            raise ModelError(
                f"A prompt has {len(prompt)} tokens and the model's context is {context_length}: nothing can be "
                "sampled behind it. Shorten the prompt or use a model with a longer context."
            )
    return [Request(p, tuple(i), tuple(seeds[j] % 2**64 for j in i)) for p, i in members.items()]


def _batches(requests: list[Request], max_tokens: int, batch_tokens: int) -> list[list[Request]]:
    """Split into batches of similar prompt lengths, each within `batch_tokens` cached positions where possible."""
    pieces = []
    for request in sorted(requests, key=lambda r: len(r.prompt)):
        most = max(1, (batch_tokens - len(request.prompt)) // max_tokens)
        for start in range(0, len(request.samples), most):
            part = slice(start, start + most)
            pieces.append(Request(request.prompt, request.samples[part], request.seeds[part]))
    batches: list[list[Request]] = []
    for piece in pieces:
        trial = [*batches[-1], piece] if batches else [piece]
        group = max(len(r.samples) for r in trial)
        if batches and len(trial) * (len(piece.prompt) + group * max_tokens) <= batch_tokens:
            batches[-1].append(piece)
        else:
            batches.append([piece])
    return batches


def _sample_batch(
    stepper: Stepper,
    batch: list[Request],
    params: SamplingParams,
    context_length: int,
    device: torch.device,
    policy_version: int,
) -> list[tuple[int, Completion]]:
    group = max(len(r.samples) for r in batch)
    lengths = torch.tensor([len(r.prompt) for r in batch])
    tokens = torch.zeros(len(batch), int(lengths.max()), dtype=torch.long, device=device)
    for row, request in enumerate(batch):
        tokens[row, : len(request.prompt)] = torch.tensor(request.prompt, device=device)
    # Rows are [P, G]; a padding row repeats its prompt's last seed and is never alive.
    seeds = np.array([[*r.seeds, *r.seeds[-1:] * (group - len(r.seeds))] for r in batch], dtype=np.uint64)
    limits = torch.clamp(context_length - lengths, max=params.max_tokens).to(device)[:, None].expand(-1, group)
    alive = torch.arange(group, device=device) < torch.tensor([[len(r.samples)] for r in batch], device=device)
    origin = torch.arange(len(batch) * group, device=device).view(len(batch), group)
    stop = torch.tensor(params.stop, dtype=torch.long, device=device)
    out_tokens: list[Tensor] = []
    out_logprobs: list[Tensor] = []
    out_rows: list[Tensor] = []

    logits = stepper.prefill(tokens, lengths)[:, None].expand(-1, group, -1)
    stepper.branch(group)
    for step in range(int(limits.max())):
        uniforms = torch.from_numpy(uniform(seeds, step)).to(device)
        drawn, logprobs = draw(logits, uniforms, params)
        out_rows.append(torch.where(alive, origin, -1).flatten())
        out_tokens.append(drawn.flatten())
        out_logprobs.append(logprobs.flatten())
        alive = alive & (limits > step + 1)
        if len(stop):
            alive = alive & ~torch.isin(drawn, stop)
        held = int(alive.sum(1).max())
        if held == 0:
            break
        kept = alive.any(1)
        if int(kept.sum()) * held <= COMPACT_BELOW * alive.numel():
            rows = kept.nonzero()[:, 0]
            # Stable sort: living rows first, in order, so that each prompt keeps its first `held` of them.
            columns = torch.sort((~alive).to(torch.uint8), dim=1, stable=True).indices[rows, :held]
            alive, origin, limits, drawn = (t[rows[:, None], columns] for t in (alive, origin, limits, drawn))
            seeds = seeds[rows.cpu().numpy()[:, None], columns.cpu().numpy()]
            stepper.select(rows, columns)
        logits = stepper.step(drawn)
    return _collect(batch, group, out_rows, out_tokens, out_logprobs, params, policy_version)


def _collect(
    batch: list[Request],
    group: int,
    rows: list[Tensor],
    tokens: list[Tensor],
    logprobs: list[Tensor],
    params: SamplingParams,
    policy_version: int,
) -> list[tuple[int, Completion]]:
    """Turn the step-major record (row of each drawn token, -1 when not wanted) into completions."""
    flat_rows = torch.cat(rows).cpu().numpy()
    order = np.argsort(flat_rows, kind="stable")
    order = order[flat_rows[order] >= 0]
    flat_tokens = torch.cat(tokens).cpu().numpy()[order]
    flat_logprobs = torch.cat(logprobs).cpu().numpy()[order]
    if not np.isfinite(flat_logprobs).all():
        raise ModelError(
            f"Sampling gave log-probabilities that are not finite: after {policy_version} optimizer steps the weights "
            "are no numbers or far too large, and what was drawn means nothing. Start a new run with a lower "
            "learning_rate, from an earlier checkpoint (load_checkpoint_path) if there is one."
        )
    ends = np.cumsum(np.bincount(flat_rows[order], minlength=len(batch) * group))
    done = []
    for prompt, request in enumerate(batch):
        for column, index in enumerate(request.samples):
            row = prompt * group + column
            span = slice(ends[row - 1] if row else 0, ends[row])
            text = tuple(flat_tokens[span].tolist())
            reason: StopReason = "stop" if text[-1] in params.stop else "length"
            done.append((index, Completion(text, tuple(flat_logprobs[span].tolist()), reason, policy_version)))
    return done


def draw(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Sample by inverse transform: token ids and their log-probabilities, both of shape [*].

    Args:
        logits: [*, V].
        uniforms: [*] float64 in [0, 1).
    """
    scaled = logits.float() if params.temperature == 1 else logits.float() / params.temperature
    logprobs = torch.log_softmax(truncate(scaled, params.top_k, params.top_p), dim=-1)
    cumulative = torch.cumsum(torch.exp(logprobs), dim=-1, dtype=torch.float64)
    target = uniforms[..., None] * cumulative[..., -1:]
    # right=True finds the first entry above the target, which therefore has positive probability.
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens[..., 0], logprobs.gather(-1, tokens)[..., 0]


def truncate(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set logits [*, V] outside the top k, or outside the nucleus of mass `top_p`, to -inf; -1 and 1.0 are off."""
    if 0 < top_k < logits.shape[-1]:
        least = torch.topk(logits, top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1.0:
        ordered, indices = torch.sort(logits, descending=True, dim=-1)
        before = torch.softmax(ordered, dim=-1).cumsum(-1) - torch.softmax(ordered, dim=-1)
        logits = logits.masked_fill(
            torch.zeros_like(before, dtype=torch.bool).scatter(-1, indices, before >= top_p), -torch.inf
        )
    return logits


def uniform(seeds: npt.NDArray[np.uint64], step: int) -> npt.NDArray[np.float64]:
    """A uniform in [0, 1) per seed for token `step`: SplitMix64 (Steele et al., 2014) of the pair (seed, step)."""
    with np.errstate(over="ignore"):
        z = _mix(_mix(seeds) + np.uint64(step + 1) * np.uint64(0x9E3779B97F4A7C15))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
