"""The protocol on the wire: order, repeated requests, and input that no honest client sends."""

from __future__ import annotations

import json
import random
import resource
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker", reason="the Tinker SDK is not installed: pip install '.[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")

from tinker.proto.response_conv import deserialize_sample_response

from support.tinker_server import NAME, Running
from support.tinker_wire import Wire, ask, batch, logprobs


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
    "two targets for a position": ({"inputs": {"target_tokens": np.ones((8, 2), np.int64)}}, "several targets"),
    "a loss of sequences": ({"loss_fn": "gspo"}, "Write others with forward_backward_custom"),
    "a loss with stability": ({"loss_fn": "stable_reinforce"}, "'stable_reinforce' is not served here"),
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
    assert wire.http.post("optim_step", content=b"0" * 100_000_000).status_code == 413
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
    refused = wire.do("load_weights", {**load, "model_id": late, "seq_id": None})
    assert "LoadWeights is not permitted with seq_id 0" in refused["error"]


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
    two = ask(wire, sampler, 0, num_samples=2, params={"stop": []})
    first, again = (wire.ok("asample", two) for _ in range(2))
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


def test_a_full_disk_fails_the_save_and_nothing_else(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
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
    assert "set state_path to" in caplog.text and "log_path" not in caplog.text
    listed = wire.http.get(f"training_runs/{model}/checkpoints").json()["checkpoints"]
    assert [c["tinker_path"] for c in listed] == [first]
    assert wire.do("save_weights", {**save, "seq_id": 3, "overwrite": True})["path"] == first
