"""A small real run: a policy of a few bytes trained by steps that depend on its state, all through RunDirectory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from assay.config.record import may_change
from assay.training.config import load_config
from assay.training.metrics.logger import MetricsLogger
from assay.training.run.directory import RunDirectory
from assay.training.run.resume import Refusal, plan_resume
from assay.training.run.retention import Keep
from assay.types import Json

CONFIG = {"learning_rate": 1e-4, "log_path": "runs/toy", "wandb_name": None, "dataset_builder": {"sizes": [1, 2]}}
SFT_STEPS = 2
RL_STEPS = 3
SAVE_EVERY = 2


class ToyPolicy:
    """State that every step hashes and extends, so that a lost, repeated or reordered step changes everything after."""

    def __init__(self, size: int) -> None:
        self.weights = bytes(size)
        self.generator = random.Random(3)

    def step(self, phase: str) -> float:
        noise = self.generator.random()
        seed = hashlib.sha256(self.weights + repr((phase, noise)).encode()).digest()
        self.weights = (seed * (len(self.weights) // len(seed) + 1))[: len(self.weights)]
        return self.weights[0] / 255 + noise

    async def save_state(self, path: Path) -> None:
        path.mkdir()
        (path / "weights.bin").write_bytes(self.weights)

    def load_state(self, path: Path) -> None:
        self.weights = (path / "weights.bin").read_bytes()

    def state(self) -> dict[str, object]:
        return {"generator": self.generator.getstate()}

    def set_state(self, state: dict) -> None:
        version, words, gauss = state["generator"]
        self.generator.setstate((version, tuple(words), gauss))


MAY_CHANGE = may_change(load_config("monitor", ["dataset_builder.reward.train_with_monitor=true"]))
"""What a run of monitor tasks that asks a monitor may change on resume."""


def open_run(
    path: Path, config: Mapping[str, Json], resume_from_batch: int | None = None, keep: Keep | None = None
) -> RunDirectory:
    """Start, resume or reopen a run; what is refused raises."""
    plan = plan_resume(path, config, resume_from_batch, MAY_CHANGE)
    if isinstance(plan, Refusal):
        raise plan.error
    return RunDirectory.open(plan, keep)


async def train(
    path: Path,
    *,
    resume_from_batch: int | None = None,
    size: int = 64,
    stop_after: int | None = None,
    keep: Keep | None = None,
) -> None:
    """Start, resume or leave alone the toy run at `path`; stop without finishing after `stop_after` steps in all."""
    with open_run(path, CONFIG, resume_from_batch, keep) as run:
        if run.is_complete:
            return
        policy = ToyPolicy(size)
        if run.resumed is not None:
            policy.load_state(run.resumed.policy)
            policy.set_state(dict(run.resumed.state))
        with MetricsLogger(run) as log:
            if run.next_step == -1:
                await run.commit("start", 0, save=policy.save_state, state=policy.state())
            for step in range(run.next_step, SFT_STEPS + RL_STEPS if stop_after is None else stop_after):
                phase, index = ("sft", step) if step < SFT_STEPS else ("rl", step - SFT_STEPS)
                loss = policy.step(phase)
                log.log(step, phase, index, {"loss": loss})
                log.traces([{"step": step, "text": f"♞{loss}" * 3}])
                if loss > 1:
                    log.event(step, "high_loss", "info", f"loss {loss}")
                due = (index + 1) % SAVE_EVERY == 0
                save, state = (policy.save_state, policy.state()) if due else (None, None)
                await run.commit(phase, index, {"loss": loss}, save=save, state=state, durable=phase == "rl")
            if stop_after is None:
                run.write_file("report.html", f"<p>{policy.weights.hex()}</p>")
                run.finish()


def run_toy(path: Path, **options: object) -> None:
    asyncio.run(train(path, **options))


def content(path: Path) -> dict[str, bytes]:
    """Every file of a directory, by relative path, but for the lock."""
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file() and f.name != "run.lock"}


@contextmanager
def memory_folder(otherwise: Path) -> Iterator[Path]:
    """A folder where waiting for the disk costs nothing, so that hundreds of runs take seconds."""
    shared_memory = Path("/dev/shm")
    if not os.access(shared_memory, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir=shared_memory) as folder:
        yield Path(folder)


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; its wait status (0 where it returned)."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def killed_at(operation: int, work: Callable[[], None]) -> bool:
    """Run `work` in a process that is killed at its n-th change of the file system; whether it lived to the end.

    The kill comes before the operation, except in a write, half of which is done.
    """

    def armed() -> None:
        count = 0

        def dying(name: str) -> Callable[..., object]:
            original = getattr(os, name)

            def call(*args: object, **kwargs: object) -> object:
                nonlocal count
                count += 1
                if count == operation:
                    if name == "write":
                        original(args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            return call

        for name in ("open", "write", "fsync", "ftruncate", "replace", "rename", "mkdir", "unlink", "rmdir"):
            setattr(os, name, dying(name))
        work()

    status = in_child(armed)
    assert status == 0 or os.WIFSIGNALED(status), "the process failed instead of being killed"
    return status == 0
