"""Judged samples per second beside the physical limit, in ten regimes, and beside what is used otherwise.

    python benchmarks/rewards.py [--only steady_60,rpm] [--repeats 3] [--quick] [--no-peers] [--http aiohttp]

A loopback judge answers prompts of 4 KB after 1 s, in a process of its own; every measurement has a fresh server and a
fresh client process, whose CPU is counted alone. Only samples with a score count for `samples_per_s`; the others are
`lost`. `limit_per_s` is what the judge could answer: calls in flight over latency, its concurrency limit over latency
(the mean over the run where it moves; less the attempts that faults eat), or its rate. In `steady_*` and
`duplicates_60` (30 % repeat another sample) the calls in flight are configured; in the five adaptive regimes the engine
has its default config, and stands beside itself with fixed numbers in flight (`best_fixed_samples_per_s`). The cache is
fresh everywhere but in `warm_cache`. `speedup_over_serial` is over calls one after the other on a few samples of a
healthy judge. Peers (extra `bench`) work under a semaphore: `AsyncOpenAI` with its default retries, over both of its
transports, and plain aiohttp with equal retries, on uvloop, with any number of connections, 128 attempts to connect at
once and keep-alive; in adaptive regimes with 60 in flight, and stopped after 120 s (the SDK's default timeout would be
600 s). `--http aiohttp` adds the engine with aiohttp in the place of its own HTTP client (`engine_aiohttp`).
Medians over repeats, the arms in turn. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from common import machine
from common.judge_behaviour import Behaviour
from common.judge_runs import Record, Regime, medians, run, run_serial, run_warm_cache

SECOND = Behaviour(latency_s=1.0)
FAULTS = {
    "http_500": 0.02,
    "http_502": 0.01,
    "http_503": 0.01,
    "reset_before": 0.01,
    "reset_during": 0.01,
    "malformed": 0.01,
    "truncated": 0.01,
    "drip": 0.01,
    "hang": 0.005,
    "garbage": 0.01,
}
REGIMES = {
    "steady_60": Regime(SECOND, 1200, 60),
    "steady_256": Regime(SECOND, 1200, 256),
    "steady_1024": Regime(SECOND, 4096, 1024),
    "duplicates_60": Regime(SECOND, 1200, 60, duplicates=0.3),
    "limit_80": Regime(replace(SECOND, max_in_flight=80), 1200, adaptive=True),
    "limit_80_retry_after": Regime(replace(SECOND, max_in_flight=80, retry_after_s=1.0), 1200, adaptive=True),
    "rpm": Regime(replace(SECOND, requests_per_minute=3000, request_burst=50), 1200, adaptive=True),
    "moving_limit": Regime(replace(SECOND, max_in_flight=80, schedule=((6.0, 40), (14.0, 120))), 1200, adaptive=True),
    "faulty": Regime(replace(SECOND, max_in_flight=100, faults=FAULTS), 1200, adaptive=True),
}
WARM_SAMPLES = 1024
NAMES = (*REGIMES, "warm_cache")
GRID = (40, 60, 80, 100, 120, 160)
PEERS = ("openai_semaphore", "openai_aiohttp", "aiohttp_semaphore")
ENGINE_ON_AIOHTTP = "engine_aiohttp"
SERIAL_SAMPLES = 20


def say(arm: str, name: str, found: Record) -> None:
    fraction, cpu = found["fraction_of_limit"], found["client_cpu_ms_per_call"]
    print(
        f"{name:21} {arm:17} {found['samples_per_s']:8.1f}/s"
        f"  {'' if fraction is None else f'{fraction:6.1%} of limit'}"
        f"  lost {found['lost']:4}  calls {found['calls']:5}  refused {found['refused']:5}"
        f"  {'' if cpu is None else f'{cpu:.2f} ms CPU/call'}",
        file=sys.stderr,
        flush=True,
    )


def repeated(name: str, arms: Mapping[str, Callable[[], Record]], repeats: int) -> dict[str, list[Record]]:
    """Records of all arms of one regime, in turn."""
    found: dict[str, list[Record]] = {arm: [] for arm in arms}
    for _ in range(repeats):
        for arm, measure in arms.items():
            found[arm].append(measure())
            say(arm, name, found[arm][-1])
    return found


def best_fixed(name: str, regime: Regime, grid: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """The engine with fixed calls in flight: each of `grid` once, the best `repeats` times."""

    def measure(in_flight: int) -> Record:
        settings = {"adaptive": False, "start_in_flight": in_flight, **regime.settings}
        found = run(regime, settings=settings)
        say(f"fixed {in_flight}", name, found)
        return found

    rows = {in_flight: measure(in_flight) for in_flight in grid}
    best = max(rows, key=lambda in_flight: rows[in_flight]["samples_per_s"])
    again = medians([rows[best], *(measure(best) for _ in range(repeats - 1))])
    return {
        "best_fixed_samples_per_s": again["samples_per_s"],
        "best_fixed_in_flight": best,
        "best_fixed_lost": again["lost"],
        "fixed_samples_per_s": {str(in_flight): row["samples_per_s"] for in_flight, row in rows.items()},
    }


def measure_regime(
    name: str, regime: Regime, peers: tuple[str, ...], grid: tuple[int, ...], repeats: int
) -> dict[str, Record]:
    """Medians of the engine and the peers in one regime."""
    arms = {"engine": lambda: run(regime), **{peer: lambda peer=peer: run(regime, peer) for peer in peers}}
    found = {arm: medians(rows) for arm, rows in repeated(name, arms, repeats).items()}
    fixed: dict[str, Any] = {"best_fixed_samples_per_s": None}
    if regime.adaptive:
        fixed = best_fixed(name, regime, grid, repeats)
        fixed["adaptive_over_best_fixed"] = found["engine"]["samples_per_s"] / fixed["best_fixed_samples_per_s"]
    found["engine"] |= fixed
    for peer in peers:
        adapts = regime.adaptive and peer == ENGINE_ON_AIOHTTP
        found[peer] |= {"in_flight": None if adapts else regime.in_flight, "best_fixed_samples_per_s": None}
    return found


def gains(regimes: Mapping[str, Record]) -> dict[str, Any]:
    """Over serial calls: concurrency, that with equal samples asked once, and a warm cache, each by itself."""
    sources = {"concurrency_60": "steady_60", "concurrency_60_and_sharing": "duplicates_60", "warm_cache": "warm_cache"}
    known = {gain: regimes[name]["speedup_over_serial"] for gain, name in sources.items() if name in regimes}
    return {**known, "duplicate_rate": REGIMES["duplicates_60"].duplicates}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def available_peers(wanted: bool) -> tuple[str, ...]:
    if not wanted:
        return ()
    if find_spec("openai") is None or find_spec("aiohttp") is None:
        print("No peers and no serial calls: they need `pip install '.[bench]'`.", file=sys.stderr)
        return ()
    return PEERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="regimes, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer samples, once, to see that it works")
    parser.add_argument("--no-peers", action="store_true", help="the engine alone, without a comparison")
    parser.add_argument("--http", choices=["aiohttp"], help="measure the engine over this client too")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"unknown regimes {sorted(unknown)}; there are {', '.join(NAMES)}")
    load_before = os.getloadavg()[0]
    repeats, grid = (1, (40, 80)) if args.quick else (args.repeats, GRID)
    others = available_peers(not args.no_peers)
    peers = (ENGINE_ON_AIOHTTP, *others) if args.http == "aiohttp" else others
    regimes: dict[str, Record] = {}
    found_peers: dict[str, dict[str, Record]] = {peer: {} for peer in peers}
    for name in (name for name in NAMES if name in names):
        if name == "warm_cache":
            arms = {"engine": lambda: run_warm_cache(WARM_SAMPLES)}
            regimes[name] = medians(repeated(name, arms, repeats)["engine"]) | {"best_fixed_samples_per_s": None}
            continue
        regime = quick(REGIMES[name]) if args.quick else REGIMES[name]
        found = measure_regime(name, regime, peers, grid, repeats)
        regimes[name] = found["engine"]
        for peer in peers:
            found_peers[peer][name] = found[peer]
    serial = serial_rate(repeats) if others else None
    for record in (*regimes.values(), *(row for rows in found_peers.values() for row in rows.values())):
        record["speedup_over_serial"] = None if serial is None else record["samples_per_s"] / serial["samples_per_s"]
    if serial is not None:
        note = {"measured_samples": SERIAL_SAMPLES, "extrapolated": True, "speedup_over_serial": 1.0}
        found_peers["serial"] = {name: serial | note for name in regimes if name.startswith("steady")}
    print(
        json.dumps(
            rounded(
                {
                    "regimes": regimes,
                    "peers": found_peers,
                    "gains": gains(regimes),
                    "serial_samples_per_s": None if serial is None else serial["samples_per_s"],
                    "repeats": repeats,
                    "quick": args.quick,
                    "load_before": load_before,
                    "machine": machine(*(("openai",) if others else ()), *(("aiohttp",) if peers else ())),
                }
            )
        )
    )


def quick(regime: Regime) -> Regime:
    """The same with fewer samples: a quarter, or two for each place in flight."""
    return replace(regime, samples=max(regime.samples // 4, 2 * regime.in_flight))


def serial_rate(repeats: int) -> Record:
    """Calls one after the other on a healthy judge; a rate does not depend on how many there are."""
    arms = {"serial": lambda: run_serial(REGIMES["steady_60"], SERIAL_SAMPLES)}
    return medians(repeated("steady_60", arms, repeats)["serial"]) | {"best_fixed_samples_per_s": None}


if __name__ == "__main__":
    main()
