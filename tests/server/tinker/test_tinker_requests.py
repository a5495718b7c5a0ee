"""The protocol on the wire: order, repeated requests, restarts, and input that no honest client sends."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from assay.errors import ConfigError
from assay.server.tinker.config import KEY_VARIABLE, ServeConfig, require_keys
from assay.server.tinker.futures import Promise
from assay.server.tinker.lanes import Job, Lane
from assay.server.tinker.serving import serve
from support.tinker_server import LOCAL, NAME, Running, running, serve_config

STEP = {"learning_rate": 1e-2}


class Wire:
    """A client of the wire, with a session of its own."""

    def __init__(self, server: Running, key: str = "tml-one") -> None:
        self.http = server.client(key)
        made = {"tags": [], "user_metadata": None, "sdk_version": "0.38.0", "type": "create_session"}
        self.session = self.ok("create_session", made)["session_id"]

    def send(self, name: str, body: Any) -> httpx.Response:
        if isinstance(body, bytes):
            return self.http.post(name, content=body, headers={"Content-Type": "application/x-protobuf"})
        return self.http.post(name, json=body)

    def ok(self, name: str, body: Any) -> dict[str, Any]:
        answer = self.send(name, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, name: str, body: Any, status: int = 400) -> str:
        answer = self.send(name, body)
        assert answer.status_code == status, answer.text
        assert answer.json()["category"] == "user"
        return answer.json()["error"]

    def fetch(self, request_id: str) -> Any:
        answer = self.send("retrieve_future", {"request_id": request_id, "allow_metadata_only": True})
        assert answer.status_code == 200, answer.text
        return answer.content if "protobuf" in answer.headers["content-type"] else answer.json()

    def do(self, name: str, body: Any) -> Any:
        return self.fetch(self.ok(name, body)["request_id"])

    def create(self, number: int = 0, **lora: Any) -> dict[str, Any]:
        config = {"rank": 2, "seed": 1, **lora}
        return {"session_id": self.session, "model_seq_id": number, "base_model": NAME, "lora_config": config}

    def model(self, number: int = 0) -> str:
        return self.do("create_model", self.create(number))["model_id"]

    def step(self, model: str, number: int | None, **params: Any) -> dict[str, Any]:
        return {"model_id": model, "seq_id": number, "adam_params": {**STEP, **params}}


def batch(model: str, number: int, seed: int = 0, **changes: Any) -> bytes:
    """A request for the gradient of a made-up datum."""
    rng = np.random.default_rng(seed)
    message = pb.ForwardBackwardRequest(model_id=model, seq_id=number, loss_fn=changes.pop("loss_fn", "cross_entropy"))
    datum = message.data.add()
    tokens = rng.integers(1, 90, 9)
    datum.model_input.add().encoded_text.tokens = changes.pop("tokens", tokens[:-1].astype(np.int32).tobytes())
    inputs = {"target_tokens": tokens[1:], "weights": rng.normal(size=8).astype(np.float32)}
    for name, values in (inputs | changes.pop("inputs", {})).items():
        if values is not None:
            datum.loss_fn_inputs[name].dense = values.tobytes()
            datum.loss_fn_inputs[name].dtype = {"f": pb.DTYPE_FLOAT32, "i": pb.DTYPE_INT64}[values.dtype.kind]
            datum.loss_fn_inputs[name].shape.extend(values.shape)
    for name, value in changes.items():
        message.loss_fn_config_v2[name].number = value
    return message.SerializeToString()


@pytest.fixture
def wire(server: Running) -> Iterator[Wire]:
    client = Wire(server)
    yield client
    client.ok(f"sessions/{client.session}/finish", {"reason": {"type": "success"}})


def logprobs(wire: Wire, model: str, number: int, seed: int) -> list[float]:
    message = pb.ForwardBackwardRequest.FromString(batch(model, number, seed))
    message.forward_only = True
    found = deserialize_forward_backward_output(wire.do("forward_backward", message.SerializeToString()))
    return found.loss_fn_outputs[0]["logprobs"].tolist()


def test_requests_are_worked_on_by_number_however_they_arrive_and_once(wire: Wire) -> None:
    plain, shuffled = wire.model(0), wire.model(1)

    def work(model: str) -> list[tuple[str, Any]]:
        posts: list[tuple[str, Any]] = []
        for number in range(1, 13, 3):
            posts += [("forward_backward", batch(model, number + i, number + i)) for i in range(2)]
            posts.append(("optim_step", wire.step(model, number + 2)))
        return posts

    for name, body in work(plain):
        wire.do(name, body)
    mixed = work(shuffled) * 3
    random.Random(1).shuffle(mixed)
    ids = [(name, wire.ok(name, body)["request_id"]) for name, body in mixed]
    assert len({found for _, found in ids}) == 12
    steps = sorted(wire.fetch(found)["metrics"]["optimizer_step"] for name, found in set(ids) if name == "optim_step")
    assert steps == [1, 2, 3, 4]
    assert logprobs(wire, plain, 13, 50) == logprobs(wire, shuffled, 13, 50)
    assert "given to a request of the kind" in wire.refused("optim_step", wire.step(plain, 13))


def test_a_batch_that_fails_in_part_is_not_trained_on(wire: Wire) -> None:
    model = wire.model()
    before = logprobs(wire, model, 1, 50)
    wire.do("forward_backward", batch(model, 2))
    failed = wire.do("forward_backward", batch(model, 3, loss_fn="dro"))
    assert failed["category"] == "user" and "'dro' is not served here; cross_entropy, " in failed["error"]
    stepped = wire.do("optim_step", wire.step(model, 4))
    assert "No step was taken, because forward_backward with seq_id 3 failed" in stepped["error"]
    assert logprobs(wire, model, 5, 50) == before
    wire.do("forward_backward", batch(model, 6))
    assert wire.do("optim_step", wire.step(model, 7))["metrics"]["optimizer_step"] == 1
    assert logprobs(wire, model, 8, 50) != before


FAULTS = {
    "unknown key": ({"inputs": {"mask": np.ones(8, np.float32)}}, "'mask' would have no effect"),
    "no weights": ({"inputs": {"weights": None}}, "'weights' is missing"),
    "short": ({"inputs": {"weights": np.ones(7, np.float32)}}, "weights has 7 values for 8 tokens"),
    "two dimensions": ({"inputs": {"weights": np.ones((4, 2), np.float32)}}, "several targets"),
    "not finite": ({"inputs": {"weights": np.full(8, np.inf, np.float32)}}, "not finite"),
    "targets of another vocabulary": ({"inputs": {"target_tokens": np.full(8, 97)}}, "it knows 0 to 96"),
    "negative token": ({"tokens": np.full(8, -1, np.int32).tobytes()}, "does not know"),
    "no tokens": ({"tokens": b""}, "model_input is empty"),
    "half a token": ({"tokens": b"\x01\x02\x03"}, "no whole number of values"),
    "unknown setting": ({"clip": 1.0}, "'clip' would have no effect"),
    "negative setting": ({"loss_fn": "ppo", "clip_low_threshold": -1.0}, "thresholds are ratios"),
}


def test_data_that_cannot_be_trained_on_are_named(wire: Wire) -> None:
    model = wire.model()
    for number, (changes, said) in enumerate(FAULTS.values(), 1):
        assert said in wire.do("forward_backward", batch(model, number, **changes))["error"]
    number = len(FAULTS) + 1
    assert "No step was taken" in wire.do("optim_step", wire.step(model, number))["error"]
    for params in ({"learning_rate": -1.0}, {"beta1": 1.0}, {"eps": 1e400}):
        number += 1
        answer = wire.http.post("optim_step", content=json.dumps(wire.step(model, number, **params)))
        text = wire.fetch(answer.json()["request_id"])["error"] if answer.status_code == 200 else answer.json()["error"]
        assert "AdamParams" in text or "OptimStepRequest" in text


def test_what_no_honest_client_sends_is_refused_and_nothing_breaks(wire: Wire, server: Running) -> None:
    model = wire.model()
    rng = random.Random(3)
    whole = batch(model, 1)
    for _ in range(60):
        junk = bytearray(rng.randbytes(rng.randrange(200)) if rng.random() < 0.3 else whole)
        for _ in range(rng.randrange(1, 6)):
            if junk:
                junk[rng.randrange(len(junk))] = rng.randrange(256)
        assert wire.send("forward_backward", bytes(junk)).status_code in (200, 400, 404)
    texts = [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"a":' * 5000,
        b'{"session_id": 1e999}',
        b"\xff\xfe",
        b'{"model_id": "' + b"a" * 10**5,
    ]
    for name in (
        "create_session",
        "create_model",
        "optim_step",
        "save_weights",
        "asample",
        "retrieve_future",
        "weights_info",
    ):
        for text in texts:
            answer = wire.http.post(name, content=text)
            assert answer.status_code in (400, 410) and len(answer.content) < 3000, (name, text[:20], answer.text)
    assert wire.http.post("optim_step", content=b"0" * 65_000_000).status_code == 413
    assert wire.http.post("optim_step", content=b"{}", headers={"Content-Encoding": "zstd"}).status_code == 415
    assert wire.http.get("nowhere").json()["category"] == "user"
    assert wire.http.put("asample").status_code == 405
    for name in ("save_weights_external", "copy_weights", "create_custom_loss"):
        assert "is not served here" in wire.refused(name, {})
    assert "not in memory" in wire.refused("optim_step", wire.step(f"{wire.session}:train:77", 1), 404)
    for unknown in ("", "x", "../../etc", f"{wire.session}:train:-1", f"{wire.session}:train:" + "9" * 5000):
        wire.refused("optim_step", wire.step(unknown, 1), 404)
    for lora in ({"rank": 0}, {"rank": 1000}, dict.fromkeys(("train_attn", "train_mlp", "train_unembed"), False)):
        wire.refused("create_model", wire.create(5, **lora))
    assert "is not served here; 'tiny/model' is" in wire.refused(
        "create_model", {**wire.create(5), "base_model": "gpt-5"}
    )
    assert wire.model(6)


def test_names_of_checkpoints_stay_in_their_folder(wire: Wire, server: Running) -> None:
    model = wire.model()
    names = ["../up", "a/b", "/etc/passwd", "..", ".hidden", "a\0b", "", "é", "a" * 201, "weights/../../x"]
    for number, name in enumerate(names[:6], 1):
        assert (
            "cannot be the name"
            in wire.do("save_weights", {"model_id": model, "path": name, "seq_id": number})["error"]
        )
    good = wire.do("save_weights", {"model_id": model, "path": "good-1.0", "seq_id": 7})["path"]
    for path in (*names, "tinker://..", f"tinker://{model}/weights/..", f"tinker://../{model}/weights/good-1.0",
                 f"tinker://{model}/secrets/good-1.0", good + "/..", "file:///etc/passwd"):  # fmt: skip
        wire.refused("weights_info", {"tinker_path": path})
    run, _, name = good.removeprefix("tinker://").split("/")
    for address in (
        f"{run}/checkpoints/weights/..%2f..%2f{name}/archive",
        f"..%2f{run}/checkpoints/weights/{name}/archive",
    ):
        assert wire.http.get(f"training_runs/{address}").status_code in (400, 404)
    stranger = Wire(server, "tml-two")
    for name, body in {
        "weights_info": {"tinker_path": good},
        "create_sampling_session": {"session_id": stranger.session, "sampling_session_seq_id": 0, "model_path": good},
        "load_weights": {"session_id": stranger.session, "model_seq_id": 0, "path": good, "optimizer": True},
        "optim_step": wire.step(model, 8),
        "session_heartbeat": {"session_id": wire.session},
    }.items():
        stranger.refused(name, body, 404)
    pending = wire.ok("optim_step", wire.step(model, 8))["request_id"]
    stranger.refused("retrieve_future", {"request_id": pending}, 404)
    for method in ("GET", "DELETE"):
        answer = stranger.http.request(
            method, f"training_runs/{run}/checkpoints/weights/good-1.0" + "/archive" * (method == "GET")
        )
        assert answer.status_code == 404 and "key may use" in answer.json()["error"]
    shared = {"session_id": stranger.session, "model_seq_id": 0, "path": good, "optimizer": True}
    assert stranger.do("load_weights", {**shared, "weights_access_token": "tml-one"})["type"] == "load_weights"


def test_weights_are_loaded_first_or_not_at_all(wire: Wire) -> None:
    source, model, late = wire.model(0), wire.model(1), wire.model(2)
    wire.do("forward_backward", batch(source, 1))
    wire.do("optim_step", wire.step(source, 2))
    path = wire.do("save_weights", {"model_id": source, "path": "a", "seq_id": 3})["path"]
    load = {"model_id": model, "seq_id": 1, "path": path, "optimizer": False}
    assert wire.do("load_weights", load)["model_id"] == model
    assert logprobs(wire, model, 2, 50) == logprobs(wire, source, 4, 50)
    wire.do("forward_backward", batch(late, 1))
    refused = wire.do("load_weights", {**load, "model_id": late, "seq_id": 2})
    assert "LoadWeights is not permitted with seq_id 2" in refused["error"]


def ask(wire: Wire, sampler: str, number: int, **changes: Any) -> dict[str, Any]:
    params = {"max_tokens": 5, "seed": 1, **changes.pop("params", {})}
    body = {
        "sampling_session_id": sampler,
        "seq_id": number,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
    }
    return {**body, "num_samples": 1, "sampling_params": params, **changes}


def chunk(tokens: list[int]) -> dict[str, Any]:
    return {"prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]}}


SAMPLING_FAULTS: list[tuple[dict[str, Any], str]] = [
    (chunk([]), "prompt is empty"),
    (chunk([97]), "it knows 0 to 96"),
    (chunk([1] * 40000), "40000 tokens"),
    ({"num_samples": 0}, "out of range"),
    ({"num_samples": 10**6}, "out of range"),
    ({"params": {"max_tokens": 0}}, "at least 1"),
    ({"params": {"temperature": -1.0}}, "temperature"),
    ({"params": {"top_p": 0.0}}, "top_p"),
    ({"params": {"top_k": 0}}, "top_k"),
    ({"params": {"stop": [500]}}, "it knows 0 to 96"),
    ({"params": {"stop": ["a" * 1000]}}, "1 to 256 characters"),
    ({"topk_prompt_logprobs": 10**9}, "topk_prompt_logprobs"),
    ({"topk_sample_logprobs": -1}, "topk_sample_logprobs"),
    ({"prompt_logprobs_last_n": 1}, "needs prompt_logprobs"),
    ({"target_prompt_logprobs": {"data": [1], "dtype": "int64", "shape": [9, 1]}}, "must have the shape [1, K]"),
    ({"record_stability_info": True}, "not served here"),
]


def test_requests_to_sample_are_repeated_cancelled_and_checked(wire: Wire) -> None:
    session = {"session_id": wire.session, "sampling_session_seq_id": 0, "base_model": NAME}
    sampler = wire.ok("create_sampling_session", session)["sampling_session_id"]
    assert wire.ok("create_sampling_session", session)["sampling_session_id"] == sampler
    first, again = (wire.ok("asample", ask(wire, sampler, 0, num_samples=2)) for _ in range(2))
    assert first == again and len(first["sample_sequence_ids"]) == 2
    found = deserialize_sample_response(wire.fetch(first["request_id"]))
    assert [len(s.tokens) for s in found.sequences] == [5, 5]
    assert wire.fetch(first["request_id"]) == wire.fetch(first["request_id"]), "a result is kept after it was fetched"
    for number, (changes, said) in enumerate(SAMPLING_FAULTS, 1):
        assert said in wire.do("asample", ask(wire, sampler, number, **json.loads(json.dumps(changes))))["error"]
    image = {"prompt": {"chunks": [{"type": "image", "data": "aGk=", "format": "png"}]}}
    assert "not text" in wire.do("asample", ask(wire, sampler, 90, **image))["error"]
    long = wire.ok("asample", ask(wire, sampler, 91, num_samples=8, params={"max_tokens": 8000, "stop": []}))[
        "request_id"
    ]
    wire.ok("cancel_future", {"request_id": long})
    assert wire.fetch(long)["error"] == "The request was cancelled."
    wire.refused("asample", ask(wire, f"{wire.session}:sample:5", 0), 404)
    assert wire.http.get(f"samplers/{sampler}").json() == {
        "sampler_id": sampler,
        "base_model": NAME,
        "model_path": None,
    }


def test_a_full_disk_fails_the_save_and_nothing_else(wire: Wire, tmp_path: Path) -> None:
    model = wire.model()
    save = {"model_id": model, "path": "full"}
    first = wire.do("save_weights", {**save, "seq_id": 1})["path"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        failed = wire.do("save_weights", {**save, "seq_id": 2, "overwrite": True})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failed["category"] == "server" and "cannot write its files" in failed["error"]
    assert "/" not in failed["error"], "a path of the server"
    listed = wire.http.get(f"training_runs/{model}/checkpoints").json()["checkpoints"]
    assert [c["tinker_path"] for c in listed] == [first]
    assert wire.do("save_weights", {**save, "seq_id": 3, "overwrite": True})["path"] == first


def test_metrics_and_what_needs_no_key(wire: Wire, server: Running) -> None:
    values = dict(line.split() for line in httpx.get(f"{server.url}/metrics").text.splitlines())
    assert float(values["assay_serve_sessions"]) >= 1 and 'assay_serve_requests_total{outcome="user"}' in values
    assert httpx.get(f"{server.url}/api/v1/healthz").json() == {"status": "ok"}
    rebound = httpx.get(f"{server.url}/api/v1/sessions", headers={"Host": "evil.example"})
    assert rebound.status_code == 421


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
