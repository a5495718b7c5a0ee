"""One measurement of one client in a process of its own: a JSON object in on standard input, one out on the last line.

CPU is the whole process's from the making of the client to its closing; imports and the making of samples come before.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import RewardError
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine, Sample

from . import peak_rss_mb
from .judge_samples import MODEL, VerdictReward, expected, indices, messages, samples, verdict
from .judge_server import raise_file_limit

Values = list[float | None]
"""One score per sample, None where it was lost."""


@dataclass(frozen=True)
class Job:
    """What one client is to do."""

    client: str
    base_url: str
    samples: int
    duplicates: float = 0.0
    in_flight: int = 1
    """Of the peers; the engine's own is among its settings."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of `EngineConfig`."""
    cache_dir: str | None = None
    deadline_s: float = 120.0
    """When peers are stopped; what has no score by then is lost."""


def engine(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """Assay's engine."""
    judge = JudgeConfig(base_url=job.base_url, model=MODEL, api_key_env="")
    cache_dir = None if job.cache_dir is None else Path(job.cache_dir)
    with RewardEngine(VerdictReward(), judge, EngineConfig(**job.settings), cache_dir=cache_dir) as own:
        try:
            scores = own.score_many_sync(work)
        except RewardError as error:
            print(error, file=sys.stderr)
            return [None] * len(work), own.counters()
        return [score.value for score in scores], own.counters()


def serial(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """One call after the other."""
    import openai

    with openai.OpenAI(base_url=job.base_url, api_key="none") as client:
        return [
            verdict(client.chat.completions.create(**_body(sample)).choices[0].message.content) for sample in work
        ], {}


def openai_semaphore(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """The usual way: one task per sample, a semaphore, the client's own retries."""
    return asyncio.run(_gather(job, work, aiohttp=False)), {}


def openai_aiohttp(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """The same over the client's aiohttp transport."""
    return asyncio.run(_gather(job, work, aiohttp=True)), {}


async def _gather(job: Job, work: list[Sample], aiohttp: bool) -> Values:
    import openai

    transport = {"http_client": openai.DefaultAioHttpClient()} if aiohttp else {}
    places = asyncio.Semaphore(job.in_flight)
    async with openai.AsyncOpenAI(base_url=job.base_url, api_key="none", **transport) as client:

        async def one(sample: Sample) -> float | None:
            async with places:
                try:
                    reply = await client.chat.completions.create(**_body(sample))
                except Exception:  # noqa: BLE001  What its retries did not cure is a lost sample, whatever it is.
                    return None
            return verdict(reply.choices[0].message.content or "")

        tasks = [asyncio.create_task(one(sample)) for sample in work]
        await asyncio.wait(tasks, timeout=job.deadline_s)
        values = [task.result() if task.done() else None for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return values


def _body(sample: Sample) -> dict[str, Any]:
    said = [{"role": message.role, "content": message.content} for message in messages(sample)]
    return {"model": MODEL, "messages": said, "temperature": 0.0, "max_tokens": 256}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(job: Job) -> dict[str, Any]:
    """Do the job and say what it took."""
    client: Callable[[Job, list[Sample]], tuple[Values, dict[str, float]]] = CLIENTS[job.client]
    if job.client != "engine":
        import openai.resources.chat.completions  # noqa: F401  Loaded lazily otherwise, within the measurement.
    work = samples(indices(job.samples, job.duplicates))
    cpu, begin = _cpu_s(), time.perf_counter()
    values, counters = client(job, work)
    seconds, cpu = time.perf_counter() - begin, _cpu_s() - cpu
    return {
        "seconds": seconds,
        "cpu_s": cpu,
        "lost": sum(value is None for value in values),
        "wrong": sum(v is not None and v != expected(s) for s, v in zip(work, values, strict=True)),
        "peak_rss_mb": peak_rss_mb(),
        "counters": counters,
    }


def to_json(job: Job) -> str:
    return json.dumps(asdict(job))


CLIENTS = {
    "engine": engine,
    "serial": serial,
    "openai_semaphore": openai_semaphore,
    "openai_aiohttp": openai_aiohttp,
}

if __name__ == "__main__":
    raise_file_limit()
    print(json.dumps(measured(Job(**json.loads(sys.stdin.read())))))
