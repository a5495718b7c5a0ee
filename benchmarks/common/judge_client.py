"""One measurement of one client in a process of its own: a JSON object in on standard input, one out on the last line.

CPU is the whole process's from the making of the client to its closing; imports and the making of samples come before.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import RewardError
from assay.rewards import Client, EngineConfig, JudgeConfig, RewardEngine, Sample
from assay.rewards.client.chat import PATH
from assay.rewards.loop_thread import new_event_loop
from assay.transport.keys import json_headers

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
    judge, config, cache_dir = _engine_settings(job)
    return _scores(RewardEngine(VerdictReward(), judge, config, cache_dir=cache_dir), work)


def engine_aiohttp(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """The engine with aiohttp in the place of its own HTTP client."""
    from .aiohttp_pool import AiohttpPool

    judge, config, cache_dir = _engine_settings(job)
    caller = Client(judge, config, cache_dir)
    caller._pool = AiohttpPool(job.base_url + PATH, json_headers(""))  # type: ignore[assignment]
    return _scores(RewardEngine(VerdictReward(), judge, config, caller=caller), work)


def _engine_settings(job: Job) -> tuple[JudgeConfig, EngineConfig, Path | None]:
    judge = JudgeConfig(base_url=job.base_url, model=MODEL, api_key_env="")
    return judge, EngineConfig(**job.settings), None if job.cache_dir is None else Path(job.cache_dir)


def _scores(engine: RewardEngine, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    with engine:
        try:
            scores = engine.score_many_sync(work)
        except RewardError as error:
            print(error, file=sys.stderr)
            return [None] * len(work), engine.counters()
        return [score.value for score in scores], engine.counters()


def serial(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """One call after the other."""
    import openai

    with openai.OpenAI(base_url=job.base_url, api_key="none") as client:
        return [
            verdict(client.chat.completions.create(**_body(sample)).choices[0].message.content) for sample in work
        ], {}


def openai_semaphore(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """The usual way: one task per sample, a semaphore, the client's own retries."""
    return asyncio.run(_over_openai(job, work, {})), {}


def openai_aiohttp(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """The same over the client's aiohttp transport."""
    import openai

    return asyncio.run(_over_openai(job, work, {"http_client": openai.DefaultAioHttpClient()})), {}


def aiohttp_semaphore(job: Job, work: list[Sample]) -> tuple[Values, dict[str, float]]:
    """The usual way without the SDK: aiohttp on uvloop, a semaphore, and retries as that client makes them."""
    with asyncio.Runner(loop_factory=new_event_loop) as loops:
        return loops.run(_over_aiohttp(job, work)), {}


async def _over_openai(job: Job, work: list[Sample], transport: dict[str, Any]) -> Values:
    import openai

    async with openai.AsyncOpenAI(base_url=job.base_url, api_key="none", **transport) as client:

        async def ask(sample: Sample) -> str:
            reply = await client.chat.completions.create(**_body(sample))
            return reply.choices[0].message.content or ""

        return await _gather(job, work, ask)


async def _over_aiohttp(job: Job, work: list[Sample]) -> Values:
    from .aiohttp_pool import post_with_retries, session

    async with session(json_headers("")) as client:

        async def ask(sample: Sample) -> str:
            reply = json.loads(await post_with_retries(client, job.base_url + PATH, json.dumps(_body(sample)).encode()))
            return str(reply["choices"][0]["message"]["content"])

        return await _gather(job, work, ask)


async def _gather(job: Job, work: list[Sample], ask: Callable[[Sample], Coroutine[Any, Any, str]]) -> Values:
    """Ask about every sample, as many at a time as the job says, until its deadline."""
    places = asyncio.Semaphore(job.in_flight)

    async def one(sample: Sample) -> float | None:
        async with places:
            try:
                return verdict(await ask(sample))
            except Exception:  # noqa: BLE001  What its retries did not cure is a lost sample, whatever it is.
                return None

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
    for name in IMPORTED_LAZILY.get(job.client, ()):  # they would be, within the measurement
        importlib.import_module(name, __package__)
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
    "engine_aiohttp": engine_aiohttp,
    "serial": serial,
    "openai_semaphore": openai_semaphore,
    "openai_aiohttp": openai_aiohttp,
    "aiohttp_semaphore": aiohttp_semaphore,
}
_OPENAI, _AIOHTTP = "openai.resources.chat.completions", ".aiohttp_pool"
IMPORTED_LAZILY = {
    "engine_aiohttp": (_AIOHTTP,),
    "serial": (_OPENAI,),
    "openai_semaphore": (_OPENAI,),
    "openai_aiohttp": (_OPENAI, "aiohttp"),
    "aiohttp_semaphore": (_AIOHTTP,),
}

if __name__ == "__main__":
    raise_file_limit()
    print(json.dumps(measured(Job(**json.loads(sys.stdin.read())))))
