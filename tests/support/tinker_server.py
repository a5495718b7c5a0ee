"""A real training server on loopback, in a thread, over a tiny model; and the local backend that it has to equal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.backends.local.models import add_lora
from assay.server.tinker.config import ServeConfig
from assay.server.tinker.host import ModelHost
from assay.server.tinker.serving import serve
from support.tiny_models import VOCAB, tiny_model

NAME = "tiny/model"
KEY = "tml-one"
LOCAL = LocalBackend(device="cpu")


def save_tiny(path: Path, kind: str = "qwen3") -> Path:
    """A tiny model with a tokenizer in which every token but the end is a character."""
    tiny_model(kind).save_pretrained(path)
    words = ["<eos>", *(chr(33 + i) for i in range(VOCAB - 1))]
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>").save_pretrained(path)
    return path


def serve_config(model: Path, state: Path, **changes: Any) -> ServeConfig:
    settings = {"model": str(model), "name": NAME, "state_path": str(state), "port": 0, "stop_s": 2.0, "local": LOCAL}
    return ServeConfig(**{**settings, **changes})


@dataclass
class Running:
    """A server that is running."""

    url: str
    host: ModelHost

    def client(self, key: str = KEY) -> httpx.Client:
        return httpx.Client(base_url=f"{self.url}/api/v1/", headers={"X-API-Key": key}, timeout=20)


@contextmanager
def running(config: ServeConfig, host: ModelHost | None = None) -> Iterator[Running]:
    """Serve in a thread; a `host` is used again, which saves loading the model."""
    host = host or ModelHost(config)
    ready, urls, failed = threading.Event(), list[str](), list[BaseException]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def started(url: str) -> None:
        urls.append(url)
        ready.set()

    def work() -> None:
        try:
            loop.run_until_complete(serve(config, started, stop, host))
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            failed.append(error)
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(30)
    try:
        if failed:
            raise failed[0]
        yield Running(urls[0], host)
    finally:
        if not failed:
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def local_backend(kind: str, rank: int, seed: int) -> TorchBackend:
    """The local backend with an adapter that begins as the server's of the same rank and seed."""
    return TorchBackend(add_lora(tiny_model(kind), rank, LOCAL, seed), None, LOCAL)


def adapter_of(backend: TorchBackend) -> dict[str, torch.Tensor]:
    """A local backend's adapter, by the names in files."""
    return {name.replace(".default", ""): p.detach() for name, p in backend._trained.items()}
