"""One session with a server of the Tinker API: where it is, under which key, and the clients that it gives out."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import tinker
from tinker.lib.base_url import DEFAULT_BASE_URL

from assay.backends.config import TinkerService
from assay.backends.tinker.calls import answer, cleaned, in_thread
from assay.config.urls import is_url, kept_secrets, without_secrets
from assay.errors import ConfigError, ModelError, ServiceError
from assay.transport.keys import read_key
from assay.transport.redaction import Redaction

T = TypeVar("T")

KEY_VARIABLE, URL_VARIABLE = "TINKER_API_KEY", "TINKER_BASE_URL"
KEY_STARTS = ("tml-", "eyJ")
"""How keys begin; the SDK takes no others."""
NO_KEY = "tml-loopback"
"""What stands for a key towards this machine's own server, which may ask for none."""
CLOSE_S = 10.0
"""Longest wait for the end of a session."""
MOST_CONTEXT = 10_000_000
"""Tokens; a tokenizer without a limit of its own says more."""


def server_url(base_url: str | None) -> str:
    """The server's address: the setting, else the environment's, else the official one; without a slash at its end.

    Raises:
        ConfigError: it is not an http(s) URL, or holds what may be a key.
    """
    url = (base_url or os.environ.get(URL_VARIABLE) or DEFAULT_BASE_URL).rstrip("/")
    name = "base_url" if base_url else URL_VARIABLE
    problems = list(kept_secrets(name, url))
    if not problems and not (is_url(url) and urlsplit(url).scheme in ("http", "https")):
        problems = [f"{name}={without_secrets(url)!r} is not an http:// or https:// URL, so no server can be reached."]
    if problems:
        raise ConfigError("\n".join(problems))
    return url


def is_official(url: str) -> bool:
    """Whether it is Thinking Machines' own service."""
    return url == DEFAULT_BASE_URL


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_for(url: str) -> str:
    """The API key, from the environment; servers on this machine may need none.

    Raises:
        ConfigError: there is none, it cannot be one, or it would travel readable for everyone.
    """
    key = read_key(KEY_VARIABLE)
    if not key and is_loopback(url):
        return NO_KEY
    if not key:
        raise ConfigError(
            f"{KEY_VARIABLE} is not set, and {without_secrets(url)} needs an API key. Set the variable; nothing was "
            "sent."
        )
    if not key.startswith(KEY_STARTS):
        raise ConfigError(f"{KEY_VARIABLE} does not begin with tml-, as API keys of Tinker do. Was it copied whole?")
    if urlsplit(url).scheme == "http" and not is_loopback(url):
        raise ConfigError(
            f"{without_secrets(url)} is not encrypted, so everyone on the way could read the API key. Use https://, or "
            "a tunnel to a port of this machine."
        )
    return key


@dataclass(frozen=True)
class ServedModel:
    """What a server says of a model before it is opened."""

    name: str
    context_length: int | None


class Service:
    """An open session. Every method waits no longer than the settings allow, and raises `ServiceError`."""

    def __init__(self, url: str, key: str, settings: TinkerService, client: tinker.ServiceClient) -> None:
        self.url = url
        self._key = key
        self.settings = settings
        self._client = client

    @classmethod
    async def connect(cls, base_url: str | None, settings: TinkerService, *, patience_s: float = 0.0) -> Service:
        """A new session.

        Args:
            patience_s: how long a server on this machine may take to listen: it may be starting again.

        Raises:
            ConfigError: as `server_url` and `key_for`.
            ServiceError: nothing answers, or the key is refused.
        """
        url = server_url(base_url)
        key = key_for(url)
        os.environ.setdefault("TINKER_TELEMETRY", "0")  # the SDK would report what it does to the server
        _keep_from_logs(key)
        await _knock(url, patience_s)
        client = tinker.ServiceClient(base_url=url, api_key=key)
        service = cls(url, key, settings, client)
        await service._blocking(lambda: client.holder, "the first contact")
        return service

    async def identity(self) -> dict[str, Any]:
        """What tells this server from another one, as far as it says: address, models, and the SDK that was used."""
        found = await self._capabilities()
        models = sorted((m.model_dump() for m in found.supported_models), key=str)
        return {"url": self.url, "models": models, "sdk": tinker.__version__}

    async def models(self) -> dict[str, ServedModel]:
        """The models that can be trained here, by name."""

        found = await self._capabilities()
        named = [m for m in found.supported_models if m.model_name and m.trainable is not False]
        return {m.model_name: ServedModel(m.model_name, m.max_context_length) for m in named}

    async def check_model(self, name: str) -> ServedModel:
        """What the server says of a model, before anything is spent on it.

        Raises:
            ModelError: it does not have it.
        """
        models = await self.models()
        if name not in models:
            known = ", ".join(sorted(models)[:20]) or "none at all"
            raise ModelError(
                f"model_name={name} is not a model of {without_secrets(self.url)}, which trains {known}. Name one of "
                "those."
            )
        return models[name]

    async def create(self, model: str, rank: int, seed: int) -> tinker.TrainingClient:
        """A model with new adapters.

        Raises:
            ModelError: the server does not train this rank, or gave it another one.
        """
        what = "a model with adapters"
        try:
            pending = await self._blocking(
                lambda: self._client.create_lora_training_client(base_model=model, rank=rank, seed=seed), what
            )
            made = await self.wait(pending, what, self.settings.train_timeout_s)
        except ServiceError as error:
            if error.lost or "rank" not in str(error).lower():
                raise
            raise ModelError(
                f"lora_rank={rank} is not trained for {model} at {without_secrets(self.url)}, so nothing was begun. "
                f"Set lora_rank to what it trains ({str(error).rstrip('.')})."
            ) from error
        return _ranked(made, rank)

    async def restore(self, path: str, rank: int, *, optimizer: bool) -> tinker.TrainingClient:
        """A model from a state that the server saved.

        Raises:
            ModelError: it has another rank.
        """
        client, what = self._client, f"the saved state {path}"
        load: Callable[[str], Any] = (
            client.create_training_client_from_state_with_optimizer
            if optimizer
            else client.create_training_client_from_state
        )
        pending = await self._blocking(lambda: load(path), what)
        return _ranked(await self.wait(pending, what, self.settings.train_timeout_s), rank)

    async def sampler(self, *, path: str | None = None, model: str | None = None) -> tinker.SamplingClient:
        """A sampler of saved weights, or of a base model."""
        what = "a sampler"
        pending = await self._blocking(
            lambda: self._client.create_sampling_client(model_path=path, base_model=model), what
        )
        return await self.wait(pending, what, self.settings.train_timeout_s)  # type: ignore[no-any-return]

    async def tokenizer(self, training: tinker.TrainingClient) -> Any:
        """The model's tokenizer, which the SDK loads by the name that the server gives."""
        return await self._blocking(training.get_tokenizer, "the tokenizer", self.settings.train_timeout_s)

    async def wait(self, future: Any, what: str, seconds: float) -> Any:
        """As `calls.answer`, with errors that do not repeat the key."""
        try:
            return await answer(future, what, seconds)
        except ServiceError as error:
            raise cleaned(error, self._key) from None

    async def status_of_post(self, path: str, body: bytes, content_type: str) -> int:
        """The HTTP status of one request that the SDK has no part in, and does not repeat.

        Raises:
            ServiceError: nothing answers.
        """
        headers = {"X-API-Key": self._key, "Content-Type": content_type}
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", body, headers, method="POST")
        proxies = urllib.request.ProxyHandler({} if is_loopback(self.url) else None)
        opener = urllib.request.build_opener(proxies, _NoRedirects)

        def post() -> int:
            try:
                with opener.open(request, timeout=self._soon) as response:
                    return int(response.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        return await self._blocking(post, path)

    async def finish(self) -> None:
        """End the session.

        Raises:
            ServiceError: the server does not end it.
        """
        await self.wait(self._client.close("success"), "the end of the session", CLOSE_S)

    async def close(self) -> None:
        """End the session, if the server can be told; else it times out there."""
        with contextlib.suppress(ServiceError):
            await self.finish()

    async def _capabilities(self) -> Any:
        def ask() -> Any:
            return tinker.RestClient(base_url=self.url, api_key=self._key).get_server_capabilities()

        return await self.wait(await self._blocking(ask, "the list of models"), "the list of models", self._soon)

    @property
    def _soon(self) -> float:
        return self.settings.connect_timeout_s

    async def _blocking(self, call: Callable[[], T], what: str, seconds: float | None = None) -> T:
        try:
            return await in_thread(call, what, self._soon if seconds is None else seconds)
        except ServiceError as error:
            raise cleaned(error, self._key) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the key elsewhere."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """None: the redirect itself is the answer."""


def _ranked(client: tinker.TrainingClient, rank: int) -> tinker.TrainingClient:
    info = client.get_info()
    if info.lora_rank is not None and info.lora_rank != rank:
        raise ModelError(
            f"lora_rank={rank}, but the server gave adapters of rank {info.lora_rank}. Set lora_rank={info.lora_rank}, "
            "or ask whoever keeps the server."
        )
    return client


class _WithoutKey(logging.Filter):
    """Takes a key out of what the SDK logs: servers may repeat it."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self._redaction = Redaction(key)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record, without the key."""
        record.msg, record.args = self._redaction.message(record.getMessage()), ()
        return True


def _keep_from_logs(key: str) -> None:
    for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "tinker"]:
        one = logging.getLogger(name)
        if not any(isinstance(known, _WithoutKey) and known.key == key for known in one.filters):
            one.addFilter(_WithoutKey(key))


async def _knock(url: str, patience_s: float) -> None:
    """Refuse at once an address of this machine at which nothing listens: the SDK would try for minutes."""
    if not is_loopback(url):
        return
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    until = time.monotonic() + patience_s
    while True:
        try:
            _, writer = await asyncio.open_connection(parts.hostname, port)
        except OSError as error:
            if time.monotonic() < until:
                await asyncio.sleep(0.5)
                continue
            raise ServiceError(
                f"Nothing listens at {url} ({os.strerror(error.errno or 0)}). Start the server (`assay serve --model "
                "...`), or correct base_url.",
                lost=True,
            ) from error
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return


def context_of(served: ServedModel, settings: TinkerService, tokenizer: Any) -> int:
    """Most tokens of a prompt and its completion together: the setting, the server's word, or the tokenizer's.

    Raises:
        ModelError: nobody says.
    """
    own = getattr(tokenizer, "model_max_length", None)
    candidates = (settings.context_length, served.context_length, own)
    for length in candidates:
        if length is not None and 1 < length <= MOST_CONTEXT:
            return int(length)
    raise ModelError(
        f"Neither the server nor the tokenizer of {served.name} says how many tokens fit into its context. Set "
        "tinker.context_length."
    )


def grad_norm(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """The gradient's norm before clipping as `grad_norm`, where a server reports it under one of its usual names."""
    for name, value in (metrics or {}).items():
        bare = name.partition(":")[0].rpartition("/")[2]
        if bare in ("grad_norm", "gradient_norm", "unclipped_grad_l2", "grad_norm_before_clip"):
            return {"grad_norm": float(value)}
    return {}
