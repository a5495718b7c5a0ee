"""Real collapses for `benchmarks/health.py`, each run three times: undisturbed, watched, and with the monitor acting.

The task is to say a's, and not to the limit, from a policy that was warmed up on mixed answers. A collapse is a fault
on top of settings that learn it; the three runs of one seed share everything else. The held-out tasks are judged by the
intended reward, whatever a fault does to the reward of training. Most kinds are none of those that the rules were made
for.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import torch

from assay.backends.local.backend import TorchBackend
from assay.errors import AssayError
from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import HealthConfig
from assay.training.config import EvalConfig, OptimizerConfig, TrainingConfig, load_config
from assay.training.loop import train
from common.health_runs import (
    REWARDS,
    SFT_STEPS,
    WATCHING,
    RewardedBuilder,
    brief_a,
    from_call,
    observation,
    settings_of,
    share,
)
from support.tiny_run import tiny

ONSET, STEPS, RATE = 60, 400, 4e-3
"""Batch at which a fault from outside begins, batches of a run, and the learning rate of the undisturbed one: what
learns the task within half of the batches, so that there is time to learn it again at a lower rate."""
Arm = Literal["undisturbed", "watched", "acting"]
ARMS: tuple[Arm, ...] = get_args(Arm)
LAST = 3
"""Evaluations, ten batches apart, whose mean is a run's final reward: single ones of 64 rollouts differ by 0.05."""
RESCUED = 0.8
"""Share of what the undisturbed run gained that a rescued run keeps."""
LOST = 0.2
"""A run has collapsed where it would not count as rescued, and either had reached more by this share of what the
undisturbed run gained before, or has nothing left that could lead back: 9 of 10 groups of its last ten
batches have equal rewards."""


@dataclass(frozen=True)
class Collapse:
    """A way to ruin a run: changed settings, another reward of training, or a sabotage of the backend."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    reward: str = "brief_a"
    sabotage: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    known: bool = False
    """Whether the rules were made with this kind in mind."""


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    ended: Literal["done", "stopped", "failed"]
    """`stopped`: by the monitor; `failed`: by another error of Assay."""
    start: float
    final: float
    """Held-out reward before RL, and the mean of the last three evaluations."""
    rollbacks: int
    alarms: tuple[tuple[int, str], ...]
    """(RL batch, kind) of every event but health reports."""
    message: str = ""
    best: float = math.nan
    """The largest held-out reward on the way; evaluated every ten batches."""
    constant: float = 0.0
    """Share of groups with equal rewards in the last ten batches."""
    evals: tuple[tuple[int, float], ...] = ()
    """(RL batches done, held-out reward) of every evaluation."""
    series: tuple[Mapping[str, float], ...] = ()
    """What the monitor saw of each RL batch, to judge it again by other rules."""


# Faults of the reward: by the step of training, so that held-out tasks (step -1) are judged as intended.


def flipped(text: str, step: int) -> dict[str, float]:
    """From the onset on, the verifier's sign is wrong."""
    return {"right": brief_a(text, step)["right"] * (1 if step < ONSET else -1)}


def other_task(text: str, step: int) -> dict[str, float]:
    """From the onset on, another letter is wanted, which the policy hardly says."""
    return {"right": share(text, "a" if step < ONSET else "3")}


def noisy_a(text: str, step: int) -> dict[str, float]:
    """Mostly chance, around what is meant."""
    return {
        "right": brief_a(text, step)["right"],
        "chance": 0.0 if step < 0 else zlib.crc32(f"{step} {text}".encode()) / 2**32,
    }


REWARDS.update({r.__name__: r for r in (flipped, other_task, noisy_a)})


def rate_grows() -> Any:
    """Each optimizer step has a learning rate 12 % above the one before: a slow drift that ends in ruin."""
    calls = 0

    def change(backend: TorchBackend, args: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal calls
        calls += 1
        return replace(args[0], learning_rate=args[0].learning_rate * 1.12**calls), *args[1:]

    return from_call("optim_step", SFT_STEPS, change, always=False)


def weights_shaken() -> Any:
    """One step damages the weights: a bad checkpoint, a broken kernel."""
    done = False

    def change(backend: TorchBackend, args: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal done
        if not done:
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for weight in backend._trained.values():
                    weight += 2 * weight.std() * torch.randn(weight.shape, generator=generator)
        done = True
        return args

    return from_call("optim_step", SFT_STEPS + ONSET, change, always=False)


def gradient_flipped() -> Any:
    """From the onset on, every gradient has the wrong sign."""

    def change(backend: TorchBackend, args: tuple[Any, ...]) -> tuple[Any, ...]:
        for weight in backend._trained.values():
            if weight.grad is not None:
                weight.grad.neg_()
        return args

    return from_call("optim_step", SFT_STEPS + ONSET, change, always=False)


COLLAPSES: Mapping[str, Collapse] = {
    "rate x25": Collapse({"learning_rate": 25 * RATE}, known=True),
    "rate x50": Collapse({"learning_rate": 50 * RATE}, known=True),
    "rate x25, weak penalty": Collapse({"learning_rate": 25 * RATE, "kl_penalty_coef": 1e-3}, known=True),
    "rate x25, noisy reward": Collapse({"learning_rate": 25 * RATE}, "noisy_a"),
    "rate x25, no penalty": Collapse({"learning_rate": 25 * RATE, "kl_penalty_coef": 0.0}),
    "rate x10, stale rollouts": Collapse({"learning_rate": 10 * RATE, "max_steps_off_policy": 4}),
    "rate x25, 4 rollout epochs": Collapse({"learning_rate": 25 * RATE, "rollout_epochs": 4, "loss_fn": "grpo"}),
    "rate x25, no momentum": Collapse({"learning_rate": 25 * RATE, "optimizer": OptimizerConfig(beta1=0.0, beta2=0.5)}),
    "rate grows": Collapse(sabotage=rate_grows),
    "weights shaken": Collapse(sabotage=weights_shaken),
    "gradient flipped": Collapse(sabotage=gradient_flipped),
    "reward flipped": Collapse(reward="flipped"),
    "other task": Collapse(reward="other_task"),
}


def outcome(name: str, arm: Arm, seed: int, folder: Path) -> Outcome:
    """Run one arm of a collapse of the tiny task."""
    collapse = Collapse() if arm == "undisturbed" else COLLAPSES[name]
    health: dict[str, Any] = {"report_every": 0}
    if arm != "acting":
        health["actions"] = WATCHING
    settings = settings_of(seed) | {
        "learning_rate": RATE,
        "kl_penalty_coef": 0.05,
        "max_tokens": 10,
        "eval_every": 10,
        "save_every": 5,
        "trace_token_groups": 0,
        "eval": EvalConfig(samples_per_task=4),
        "grpo": AlgorithmConfig(kl_estimator="k1", kl_placement="reward", health=HealthConfig(**health)),
        "dataset_builder": RewardedBuilder(
            num_train=8 * STEPS, batch_size=8, group_size=4, reward=collapse.reward, intended="brief_a", num_heldout=16
        ),
    }
    if not (settings | collapse.settings)["kl_penalty_coef"]:
        settings["grpo"] = AlgorithmConfig(health=HealthConfig(**health))
    with collapse.sabotage():
        return ended(tiny(folder, **(settings | collapse.settings)))


CHESS_COLLAPSES: Mapping[str, tuple[str, ...]] = {
    "chess, rate x20, weak penalty": ("learning_rate=0.01", "kl_penalty_coef=0.001"),
    "chess, rate x100": ("learning_rate=0.05",),
}
"""Settings of the chess preset, which learns at a rate of 5e-4."""


def chess_outcome(name: str, arm: Arm, seed: int, folder: Path, batches: int = 120) -> Outcome:
    """Run one arm of a collapse of the chess preset's first batches."""
    overrides = [f"log_path={folder}", f"seed={seed}", f"max_batches={batches}", "eval_every=10", "eval.max_tasks=100"]
    overrides += ["save_every=5", "tensorboard_enabled=false", "local.device=cpu", "grpo.health.report_every=0"]
    if arm != "undisturbed":
        overrides += CHESS_COLLAPSES[name]
    if arm != "acting":
        overrides += [f"grpo.health.actions.{rule}=warn" for rule in WATCHING]
    return ended(load_config("chess", overrides))


def ended(config: TrainingConfig) -> Outcome:
    """Run to the end, whatever it is."""
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    how: Literal["done", "stopped", "failed"] = "done"
    message = ""
    try:
        train(config, quiet=True)
    except AssayError as error:
        how, message = ("stopped" if type(error).__name__ == "HealthError" else "failed"), str(error)
    finally:
        logging.disable(logging.NOTSET)
    rows = [json.loads(line) for line in (config.log_path / "metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (config.log_path / "events.jsonl").read_text().splitlines()]
    evals = tuple((row["step"], row["eval/reward/mean"]) for row in rows if row.get("eval/reward/mean") is not None)
    rewards = [reward for _, reward in evals]
    constant = [row["rollout/constant_group_fraction"] for row in rows if row["phase"] == "rl"]
    before = sum(row["phase"] == "sft" for row in rows)
    return Outcome(
        how,
        rewards[0],
        fmean(rewards[1:][-LAST:] or rewards),
        sum(event["kind"] == "rollback" for event in events),
        tuple((event["step"] - before + 1, event["kind"]) for event in events if event["kind"] != "health_report"),
        message,
        max(rewards),
        fmean(constant[-10:]) if constant else 0.0,
        tuple((max(0, step - before + 1), reward) for step, reward in evals),
        tuple(observation(row) for row in rows if row["phase"] == "rl"),
    )


def collapsed(watched: Outcome, undisturbed: Outcome) -> bool:
    """Whether the watched run really collapsed: see `LOST`; or it failed."""
    gain = undisturbed.final - undisturbed.start
    if watched.ended != "done":
        return True
    lost = watched.final < watched.best - LOST * gain or watched.constant >= 0.9
    return watched.final < undisturbed.start + RESCUED * gain and lost


def level_at(run: Outcome, batches: int) -> float:
    """Held-out reward after so many batches, or where the run ended before: the mean of the last three evaluations."""
    rewards = [reward for done, reward in run.evals if 0 < done <= batches]
    return fmean(rewards[-LAST:]) if rewards else math.nan


def keeps(acting: Outcome, undisturbed: Outcome, batches: int = STEPS) -> bool:
    """Whether the run has most of what the undisturbed one has gained after so many batches."""
    gain = level_at(undisturbed, batches) - undisturbed.start
    return level_at(acting, batches) >= undisturbed.start + RESCUED * gain


def rescued(acting: Outcome, undisturbed: Outcome) -> bool:
    """Whether the run came to its end with most of what the undisturbed one gained."""
    return acting.ended == "done" and keeps(acting, undisturbed)


def as_json(found: Outcome) -> dict[str, Any]:
    """The outcome as JSON data."""
    return asdict(found)


def from_json(data: Mapping[str, Any]) -> Outcome:
    """What `as_json` gave."""
    return Outcome(**{**data, "alarms": tuple((int(step), str(kind)) for step, kind in data["alarms"])})
