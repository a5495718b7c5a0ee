"""What Assay makes of a batch: its own `GRPOTrainer`, from rewards to the loss, above a table of log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.backends.base import AdamParams, Backend, Capabilities, ForwardBackwardOutput, LossSpec
from assay.backends.local.losses import Streams, token_losses
from assay.grpo.advantages import group_advantages
from assay.grpo.config import GRPOConfig
from assay.grpo.parity import ParityConfig
from assay.grpo.trainer import GRPOTrainer
from assay.types import Completion, Datum, FloatArray, Score, Task, Trajectory, TrajectoryGroup, Transition
from support.conformance.cases import Case


@dataclass
class Found:
    """The loss of one optimizer step, with its gradients with respect to log-probabilities and entropies, [B, T]."""

    loss: Tensor
    logprobs: Tensor
    entropies: Tensor

    def __add__(self, other: Found) -> Found:
        return Found(self.loss + other.loss, self.logprobs + other.logprobs, self.entropies + other.entropies)

    def times(self, factor: float) -> Found:
        """All of it, multiplied."""
        return Found(factor * self.loss, factor * self.logprobs, factor * self.entropies)


class Table:
    """A backend whose log-probabilities and entropies are those of a batch; a prompt's one token is the row."""

    train_step = Backend.train_step

    def __init__(self, case: Case) -> None:
        self.case = case
        self.policy_version = 1  # the rollouts are those of version 0
        self.capabilities = Capabilities(
            frozenset(), frozenset(), lora=False, full_weights=True, exact_resume=False, batch_invariant=True
        )
        self.found: Found | None = None

    async def logprobs(
        self, data: Sequence[Datum], *, temperature: float = 1.0, reference: bool = False
    ) -> list[FloatArray]:
        """The reference's, or those of the policy that the rollouts are taken to come from."""
        table = self.case["reference" if reference else "behaviour"]
        return [table[int(d.tokens[0]), : len(d)].numpy().astype(np.float32) for d in data]

    async def forward_backward(self, data: Sequence[Datum], loss: LossSpec) -> ForwardBackwardOutput:
        """Assay's loss in float64, above the table's values as leaves."""
        now, entropy = (self.case[name].clone().requires_grad_() for name in ("now", "entropy"))
        places = [(int(d.tokens[0]), t) for d in data for t in np.flatnonzero(d.mask)]
        rows, columns = (torch.tensor(column) for column in zip(*places, strict=True))

        def stream(name: str) -> Tensor | None:
            values = [getattr(d, name) for d in data]
            if any(v is None for v in values):
                return None
            return torch.from_numpy(np.concatenate([v[d.mask > 0] for v, d in zip(values, data, strict=True)])).double()

        numbers = [np.full(int(d.mask.sum()), i) for i, d in enumerate(data)]
        streams = Streams(
            torch.zeros_like(rows),
            *(stream(name) for name in ("logprobs", "advantages")),  # type: ignore[arg-type]
            torch.from_numpy(np.concatenate(numbers)),
            weights=stream("weights"),
            reference=stream("ref_logprobs"),
        )
        terms = token_losses(loss, now[rows, columns], entropy[rows, columns], streams)
        total = sum((values.sum() for values in terms.values()), torch.zeros((), dtype=torch.float64))
        total.backward()  # type: ignore[no-untyped-call]
        gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in (now, entropy)]
        self.found = Found(total.detach(), *gradients)
        sums = {f"{name}:sum": float(values.detach().sum()) for name, values in terms.items()}
        metrics = {"kl:sum": 0.0, "loss:sum": float(total.detach()), "entropy:mean": 0.0} | sums
        return ForwardBackwardOutput(
            [self.case["now"][int(d.tokens[0]), : len(d)].numpy().astype(np.float32) for d in data], metrics
        )

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """Nothing is trained."""
        return {"grad_norm": 0.0}


def groups_of(case: Case, behaviour: str = "behaviour") -> list[TrajectoryGroup]:
    """The batch as groups of rollouts, which the policy of that name sampled."""
    groups: dict[int, list[Trajectory]] = {}
    for row, number in enumerate(case["group"].tolist()):
        length = int(case["mask"][row].sum())
        logprobs = tuple(case[behaviour][row, :length].tolist())
        reward = float(case["rewards"][row])
        score = Score("errored", None) if np.isnan(reward) else Score("scored", reward)
        stopped = "length" if case["cut"][row] else "stop"
        turn = Transition((row,), Completion((1,) * length, logprobs, stopped, 0), "", score)
        end = "errored" if np.isnan(reward) else "done"
        groups.setdefault(number, []).append(Trajectory(_task(number), (turn,), end, 0))
    return [TrajectoryGroup(_task(number), tuple(rollouts)) for number, rollouts in groups.items()]


def _task(number: int) -> Task:
    return Task(str(number), "conformance", ())


def loss_of(case: Case, settings: Mapping[str, Any]) -> Found:
    """The optimizer step that `GRPOConfig(**settings)` asks for."""
    made_up = ParityConfig(enabled=False)  # no policy sampled what the table says of the tokens
    config = GRPOConfig(**{"kl_coef": 0.0, "learning_rate": 0.0, "parity": made_up, **settings})
    table = Table(case)
    trainer = GRPOTrainer.over(table, config)  # type: ignore[arg-type]
    asyncio.run(trainer.update(groups_of(case, "sampler" if config.tis_cap else "behaviour")))
    assert table.found is not None, "the batch must have a gradient"
    return table.found


def advantages_of(case: Case, settings: Mapping[str, Any]) -> Tensor:
    """[B] in float64; 0 where a rollout has none."""
    recipe = GRPOConfig(**settings).recipe
    found: list[float] = []
    for group in groups_of(case):
        made = group_advantages(group, gamma=1.0, normalize_by_std=recipe.by_std, baseline=recipe.baseline)
        rows = made or [[] for _ in group.trajectories]
        found += [turns[0] if turns else 0.0 for turns in rows]
    return torch.tensor(found, dtype=torch.float64)
