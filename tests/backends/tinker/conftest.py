from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING or (find_spec("tinker") and find_spec("uvicorn")):  # test files skip themselves where they are missing
    from support.tinker_behind_faults import LocalServer
    from support.tinker_proxy import Fault


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    made = LocalServer(tmp_path_factory.mktemp("served"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_fault(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").proxy.fault = Fault()
