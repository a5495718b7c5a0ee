"""The three scenarios of the reward manager's specification, each one command, with the monitor's reward.

    python benchmarks/rewards_scenarios.py with-cache       1024 samples, 30 % repeated; then the same again
    python benchmarks/rewards_scenarios.py without-cache    1024 different samples, nothing kept
    python benchmarks/rewards_scenarios.py interface        `compute_score` for a batch, and sample by sample

A loopback judge answers after 1 s (`--latency`); 60 calls are in flight, as the specification has it (`--in-flight`).
Naive is one `compute_score` after the other, measured in the same run on `--naive` samples. `interface` also checks
that all conventions give one sample one score. Prints time, throughput and speedup; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.envs.monitor.answers import write_answer
from assay.integrations.verl import compute_score
from common import machine
from common.judge_behaviour import Behaviour
from common.judge_samples import indices, response
from common.judge_server import JudgeServer

SAMPLES = 1024
DUPLICATES = 0.3
DATASET = "function_correctness"
Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Batch:
    """A batch in the specification's terms."""

    responses: list[str]
    truths: list[list[bool]]
    extras: list[dict[str, Any]]

    def keywords(self) -> dict[str, Any]:
        names = [DATASET] * len(self.responses)
        return {
            "data_sources": names,
            "solution_strs": self.responses,
            "ground_truths": self.truths,
            "extra_infos": self.extras,
        }


def batch(count: int, duplicates: float, seed: int = 0) -> Batch:
    """Answers to function-correctness tasks: 4 KB of reasoning and three predictions; equal indices are equal."""
    which = [seed + index for index in indices(count, duplicates)]
    answers = [write_answer(response(i), [i % 2 == 0, True, i % 3 == 0]) for i in which]
    return Batch(answers, [[True, True, False]] * count, [{"is_correct": i % 2 == 0, "index": i} for i in which])


def timed(work: Callable[[], Rows]) -> tuple[float, Rows]:
    begin = time.perf_counter()
    rows = work()
    return time.perf_counter() - begin, rows


def one_by_one(some: Batch, settings: dict[str, Any]) -> Rows:
    """The specification's single convention, as its naive manager calls it."""
    rows = zip(some.responses, some.truths, some.extras, strict=True)
    return [compute_score(text, truth, DATASET, extra, **settings, details=True) for text, truth, extra in rows]


def report(name: str, seconds: float, samples: int, naive_per_s: float) -> dict[str, float]:
    rate = samples / seconds
    print(f"{name:34} {seconds:8.2f} s {rate:10.1f} samples/s {rate / naive_per_s:10.1f}x over naive")
    return {"seconds": seconds, "samples_per_s": rate, "speedup_over_naive": rate / naive_per_s}


def naive(settings: dict[str, Any], count: int) -> float:
    """Samples per second one by one, of samples that occur nowhere else."""
    seconds, _ = timed(lambda: one_by_one(batch(count, 0.0, seed=10**6), settings))
    report(f"naive, measured on {count}", seconds, count, count / seconds)
    return count / seconds


def with_cache(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """A batch with repeated responses, and the whole batch once more."""
    rate = naive(settings, count)
    work = batch(SAMPLES, DUPLICATES)
    found: dict[str, Any] = {"naive_samples_per_s": rate, "duplicate_rate": DUPLICATES}
    for name in ("first", "again"):
        seconds, rows = timed(lambda: compute_score(**work.keywords(), **settings))
        check(rows)
        found[name] = report(f"batch with cache, {name}", seconds, SAMPLES, rate)
    return found


def without_cache(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """A batch without repetitions and without a cache: what concurrency gains by itself."""
    settings = {**settings, "engine.cache": False}
    rate = naive(settings, count)
    seconds, rows = timed(lambda: compute_score(**batch(SAMPLES, 0.0).keywords(), **settings))
    check(rows)
    return {"naive_samples_per_s": rate, "batch": report("batch without cache", seconds, SAMPLES, rate)}


def interface(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """Both conventions, verl's keywords and numpy's arrays: one sample, one score."""
    settings = {**settings, "engine.cache": False}
    work = batch(SAMPLES, 0.0)
    few = Batch(work.responses[:count], work.truths[:count], work.extras[:count])
    single_s, singles = timed(lambda: one_by_one(few, settings))
    report(f"single convention, {count}", single_s, count, count / single_s)
    batch_s, rows = timed(lambda: compute_score(**work.keywords(), **settings))
    check(rows)
    found = report("batch convention", batch_s, SAMPLES, count / single_s)
    arrays = {name: _objects(values) for name, values in few.keywords().items()}
    named = [
        compute_score(
            data_source=DATASET, solution_str=text, ground_truth=truth, extra_info=extra, **settings, details=True
        )
        for text, truth, extra in zip(few.responses, few.truths, few.extras, strict=True)
    ]
    ways = {"single": singles, "verl_keywords": named, "numpy_batch": compute_score(**arrays, **settings)}
    for name, other in ways.items():
        if [row["score"] for row in other] != [row["score"] for row in rows[:count]]:
            raise SystemExit(f"the convention {name} gives other scores than the batch")
    return {"naive_samples_per_s": count / single_s, "batch": found, "equal_scores": ["batch", *ways]}


def _objects(values: Sequence[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def check(rows: Rows) -> None:
    """Every sample was judged."""
    lost = sum(row["assay_errored"] for row in rows)
    if len(rows) != SAMPLES or lost:
        raise SystemExit(f"{lost:.0f} of {SAMPLES} samples were lost, and {len(rows)} came back")


SCENARIOS = {"with-cache": with_cache, "without-cache": without_cache, "interface": interface}


def run(scenario: str, args: argparse.Namespace) -> dict[str, Any]:
    """One scenario beside a fresh judge."""
    print(f"-- {scenario}: {SAMPLES} samples, {args.in_flight} calls in flight, {args.latency:g} s each")
    with JudgeServer(Behaviour(latency_s=args.latency)) as server, tempfile.TemporaryDirectory() as folder:
        settings = {
            "judge.base_url": server.base_url,
            "engine.start_in_flight": args.in_flight,
            "engine.max_in_flight": args.in_flight,
            "engine.cache_path": f"{folder}/rewards.sqlite",
        }
        found = SCENARIOS[scenario](settings, args.naive)
        stats = server.stats()
    return found | {name: stats[name] for name in ("requests", "answered_distinct", "max_in_flight")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", choices=SCENARIOS, help="all three where none is named")
    parser.add_argument("--latency", type=float, default=1.0, help="seconds that the judge takes")
    parser.add_argument("--in-flight", type=int, default=60)
    parser.add_argument("--naive", type=int, default=8, help="samples that the naive rate is measured on")
    args = parser.parse_args()
    # The specification's own switches; the key goes to nobody but the loopback judge.
    os.environ |= {"TRAIN_WITH_MONITOR": "true", "MONITOR_MODEL_NAME": "judge", "OPENAI_API_KEY": "loopback"}
    found = {name: run(name, args) for name in ([args.scenario] if args.scenario else SCENARIOS)}
    sizes = {"samples": SAMPLES, "latency_s": args.latency, "in_flight": args.in_flight}
    print(json.dumps({"scenarios": found, **sizes, "machine": machine()}))


if __name__ == "__main__":
    main()
