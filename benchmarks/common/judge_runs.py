"""Measurements of a client beside a loopback judge: each with a fresh server and a fresh client process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .judge_behaviour import Behaviour
from .judge_client import Job, to_json
from .judge_server import JudgeServer

TIMEOUT_S = 1200.0
Record = dict[str, Any]


@dataclass(frozen=True)
class Regime:
    """A judge, the samples it is asked about, and how the engine is set."""

    behaviour: Behaviour
    samples: int
    in_flight: int = 60
    """Calls in flight: of the peers always, of the engine unless it is to find out by itself."""
    adaptive: bool = False
    """Whether the engine runs with its default config, and beside fixed ones."""
    duplicates: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the engine, beside the calls in flight."""

    def engine_settings(self) -> dict[str, Any]:
        known = {} if self.adaptive else {"start_in_flight": self.in_flight, "max_in_flight": self.in_flight}
        return {**known, **self.settings}


def client_process(job: Job) -> Record:
    """What one client in a process of its own measures."""
    parent = Path(__file__).parents[1]
    path = os.pathsep.join(filter(None, [str(parent), *sys.path[1:]]))
    done = subprocess.run(
        [sys.executable, "-m", "common.judge_client"],
        input=to_json(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": path},
    )
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found


def run(regime: Regime, client: str = "engine", settings: Mapping[str, Any] | None = None) -> Record:
    """One client in one regime, once. `settings` replace the engine's."""
    with JudgeServer(regime.behaviour) as server, tempfile.TemporaryDirectory() as folder:
        job = Job(
            client,
            server.base_url,
            regime.samples,
            regime.duplicates,
            regime.in_flight,
            dict(regime.engine_settings() if settings is None else settings),
            cache_dir=folder,
        )
        found = client_process(job)
        return record(regime, found, server.stats(), physical_limit(regime, client, server.stats()))


def run_warm_cache(samples: int) -> Record:
    """Fill a cache file in one process, and replay it in another one."""
    regime = Regime(Behaviour(), samples)
    with JudgeServer(regime.behaviour) as server, tempfile.TemporaryDirectory() as folder:
        job = Job("engine", server.base_url, samples, cache_dir=folder)
        client_process(job)
        server.reset()
        return record(regime, client_process(job), server.stats(), None)


def run_serial(regime: Regime, samples: int) -> Record:
    """Calls one after the other, on a few samples only."""
    return run(replace(regime, samples=samples, duplicates=0.0, in_flight=1), "serial")


def record(regime: Regime, found: Record, stats: Record, limit: float | None) -> Record:
    """The figures of one measurement. Samples without a score count for nothing but time."""
    calls, scored = stats["requests"], regime.samples - found["lost"]
    if found["wrong"]:
        raise RuntimeError(f"{found['wrong']} samples were given another sample's verdict: the client mixes replies up")
    rate = scored / found["seconds"]
    return {
        "samples_per_s": rate,
        "limit_per_s": limit,
        "fraction_of_limit": None if limit is None else rate / limit,
        "lost": found["lost"],
        "calls": calls,
        "client_cpu_ms_per_call": 1000 * found["cpu_s"] / calls if calls else None,
        "client_cpu_ms_per_sample": 1000 * found["cpu_s"] / regime.samples,
        "server_cpu_ms_per_call": 1000 * stats["cpu_s"] / calls if calls else None,
        "seconds": found["seconds"],
        "answered_calls": stats["answered"],
        "paid_twice": stats["paid_twice"],
        "refused": sum(stats["refused"].values()),
        "max_in_flight": stats["max_in_flight"],
        "peak_rss_mb": found["peak_rss_mb"],
        "counters": found["counters"],
    }


def physical_limit(regime: Regime, client: str, stats: Record) -> float:
    """Answers per second that the judge could give: its rate, or places in use over the seconds that one answer takes.

    Where faults are drawn, that includes the attempts before the one that is answered; a hang counts as one latency.
    """
    b = regime.behaviour
    if b.requests_per_minute:
        return b.requests_per_minute / 60
    places = float(regime.in_flight)
    if b.max_in_flight is not None:
        places = mean_limit(stats["limits"], stats["last_answer_s"])
        if client == "serial":
            places = 1.0
    drips = b.faults.get("drip", 0.0)
    per_attempt = b.latency_s + drips * b.drip_s
    return places / per_attempt * (1 - sum(b.faults.values()) + drips)


def mean_limit(log: Sequence[tuple[float, int]], seconds: float) -> float:
    """Mean over `seconds` of a limit that moved: entries are (from when, limit)."""
    ends = [*(start for start, _ in log[1:]), seconds]
    pieces = zip(log, ends, strict=True)
    return sum(limit * max(0.0, min(end, seconds) - start) for (start, limit), end in pieces) / seconds


def medians(records: Iterable[Record]) -> Record:
    """Median of every figure over repeats; lowest and highest under `spread`, where there is more than one."""
    rows = list(records)
    found = {name: _median([row[name] for row in rows]) for name in rows[0] if name != "counters"}
    # No median of losses: a sample lost once is lost.
    found["lost"] = max(row["lost"] for row in rows)
    if len(rows) > 1:
        shown = ("samples_per_s", "fraction_of_limit", "client_cpu_ms_per_call", "seconds")
        spread = {name: [row[name] for row in rows if row[name] is not None] for name in shown}
        found["spread"] = {name: [min(values), max(values)] for name, values in spread.items() if values}
    found["counters"] = rows[-1]["counters"]
    return found


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
