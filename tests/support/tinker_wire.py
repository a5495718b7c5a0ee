"""A client of the wire of `assay serve`, which sends what a test wants, also what the SDK never would."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.response_conv import deserialize_forward_backward_output

from support.tinker_server import NAME, Running

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


def logprobs(wire: Wire, model: str, number: int, seed: int) -> list[float]:
    message = pb.ForwardBackwardRequest.FromString(batch(model, number, seed))
    message.forward_only = True
    found = deserialize_forward_backward_output(wire.do("forward_backward", message.SerializeToString()))
    return found.loss_fn_outputs[0]["logprobs"].tolist()


def ask(wire: Wire, sampler: str, number: int, **changes: Any) -> dict[str, Any]:
    params = {"max_tokens": 5, "seed": 1, **changes.pop("params", {})}
    body = {
        "sampling_session_id": sampler,
        "seq_id": number,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
    }
    return {**body, "num_samples": 1, "sampling_params": params, **changes}
