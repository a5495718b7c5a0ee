"""Kill `assay train` at random moments, give the same command again, and compare with a run that was left alone.

    python benchmarks/resume.py [--kills N] [--seed S] [--kills-per-run K] [--fresh]

The run is a small chess run with everything in it: supervised steps, RL against Stockfish, evaluations, checkpoints
every few steps. Kill points (SIGKILL) are spread over its steps by stratified sampling, each at a random moment within
its step; a third of them wait for a checkpoint that is being written and strike at a random moment of that. Each run is
killed several times and then finished; a kill counts as survived when the finished run equals the reference: final
weights and optimizer bit for bit, metrics but for `perf/`, and traces byte for byte.

Training processes are forks of this one, which has loaded the libraries (that takes longer than the run);
`--fresh` starts a new interpreter for each instead. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

# Loaded before the first fork, so that every training process has them.
import assay.backends.local.backend
import assay.training.loop  # noqa: F401
from assay.cli import main as cli
from assay.training.metrics.logger import comparable

CONFIG = {
    "model_name": "scratch",
    "lora_rank": 0,
    "learning_rate": 1e-3,
    "max_tokens": 10,
    "save_every": 2,
    "eval_every": 5,
    "kl_penalty_coef": 0.01,
    "local": {"device": "cpu"},
    "scratch": {"hidden_size": 64, "num_layers": 1, "context_length": 96},
    "sft": {"num_steps": 120, "save_every": 12, "learning_rate": 5e-3, "lr_warmup_steps": 10},
    "eval": {"samples_per_task": 2},
    "dataset_builder": {
        "type": "chess",
        "num_train": 64,
        "num_heldout": 8,
        "batch_size": 4,
        "group_size": 8,
        "stockfish": {"nodes": 300},
    },
}
POLL_S = 0.001
IN_CHECKPOINT = 1 / 3
"""Share of the kills that strike while a checkpoint is being written."""


class Training:
    """One `assay train` process on the run directory `path`."""

    def __init__(self, config: Path, path: Path, fresh: bool) -> None:
        self.path = path
        self.arguments = ["train", "--config", str(config), f"log_path={path}", f"cache_dir={path}.cache"]
        self.status: int | None = None
        """Exit status; negative where a signal ended it."""
        log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._pid = self._spawn(log) if fresh else self._fork(log)
        os.close(log)

    def _spawn(self, log: int) -> int:
        return subprocess.Popen([sys.executable, "-m", "assay", *self.arguments], stdout=log, stderr=log).pid

    def _fork(self, log: int) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                os.dup2(log, 1)
                os.dup2(log, 2)
                status = cli.main(self.arguments)
                sys.stderr.flush()
            finally:
                os._exit(status)
        return pid

    def poll(self, block: bool = False) -> bool:
        """Whether the process has ended."""
        if self.status is None:
            pid, status = os.waitpid(self._pid, 0 if block else os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def finish(self) -> None:
        """Let the process come to its end, which must be a good one."""
        self.poll(block=True)
        if self.status != 0:
            raise SystemExit(f"assay train ended with {self.status}; see {self.path}.log")

    def kill(self) -> bool:
        """Kill the process; False where it ended by itself before."""
        if not self.poll():
            os.kill(self._pid, signal.SIGKILL)
        self.poll(block=True)
        return self.status == -signal.SIGKILL

    def commits(self) -> int:
        """Lines of the ledger."""
        try:
            return (self.path / "ledger.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return any((self.path / "checkpoints").glob("*.tmp"))


@dataclass(frozen=True)
class Reference:
    """The run that was left alone, and how long its parts took."""

    outcome: dict[str, object]
    commits: int
    startup_s: float
    """From the start of the process to its first commit."""
    step_s: float
    checkpoint_s: float
    updates: int
    """RL batches that changed the weights."""


def run_reference(config: Path, path: Path, fresh: bool) -> Reference:
    """Run to the end, and look at the clock."""
    began = time.monotonic()
    training = Training(config, path, fresh)
    first, saving = 0.0, 0.0
    while not training.poll():
        if not first and training.commits():
            first = time.monotonic()
        saving += POLL_S if training.saving() else 0.0
        time.sleep(POLL_S)
    training.finish()
    commits, checkpoints = training.commits(), len(list((path / "checkpoints").iterdir()))
    steps = read_lines(path / "metrics.jsonl")
    updates = sum(1 for record in steps if record.get("train/optimizer_steps"))
    step_s = (time.monotonic() - first) / commits
    return Reference(outcome(path), commits, first - began, step_s, saving / checkpoints, updates)


def outcome(path: Path) -> dict[str, object]:
    """What two equal runs have in common."""
    last = read_lines(path / "checkpoints.jsonl")[-1]
    policy = path / "checkpoints" / str(last["name"]) / "policy"
    files = [*policy.glob("model/*.safetensors"), policy / "optimizer.pt", path / "traces.jsonl"]
    digests = {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return {**digests, "metrics": [comparable(record) for record in read_lines(path / "metrics.jsonl")]}


def read_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def duplicated_steps(path: Path) -> int:
    """Steps that stand more than once in the metrics or in the ledger."""
    columns = [[record["step"] for record in read_lines(path / name)] for name in ("metrics.jsonl", "ledger.jsonl")]
    return sum(len(steps) - len(set(steps)) for steps in columns)


def killed(training: Training, target: int, reference: Reference, rng: random.Random) -> bool:
    """Kill a process after `target` commits; False where it came to its end first."""
    in_checkpoint = rng.random() < IN_CHECKPOINT
    while not training.poll() and training.commits() < target:
        time.sleep(POLL_S)
    if in_checkpoint:
        while not training.poll() and not training.saving():
            time.sleep(POLL_S / 4)
        delay_s = rng.uniform(0, reference.checkpoint_s)
    else:
        delay_s = rng.uniform(0, reference.step_s if target else reference.startup_s)
    time.sleep(delay_s)
    if not training.kill():
        return False
    place = "while a checkpoint was written" if training.saving() else "between checkpoints"
    print(
        f"{training.path.name}: killed after {training.commits()} of {reference.commits} commits, {place}", flush=True
    )
    return True


def targets(kills: int, per_run: int, commits: int, rng: random.Random) -> list[list[int]]:
    """Commits after which to kill, by run: one from each of `kills` equal strata, dealt out to the runs, rising."""
    strata = [int((i + rng.random()) * (commits - 1) / kills) for i in range(kills)]
    runs = -(-kills // per_run)
    return [strata[i::runs] for i in range(runs)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per kill and the summary; 1 where a killed run did not end as the reference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kills-per-run", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="start a new interpreter for every training process")
    args = parser.parse_args(argv)
    rng, began = random.Random(args.seed), time.monotonic()
    kills = equal = duplicated = in_checkpoint = runs = 0
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
        reference = run_reference(config, Path(folder) / "reference", args.fresh)
        print(f"reference: {reference.commits} commits, {reference.updates} RL updates", flush=True)
        queue = targets(args.kills, args.kills_per_run, reference.commits, rng)
        while queue:
            points, path, struck = queue.pop(0), Path(folder) / f"run{runs}", 0
            for target in points:
                training = Training(config, path, args.fresh)
                if not killed(training, target, reference, rng):
                    queue.append(points[struck:])  # It ended before the kill; another run takes the rest.
                    break
                struck, in_checkpoint = struck + 1, in_checkpoint + training.saving()
            Training(config, path, args.fresh).finish()
            same = outcome(path) == reference.outcome
            runs, kills, equal = runs + 1, kills + struck, equal + same * struck
            duplicated += duplicated_steps(path)
            print(f"{path.name}: {'equal to' if same else 'DIFFERENT from'} the reference", flush=True)
    summary = {
        "kills": kills,
        "equal": equal,
        "duplicated_steps": duplicated,
        "during_checkpoint": in_checkpoint,
        "rl_updates": reference.updates,
        "seeds": [args.seed],
        "wall_s": round(time.monotonic() - began, 1),
    }
    print(json.dumps(summary))
    return 0 if kills == equal and not duplicated else 1


if __name__ == "__main__":
    sys.exit(main())
