"""Training on `assay serve` over the Tinker API against the same training on the local backend.

    python benchmarks/tinker_parity.py [--presets chess kernels_cpu] [--seeds 0] [--out DIR] [--quick] [key=value ...]

For each preset and seed a supervised stage of `assay train` makes a model. From it adapters of one rank (output head
included, as the API trains it) are trained twice with the same seeds: by the local backend, and by `backend=tinker`
against `assay serve` on this machine over HTTP. Both draw the same samples. `key=value` changes the settings of both.

The last line is one JSON object. `max_logprob_diff` (nats) is the largest difference between the log-probabilities of
sampled tokens, in batches that both sampled alike, `max_weight_diff` that between the adapters at the end, and
`reward_curve_diff` that between the mean rewards of a batch: each the largest over the runs. `same_batches` of
`batches` were sampled alike, token by token. A step's cost is CPU time of the training process, and of the server's
process where there is one, between the end of the first RL step and that of the last but one, without the processes
that judge. `step_overhead_ms` is what a step costs more over the API, `step_overhead_fraction` the same by the local
step's cost: the largest over the presets, each over all its seeds. `step_overhead_wall_fraction` is the same by the
clock, and says something on a quiet machine alone. `runs` has the costs of each run, and the held-out rewards before
and after of both sides, with paired 95 % intervals of the change over tasks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from assay.training.metrics.intervals import paired_difference_ci95
from assay.training.report.comparison import measured_policy
from assay.training.run.reader import RunRecords
from common import machine
from common.served_model import Served, served
from common.trained_runs import train_apart

NAME = "assay/parity"
SHARED = ["tensorboard_enabled=false"]
ADAPTED = ["lora_rank=16", "sft.num_steps=0", "trace_token_groups=1000"]
PRESETS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "chess": {
        "data": ["dataset_builder.num_train=1200", "dataset_builder.num_heldout=100"],
        "warm_up": ["sft.num_steps=450", "eval.samples_per_task=1"],
        "rl": ["local.lora_targets=c_attn,c_proj,c_fc,lm_head", "learning_rate=4e-3", "max_batches=24"],
    },
    "kernels_cpu": {
        "data": ["dataset_builder.num_train=96"],
        "warm_up": ["sft.num_steps=110", "eval.max_tasks=6", "eval.samples_per_task=1"],
        "rl": [
            "local.lora_targets=q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,lm_head",
            "learning_rate=4e-3",
            "max_batches=8",
            "eval.max_tasks=20",
        ],
    },
}
QUICK = {"warm_up": ["sft.num_steps=20"], "rl": ["max_batches=4", "eval.samples_per_task=1", "eval.max_tasks=6"]}
POLL_S = 0.02


class ServerClock:
    """What the server has used at the end of each RL step of a run that goes on."""

    def __init__(self, server: Served, run: Path) -> None:
        self.cpu_s: list[float] = []
        self._server, self._metrics = server, run / "metrics.jsonl"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> ServerClock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            if self._metrics.exists():
                ended = self._metrics.read_text(encoding="utf-8").count('"phase":"rl"')
                self.cpu_s += [self._server.cpu_s()] * (ended - len(self.cpu_s))


def warmed_up(preset: str, seed: int, out: Path, shared: Sequence[str], quick: bool) -> Path:
    """The folder of a model after the supervised stage."""
    name = f"{preset}_{seed}_warm_up"
    settings = [*shared, *PRESETS[preset]["data"], *PRESETS[preset]["warm_up"], *(QUICK["warm_up"] if quick else [])]
    run = train_apart(preset, out / name, [*settings, "max_batches=0"])
    checkpoint = max((run.path / "checkpoints").glob("sft_*"))
    return checkpoint / "policy" / "model"


def of_seed(preset: str, seed: int, out: Path, settings: Sequence[str], quick: bool) -> dict[str, Any]:
    """Both runs of a preset and seed, compared; what an earlier command has done is not done again."""
    kept = out / f"{preset}_{seed}.json"
    if not kept.exists():
        for unfinished in (*out.glob(f"{preset}_{seed}_local*"), *out.glob(f"{preset}_{seed}_tinker*")):
            shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()
        kept.write_text(json.dumps(measured(preset, seed, out, settings, quick)))
    row = json.loads(kept.read_text())
    print(f"{preset} {seed}: {json.dumps(row)}", file=sys.stderr, flush=True)
    return {"preset": preset, "seed": seed, **row}


def measured(preset: str, seed: int, out: Path, settings: Sequence[str], quick: bool) -> dict[str, Any]:
    """Both runs of a preset and seed, compared."""
    shared = [*SHARED, f"seed={seed}"]
    model = warmed_up(preset, seed, out, [*shared, f"cache_dir={out / 'cache'}"], quick)
    mine = [*shared, *ADAPTED, *PRESETS[preset]["data"], *PRESETS[preset]["rl"], *(QUICK["rl"] if quick else [])]
    names = {side: f"{preset}_{seed}_{side}" for side in ("local", "tinker")}
    caches = {side: f"cache_dir={out / 'cache' / names[side]}" for side in names}
    here = ["backend=local", f"model_name={model}"]
    local = train_apart(preset, out / names["local"], [*mine, caches["local"], *here, *settings])
    # Of the local settings those of the server count; it trains all linear layers by itself.
    plain = [one for one in mine if not one.startswith("local.")]
    with served(model, NAME, out / f"{names['tinker']}_state") as server:
        there = ["backend=tinker", "tinker.probe=false", f"base_url={server.url}", f"model_name={NAME}"]
        with ServerClock(server, out / names["tinker"]) as clock:
            remote = train_apart(preset, out / names["tinker"], [*plain, caches["tinker"], *there, *settings])
        row = compared(local, remote, server)
    return row | cost(local, remote, clock.cpu_s)


def compared(local: RunRecords, remote: RunRecords, server: Served) -> dict[str, Any]:
    """How far two runs differ."""
    rewards = [[value for _, value in run.curve("reward/mean", "rl")] for run in (local, remote)]
    turns = [tokens_by_step(run.path / "tokens.jsonl") for run in (local, remote)]
    same = [step for step in turns[0] if texts(turns[0][step]) == texts(turns[1].get(step, []))]
    gaps = [
        abs(a - b)
        for step in same
        for one, other in zip(turns[0][step], turns[1][step], strict=True)
        for a, b in zip(one["logprobs"], other["logprobs"], strict=True)
    ]
    return {
        "batches": len(turns[0]),
        "same_batches": len(same),
        "max_logprob_diff": max(gaps, default=None),
        "max_weight_diff": weight_gap(local.path, remote.path, server),
        "reward_curve_diff": max(abs(a - b) for a, b in zip(*rewards, strict=True)),
        "learning": {"local": learned(local), "tinker": learned(remote)},
    }


def tokens_by_step(path: Path) -> dict[int, list[dict[str, Any]]]:
    """The turns of each batch, token by token."""
    found: dict[int, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        turn = json.loads(line)
        found.setdefault(turn["step"], []).append(turn)
    return found


def texts(turns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """What was sampled, token by token."""
    return [turn["tokens"] for turn in turns]


def weight_gap(local: Path, remote: Path, server: Served) -> float:
    """The largest difference between the adapters of the runs' last checkpoints."""
    (mine,), (record,) = (sorted((run / "checkpoints").glob("rl_*"))[-1:] for run in (local, remote))
    saved = json.loads((record / "policy" / "tinker.json").read_text())
    theirs = load_file(server.weights(saved["state"]))
    own = load_file(mine / "policy" / "model" / "adapter_model.safetensors")
    adapters = {name: tensor for name, tensor in own.items() if ".lora_" in name}
    assert adapters.keys() == theirs.keys(), "the adapters are of other layers"
    return max(float(abs(adapters[name] - theirs[name]).max()) for name in adapters)


def learned(run: RunRecords) -> dict[str, Any]:
    """Held-out reward before and after RL, with the paired interval of the change over tasks."""
    assert run.first is not None and run.last is not None, f"{run.path} was not evaluated"
    before, after = (measured_policy("", one).values["reward"] for one in (run.first, run.last))
    both = [task for task in before if task in after]  # without tasks that could not be scored
    change = paired_difference_ci95([before[task] for task in both], [after[task] for task in both])
    ends = [sum(values[task] for task in both) / len(both) for values in (before, after)]
    return {"before": ends[0], "after": ends[1], "change_ci95": [change.low, change.high], "tasks": len(both)}


def cost(local: RunRecords, remote: RunRecords, server_cpu_s: Sequence[float]) -> dict[str, Any]:
    """What a step costs on each side, but for the first and last: {side: {cpu_ms, wall_ms}}, and the server's part."""
    steps = {side: run.metrics for side, run in (("local", local), ("tinker", remote))}
    row: dict[str, Any] = {}
    for side, metrics in steps.items():
        middle = [m for m in metrics if m["phase"] == "rl"][1:-1]
        for kind in ("cpu", "wall"):
            row[f"{side}_{kind}_ms"] = 1000 * sum(m[f"perf/{kind}_s"] for m in middle) / len(middle)
    row["server_cpu_ms"] = 1000 * (server_cpu_s[-2] - server_cpu_s[0]) / (len(server_cpu_s) - 2)
    return row


def overheads(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The cost of the API by preset, over its seeds."""

    def mean(name: str) -> float:
        return float(sum(row[name] for row in rows) / len(rows))

    more = mean("tinker_cpu_ms") + mean("server_cpu_ms") - mean("local_cpu_ms")
    return {
        "step_overhead_ms": more,
        "step_overhead_fraction": more / mean("local_cpu_ms"),
        "step_overhead_wall_fraction": mean("tinker_wall_ms") / mean("local_wall_ms") - 1,
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything about the runs together."""
    presets = {name: overheads([row for row in rows if row["preset"] == name]) for name in {r["preset"] for r in rows}}
    most = ("max_logprob_diff", "max_weight_diff", "reward_curve_diff")
    found: dict[str, Any] = {name: max(r[name] for r in rows if r[name] is not None) for name in most}
    found |= {name: max(of[name] for of in presets.values()) for name in next(iter(presets.values()))}
    total = {name: sum(row[name] for row in rows) for name in ("batches", "same_batches")}
    return found | total | {"presets": presets, "runs": list(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=sorted(PRESETS), default=sorted(PRESETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, help="keep the runs here")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    args, settings = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="tinker_parity_") as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        rows = [of_seed(preset, seed, out, settings, args.quick) for preset in args.presets for seed in args.seeds]
    print(json.dumps(summary(rows) | {"quick": args.quick, "machine": machine("tinker")}))


if __name__ == "__main__":
    main()
