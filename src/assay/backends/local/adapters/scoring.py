"""Log-probabilities of the tokens of prompts: of the tokens themselves, of the likeliest, of named ones, of draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.backends.local import forward
from assay.backends.local.adapters.bank import AdapterBank
from assay.backends.local.adapters.layers import Weights
from assay.backends.local.sampling.draw_token import draw, uniform
from assay.types import Datum, FloatArray, IntArray, SamplingParams

EMPTY = -99999.0
"""What stands for the log-probability of a place that has none in a table of the likeliest tokens."""
ALTERNATIVES = 0x5EED
"""Added to the seeds of draws at prompt positions, so that they are others than those of the completion."""


@dataclass(frozen=True)
class Asked:
    """What is asked of a prompt of L tokens; a row of each table is position i + 1 of the prompt, i from 0 to L - 2."""

    first: int = 1
    """The first position of the prompt that is scored."""
    top: int = 0
    targets: IntArray | None = None
    """[L - 1, K] token ids; -1 asks nothing."""
    draws: int = 0
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Scores:
    """What was found, each with a row for each position from `Asked.first` on (`targets`: from 1 on)."""

    own: FloatArray
    top_ids: IntArray | None = None
    top_logprobs: FloatArray | None = None
    targets: FloatArray | None = None
    draws: IntArray | None = None
    draw_logprobs: FloatArray | None = None


@torch.no_grad()
def score(bank: AdapterBank, weights: Weights | None, prompts: Sequence[tuple[Sequence[int], Asked]]) -> list[Scores]:
    """The log-probabilities of prompts under an adapter (None: the base model), at temperature 1.

    Args:
        prompts: of at least two tokens each, with what is asked of them.

    Raises:
        ModelError: a prompt is longer than the context, or has tokens that the model does not know.
    """
    network = bank.network
    data = [_datum(np.array(prompt, np.int64), asked) for prompt, asked in prompts]
    found: dict[int, list[Scores]] = {place: [] for place in range(len(data))}
    size = max(1, forward.LOGIT_CHUNK // network.vocab_size)
    with bank.router.through(weights), network.evaluating():
        for packed in network.micro_batches(data):
            with network.autocast():
                states = forward.states(network.source, packed, network.device)
                begin = 0
                for place, positions in packed.targets:
                    ids = np.array(prompts[place][0], np.int64)
                    for start in range(0, len(positions), size):
                        part = positions[start : start + size]
                        logits = network.head(states[begin : begin + len(part)]).float()
                        found[place].append(_part(logits, ids, part, prompts[place][1]))
                        begin += len(part)
    return [_joined(found[place], asked) for place, (_, asked) in enumerate(prompts)]


def _datum(ids: IntArray, asked: Asked) -> Datum:
    rows = np.arange(len(ids) - 1)
    scored = rows >= asked.first - 1 if asked.targets is None and not asked.draws else rows >= 0
    zeros = np.zeros(len(rows), np.float32)
    return Datum(ids[:-1], ids[1:], zeros, zeros, scored.astype(np.float32))


def _part(logits: Tensor, ids: IntArray, places: IntArray, asked: Asked) -> Scores:
    logprobs = torch.log_softmax(logits, dim=-1)
    targets = torch.from_numpy(ids[places + 1]).to(logits.device)
    own = logprobs.gather(-1, targets[:, None])[:, 0].cpu().numpy()
    top_ids, top_logprobs = top_of(logprobs, asked.top) if asked.top else (None, None)
    wanted = None
    if asked.targets is not None:
        cells = torch.from_numpy(asked.targets[places]).to(logits.device)
        found = logprobs.gather(-1, cells.clamp(min=0)).masked_fill(cells < 0, 0.0)
        wanted = found.cpu().numpy()
    drawn, drawn_logprobs = _draws(logits, places, asked) if asked.draws else (None, None)
    return Scores(own, top_ids, top_logprobs, wanted, drawn, drawn_logprobs)


def _draws(logits: Tensor, places: IntArray, asked: Asked) -> tuple[IntArray, FloatArray]:
    seeds = np.array([(asked.seed + ALTERNATIVES + draw) % 2**64 for draw in range(asked.draws)], np.uint64)
    steps = [uniform(seeds, int(p)) for p in places]
    uniforms = torch.from_numpy(np.stack(steps)).to(logits.device)
    params = SamplingParams(1, temperature=asked.temperature or 1.0, top_k=1 if asked.temperature == 0 else -1)
    tokens, logprobs = draw(logits[:, None].expand(-1, asked.draws, -1), uniforms, params)
    return tokens.cpu().numpy(), logprobs.cpu().numpy()


def top_of(logprobs: Tensor, count: int) -> tuple[IntArray, FloatArray]:
    """The `count` likeliest tokens of distributions [N, V], likeliest first: ids and log-probabilities, [N, count]."""
    held = min(count, logprobs.shape[-1])
    values, ids = torch.topk(logprobs, held, dim=-1)
    empty = ~torch.isfinite(values)
    ids, values = ids.masked_fill(empty, 0), values.masked_fill(empty, EMPTY)
    ids, values = F.pad(ids, (0, count - held)), F.pad(values, (0, count - held), value=EMPTY)
    return ids.cpu().numpy(), values.cpu().numpy()


def _joined(parts: Sequence[Scores], asked: Asked) -> Scores:
    whole = asked.targets is not None or bool(asked.draws)
    skip = asked.first - 1 if whole else 0

    def column(name: str, start: int = 0) -> npt.NDArray[np.float32] | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else np.concatenate(found)[start:]

    own = column("own", skip)
    assert own is not None
    ids, drawn = column("top_ids", skip), column("draws")
    return Scores(
        own,
        None if ids is None else ids.astype(np.int64),
        column("top_logprobs", skip),
        column("targets"),
        None if drawn is None else drawn.astype(np.int64),
        column("draw_logprobs"),
    )
