"""Batched sampling in which a sample depends on its prompt and its seed, and on nothing else.

Each distinct prompt is prefilled once. Continuations decode side by side; when enough of them have finished, the batch
is compacted. Randomness is counter based: token t of the sample with seed s uses one uniform, a hash of (s, t), so
batch mates, order and compaction cannot change it. Log-probabilities are those of the distribution that was sampled:
after temperature, top-k and top-p, in float32. `decode` suits CPUs; `cuda_graphs` decodes without waiting for the
device. Both return what they drew every few steps, so that a completion is known soon after its last token and not only
when the slowest of its batch has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
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
LOOK_EVERY = 8
"""Steps after which what was drawn is handed over."""


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
    """What was drawn, each [N]: row (-1 where it is not needed), step, token and log-probability."""

    rows: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]


Decode = Callable[[Layout, SamplingParams], Iterator[Record]]
"""A way to decode a batch; rows are numbered through [P, G]. The records together hold every token of every row once,
each row's in order; between two of them lie a few steps at most."""
Finished = list[tuple[int, Completion]]
"""Completions with their places in the caller's list."""


@torch.no_grad()
def sample(
    decode: Decode, batch: Sequence[Request], params: SamplingParams, *, context_length: int, policy_version: int
) -> Generator[Finished, None, None]:
    """The completions of one batch, as they are done; the lists may be empty.

    Args:
        context_length: most tokens of prompt and completion together; a completion that reaches it ends by `length`.

    Raises:
        ModelError: the model gives no finite probabilities.
    """
    layout = lay_out(batch, params.max_tokens, context_length)
    rows = _Rows(batch, layout, params, policy_version)
    for record in decode(layout, params):
        yield rows.take(record)


def batches_of(
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    max_tokens: int,
    *,
    context_length: int,
    batch_tokens: int,
) -> list[list[Request]]:
    """The batches in which to sample; a function of prompts and settings alone.

    Args:
        prompts: token ids, any lengths; equal prompts are prefilled once.
        seeds: one per prompt, any integers.
        batch_tokens: bound on cached token positions of one batch.

    Raises:
        ModelError: a prompt is empty or leaves no room for a token.
    """
    return _batches(_distinct(prompts, seeds, context_length), max_tokens, batch_tokens)


def _distinct(prompts: Sequence[Sequence[int]], seeds: Sequence[int], context_length: int) -> list[Request]:
    members: dict[tuple[int, ...], list[int]] = {}
    for index, (prompt, _) in enumerate(zip(prompts, seeds, strict=True)):
        members.setdefault(tuple(prompt), []).append(index)
    for prompt in members:
        if not 0 < len(prompt) < context_length:
            raise ModelError(
                f"A prompt has {len(prompt)} tokens and the model's context is {context_length}, so no token can be "
                "sampled after it. Shorten the prompt or use a model with a longer context."
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


def decode(
    new_stepper: Callable[[], Stepper], device: torch.device, layout: Layout, params: SamplingParams
) -> Iterator[Record]:
    """Decode a batch step by step, dropping rows that have finished."""
    stepper, seeds = new_stepper(), layout.seeds
    alive, limits = layout.alive.to(device), layout.limits.to(device)
    group = alive.shape[1]
    origin = torch.arange(alive.numel(), device=device).view_as(alive)
    stop = torch.tensor(params.stop, dtype=torch.long, device=device)
    drawn_since: list[tuple[Tensor, Tensor, Tensor]] = []
    logits = stepper.prefill(layout.tokens.to(device), layout.lengths)[:, None].expand(-1, group, -1)
    stepper.branch(group)
    for step in range(int(layout.limits.max())):
        uniforms = torch.from_numpy(uniform(seeds, step)).to(device)
        drawn, logprobs = draw(logits, uniforms, params)
        drawn_since.append((torch.where(alive, origin, -1).flatten(), drawn.flatten(), logprobs.flatten()))
        alive = alive & (limits > step + 1)
        if len(stop):
            alive = alive & ~torch.isin(drawn, stop)
        held = int(alive.sum(1).max())
        if held == 0 or (step + 1) % LOOK_EVERY == 0:
            yield _record(drawn_since, step)
            drawn_since = []
        if held == 0:
            break
        kept = alive.any(1)
        if int(kept.sum()) * held <= COMPACT_BELOW * alive.numel():
            prompts, columns = living(alive, held)
            alive, origin, limits, drawn = (t[prompts[:, None], columns] for t in (alive, origin, limits, drawn))
            seeds = seeds[prompts.cpu().numpy()[:, None], columns.cpu().numpy()]
            stepper.select(prompts, columns)
        logits = stepper.step(drawn)


def _record(drawn: Sequence[tuple[Tensor, Tensor, Tensor]], last: int) -> Record:
    """The rows, tokens and log-probabilities of consecutive steps, of which `last` is the last."""
    counts = [len(rows) for rows, _, _ in drawn]
    steps = np.repeat(np.arange(last + 1 - len(drawn), last + 1), counts)
    rows, tokens, logprobs = (torch.cat(parts).cpu().numpy() for parts in zip(*drawn, strict=True))
    return Record(rows, steps, tokens, logprobs)


def living(alive: Tensor, held: int) -> tuple[Tensor, Tensor]:
    """Prompts [P'] that have a living row, and the first `held` columns [P', held] of each with those rows first."""
    prompts = alive.any(1).nonzero()[:, 0]
    # Stable sort: living rows first, in order.
    return prompts, torch.sort((~alive).to(torch.uint8), dim=1, stable=True).indices[prompts, :held]


class _Rows:
    """The tokens of a batch's rows, put together from records."""

    def __init__(self, batch: Sequence[Request], layout: Layout, params: SamplingParams, policy_version: int) -> None:
        self._params = params
        self._version = policy_version
        self._limits = layout.limits.flatten().numpy()
        self._tokens = np.zeros((layout.limits.numel(), int(layout.limits.max())), np.int64)
        self._logprobs = np.zeros(self._tokens.shape, np.float32)
        group = layout.alive.shape[1]
        self._places = {p * group + g: place for p, r in enumerate(batch) for g, place in enumerate(r.samples)}

    def take(self, record: Record) -> Finished:
        """Take a record in; the completions that it ends."""
        wanted = record.rows >= 0
        rows, steps, tokens, logprobs = (
            part[wanted] for part in (record.rows, record.steps, record.tokens, record.logprobs)
        )
        if not np.isfinite(logprobs).all():
            raise ModelError(
                f"Sampling gave log-probabilities that are not finite: after {self._version} optimizer steps the "
                "weights are NaN or far too large, so the samples are meaningless. Start a new run with a "
                "lower learning_rate, from an earlier checkpoint (load_checkpoint_path) if there is one."
            )
        self._tokens[rows, steps] = tokens
        self._logprobs[rows, steps] = logprobs
        ends = np.isin(tokens, self._params.stop) | (steps + 1 == self._limits[rows])
        return [self._completion(*end) for end in zip(rows[ends].tolist(), steps[ends].tolist(), strict=True)]

    def _completion(self, row: int, last: int) -> tuple[int, Completion]:
        tokens = tuple(self._tokens[row, : last + 1].tolist())
        reason: StopReason = "stop" if tokens[-1] in self._params.stop else "length"
        logprobs = tuple(self._logprobs[row, : last + 1].tolist())
        return self._places[row], Completion(tokens, logprobs, reason, self._version)
