"""Runs killed at random moments and started again, beside one that was left alone: are they the same run?

    python benchmarks/resume.py [--kills 20] [--kills-per-run 4] [--seed 0]

The real command, `assay train`, is killed with SIGKILL at a random moment of its life (start-up, SFT, RL, evaluation,
checkpoints), given again, killed again, and at last left to finish. Compared with an uninterrupted run, byte for byte:
the weights and the optimizer of the last checkpoint, all metrics but the machine-dependent `perf/` ones, all traces.
`equal` counts the kills of runs that came out equal; `duplicated_steps` the steps that any ledger or metrics file holds
more than once. `phases` says where the kills fell. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from support import machine

SETTINGS = [
    *("model_name=scratch", "lora_rank=0", "max_tokens=40", "scratch.hidden_size=32", "scratch.num_layers=2"),
    *(
        "sft.num_steps=40",
        "sft.batch_size=16",
        "sft.save_every=10",
        "save_every=3",
        "eval_every=5",
        "kl_penalty_coef=0.02",
    ),
    *("dataset_builder.num_train=160", "dataset_builder.num_heldout=20", "dataset_builder.batch_size=8"),
    *("dataset_builder.group_size=8", "max_batches=20", "dataset_builder.stockfish.nodes=500"),
]


def command(folder: Path, cache: Path) -> list[str]:
    """The command that starts and that resumes the run in `folder`."""
    return [sys.executable, "-m", "assay", "train", *SETTINGS, f"log_path={folder}", f"cache_dir={cache}"]


def start(folder: Path, cache: Path) -> subprocess.Popen[bytes]:
    """Give the command in a process group of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command(folder, cache), stdout=quiet, stderr=quiet, env=environment, start_new_session=True)


def finish(folder: Path, cache: Path) -> float:
    """Run to the end; seconds taken."""
    begun = time.monotonic()
    status = start(folder, cache).wait()
    if status:
        raise SystemExit(f"the run in {folder} failed with status {status}: {' '.join(command(folder, cache))}")
    return time.monotonic() - begun


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; a torn last line is left out."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]


def kill_once(folder: Path, cache: Path, after_s: float) -> str | None:
    """Start, kill after so many seconds; the phase of the last committed step, or None if the run was done before."""
    process = start(folder, cache)
    time.sleep(after_s)
    if process.poll() is not None:
        return None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    ledger = lines(folder / "ledger.jsonl")
    return str(ledger[-1]["phase"]) if ledger else "before the first commit"


def content(folder: Path) -> dict[str, Any]:
    """What must be equal."""
    last = [line for line in lines(folder / "ledger.jsonl") if line["checkpoint"]][-1]["checkpoint"]
    policy = folder / "checkpoints" / last / "policy"
    files = {str(f.relative_to(policy)): f.read_bytes() for f in sorted(policy.rglob("*")) if f.is_file()}
    metrics = [{k: v for k, v in row.items() if not k.startswith("perf/")} for row in lines(folder / "metrics.jsonl")]
    return {"checkpoint": last, "files": files, "metrics": metrics, "traces": (folder / "traces.jsonl").read_bytes()}


def duplicated(folder: Path) -> int:
    """Steps that are in the ledger or in the metrics more than once."""
    counts = [Counter(row["step"] for row in lines(folder / name)) for name in ("ledger.jsonl", "metrics.jsonl")]
    return sum(n - 1 for count in counts for n in count.values() if n > 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kills-per-run", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resume_") as name:
        root = Path(name)
        finish(root / "warm", root / "cache")  # fills the caches, so that the timed run is like the others
        whole_s = finish(root / "whole", root / "cache")
        want = content(root / "whole")
        kills, equal, twice, phases, run = 0, 0, duplicated(root / "whole"), Counter[str](), 0
        while kills < args.kills:
            folder, run, done = root / f"run_{run}", run + 1, 0
            while done < min(args.kills_per_run, args.kills - kills):
                phase = kill_once(folder, root / "cache", rng.uniform(0.2, 1.0) * whole_s)
                if phase is None:
                    break
                phases[phase] += 1
                done += 1
            finish(folder, root / "cache")
            kills += done
            equal += done * (content(folder) == want)
            twice += duplicated(folder)
            print(f"run {run}: killed {done} times, {'equal' if content(folder) == want else 'DIFFERENT'}", flush=True)
    record = {
        "kills": kills,
        "equal": equal,
        "duplicated_steps": twice,
        "runs": run,
        "phases": dict(phases),
        "seed": args.seed,
        "uninterrupted_s": whole_s,
        "wall_s": time.monotonic() - begun,
        "machine": machine("chess"),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
