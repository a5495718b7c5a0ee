"""A real `assay serve` in a thread of this process, behind a proxy that can plant faults."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.models import build_scratch
from assay.server.tinker.app import App
from assay.server.tinker.config import ServeConfig
from assay.server.tinker.desk import Desk
from assay.server.tinker.host import ModelHost
from support.scripted import CORPUS
from support.tinker_proxy import Call, Fault, Proxy

NAME = "toy"


class LocalServer:
    """Serves a small model at `url`; `proxy.fault` alters what passes."""

    def __init__(self, folder: Path) -> None:
        shape = ScratchModel(architecture="qwen3", hidden_size=32, num_layers=1, context_length=64, vocab_size=40)
        model, tokenizer = build_scratch(shape, CORPUS, 0)
        self.model = folder / "model"
        model.save_pretrained(self.model)
        tokenizer.save_pretrained(self.model)
        local = LocalBackend(device="cpu")
        self._config = ServeConfig(model=str(self.model), name=NAME, state_path=str(folder / "state"), local=local)
        self._host = ModelHost(self._config)
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # for TCP_NODELAY
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.proxy = Proxy(self._app())
        settings = uvicorn.Config(self.proxy, log_config=None, access_log=False, lifespan="off")
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _app(self) -> Any:
        desk = Desk(self._config, self._host)
        app = App(desk, frozenset(), self._port).asgi
        app.state.desk = desk
        return app

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def restart(self) -> None:
        """Forget everything that a server which is killed and started again would forget."""
        self.proxy.app = self._app()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()


@dataclass
class RestartAt(Fault):
    """The server is killed and started again when the `count`-th request of a kind arrives."""

    server: LocalServer | None = None
    kind: str = ""
    count: int = 1

    def asked(self, call: Call) -> None:
        if call.path == self.kind:
            self.count -= 1
            if self.count == 0:
                assert self.server is not None
                self.server.restart()
