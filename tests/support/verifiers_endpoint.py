"""An endpoint that says what a play says, and the tokens it was asked for; verifiers' own env in front of it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import environment_class, taskset_config_type

from assay.integrations.environments import Prepared
from assay.integrations.verifiers_environment import AssayEnvConfig
from assay.integrations.verifiers_plugin import write_plugin
from assay.types import Message
from support.hosts import Play, Script, bytes_tokenizer

HARNESS = """
import httpx
import verifiers.v1 as vf
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult

class InProcess(Harness[HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            body = {"model": ctx.model, "messages": messages}
            found = await client.post(
                endpoint.rstrip("/") + "/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
            )
        return ProgramResult(0 if found.status_code == 200 else 1, "", found.text)

__all__ = ["InProcess"]
"""


@dataclass
class Asked:
    """A row as the endpoint has seen it."""

    prompt: list[int]
    response_ids: list[int]
    mask: list[int]

    @property
    def prompt_ids(self) -> list[Any]:
        return [len(self.prompt), hashlib.sha256(json.dumps(self.prompt).encode()).hexdigest()]


class Endpoint:
    """Chat completions, written as tokens by Assay's renderer as Assay's own loop does."""

    def __init__(self, play: Play, one: Prepared, status: int = 200) -> None:
        self._script, self._renderer = Script(play), one.renderer(bytes_tokenizer())
        self._most, self._status = one.playing.params.max_tokens, status
        self.rows: list[Asked] = []

    async def answer(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if self._status != 200:
            return web.json_response({"error": {"message": "the prompt is too long"}}, status=self._status)
        prompt = self._prompt([Message(one["role"], one["content"]) for one in asked["messages"]])
        tokens = self._script.tokens(prompt, self._most)
        self._keep(prompt, tokens)
        text = self._renderer.text(tokens)
        if asked.get("stream"):
            return streamed(text)
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens), "total_tokens": len(prompt)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        )

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        """The last row goes on where the conversation goes on with what was said last in it."""
        if self.rows and (said := self._said_since(messages)) is not None:
            last = self.rows[-1]
            return [*last.prompt, *last.response_ids, *self._renderer.extend(said, stopped=True)]
        self._conversation: list[Message] = list(messages)
        self.rows.append(Asked(list(self._renderer.start(messages)), [], []))
        return self.rows[-1].prompt

    def _said_since(self, messages: Sequence[Message]) -> list[Message] | None:
        known = len(self._conversation)
        if len(messages) <= known or list(messages[:known]) != self._conversation:
            return None
        said = list(messages[known:])
        self._conversation = list(messages)
        return said

    def _keep(self, prompt: list[int], tokens: list[int]) -> None:
        row = self.rows[-1]
        row.response_ids = [*prompt[len(row.prompt) :], *tokens]
        row.mask += [0] * (len(row.response_ids) - len(tokens) - len(row.mask)) + [1] * len(tokens)
        self._conversation.append(Message("assistant", self._renderer.text(tokens)))


def streamed(text: str) -> web.Response:
    """The answer as server-sent events."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    choices = ({"delta": {"role": "assistant", "content": text}}, {"delta": {}, "finish_reason": "stop"})
    events = [json.dumps({**head, "choices": [{"index": 0, **choice}]}) for choice in choices]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    return web.Response(text=body, content_type="text/event-stream")


def env_of(one: Prepared, name: str, folder: Path, patch: pytest.MonkeyPatch, harness: str = "assay-in-process") -> Any:
    """The exported package as verifiers loads it, with the agent of its TOML for prime-rl."""
    package = folder / name
    write_plugin(one, name, package, 4, "machine")
    patch.syspath_prepend(str(package))
    importlib.invalidate_caches()
    (source,) = tomllib.loads((package / "prime_rl.toml").read_text())["orchestrator"]["train"]["source"]
    agent = {**source["env"]["agent"], "harness": {"id": harness}}
    taskset = taskset_config_type(name).model_validate(source["env"]["taskset"])
    return environment_class(name)(AssayEnvConfig(taskset=taskset, agent=vf.AgentConfig.model_validate(agent)))


def play_group(env: Any, endpoint: Endpoint, keys: Sequence[str], size: int) -> list[list[tuple[Any, list[Asked]]]]:
    """Episodes of each task, one after the other, with the rows that the endpoint saw."""

    async def run() -> list[list[tuple[Any, list[Asked]]]]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", endpoint.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        ctx = ModelContext(model="m", client=EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1"))
        tasks = {task.key: task for task in env.taskset}
        found: list[list[tuple[Any, list[Asked]]]] = []
        try:
            async with env.serving():
                for key in keys:
                    found.append([])
                    for _ in range(size):
                        endpoint.rows = []
                        episode = await env.run_episode(tasks[key], ctx)
                        found[-1].append((episode, endpoint.rows))
        finally:
            await runner.cleanup()
        return found

    return asyncio.run(run())
