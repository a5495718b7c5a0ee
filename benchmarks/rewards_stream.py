"""Memory of a million streamed samples beside that of ten thousand, and samples per second.

    python benchmarks/rewards_stream.py [--samples 1000000] [--no-cache]

Short distinct samples are made as the engine asks for them, and scored by a loopback judge without latency; scores are
counted and let go. Each number of samples has a fresh server and a fresh process, with the default config and a fresh
cache file. The last line is one JSON object; `peak_rss_mb_1m` belongs to a million samples.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from assay.rewards import EngineConfig, JudgeConfig, RewardEngine
from common import machine, peak_rss_mb
from common.judge_samples import MODEL, VerdictReward, endless_samples
from common.judge_server import JudgeServer, raise_file_limit

FEW = 10_000


async def streamed(engine: RewardEngine, count: int) -> int:
    """Score `count` samples and let the scores go; how many were scored. Each index must come once."""
    scored = indices = 0
    async for index, score in engine.stream(endless_samples(count)):
        scored += score.status == "scored"
        indices += index
    if indices != count * (count - 1) // 2:
        raise RuntimeError("the stream left out or repeated a sample")
    return scored


def measure(count: int, base_url: str, cache: bool) -> dict[str, Any]:
    """The part of a fresh process."""
    judge = JudgeConfig(base_url=base_url, model=MODEL, api_key_env="")
    with tempfile.TemporaryDirectory() as folder:
        engine = RewardEngine(VerdictReward(), judge, EngineConfig(cache=cache), cache_dir=Path(folder))
        with engine:
            begin, cpu = time.perf_counter(), time.process_time()
            scored = asyncio.run(streamed(engine, count))
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        files_mb = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 2**20
    return {
        "samples": count,
        "lost": count - scored,
        "samples_per_s": count / seconds,
        "client_cpu_ms_per_sample": 1000 * cpu / count,
        "peak_rss_mb": peak_rss_mb(),
        "cache_mb": files_mb,
    }


def in_fresh_process(count: int, cache: bool) -> dict[str, Any]:
    with JudgeServer() as server:
        command = [sys.executable, __file__, "--measure", server.base_url, "--samples", str(count)]
        done = subprocess.run(command + ["--no-cache"] * (not cache), stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        found["calls"] = server.stats()["requests"]
    print(f"{count:8} samples: {found['peak_rss_mb']:.0f} MB, {found['samples_per_s']:.0f}/s", file=sys.stderr)
    return found


def short(count: int) -> str:
    """10k, 1m."""
    for size, letter in ((1_000_000, "m"), (1000, "k")):
        if count % size == 0:
            return f"{count // size}{letter}"
    return str(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--no-cache", action="store_true", help="keep no replies on disk")
    parser.add_argument("--measure", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    raise_file_limit()
    if args.measure:
        print(json.dumps(measure(args.samples, args.measure, not args.no_cache)))
        return
    few, many = (in_fresh_process(count, not args.no_cache) for count in (FEW, args.samples))
    peaks = {f"peak_rss_mb_{short(row['samples'])}": round(row["peak_rss_mb"], 1) for row in (few, many)}
    rest = {name: round(value, 3) for name, value in many.items() if name != "peak_rss_mb"}
    print(json.dumps({**peaks, **rest, "cache": not args.no_cache, "machine": machine()}))


if __name__ == "__main__":
    main()
