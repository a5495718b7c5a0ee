"""Ragged batches of scored rollouts, as padded tensors; every number is exact in float32 and kept in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Case = dict[str, Tensor]
"""[B, T]: `now` (the policy's log-probabilities), `behaviour` (of the policy that is taken to have sampled), `sampler`
(of a sampler that differs from it), `reference`, `entropy`, and `mask`. [B]: `rewards` (NaN where unknown), `group`,
`cut` (whether the length limit ended it)."""

SPREADS = (0.0, 0.3, 2.0)
"""Standard deviation of the log-ratios between policy and behaviour: on-policy, around the clip ranges, far beyond."""
SEEDS = (0, 1, 2, 3)
EQUAL = (4, 4, 4, 4, 4)
RAGGED = (4, 1, 6, 3, 2, 4)
LONGEST = 9
CONSTANT = 2
"""The group whose rewards are equal."""


def make_case(seed: int, spread: float, sizes: Sequence[int] = EQUAL, unknown: bool = False) -> Case:
    """A batch of groups of these sizes; completions have 1 to `LONGEST` tokens.

    Args:
        unknown: whether some rewards are.
    """
    g = torch.Generator().manual_seed(seed)
    rows = sum(sizes)
    shape = (rows, LONGEST)
    lengths = torch.randint(1, LONGEST + 1, (rows,), generator=g)
    lengths[0], lengths[1] = LONGEST, 1
    mask = torch.arange(LONGEST)[None] < lengths[:, None]
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    rewards = torch.randint(0, 9, (rows,), generator=g).double() / 4
    rewards[group == CONSTANT] = 0.75
    if unknown:
        rewards[torch.tensor([2, 5, rows - 1])] = torch.nan
    now = (-3 * torch.rand(shape, generator=g)).double()
    noise = {name: torch.randn(shape, generator=g).double() for name in ("behaviour", "sampler", "reference")}
    behaviour = now - spread * noise["behaviour"]
    case = {
        "now": now,
        "behaviour": behaviour,
        "sampler": behaviour - 0.5 * noise["sampler"],
        "reference": now - max(0.5, spread) * noise["reference"],
        "entropy": (3 * torch.rand(shape, generator=g)).double(),
        "mask": mask,
        "rewards": rewards,
        "group": group,
        "cut": torch.arange(rows) % 5 == 3,
    }
    streams = ("now", "behaviour", "sampler", "reference", "entropy")
    return {n: (v * mask).float().double() if n in streams else v for n, v in case.items()}


def near_reference(case: Mapping[str, Tensor], policy: str = "now") -> Case:
    """The batch with a reference within 2 nats of the policy, `now` or the `behaviour`."""
    gap = (case[policy] - case["reference"]).clamp(-2, 2)
    return {**case, "reference": (case[policy] - gap).float().double()}
