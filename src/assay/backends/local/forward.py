"""Log-probabilities of training targets, with each group's prompt run once.

Data that share their prompt are put into one micro-batch row; the prompt's keys and values serve all of them, and the
gradient flows back through them. Only trained positions reach the output head, and a large vocabulary is processed in
chunks, so no [batch, length, vocabulary] tensor exists. Micro-batches bound memory; because a loss is a plain sum over
tokens, how they are cut cannot change the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from assay.backends.local.decoder import Decoder, extend, prefill
from assay.backends.local.losses import Streams
from assay.backends.local.module import Module
from assay.types import Datum, FloatArray, IntArray

LOGIT_CHUNK = 2**25
"""Most logits (positions x vocabulary) held at once; more are recomputed in the backward pass."""


CPU_PASS_COST = 64
"""Token positions that take about as long as a further forward and backward pass takes by itself, on one CPU thread."""
DEVICE_PASS_COST = 512
"""The same on other devices, where a pass costs more: it launches hundreds of kernels."""


@dataclass(frozen=True)
class Group:
    """Data (by index) that share their first `prefix` input tokens; `longest` is the most that one has behind them."""

    members: tuple[int, ...]
    prefix: int
    longest: int


@dataclass(frozen=True)
class Packed:
    """One micro-batch as index arrays.

    `inside` are the prompt positions (numbered through [P, L]) that predict a trained target. Hidden states are
    numbered those first, then continuations ([P, G, T] flattened); `rows` [N] are the ones that predict the trained
    targets. `targets` says which those are: for each datum (by index) their positions, in the order of `rows`.
    """

    prompts: IntArray
    lengths: IntArray
    continuations: IntArray
    inside: IntArray
    rows: IntArray
    targets: tuple[tuple[int, IntArray], ...]


def plan(data: Sequence[Datum], budget: int, *, share: bool = True, pass_cost: int) -> list[list[Group]]:
    """Cut data into micro-batches of at most `budget` padded token positions where possible.

    Groups of other shapes join a micro-batch only where that pads less than a pass of their own would cost.

    Args:
        data: sequences in any order.
        share: group data with equal prompts; False runs every sequence on its own.
        pass_cost: token positions that cost as much as a further pass by itself; see `CPU_PASS_COST`.
    """
    shared = _shared_prompts(data) if share else [(i,) for i in range(len(data))]
    groups = [
        part for members in shared for cut in _cut(members, data, pass_cost) for part in _split(cut, data, budget)
    ]
    # Similar shapes side by side waste the least padding; ties keep the order of the data. Which of two orders is
    # better depends on whether prompts or continuations differ more.
    orders = (
        sorted(groups, key=lambda g: (len(g.members) > 1, g.prefix, g.longest, g.members)),
        sorted(groups, key=lambda g: (len(g.members) > 1, g.longest, g.prefix, g.members)),
    )
    return min((_batched(order, budget, pass_cost) for order in orders), key=lambda found: found[0])[1]


def _batched(groups: Sequence[Group], budget: int, pass_cost: int) -> tuple[int, list[list[Group]]]:
    """Groups joined to micro-batches in their order, and what that costs in token positions."""
    batches: list[list[Group]] = []
    held, cost = _Shape(0, 0, 0, 0), 0
    for group in groups:
        alone = _Shape(1, group.prefix, len(group.members), group.longest)
        joined = held.joined(alone)
        alike = bool(batches) and (len(group.members) > 1) == (len(batches[-1][0].members) > 1)
        if alike and joined.size <= min(budget, held.size + alone.size + pass_cost):
            batches[-1].append(group)
            cost += joined.size - held.size
            held = joined
        else:
            batches.append([group])
            cost += alone.size + pass_cost
            held = alone
    return cost, batches


class _Shape(NamedTuple):
    """Padded shape of a micro-batch."""

    groups: int
    prefix: int
    members: int
    longest: int

    @property
    def size(self) -> int:
        """Token positions, padding included."""
        return self.groups * (self.prefix + self.members * self.longest)

    def joined(self, other: _Shape) -> _Shape:
        """The shape that holds the groups of both."""
        return _Shape(self.groups + other.groups, *map(max, self[1:], other[1:]))


def _shared_prompts(data: Sequence[Datum]) -> list[tuple[int, ...]]:
    members: dict[bytes, list[int]] = {}
    for index, datum in enumerate(data):
        members.setdefault(datum.tokens[: datum.prompt_length + 1].tobytes(), []).append(index)
    return [tuple(m) for m in members.values()]


def _cut(members: tuple[int, ...], data: Sequence[Datum], pass_cost: int) -> list[tuple[int, ...]]:
    """Members with one prompt, cut where a long one would pad the others by more than another pass would cost."""
    prefix = data[members[0]].prompt_length + 1
    parts, uncut = [], [sorted(members, key=lambda i: len(data[i]))]
    while uncut:
        part = uncut.pop()
        lengths = np.array([len(data[i]) - prefix for i in part])
        # Of a cut after the first n, those are padded to the longest of them only.
        saved = np.arange(1, len(part)) * (lengths[-1] - lengths[:-1])
        if len(saved) and saved.max() > prefix + pass_cost:
            n = int(saved.argmax()) + 1
            uncut += [part[:n], part[n:]]
        else:
            parts.append(tuple(sorted(part)))
    return parts


def _split(members: tuple[int, ...], data: Sequence[Datum], budget: int) -> list[Group]:
    """Groups of members with one prompt, none larger than the budget; a datum alone is all prefix."""
    prefix = data[members[0]].prompt_length + 1
    longest = max(len(data[i]) for i in members) - prefix
    most = max(1, (budget - prefix) // max(1, longest))
    parts = [members[i : i + most] for i in range(0, len(members), most)]
    return [Group(p, prefix, longest) if len(p) > 1 else Group(p, len(data[p[0]]), 0) for p in parts]


def pack(data: Sequence[Datum], groups: list[Group]) -> Packed:
    """Lay one micro-batch out in padded arrays (token 0 pads; nothing reads it)."""
    width = max(g.prefix for g in groups)
    widest = max(len(g.members) for g in groups)
    longest = max(g.longest for g in groups)
    prompts = np.zeros((len(groups), width), np.int64)
    continuations = np.zeros((len(groups), widest, longest), np.int64)
    rows, targets = [], []
    for p, group in enumerate(groups):
        prompts[p, : group.prefix] = data[group.members[0]].tokens[: group.prefix]
        for g, index in enumerate(group.members):
            datum = data[index]
            continuations[p, g, : len(datum) - group.prefix] = datum.tokens[group.prefix :]
            trained = np.flatnonzero(datum.mask)
            first = len(groups) * width + (p * widest + g) * longest - group.prefix
            rows.append(np.where(trained < group.prefix, p * width + trained, first + trained))
            targets.append((index, trained))
    lengths = np.array([g.prefix for g in groups])
    inside, numbers = _renumber(np.concatenate(rows), prompts.size)
    return Packed(prompts, lengths, continuations, inside, numbers, tuple(targets))


def _renumber(rows: IntArray, split: int) -> tuple[IntArray, IntArray]:
    """The distinct rows below `split`, and all rows renumbered as if only those stood before `split`."""
    below = rows < split
    inside, places = np.unique(rows[below], return_inverse=True)
    numbers = rows + (len(inside) - split)
    numbers[below] = places
    return inside, numbers


def states(source: Decoder | Module, packed: Packed, device: torch.device) -> Tensor:
    """The inputs of the head of `source` for the N trained targets of a micro-batch: [N, E] (see `Module.states`)."""
    tokens, lengths = _to(packed.prompts, device), torch.from_numpy(packed.lengths)
    if isinstance(source, Decoder):
        hidden, prefix = prefill(source, tokens, lengths, _to(packed.inside, device))
        if packed.continuations.shape[2]:
            hidden = torch.cat([hidden, extend(source, prefix, _to(packed.continuations, device)).flatten(0, 2)])
        return hidden.index_select(0, _to(packed.rows, device))
    positions = torch.arange(tokens.shape[1], device=device)
    return source.states(
        _to(packed.inside[packed.rows], device),
        input_ids=tokens,
        attention_mask=(positions < lengths.to(device)[:, None]).long(),
        use_cache=False,
    )


def target_logprobs(
    hidden: Tensor,
    targets: Tensor,
    head: Callable[[Tensor], Tensor],
    temperature: float,
    vocabulary: int,
    *,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets, and the exact entropy of each distribution.

    Args:
        hidden: [N, E] hidden states.
        targets: [N] token ids.
        head: [n, E] -> logits [n, V].
        temperature: divides the logits, as in sampling.
        entropy_gradient: let the gradient flow through the entropies.

    Returns:
        [N] log-probabilities with gradient, and [N] entropies (nats); both float32.
    """

    def chunk(part: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(part).float()
        logprobs = torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)
        if entropy_gradient:
            entropy = -(torch.exp(logprobs) * logprobs).sum(-1)
        else:
            with torch.no_grad():
                entropy = -torch.exp(logprobs).mul_(logprobs).sum(-1)
        return logprobs.gather(-1, wanted[:, None])[:, 0], entropy

    size = max(1, LOGIT_CHUNK // vocabulary)
    if len(targets) <= size:
        return chunk(hidden, targets)
    pairs = zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    parts = [checkpoint(chunk, part, wanted, use_reentrant=False) for part, wanted in pairs]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def streams(data: Sequence[Datum], packed: Packed, device: torch.device) -> Streams:
    """What the loss needs of the trained targets of a micro-batch, in the order of its rows."""

    def column(name: str) -> Tensor | None:
        parts = [(getattr(data[index], name), positions) for index, positions in packed.targets]
        if any(stream is None for stream, _ in parts):
            return None
        return _to(np.concatenate([stream[positions] for stream, positions in parts]), device)

    targets, behaviour, advantages = column("targets"), column("logprobs"), column("advantages")
    assert targets is not None and behaviour is not None and advantages is not None
    sizes = [len(positions) for _, positions in packed.targets]
    sequences = _to(np.repeat(np.arange(len(sizes)), sizes), device)
    return Streams(targets, behaviour, advantages, sequences, column("weights"), column("ref_logprobs"))


def relabel(packed: Packed, names: Sequence[int]) -> Packed:
    """The same micro-batch with datum i called `names[i]`."""
    return replace(packed, targets=tuple((names[index], positions) for index, positions in packed.targets))


def scatter(packed: Packed, values: Tensor, out: Sequence[FloatArray]) -> None:
    """Write the [N] values of a micro-batch to their places in per-datum arrays."""
    flat, start = values.detach().cpu().numpy(), 0
    for index, positions in packed.targets:
        out[index][positions] = flat[start : start + len(positions)]
        start += len(positions)


def _to(array: Any, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    # From pinned memory, the copy does not wait for what the device is still doing.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
