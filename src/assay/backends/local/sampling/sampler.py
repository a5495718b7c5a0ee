"""Batched sampling in which a sample depends on its prompt and its seed, and on nothing else.

Each distinct prompt is prefilled once. Continuations decode side by side; when enough of them have finished, the batch
is compacted. Randomness is counter based: token t of the sample with seed s uses one uniform, a hash of (s, t), so
batch mates, order and compaction cannot change it. Log-probabilities are those of the distribution that was sampled:
after temperature, top-k and top-p, in float32. `decode` suits CPUs; `static` decodes without ever asking the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from assay.backends.local.sampling.draw_token import draw, uniform
from assay.backends.local.sampling.steppers import Stepper
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


@dataclass(frozen=True)
class Layout:
    """A batch as arrays on the host: P prompts, right padded to L tokens, with G rows each.

    A prompt with fewer samples has rows that repeat its last seed and are never alive.
    """

    tokens: Tensor
    """[P, L]."""
    lengths: Tensor
    """[P]."""
    seeds: npt.NDArray[np.uint64]
    """[P, G]."""
    limits: Tensor
    """[P, G]: most tokens of each row."""
    alive: Tensor
    """[P, G]: rows that are wanted."""


@dataclass(frozen=True)
class Record:
    """What was drawn, in the order of drawing: row (-1 where nobody wants it), token and log-probability, each [N]."""

    rows: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]


Decode = Callable[[Layout, SamplingParams], Record]
"""A way to decode a batch; rows are numbered through [P, G]."""


@torch.no_grad()
def sample(
    decode: Decode,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    params: SamplingParams,
    *,
    context_length: int,
    batch_tokens: int,
    policy_version: int,
) -> list[Completion]:
    """One completion per (prompt, seed), in order.

    Args:
        decode: decodes one batch.
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
        record = decode(lay_out(batch, params.max_tokens, context_length), params)
        for index, completion in _collect(batch, record, params, policy_version):
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


def lay_out(batch: Sequence[Request], max_tokens: int, context_length: int) -> Layout:
    """A batch as arrays."""
    group = max(len(r.samples) for r in batch)
    lengths = torch.tensor([len(r.prompt) for r in batch])
    tokens = torch.zeros(len(batch), int(lengths.max()), dtype=torch.long)
    for row, request in enumerate(batch):
        tokens[row, : len(request.prompt)] = torch.tensor(request.prompt)
    seeds = np.array([[*r.seeds, *r.seeds[-1:] * (group - len(r.seeds))] for r in batch], dtype=np.uint64)
    limits = torch.clamp(context_length - lengths, max=max_tokens)[:, None].expand(-1, group)
    alive = torch.arange(group) < torch.tensor([[len(r.samples)] for r in batch])
    return Layout(tokens, lengths, seeds, limits, alive)


def decode(new_stepper: Callable[[], Stepper], device: torch.device, layout: Layout, params: SamplingParams) -> Record:
    """Decode a batch step by step, dropping rows that have finished."""
    stepper, seeds = new_stepper(), layout.seeds
    alive, limits = layout.alive.to(device), layout.limits.to(device)
    group = alive.shape[1]
    origin = torch.arange(alive.numel(), device=device).view_as(alive)
    stop = torch.tensor(params.stop, dtype=torch.long, device=device)
    tokens: list[Tensor] = []
    logprobs: list[Tensor] = []
    rows: list[Tensor] = []
    logits = stepper.prefill(layout.tokens.to(device), layout.lengths)[:, None].expand(-1, group, -1)
    stepper.branch(group)
    for step in range(int(layout.limits.max())):
        uniforms = torch.from_numpy(uniform(seeds, step)).to(device)
        drawn, drawn_logprobs = draw(logits, uniforms, params)
        rows.append(torch.where(alive, origin, -1).flatten())
        tokens.append(drawn.flatten())
        logprobs.append(drawn_logprobs.flatten())
        alive = alive & (limits > step + 1)
        if len(stop):
            alive = alive & ~torch.isin(drawn, stop)
        held = int(alive.sum(1).max())
        if held == 0:
            break
        kept = alive.any(1)
        if int(kept.sum()) * held <= COMPACT_BELOW * alive.numel():
            prompts, columns = living(alive, held)
            alive, origin, limits, drawn = (t[prompts[:, None], columns] for t in (alive, origin, limits, drawn))
            seeds = seeds[prompts.cpu().numpy()[:, None], columns.cpu().numpy()]
            stepper.select(prompts, columns)
        logits = stepper.step(drawn)
    return Record(*(torch.cat(parts).cpu().numpy() for parts in (rows, tokens, logprobs)))


def living(alive: Tensor, held: int) -> tuple[Tensor, Tensor]:
    """Prompts [P'] that have a living row, and the first `held` columns [P', held] of each with those rows first."""
    prompts = alive.any(1).nonzero()[:, 0]
    # Stable sort: living rows first, in order.
    return prompts, torch.sort((~alive).to(torch.uint8), dim=1, stable=True).indices[prompts, :held]


def _collect(
    batch: list[Request], record: Record, params: SamplingParams, policy_version: int
) -> list[tuple[int, Completion]]:
    """Turn the record of a batch into completions."""
    group = max(len(r.samples) for r in batch)
    order = np.argsort(record.rows, kind="stable")
    order = order[record.rows[order] >= 0]
    flat_tokens, flat_logprobs = record.tokens[order], record.logprobs[order]
    if not np.isfinite(flat_logprobs).all():
        raise ModelError(
            f"Sampling gave log-probabilities that are not finite: after {policy_version} optimizer steps the weights "
            "are no numbers or far too large, and what was drawn means nothing. Start a new run with a lower "
            "learning_rate, from an earlier checkpoint (load_checkpoint_path) if there is one."
        )
    ends = np.cumsum(np.bincount(record.rows[order], minlength=len(batch) * group))
    done = []
    for prompt, request in enumerate(batch):
        for column, index in enumerate(request.samples):
            row = prompt * group + column
            span = slice(ends[row - 1] if row else 0, ends[row])
            text = tuple(flat_tokens[span].tolist())
            reason: StopReason = "stop" if text[-1] in params.stop else "length"
            done.append((index, Completion(text, tuple(flat_logprobs[span].tolist()), reason, policy_version)))
    return done
