"""The server as a program: keys, limits, metrics, restarts, the command."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("tinker", reason="the Tinker SDK is not installed: pip install '.[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")

from tinker.proto.response_conv import deserialize_sample_response

from assay.backends.local.adapters.scoring import Asked
from assay.errors import ConfigError, RunDirectoryError
from assay.server.tinker import training_calls
from assay.server.tinker.checkpoints import REPLACED, CheckpointStore, Run
from assay.server.tinker.config import KEY_VARIABLE, ServeConfig, require_keys
from assay.server.tinker.desk import Desk
from assay.server.tinker.errors import RequestError
from assay.server.tinker.futures import Promise, Promises, Result
from assay.server.tinker.lanes import Job, Lane
from assay.server.tinker.serving import _listen, _sweep, serve
from assay.server.tinker.sessions import Sessions
from support.tinker_server import LOCAL, NAME, Running, running, serve_config
from support.tinker_wire import Wire, ask, batch, logprobs


def test_metrics_and_what_needs_no_key(wire: Wire, server: Running) -> None:
    values = dict(line.split() for line in httpx.get(f"{server.url}/metrics").text.splitlines())
    assert float(values["assay_serve_sessions"]) >= 1 and 'assay_serve_requests_total{outcome="user"}' in values
    assert httpx.get(f"{server.url}/api/v1/healthz").json() == {"status": "ok"}
    rebound = httpx.get(f"{server.url}/api/v1/sessions", headers={"Host": "evil.example"})
    assert rebound.status_code == 421
    page = httpx.post(f"{server.url}/api/v1/create_session", content=b"{}", headers={"Origin": "https://evil.example"})
    assert page.status_code == 403


def test_keys_and_limits_hold_and_a_restart_keeps_what_was_saved(
    server: Running, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "tml-a, tml-b")
    config = serve_config(model_folder, tmp_path / "state", max_models=1, missing_s=0.1, result_s=300, max_samplers=1)
    with running(config, server.host) as first:
        for key in ("", "tml-c", "tml-a, tml-b", "tml-é".encode()):
            wrong = httpx.get(f"{first.url}/api/v1/sessions", headers={"X-API-Key": key})
            assert wrong.status_code == 401 and "tml" not in wrong.text
        with pytest.raises(ConfigError, match="Another server uses"), running(config, server.host):
            pass
        wire = Wire(first, "tml-a")
        model = wire.model()
        assert "max_models" in wire.do("create_model", wire.create(1))["error"]
        wire.do("forward_backward", batch(model, 1))
        wire.do("optim_step", wire.step(model, 2))
        saved = {"model_id": model, "path": "kept"}
        path = wire.do("save_weights", {**saved, "seq_id": 3})["path"]
        for_sampler = wire.do("save_weights_for_sampler", {**saved, "seq_id": 4})["path"]
        want = logprobs(wire, model, 5, 50)
        own = {"model_id": model, "seq_id": 6, "sampling_session_seq_id": 0}
        lost = wire.do("save_weights_for_sampler", own)["sampling_session_id"]
        session = {"session_id": wire.session, "sampling_session_seq_id": 1, "model_path": for_sampler}
        kept = wire.ok("create_sampling_session", session)["sampling_session_id"]
        wire.refused("asample", ask(wire, lost, 0), 404)  # pushed out by max_samplers
        sampled = deserialize_sample_response(wire.do("asample", ask(wire, kept, 0))).sequences[0].tokens
        old = wire.ok("optim_step", wire.step(model, 8))["request_id"]  # 7 never comes
        half = tmp_path / "state/runs" / model / "weights/.writing-x"
        half.mkdir()
    with running(config, server.host) as second:
        assert not half.exists()
        again = wire.http = second.client("tml-a")
        assert again.post("retrieve_future", json={"request_id": old}).status_code == 410
        assert "create_training_client_from_state" in wire.refused("optim_step", wire.step(model, 8), 404)
        assert deserialize_sample_response(wire.do("asample", ask(wire, kept, 0))).sequences[0].tokens == sampled
        wire.refused("asample", ask(wire, lost, 0), 404)
        load = {"session_id": wire.session, "model_seq_id": 2, "path": path, "optimizer": True}
        model = wire.do("load_weights", load)["model_id"]
        assert logprobs(wire, model, 1, 50) == want


def test_a_request_that_waits_for_one_that_never_comes_fails() -> None:
    lane, promise = Lane(5.0), Promise("a", "b", "optim_step")

    async def work() -> Any:
        raise AssertionError("request 2 was worked on before 1")

    async def wait() -> None:
        lane.submit(2, Job(promise, work))
        await asyncio.sleep(0)
        lane.check_gap(time.monotonic())
        assert promise.result is None
        lane.check_gap(time.monotonic() + 6)
        assert "Request 1 of this adapter never arrived" in str(promise.result)

    asyncio.run(wait())


def test_a_number_of_a_model_is_given_once(tmp_path: Path) -> None:
    sessions = Sessions(ServeConfig(state_path=str(tmp_path)))
    session = sessions.open("me", None, None)
    run = Run(f"{session.id}:train:0", "me", NAME, 2, ("attn",), 1, 0.0)
    model = sessions.add_model(session, 0, run)
    with pytest.raises(RequestError, match="Model 0 was made"):  # the promise of its creation is forgotten in time
        sessions.add_model(session, 0, run)
    assert sessions.models == [model]
    shutil.rmtree(tmp_path / "sessions")
    with pytest.raises(RunDirectoryError):
        sessions.open("me", None, None)
    assert len(sessions) == 1, "what cannot be noted takes up no place"


def test_a_checkpoint_that_was_being_replaced_comes_back(tmp_path: Path) -> None:
    places = [tmp_path / "runs/r:train:0/weights" / name for name in ("lost", "replaced")]
    for place in places:
        place.with_name(REPLACED + place.name).mkdir(parents=True)
    places[1].mkdir()
    (places[1] / "new").touch()
    CheckpointStore(tmp_path)
    assert sorted(os.listdir(places[0].parent)) == ["lost", "replaced"]
    assert os.listdir(places[1]) == ["new"]


def test_a_port_is_taken_before_a_model_is_loaded() -> None:
    with contextlib.closing(_listen(ServeConfig(port=0))) as first, pytest.raises(ConfigError, match="cannot be used"):
        _listen(ServeConfig(port=first.getsockname()[1]))


def test_what_is_over_is_forgotten_also_where_files_cannot_be_removed(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(ServeConfig(state_path=str(tmp_path / "state")), server.host)
    shutil.rmtree(tmp_path / "state")
    monkeypatch.setattr("assay.server.tinker.serving.SWEEP_S", 0.01)

    async def sweep() -> None:
        task = asyncio.create_task(_sweep(desk))
        await asyncio.wait([task], timeout=0.3)
        assert not task.done()
        task.cancel()

    asyncio.run(sweep())
    assert "cannot be removed" in caplog.text


def test_prompts_are_scored_also_where_the_first_to_ask_gives_up(server: Running) -> None:
    async def ask_twice() -> Any:
        release = threading.Event()
        busy = asyncio.create_task(server.host._worker.run(release.wait))  # so that both wait for the thread
        await asyncio.sleep(0)
        first, second = (asyncio.create_task(server.host.score(None, [1, 2, 3], Asked())) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        release.set()
        await busy
        return await asyncio.wait_for(second, 20)

    assert len(asyncio.run(ask_twice()).own) == 2


def test_what_is_over_leaves_memory_in_its_time(server: Running, model_folder: Path, tmp_path: Path) -> None:
    config = serve_config(model_folder, tmp_path / "state", session_idle_s=100, result_s=600)
    desk = Desk(config, server.host)

    async def work() -> None:
        session = desk.sessions.open("me", None, None)
        lora = {"rank": 2, "seed": 1}
        create = {"session_id": session.id, "model_seq_id": 0, "base_model": NAME, "lora_config": lora}
        made = str(training_calls.create_model(desk, "me", json.dumps(create).encode())["request_id"])
        await desk.promises.fetch("me", made)
        request = batch(f"{session.id}:train:0", 1, loss_fn="dro")
        failed = desk.promises.find("me", str(training_calls.forward_backward(desk, "me", request)["request_id"]))
        assert failed is not None
        await failed.done.wait()
        adapter, now = weakref.ref(session.models[0].adapter), time.monotonic()
        desk.sessions.sweep(now + 99)
        assert len(desk.sessions) == 1 and adapter() is not None
        desk.sessions.sweep(now + 101)
        until = time.monotonic() + 20  # the thread that worked on the request lets go of it a moment later
        while adapter() is not None and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert len(desk.sessions) == 0 and adapter() is None, "the error of a request still holds its adapter"
        with pytest.raises(RequestError, match="no sign of life for 100 s"):
            desk.sessions.get("me", session.id)
        desk.promises.forget(now + 299)
        assert desk.promises.find("me", made) is not None
        desk.promises.forget(now + 301)  # one was fetched
        assert desk.promises.find("me", made) is None and desk.promises.find("me", failed.id) is failed
        assert desk.promises.forget(now + 601) == 1
        with pytest.raises(RequestError, match="kept for its time"):
            await desk.promises.fetch("me", failed.id)
        desk.sessions.sweep(now + 202)
        with pytest.raises(RequestError, match="There is no session"):
            desk.sessions.get("me", session.id)

    gc.disable()  # nothing may have to wait for a search for garbage
    try:
        asyncio.run(work())
    finally:
        gc.enable()


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="is not an IP address"):
        ServeConfig(host="localhost")
    with pytest.raises(ConfigError, match=r"local\.lora_targets would have no effect"):
        ServeConfig(local=LOCAL.__class__(lora_targets="q_proj"))
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        require_keys(ServeConfig(host="0.0.0.0"), frozenset())
    with pytest.raises(ConfigError, match="at least 20"):
        require_keys(ServeConfig(host="0.0.0.0"), frozenset(["tml-short"]))
    with pytest.raises(ConfigError, match="does not begin with tml-"):
        require_keys(ServeConfig(), frozenset(["a" * 40]))
    with pytest.raises(ConfigError, match="No model to serve"):
        asyncio.run(serve(ServeConfig(), print))


def test_mistakes_are_told_before_torch_is_imported(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    (tmp_path / "file").touch()
    model, state = ["--model", str(model_folder)], f"state_path={tmp_path}/s"
    program = "import json, sys; from assay.cli.main import main\n"
    program += "for a in json.loads(sys.argv[1]): main(['serve', *a])\n"
    with contextlib.closing(_listen(ServeConfig(port=0))) as taken:
        port = taken.getsockname()[1]
        mistakes = {
            "No model to serve": [],
            "is not a folder with a config.json": ["--model", str(tmp_path)],
            "is not set: anyone could train": [*model, state, "host=0.0.0.0"],
            "Set state_path to a folder": [*model, f"state_path={tmp_path}/file/s"],
            f"Port {port} at 127.0.0.1 cannot be used": [*model, state, f"port={port}"],
        }
        command = [sys.executable, "-c", program + "print('torch' in sys.modules)", json.dumps([*mistakes.values()])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
    assert len(done.stderr.splitlines()) == len(mistakes)
    for said, line in zip(mistakes, done.stderr.splitlines(), strict=True):
        assert said in line


def test_the_command_serves_until_it_is_told_to_stop(model_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assay", "serve", "--model", str(model_folder)]
    settings = ["port=0", f"state_path={tmp_path}/s", "local.device=cpu"]
    with subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            url = next(word for word in line.split() if word.startswith("http://"))
            assert httpx.get(f"{url}/api/v1/healthz").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert os.listdir(f"{tmp_path}/s/runs") == []


def test_results_are_bounded_in_bytes() -> None:
    promises = Promises(600, 100, 10)
    body = Result(b"12345678")

    async def work() -> None:
        first, second = (promises.open("me", "sample", name)[0] for name in ("a", "b"))
        first.resolve(body)
        second.resolve(body)
        with pytest.raises(RequestError, match="wait to be fetched") as raised:
            promises.open("me", "sample", "c")
        assert raised.value.status == 429
        assert await promises.fetch("me", first.id) == body, "what nobody fetched is not given up"
        assert promises.bytes == 8 and promises.open("me", "sample", "a") == (first, False)
        gone = await promises.fetch("me", first.id)
        assert isinstance(gone, RequestError) and gone.status == 410
        assert promises.open("me", "sample", "c")[1]
        assert await promises.fetch("me", second.id) == body == await promises.fetch("me", second.id)
        promises.forget(time.monotonic() + 1000)
        assert promises.bytes == 0

    asyncio.run(work())
