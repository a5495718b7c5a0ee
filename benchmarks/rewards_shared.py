"""Eight processes that share one judge: one limit, and every distinct call paid once.

    python benchmarks/rewards_shared.py [--processes 8] [--samples 200] [--repeats 3] [--limit 80] [--latency 1.0]

Plain processes score at the same time, beside a loopback judge that takes 1 s and refuses what is above 80 in flight.
Half of every process's samples are those of all the others too, in an order of its own. `together` they share a hub
(`assay.rewards.shared.hub`); `apart` each has an engine of its own, with the default config and a cache file shared by
all. `paid_twice` are answers that the judge gave for a question that it had answered, `abandoned` are calls whose
connection was closed before their answer. `fraction_of_limit` counts answers, because shared samples cost none. Medians
over repeats, of `paid_twice` and `lost` the worst. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from assay.rewards import Client, EngineConfig, JudgeConfig, RewardEngine
from assay.rewards.shared.hub import SharedCaller
from common import machine, peak_rss_mb
from common.judge_behaviour import Behaviour
from common.judge_runs import Record, medians
from common.judge_samples import MODEL, VerdictReward, expected, samples
from common.judge_server import JudgeServer, raise_file_limit


def indices(rank: int, count: int) -> list[int]:
    """The samples of one process: the first half everybody's, the second its own, shuffled."""
    common = count // 2
    own = range(common + rank * (count - common), common + (rank + 1) * (count - common))
    found = [*range(common), *own]
    random.Random(rank).shuffle(found)
    return found


def member(rank: int, count: int, base_url: str, folder: Path, together: bool) -> None:
    """One of the processes: say `ready`, wait for a line, score, and print what came of it."""
    judge, config = JudgeConfig(base_url=base_url, model=MODEL, api_key_env=""), EngineConfig()
    work = samples(indices(rank, count))
    caller = SharedCaller(folder / "judge.sock", lambda: Client(judge, config, folder)) if together else None
    with RewardEngine(VerdictReward(), judge, config, cache_dir=folder, caller=caller) as engine:
        print("ready", flush=True)
        sys.stdin.readline()
        begin, cpu = time.perf_counter(), time.process_time()
        values = [score.value for score in engine.score_many_sync(work)]
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    wrong = sum(v is not None and v != expected(s) for s, v in zip(work, values, strict=True))
    row = {"seconds": seconds, "cpu_s": cpu, "lost": values.count(None), "wrong": wrong, "peak_rss_mb": peak_rss_mb()}
    print(json.dumps(row))


def run(processes: int, count: int, behaviour: Behaviour, together: bool) -> Record:
    """All processes once, beside a fresh judge."""
    with JudgeServer(behaviour) as server, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--samples", str(count), "--member", server.base_url, folder]
        members = [
            subprocess.Popen(
                [*command, str(rank), *(["--together"] if together else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        pipes = [(_open(process.stdin), _open(process.stdout)) for process in members]
        for _, said in pipes:
            said.readline()
        begin = time.perf_counter()
        for go, _ in pipes:
            go.write("go\n")
            go.flush()
        rows = [json.loads(said.readlines()[-1]) for _, said in pipes]
        seconds = time.perf_counter() - begin
        for process in members:
            process.communicate()
        return record(rows, server.stats(), processes * count, seconds, behaviour)


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def record(rows: Sequence[dict[str, Any]], stats: Record, total: int, seconds: float, behaviour: Behaviour) -> Record:
    if any(row["wrong"] for row in rows):
        raise RuntimeError("a sample was given another sample's verdict")
    lost, calls = sum(row["lost"] for row in rows), stats["requests"]
    assert behaviour.max_in_flight is not None
    limit = behaviour.max_in_flight / behaviour.latency_s
    return {
        "samples_per_s": (total - lost) / seconds,
        "calls_per_s": stats["answered"] / seconds,
        "limit_per_s": limit,
        "fraction_of_limit": stats["answered"] / seconds / limit,
        "lost": lost,
        "samples": total,
        "calls": calls,
        "answered_distinct": stats["answered_distinct"],
        "paid_twice": stats["paid_twice"],
        "abandoned": stats["abandoned"],
        "refused": sum(stats["refused"].values()),
        "max_in_flight": stats["max_in_flight"],
        "client_cpu_ms_per_call": 1000 * sum(row["cpu_s"] for row in rows) / calls,
        "peak_rss_mb": max(row["peak_rss_mb"] for row in rows),
        "seconds": seconds,
        "counters": {},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--samples", type=int, default=200, help="of each process")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=int, default=80, help="calls in flight that the judge takes")
    parser.add_argument("--latency", type=float, default=1.0, help="seconds that it takes for one")
    parser.add_argument("--member", nargs=3, metavar=("URL", "FOLDER", "RANK"), help=argparse.SUPPRESS)
    parser.add_argument("--together", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    raise_file_limit()
    if args.member:
        url, folder, rank = args.member
        member(int(rank), args.samples, url, Path(folder), args.together)
        return
    behaviour = Behaviour(latency_s=args.latency, max_in_flight=args.limit)
    found: dict[str, list[Record]] = {"together": [], "apart": []}
    for _ in range(args.repeats):
        for name, rows in found.items():
            rows.append(run(args.processes, args.samples, behaviour, together=name == "together"))
            row = rows[-1]
            print(
                f"{name:9} {row['calls_per_s']:6.1f} calls/s ({row['fraction_of_limit']:.0%} of the limit)  lost "
                f"{row['lost']}  refused {row['refused']}  paid twice {row['paid_twice']}  abandoned "
                f"{row['abandoned']}  in flight up to {row['max_in_flight']}  "
                f"{row['client_cpu_ms_per_call']:.2f} ms CPU/call",
                file=sys.stderr,
            )
    arms = {
        name: medians(rows) | {"paid_twice": max(row["paid_twice"] for row in rows)} for name, rows in found.items()
    }
    print(json.dumps({**arms, "processes": args.processes, "repeats": args.repeats, "machine": machine()}))


if __name__ == "__main__":
    main()
