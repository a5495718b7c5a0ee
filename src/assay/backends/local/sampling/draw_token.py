"""One token from a distribution and one uniform, the same on the host and on a device.

Randomness is counter based: token t of the sample with seed s uses one uniform, a hash of (s, t). The hash exists
twice, for numpy and for tensors whose step number never leaves the device; both give the same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.types import SamplingParams

BLOCK = 512
"""Tokens that are summed up before the search, where the vocabulary has more than a few times as many."""

GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele et al., 2014)."""


def draw(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Sample by inverse transform: token ids and their log-probabilities, both of shape [*].

    Args:
        logits: [*, V].
        uniforms: [*] float64 in [0, 1).
    """
    scaled = logits.float() if params.temperature == 1 else logits.float() / params.temperature
    logprobs = torch.log_softmax(truncate(scaled, params.top_k, params.top_p), dim=-1)
    tokens = _search(torch.exp(logprobs), uniforms[..., None])
    return tokens[..., 0], logprobs.gather(-1, tokens)[..., 0]


def _search(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first of the weights [*, V] with which their running sum exceeds the share `uniforms` [*, 1] of the total."""
    if weights.shape[-1] <= 8 * BLOCK:
        sums = torch.cumsum(weights, dim=-1, dtype=torch.float64)
        return _first_above(sums, uniforms * sums[..., -1:])
    # Running sums of blocks first, then inside one block: a large vocabulary is read once and never written out.
    padded = F.pad(weights, (0, -weights.shape[-1] % BLOCK))
    blocks = padded.reshape(*padded.shape[:-1], -1, BLOCK)
    sums = torch.cumsum(blocks.sum(-1, dtype=torch.float64), dim=-1)
    target = uniforms * sums[..., -1:]
    block = _first_above(sums, target)
    before = F.pad(sums, (1, 0)).gather(-1, block)
    chosen = blocks.gather(-2, block[..., None].expand(*block.shape, BLOCK))[..., 0, :]
    inside = _first_above(torch.cumsum(chosen, dim=-1, dtype=torch.float64), (target - before).clamp(min=0))
    return (block * BLOCK + inside).clamp_(max=weights.shape[-1] - 1)


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """Index of the first running sum [*, N] above the target [*, 1]: an entry that adds something to the sum."""
    total = sums[..., -1:]
    below = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, below, right=True).clamp_(max=sums.shape[-1] - 1)


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


def uniform(seeds: npt.NDArray[np.uint64], step: int | npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """A uniform in [0, 1) per seed for token `step`, of all or of each: SplitMix64 of the pair (seed, step)."""
    with np.errstate(over="ignore"):
        z = _mix(_mix(seeds) + (np.asarray(step, np.uint64) + np.uint64(1)) * np.uint64(GAMMA))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))


def device_uniform(seeds: Tensor, step: Tensor) -> Tensor:
    """`uniform` for int64 seeds (the bits of the unsigned ones) and a step number on their device; float64."""
    z = _device_mix(_device_mix(seeds) + (step + 1) * _signed(GAMMA))
    return _shifted(z, 11).to(torch.float64) * 2.0**-53


def _device_mix(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Unsigned right shift: the sign that an int64 shift drags along is masked out."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
