"""Attacks on a real sandbox that must not get what they want, each followed by a good job on the same worker."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Job, Round
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.sandbox_attacks import DENIED, FAILED, REACHABLE, SUCCEEDED, Attack, job
from support.sandboxes import Box, needs_walls

pytestmark = needs_walls
VARIABLE = "ASSAY_TEST_SECRET"
GOOD = Job("def run(inputs, header):\n    return [inputs[0][::-1]]", "assay.sandbox.plain", (Round((b"abc",), (3,)),))


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    """What attackers are told: where a secret lies, and who listens."""
    folder = tempfile.TemporaryDirectory()  # on disk, not in the memory where other tests write, which no sandbox shows
    secret = Path(folder.name) / "secret"
    secret.write_text("hunter2", encoding="utf-8")
    os.environ[VARIABLE] = "hunter2"
    abstract = f"assay-test-{os.getpid()}"
    with folder, socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + abstract)
        unix.listen()
        yield {
            "secret": str(secret),
            "variable": VARIABLE,
            "project": str(Path(__file__).parent),
            "port": server.getsockname()[1],
            "abstract": abstract,
        }
    del os.environ[VARIABLE]


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box(LocalConfig(workers=1)) as box:
        yield box


@pytest.fixture(scope="module")
def open_box() -> Iterator[Box]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        box = Box(LocalConfig(workers=1, sandbox="unsafe"))
    with box:
        yield box


@pytest.mark.parametrize("attack", DENIED, ids=lambda attack: attack.__name__)
def test_it_is_contained(box: Box, told: dict[str, Any], attack: Attack) -> None:
    box.run(GOOD)
    workers = box.sandbox.worker_pids()
    result = box.run(job(attack, told))
    assert (result.end, result.outputs, result.retried) == ("ok", ((FAILED,),), False), result
    assert box.run(GOOD).outputs == ((b"cba",),)
    assert box.sandbox.worker_pids() == workers
    assert box.sandbox.deaths == 0


@pytest.mark.parametrize("attack", [a for a in DENIED if a.__name__ in REACHABLE], ids=lambda attack: attack.__name__)
def test_it_would_succeed_without_walls(open_box: Box, told: dict[str, Any], attack: Attack) -> None:
    result = open_box.run(job(attack, told))
    assert result.outputs == ((SUCCEEDED,),), result


def test_enough_attacks_are_known_to_work() -> None:
    assert len(DENIED) >= 60
    assert len(REACHABLE) >= 20


def test_a_refusal_costs_no_worker(told: dict[str, Any]) -> None:
    async def all_at_once() -> list[str]:
        async with LocalSandbox(LocalConfig(workers=2)) as sandbox:
            results = await asyncio.gather(*(sandbox.run(job(attack, told)) for attack in DENIED))
            assert sandbox.deaths == 0
            return [result.end for result in results]

    assert asyncio.run(all_at_once()) == ["ok"] * len(DENIED)
