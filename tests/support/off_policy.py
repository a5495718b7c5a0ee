"""A tiny policy away from its reference, made-up rollouts of yet another policy, and what a training step did.

Everything is deterministic, and rollouts cover what a trainer has to cope with: several turns, rewritten histories,
truncation, members that are missing or could not be scored, and a group that says nothing.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.backends.base import AdamParams, ForwardBackwardOutput, LossSpec
from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.grpo.config import GRPOConfig
from assay.grpo.parity import ParityConfig
from assay.grpo.trainer import GRPOTrainer, StepReport
from assay.types import Completion, Datum, Score, Trajectory, TrajectoryGroup, Transition
from support.scripted import task, tiny_backend

CONTEXT = 64
MADE_UP = ParityConfig(enabled=False)
"""Rollouts that are said to be the present policy's, and are not, would be refused."""
KL = {"kl_coef": 0.4}
LENGTH = {"constant_length": 12}


def distributions(model: Any, tokens: list[int], temperature: float) -> Tensor:
    """[T, V] log-probabilities of what follows each token."""
    logits = model(input_ids=torch.tensor([tokens])).logits[0]
    assert logits.dtype == torch.float64
    return torch.log_softmax(logits / temperature, dim=-1)


class Recorder:
    """What a backend was given and found out at each of its optimizer steps."""

    def __init__(self, backend: TorchBackend) -> None:
        self.data: list[list[Datum]] = []
        self.outputs: list[ForwardBackwardOutput] = []
        self.gradients: list[Tensor] = []
        self.models: list[Any] = []
        """The policy before each step, in double precision."""
        self.reports: list[StepReport] = []
        self._forward, self._step = backend.forward_backward, backend.optim_step
        self._backend = backend
        backend.forward_backward = self.forward_backward  # type: ignore[method-assign]
        backend.optim_step = self.optim_step  # type: ignore[method-assign]

    async def forward_backward(self, data: Sequence[Datum], loss: LossSpec) -> ForwardBackwardOutput:
        self.data.append(list(data))
        self.outputs.append(await self._forward(data, loss))
        return self.outputs[-1]

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        gradients = [p.grad for p in self._backend._trained.values()]
        self.gradients.append(torch.cat([g.flatten().double() for g in gradients if g is not None]))
        self.models.append(double(self._backend))
        return await self._step(params)


def double(backend: TorchBackend) -> Any:
    return copy.deepcopy(backend._model).double()


def perturb(backend: TorchBackend, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in backend._trained.values():
            p += scale * torch.randn(p.shape, generator=generator)


@functools.cache
def start() -> Any:
    return tiny_backend(context=CONTEXT)._model


def a_backend(**local: Any) -> TorchBackend:
    """A policy away from its reference; the same at every call."""
    backend = TorchBackend(copy.deepcopy(start()), None, LocalBackend(device="cpu", **local), "start")
    perturb(backend, 1, 0.05)
    return backend


@functools.cache
def models() -> dict[str, Any]:
    """The policy of `a_backend`, which admits what it is given, and its reference, in double precision."""
    policy = double(a_backend())
    return {"policy": policy, "admitted": policy, "reference": copy.deepcopy(start()).double()}


@functools.cache
def rollouts(temperature: float) -> list[TrajectoryGroup]:
    return World(models()["policy"], temperature).groups()


class World:
    """Scored rollouts of made-up tokens. Behaviour and policy differ, mostly by what clips and sometimes by much."""

    def __init__(self, model: Any, temperature: float = 1.0) -> None:
        self.rng = np.random.default_rng(0)
        self.model = model
        self.temperature = temperature
        self.vocabulary = model.config.vocab_size

    def tokens(self, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.rng.integers(1, self.vocabulary, int(self.rng.integers(low, high + 1))).tolist())

    def turn(self, prompt: tuple[int, ...], reward: float | None, noise: float) -> Transition:
        said = self.tokens(1, 7)
        with torch.no_grad():
            table = distributions(self.model, [*prompt, *said], self.temperature)
        exact = np.array([float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(said)])
        jumps = self.rng.choice([0.0, -2.0, 2.0], len(said), p=[0.8, 0.1, 0.1])
        behaviour = np.minimum(exact + noise * (self.rng.normal(0, 0.5, len(said)) + jumps), -1e-3)
        stop = "length" if self.rng.random() < 0.3 else "stop"
        score = Score("errored", None) if reward is None else Score("scored", reward)
        return Transition(prompt, Completion(said, tuple(behaviour.tolist()), stop, 0), "", score)  # type: ignore[arg-type]

    def trajectory(
        self, prompt: tuple[int, ...], rewards: Sequence[float | None], *, noise: float = 1.0, rewrite: bool = False
    ) -> Trajectory:
        turns: list[Transition] = []
        for i, reward in enumerate(rewards):
            turns.append(self.turn(prompt, reward, noise))
            # A rewritten history begins anew and ends the sequence.
            seen = self.tokens(3, 5) if rewrite and i == 0 else (*prompt, *turns[-1].completion.tokens)
            prompt = (*seen, *self.tokens(1, 4))
        return Trajectory(task("a"), tuple(turns), "errored" if None in rewards else "done", 0)

    def group(self, rewards: Sequence[Sequence[float | None]]) -> TrajectoryGroup:
        """Of one prompt; the first rollout comes from the present policy, and the second forgets its first turn."""
        prompt = self.tokens(2, 8)
        rollouts = [
            self.trajectory(prompt, turns, noise=0.0 if i == 0 else 1.0, rewrite=i == 1)
            for i, turns in enumerate(rewards)
        ]
        return TrajectoryGroup(task("a"), tuple(rollouts))

    def groups(self) -> list[TrajectoryGroup]:
        return [
            self.group([[1.0], [0.25], [0.0], [0.5]]),
            self.group([[0.0], [1.0], [None], [0.5], [0.75]]),  # one member could not be scored
            self.group([[2.0], [-1.0]]),  # members are missing
            self.group([[0.5], [0.5], [0.5]]),  # nothing to learn from
            self.group([[0.0, 1.0], [0.5, 0.0, 2.0], [1.0, 0.0], [0.25], [0.0, None]]),
        ]


def update(backend: TorchBackend, groups: Sequence[TrajectoryGroup], case: Mapping[str, Any], **more: Any) -> Recorder:
    """One training step with the settings `case` and `more`; with `rollout_epochs`, through the buffer."""
    named = {name: value for name, value in case.items() if name != "behaviour_unknown"}
    base = {"kl_coef": 0.0, "learning_rate": 0.0, "parity": MADE_UP}
    trainer = GRPOTrainer.over(backend, GRPOConfig(**{**base, **named, **more}))
    recorder = Recorder(backend)
    reuse = "rollout_epochs" in more
    known = not case.get("behaviour_unknown", False)
    recorder.reports.append(asyncio.run(trainer.update(groups, reuse=reuse, behaviour_known=known)))
    return recorder
