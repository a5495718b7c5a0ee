"""Real training runs for `benchmarks/health.py`: tiny ones that truly go wrong, tiny and chess ones that do not.

The task of the tiny runs is that of `tests/support/toy_env.py`, with rewards that can be led astray. A fault that comes
from outside (a broken verifier, a NaN, a sampler at another temperature) begins at a known RL step; a collapse begins
where the optimisation takes it.

The monitor inside the runs only warns, so that every collapse takes its course; the benchmark's own judges the metrics.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import chz
import numpy as np
import torch

from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.envs.base import BuildContext, EnvData, StepResult
from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import DEFAULT_ACTIONS, HealthConfig
from assay.grpo.health.rules import WATCHED
from assay.grpo.parity import ParityConfig
from assay.training.config import SFTConfig, TrainingConfig, load_config
from assay.training.loop import train
from assay.types import Score
from support.health_series import Step
from support.scripted import ScriptedGroup
from support.tiny_run import tiny
from support.toy_env import ToyBuilder, ToyDataset, prompts

ONSET = 40
"""RL step at which a fault from outside begins."""
Reward = Callable[[str, int], dict[str, float]]
"""(answer, RL step) -> the parts of its reward, which is their sum."""


def share(text: str, letter: str) -> float:
    """Share of a letter in an answer."""
    return text.count(letter) / max(1, len(text))


def balanced(text: str, step: int) -> dict[str, float]:
    """Half a's, and briefly: many different answers are best, so a policy can learn this and stay healthy."""
    return {"right": 1 - abs(2 * share(text, "a") - 1), "brief": 0.2 * (len(text) < 8)}


def all_a(text: str, step: int) -> dict[str, float]:
    """One answer is best, so nothing but the KL penalty keeps the entropy up."""
    return {"right": share(text, "a")}


def brief_a(text: str, step: int) -> dict[str, float]:
    """What is meant: a's, and an end before the limit."""
    return {"right": share(text, "a") * (1.0 if len(text) < 8 else 0.5)}


def hackable(text: str, step: int) -> dict[str, float]:
    """Meant are a's; digits earn a little bonus each, which soon is worth more."""
    return {"right": share(text, "a"), "bonus": 0.25 * sum(map(text.count, "123"))}


def noisy(text: str, step: int) -> dict[str, float]:
    """Mostly chance: steps that are too large follow it wherever it leads."""
    chance = zlib.crc32(f"{step} {text}".encode()) / 2**32
    return {"right": balanced(text, step)["right"], "chance": 2 * chance}


def long(text: str, step: int) -> dict[str, float]:
    """Length is rewarded without bound."""
    return {"right": 0.2 * share(text, "a"), "length": 0.05 * len(text)}


def broken(text: str, step: int) -> dict[str, float]:
    """The verifier answers 0 to everything from the onset on."""
    return balanced(text, step) if step < ONSET else {"right": 0.0, "brief": 0.0}


def wrong_unit(text: str, step: int) -> dict[str, float]:
    """From the onset on, rewards are in another unit."""
    scale = 1.0 if step < ONSET else 1e3
    return {name: scale * value for name, value in balanced(text, step).items()}


REWARDS: dict[str, Reward] = {
    r.__name__: r for r in (balanced, all_a, brief_a, hackable, noisy, long, broken, wrong_unit)
}


@dataclass(frozen=True)
class RewardedDataset(ToyDataset):
    """Toy prompts whose answers a named reward judges."""

    reward: str = "balanced"
    step: int | None = None
    """The RL step that rewards are told of; None tells them of the batch's own."""

    def batch(self, index: int) -> Sequence[ScriptedGroup]:
        def judge(text: str, sample: int, turn: int) -> StepResult:
            parts = REWARDS[self.reward](text, index if self.step is None else self.step)
            return StepResult(Score("scored", sum(parts.values()), parts=parts), done=True)

        return [replace(group, judge=judge) for group in super().batch(index)]


@chz.chz
class RewardedBuilder(ToyBuilder):
    """See the module."""

    reward: str = "balanced"
    """Name of the reward."""
    intended: str | None = None
    """Name of the reward of the held-out tasks; null takes the toy environment's own tasks."""
    num_heldout: int = 0
    """Held-out prompts of it."""

    def build(self, context: BuildContext) -> EnvData:
        data = super().build(context)
        train = data.train
        assert isinstance(train, ToyDataset)
        data = replace(data, train=RewardedDataset(train.prompts, self, train.max_turns, self.reward))
        if self.intended is None:
            return data
        held = prompts(np.random.default_rng([context.seed, 1]), self.num_heldout)
        return replace(data, heldout=RewardedDataset(held, self, train.max_turns, self.intended, step=-1))


@dataclass(frozen=True)
class Fault:
    """A way to run into trouble: the reward, the settings, and what is broken from the onset on."""

    reward: str
    settings: Mapping[str, Any]
    sabotage: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    onset: int | None = None
    """Step at which the fault begins; None where the optimisation leads there."""
    steps: int = ONSET + 30


@contextlib.contextmanager
def from_call(
    name: str, first: int, change: Callable[[TorchBackend, tuple[Any, ...]], tuple[Any, ...]], *, always: bool = True
) -> Iterator[None]:
    """Patch a method of the backend: from its call `first` on, `change` is applied to its arguments.

    Args:
        always: whether a run that ends before is an error, since it would count as one with this fault.
    """
    original, calls = getattr(TorchBackend, name), 0

    def call(self: TorchBackend, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(self, *(args if calls <= first else change(self, args)), **kwargs)

    with mock.patch.object(TorchBackend, name, call):
        yield
    if always and calls <= first:
        raise RuntimeError(f"{name} was called {calls} times, so the fault that begins with call {first + 1} did not.")


def _hotter(backend: TorchBackend, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sample at another temperature than the one that log-probabilities are compared under."""
    prompts, params, *rest = args
    return prompts, replace(params, temperature=1.5 * params.temperature), *rest


def _poisoned(backend: TorchBackend, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A gradient becomes NaN before the optimizer step."""
    next(p for p in backend._trained.values() if p.grad is not None).grad.fill_(math.nan)  # type: ignore[union-attr]
    return args


SFT_STEPS = 20
WATCHING = dict.fromkeys(DEFAULT_ACTIONS, "warn")
FAULTS: Mapping[str, Fault] = {
    "kl_runaway": Fault("noisy", {"learning_rate": 2e-2, "kl_penalty_coef": 1e-6}),
    "entropy_collapse": Fault("all_a", {"learning_rate": 4e-3, "kl_penalty_coef": 1e-6}, steps=140),
    "reward_hacking": Fault("hackable", {}),
    "constant_rewards": Fault("broken", {}, onset=ONSET),
    "non_finite": Fault("balanced", {}, lambda: from_call("optim_step", SFT_STEPS + ONSET, _poisoned), ONSET),
    "mismatch": Fault("balanced", {}, lambda: from_call("sample_stream", ONSET, _hotter), ONSET),
    "gradient_explosion": Fault("wrong_unit", {}, onset=ONSET),
    "truncation": Fault("long", {"learning_rate": 3e-3}),
    "clipping": Fault("balanced", {"learning_rate": 2e-2, "num_substeps": 8, "loss_fn": "ppo"}),
}


def failing_run(kind: str, seed: int, folder: Path) -> tuple[list[Step], int | None]:
    """The metrics of a tiny run with this fault, and the step at which it begins where that is known."""
    fault = FAULTS[kind]
    with fault.sabotage():
        return tiny_run(folder, fault.reward, seed, fault.steps, **fault.settings), fault.onset


def healthy_run(seed: int, folder: Path, steps: int = 300) -> list[Step]:
    """The metrics of a tiny run that learns under a KL penalty."""
    return tiny_run(folder, "balanced", seed, steps)


def tiny_run(folder: Path, reward: str, seed: int, steps: int, **changes: Any) -> list[Step]:
    """Train the toy policy, 8 groups of 8 rollouts a step."""
    builder = RewardedBuilder(num_train=8 * steps, batch_size=8, group_size=8, reward=reward)
    return run(tiny(folder, **(settings_of(seed) | {"dataset_builder": builder} | changes)))


def settings_of(seed: int) -> dict[str, Any]:
    """Settings with which the toy policy learns and stays healthy; the monitor only warns."""
    return {
        "learning_rate": 1e-3,
        "kl_penalty_coef": 0.1,
        "max_tokens": 12,
        "eval_every": 0,
        "save_every": 10**6,
        "tensorboard_enabled": False,
        "seed": seed,
        "sft": SFTConfig(num_steps=SFT_STEPS, save_every=10**6, batch_size=8, lr_warmup_steps=2),
        "local": LocalBackend(device="cpu"),
        "grpo": AlgorithmConfig(
            parity=ParityConfig(enabled=False),  # it would stop the mismatch before the monitor sees it
            kl_estimator="k1",
            kl_placement="reward",
            health=HealthConfig(report_every=0, actions=WATCHING),
        ),
    }


def chess_run(seed: int, folder: Path, batches: int, *changes: str) -> list[Step]:
    """The metrics of the chess preset's first RL batches, with some settings changed."""
    overrides = [f"log_path={folder}", f"seed={seed}", f"max_batches={batches}", "eval_every=0", "eval.max_tasks=2"]
    overrides += [f"grpo.health.actions.{rule}={action}" for rule, action in WATCHING.items()]
    return run(load_config("chess", [*overrides, "tensorboard_enabled=false", "local.device=cpu", *changes]))


def run(config: TrainingConfig) -> list[Step]:
    """Train, and return the observation of every RL step."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # a batch without an informative group, many times over
    try:
        train(config)
    finally:
        logging.disable(logging.NOTSET)
    records = map(json.loads, (config.log_path / "metrics.jsonl").read_text().splitlines())
    return [observation(record) for record in records if record["phase"] == "rl"]


OF_TRAIN = "train/"


def observation(record: Mapping[str, Any]) -> Step:
    """What the monitor saw of a line of `metrics.jsonl`; null is a number that was not finite."""
    return {
        name.removeprefix(OF_TRAIN): math.nan if value is None else float(value)
        for name, value in record.items()
        if name.startswith((OF_TRAIN, *WATCHED))
    }
