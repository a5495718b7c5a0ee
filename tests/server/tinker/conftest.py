"""One server for the tests of a file, and clients of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING or (find_spec("tinker") and find_spec("uvicorn")):  # test files skip themselves where they are missing
    from support.tinker_server import KEY, Running, running, save_tiny, serve_config
    from support.tinker_wire import Wire

os.environ["TINKER_TELEMETRY"] = "0"  # read when a client is made; nothing of a test is to leave the machine


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(serve_config(model_folder, tmp_path_factory.mktemp("state"))) as found:
        yield found


@pytest.fixture(scope="module")
def service(server: Running) -> Iterator[Any]:
    import tinker

    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    yield client
    client.close("success").result()


@pytest.fixture
def wire(server: Running) -> Iterator[Wire]:
    client = Wire(server)
    yield client
    client.ok(f"sessions/{client.session}/finish", {"reason": {"type": "success"}})
