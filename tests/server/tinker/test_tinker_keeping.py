"""What the server keeps, for how long, and that looking it up stops nobody."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker", reason="the Tinker SDK is not installed: pip install '.[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")

from assay.server.tinker import listing, training_calls
from assay.server.tinker.checkpoints import RECORD, RUN_RECORD, CheckpointStore, Run, parse
from assay.server.tinker.config import ServeConfig
from assay.server.tinker.desk import Desk
from assay.server.tinker.errors import RequestError
from assay.server.tinker.futures import Promise, Result
from assay.server.tinker.lanes import Job
from assay.server.tinker.serving import _sweep
from assay.server.tinker.sessions import Session
from support.tinker_server import NAME, Running, serve_config


def test_a_listing_does_not_hold_up_the_server(server: Running, tmp_path: Path) -> None:
    desk = Desk(ServeConfig(state_path=str(tmp_path)), server.host)
    session = desk.sessions.open("me", None, None)
    run = Run(f"{session.id}:train:0", "me", NAME, 2, ("attn",), 1, 0.0)
    desk.store.add_run(run)
    record = tmp_path / "runs" / run.id / RUN_RECORD
    text = record.read_text()
    desk = Desk(desk.config, server.host)  # which has read nothing yet
    record.unlink()
    os.mkfifo(record)  # who reads it waits until somebody writes
    rescue = threading.Timer(10, record.write_text, (text,))
    rescue.start()

    async def listed(answer: Any) -> Any:
        task = asyncio.create_task(answer)
        await asyncio.sleep(0.05)
        assert not task.done(), "the records were read on the event loop"
        await asyncio.to_thread(record.write_text, text)
        return await task

    async def work() -> None:
        assert (await listed(listing.get_session(desk, "me", session.id)))["training_run_ids"] == [run.id]
        assert (await listed(listing.list_runs(desk, "me", {})))["cursor"]["total_count"] == 1
        assert (await listed(listing.get_run(desk, "me", run.id)))["training_run_id"] == run.id
        assert (await listed(listing.list_checkpoints(desk, "me", run.id))) == {"checkpoints": []}
        none = await asyncio.wait_for(listing.list_runs(desk, "me", {"limit": "0"}), 5)
        assert none["cursor"]["total_count"] == 1, "counted without reading records again"
        assert (await listed(listing.list_all_checkpoints(desk, "me", {})))["checkpoints"] == []

    try:
        asyncio.run(work())
    finally:
        rescue.cancel()


def beat(desk: Desk, session: Session) -> None:
    listing.heartbeat(desk, "me", json.dumps({"session_id": session.id}).encode())


def test_only_heartbeats_count_for_a_client_that_sends_some(server: Running, tmp_path: Path) -> None:
    desk = Desk(ServeConfig(state_path=str(tmp_path), heartbeat_timeout_s=900, session_idle_s=60), server.host)
    beating, silent = (desk.sessions.open("me", None, None) for _ in range(2))
    beat(desk, beating)
    for seconds, gone in ((61, [False, True]), (901, [True, True])):
        desk.sessions.sweep(beating.last_sign + seconds)
        assert [bool(session.finished) for session in (beating, silent)] == gone


def test_a_client_that_misses_its_heartbeats_is_closed_and_a_slow_one_is_not(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(ServeConfig(state_path=str(tmp_path), heartbeat_timeout_s=120), server.host)
    killed, slow, working, silent = (desk.sessions.open("me", None, None) for _ in range(4))
    for session in (killed, slow, working):
        beat(desk, session)

    def open_at(now: float) -> list[Session]:
        desk.sessions.sweep(now)
        return [s for s in (killed, slow, working, silent) if not s.finished]

    async def work() -> None:
        now, release, promise = time.monotonic(), asyncio.Event(), Promise("a", "me", "optim_step")

        async def long() -> Result:
            await release.wait()
            return Result(b"")

        for session in (killed, working):
            desk.sessions.add_model(session, 0, Run(f"{session.id}:train:0", "me", NAME, 2, ("attn",), 1, 0.0))
        working.models[0].lane.submit(0, Job(promise, long))
        await asyncio.sleep(0)
        assert open_at(now + 119) == [killed, slow, working, silent] and len(desk.sessions.models) == 2
        slow.last_sign = now + 100  # late, and there
        assert open_at(now + 121) == [slow, working, silent] and desk.sessions.models == [working.models[0]]
        with pytest.raises(RequestError, match="no heartbeat for 120 s") as raised:
            beat(desk, killed)
        assert raised.value.status == 410, "at which the SDK gives up"
        release.set()
        await promise.done.wait()
        assert open_at(now + 221) == [working, silent], "what is worked on has its time from when it was seen last"
        assert open_at(now + 242) == [silent]
        assert open_at(now + 3601) == []

        held_up = desk.sessions.open("me", None, None)
        before = held_up.last_sign
        monkeypatch.setattr("assay.server.tinker.serving.SWEEP_S", 0.01)
        sweeping = asyncio.create_task(_sweep(desk))
        await asyncio.sleep(0)
        time.sleep(0.2)  # the process stands still, and heartbeats wait to be read
        await asyncio.sleep(0.05)
        sweeping.cancel()
        assert 0.15 < held_up.last_sign - before < 5

    asyncio.run(work())


def test_checkpoints_live_for_the_time_they_were_given(server: Running, model_folder: Path, tmp_path: Path) -> None:
    config, clock = serve_config(model_folder, tmp_path), [time.time()]
    desk = Desk(config, server.host)
    desk.store.now = lambda: clock[0]

    async def saved(call: Any, number: int, name: str, ttl: int | None) -> str:
        body = {"model_id": model, "seq_id": number, "path": name, "ttl_seconds": ttl}
        found = await desk.promises.fetch("me", str(call(desk, "me", json.dumps(body).encode())["request_id"]))
        return json.loads(found.body)["path"] if isinstance(found, Result) else str(found)

    def names() -> list[str]:
        return sorted("/".join(parse(c.path)[1:]) for c in desk.store.of_run(desk.store.run(model)))

    session = desk.sessions.open("me", None, None)
    model = f"{session.id}:train:0"

    async def work() -> None:
        lora = {"rank": 2, "seed": 1}
        create = {"session_id": session.id, "model_seq_id": 0, "base_model": NAME, "lora_config": lora}
        training_calls.create_model(desk, "me", json.dumps(create).encode())
        to_train, to_sample = training_calls.save_weights, training_calls.save_weights_for_sampler
        short, longer, kept = [await saved(to_train, n, f"s{n}", 3600) for n in (1, 2, 3)]
        await saved(to_sample, 4, "s4", 3600)
        assert "give 3600 to" in await saved(to_train, 5, "s5", 3599)
        await listing.set_ttl(desk, "me", longer, b'{"ttl_seconds": 7200}')
        await listing.set_ttl(desk, "me", kept, b'{"ttl_seconds": null}')
        clock[0] += 3599
        assert desk.store.remove_expired() == 0 and len(names()) == 4
        clock[0] += 2
        assert names() == ["weights/s2", "weights/s3"]
        again = CheckpointStore(tmp_path, desk.store.now)  # as after a restart
        with pytest.raises(RequestError, match="may have expired"):
            again.find(short)
        assert again.find(longer).name == "s2"
        assert await saved(to_train, 6, "s1", None) == short, "a name that is over is free, also before it is swept"
        assert desk.store.remove_expired() == 1 and names() == ["weights/s1", "weights/s2", "weights/s3"]
        clock[0] += 3600
        with desk.store._moving:  # the sweep has seen that it is over, and a client makes it last before it goes
            sweep = asyncio.create_task(asyncio.to_thread(desk.store.remove_expired))
            await asyncio.sleep(0.1)
            record = desk.store._place(*parse(longer)) / RECORD
            record.write_text(json.dumps({**json.loads(record.read_text()), "expires": None}))
        assert await sweep == 0 and "weights/s2" in names()

    asyncio.run(work())
    assert sorted(p.name for p in tmp_path.glob("runs/*/*/*")) == ["s1", "s2", "s3"]
