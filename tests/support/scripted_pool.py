"""A client whose transport follows a script, for virtual time: what `HttpPool` does, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.rewards import Client, EngineConfig, JudgeConfig
from assay.transport.http import Response, ResponseError, TransportError
from support.scripted_judge import Said, completion, settings

Script = Callable[[str, int], "Said | str | int | Exception"]
"""(text of the last message, how often it was asked before) -> what comes back."""


class ScriptedPool:
    """Answers by a script; counts what is under way, and what was answered to somebody who still waited."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[str] = []
        self.answered: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.closed = False

    async def post(self, body: bytes) -> Response:
        text = json.loads(body)["messages"][-1]["content"]
        said = self.script(text, self.asked.count(text))
        self.asked.append(text)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if isinstance(said, Exception):
                raise said
            if isinstance(said, int):
                said = Said("out of order", said)
            elif isinstance(said, str):
                said = Said(said)
            if said.end == "hang":
                await asyncio.Event().wait()
            await asyncio.sleep(said.delay_s)
            if said.end == "reset":
                raise TransportError("the connection was closed before the response was complete")
        finally:
            self.in_flight -= 1
        if said.raw is not None:
            return Response(said.status, said.headers, said.raw)
        data: Any = {"error": {"message": said.text, "code": said.code}}
        if said.status == 200:
            data = said.body if said.body is not None else completion(said.text, said.tokens)
            self.answered[text] += 1
        return Response(said.status, said.headers, json.dumps(data).encode())

    def close(self) -> None:
        self.closed = True


def scripted_client(
    script: Script, cache_dir: Path | None = None, judge: JudgeConfig | None = None, **config: Any
) -> tuple[Client, ScriptedPool]:
    """A client whose every exchange is scripted. It takes a cache where it is given a folder."""
    pool = ScriptedPool(script)
    given: EngineConfig = settings(**{"cache": cache_dir is not None, "call_deadline_s": 900.0, **config})
    client = Client(judge or JudgeConfig(base_url="http://judge.test/v1", api_key_env=""), given, cache_dir)
    client._pool = pool  # type: ignore[assignment]
    return client, pool


def stale() -> TransportError:
    return TransportError("the connection was closed", stale=True)


def not_http() -> ResponseError:
    return ResponseError("what came back is not HTTP")
